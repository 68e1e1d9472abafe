"""The API of files: people list, take, put and delete what is in their workspace with an agent."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.test import Client

from nanohost.accounts import holds
from nanohost.accounts.models import EVERY_AGENT, ApiKey, AuditEntry
from tests.support.api_client import key_of, problem
from tests.support.hosts import Host
from tools.workspace import beneath
from tools.workspace.store import open_workspace

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]

FILES = "/api/v1/agents/default/files"
PAGE = b"<script>alert(1)</script>\x00\xff"


@pytest.fixture(scope="module")
def people(host: Host) -> Iterator[tuple[httpx2.Client, httpx2.Client]]:
    with host.client(key_of(host, "anna of files")) as anna, host.client(key_of(host, "ben of files")) as ben:
        yield anna, ben


def test_a_file_is_put_listed_taken_and_deleted_over_http(people: tuple[httpx2.Client, httpx2.Client]) -> None:
    anna, ben = people
    of_anna = "/agents/default/files/notes/page.html"
    sent = {"base64": base64.b64encode(PAGE).decode()}
    told = {"path": "notes/page.html", "bytes": len(PAGE)}
    assert (made := anna.put(of_anna, json=sent)).status_code == 201, made.text
    assert made.json() == told | {"replaced": False}
    assert anna.put(of_anna, json=sent).json() == told | {"replaced": True}
    (folder,) = anna.get("/agents/default/files").json()
    (file,) = anna.get("/agents/default/files?path=notes").json()
    assert (folder["path"], folder["kind"]) == ("notes", "folder")
    assert (file["path"], file["kind"], file["bytes"]) == ("notes/page.html", "file", len(PAGE))
    assert anna.get(of_anna).content == PAGE
    problem(ben.get(of_anna), 404, "not_found")
    problem(ben.delete(of_anna), 404, "not_found")
    assert ben.get("/agents/default/files").json() == []
    assert (anna.delete(of_anna).status_code, anna.delete(of_anna).status_code) == (204, 404)


def test_a_file_of_the_allowed_size_passes_the_gateway(people: tuple[httpx2.Client, httpx2.Client]) -> None:
    anna, _ = people
    sent = {"base64": base64.b64encode(bytes(4_500_000)).decode()}
    assert anna.put("/agents/default/files/large.bin", json=sent).status_code == 201
    anna.delete("/agents/default/files/large.bin")


@pytest.fixture(autouse=True)
def workspaces(settings: Any, tmp_path: Path) -> Path:
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    return tmp_path / "workspaces"


@pytest.fixture
def api(owner: Any) -> Client:
    _, key = ApiKey.objects.issue(owner=owner, agent_names=[EVERY_AGENT])
    return Client(headers={"Authorization": f"Bearer {key}"})


def put(api: Client, path: str, **body: str) -> Any:
    return api.put(f"{FILES}/{path}", json.dumps(body), content_type="application/json", secure=True)


def test_a_download_is_one_that_no_browser_runs(api: Client) -> None:
    put(api, "a b\u00e9.html", content="<script>")
    answer = api.get(f"{FILES}/a b\u00e9.html", secure=True)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith(
        "attachment; filename=\"a b_.html\"; filename*=UTF-8''a%20b"
    )
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; sandbox;")
    assert answer.headers["Cache-Control"] == "private, no-store"


def test_what_is_put_is_untrusted_for_the_agent(api: Client, owner: Any) -> None:
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("a.txt", b"mine", trusted=True)
        assert workspace.is_trusted("a.txt", b"mine")
        put(api, "a.txt", content="mine")
        assert not workspace.is_trusted("a.txt", b"mine")


@pytest.mark.parametrize(
    "body", [{}, {"content": "a", "base64": "YQ=="}, {"base64": "Y"}, {"base64": "\u00e9"}, {"x": 1}]
)
def test_a_body_that_names_no_content_is_refused(api: Client, body: dict[str, str], workspaces: Path) -> None:
    answer = put(api, "a.txt", **body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert not list(workspaces.glob("*/*/files/*"))


@pytest.mark.parametrize("path", ["../a.txt", "a/../../b", "/etc/passwd", "a\u202eb", "x" * 256, "d/" * 33 + "a", "."])
def test_a_path_that_is_none_is_refused_by_every_route(api: Client, path: str, workspaces: Path) -> None:
    quoted = path.replace("/", "%2F")
    asked = [api.get(f"{FILES}/{quoted}", secure=True), put(api, quoted, content="x"),
             api.delete(f"{FILES}/{quoted}", secure=True)]  # fmt: skip
    assert [(each.status_code, each.json()["code"]) for each in asked] == [(400, "invalid_request")] * 3
    assert not [each for each in workspaces.rglob("*") if each.is_file() and each.name != "lock"]


def test_links_lead_nowhere(api: Client, owner: Any, workspaces: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_text("secret")
    with open_workspace(agent="default", owner_id=owner.pk):
        files = workspaces / "default" / str(owner.pk) / "files"
    (files / "soft").symlink_to(outside)
    (files / "up").symlink_to(tmp_path)
    os.link(outside, files / "hard")
    os.mkfifo(files / "fifo")
    for name in ("soft", "up/secret", "hard", "fifo"):
        for answer in (api.get(f"{FILES}/{name}", secure=True), put(api, name, content="x")):
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), name
    assert {each["kind"] for each in api.get(FILES, secure=True).json()} == {"other"}
    assert outside.read_text() == "secret"


def test_a_workspace_that_is_full_says_so_and_keeps_what_it_has(api: Client, settings: Any) -> None:
    settings.WORKSPACE_FILE_MAX_BYTES, settings.WORKSPACE_MAX_BYTES, settings.WORKSPACE_MAX_FILES = 10, 15, 1
    assert put(api, "a", content="x" * 10).status_code == 201
    for path, size, why in [("a", 11, "may have 10"), ("b", 6, "is full"), ("c", 1, "is full")]:
        answer = put(api, path, content="x" * size)
        assert (answer.status_code, answer.json()["code"]) == (422, "workspace_full")
        assert why in answer.json()["detail"]
    assert [(each["path"], each["bytes"]) for each in api.get(FILES, secure=True).json()] == [("a", 10)]


def test_a_protected_file_is_read_and_not_changed(api: Client, settings: Any) -> None:
    put(api, "policy/a.md", content="kept")
    settings.WORKSPACE_PROTECTED_PATHS = ["policy/**"]
    for answer in (put(api, "policy/a.md", content="x"), api.delete(f"{FILES}/policy/a.md", secure=True)):
        assert (answer.status_code, answer.json()["code"]) == (403, "file_protected")
    assert api.get(f"{FILES}/policy/a.md", secure=True).content == b"kept"


def test_under_a_legal_hold_nothing_is_deleted(api: Client, owner: Any) -> None:
    put(api, "a.txt", content="kept")
    hold = holds.place(kind="owner", owner_id=owner.pk, reason="A matter.", by="admin")
    answer = api.delete(f"{FILES}/a.txt", secure=True)
    assert (answer.status_code, answer.json()["code"]) == (409, "legal_hold")
    assert f"legal hold {hold.pk}" in answer.json()["detail"]
    assert api.get(f"{FILES}/a.txt", secure=True).content == b"kept"
    assert put(api, "a.txt", content="other").json()["code"] == "legal_hold"
    assert api.get(f"{FILES}/a.txt", secure=True).content == b"kept"
    assert put(api, "b.txt", content="new").status_code == 201
    holds.release(hold, reason="Settled.", by="admin")
    assert put(api, "a.txt", content="other").status_code == 200


def test_the_audit_log_says_who_put_and_deleted_what_by_hashes(api: Client, owner: Any) -> None:
    put(api, "diary/of-me.txt", content="secret words")
    api.delete(f"{FILES}/diary/of-me.txt", secure=True)
    api.delete(f"{FILES}/diary/of-me.txt", secure=True)  # which is not found, and changes nothing
    entries = list(AuditEntry.objects.filter(object_type="workspace").order_by("pk"))
    assert [each.action for each in entries] == ["file.put", "file.deleted"]
    told = json.loads(entries[0].after)
    assert (told["agent"], told["owner"], told["bytes"], told["replaced"]) == ("default", owner.pk, 12, False)
    assert told["sha256"] == hashlib.sha256(b"secret words").hexdigest()
    assert told["pathSha256"] == hashlib.sha256(b"diary/of-me.txt").hexdigest()
    for entry in entries:
        assert entry.actor.endswith("of owner")
        assert "of-me" not in entry.after + entry.object_name
