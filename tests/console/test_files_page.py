"""The console's pages of workspace files: seen, taken, put there, removed and undone, by those who may."""

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from agent.models import Agent
from nanohost.accounts import holds
from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER, sync_roles
from tests.support.console_client import ANONYMOUS, HOSTILE, NOBODY, STRANGER, client_of, page
from tests.support.factories import OwnerFactory
from tools.workspace import beneath
from tools.workspace.store import open_workspace

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]

PAGE = b"<script>alert(1)</script>\x00\xff"


@pytest.fixture(autouse=True)
def workspaces(settings: Any, tmp_path: Path) -> Path:
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    return tmp_path / "workspaces"


@pytest.fixture
def boss(db: Any) -> Client:
    sync_roles()
    return client_of(ADMIN)


def address(view: str, agent: Agent, owner: User) -> str:
    return page("agent_agent", view, agent.pk, owner.pk)


def put(client: Client, agent: Agent, owner: User, *, path: str = "", name: str = "", content: bytes = PAGE) -> Any:
    form = {"path": path, "name": name, "file": SimpleUploadedFile("page.html", content)}
    return client.post(address("file_put", agent, owner), form, follow=True)


def act(client: Client, view: str, agent: Agent, owner: User, path: str) -> Any:
    return client.post(address(view, agent, owner), {"path": path}, follow=True)


def content_of(agent: Agent, owner: User, path: str) -> bytes | None:
    with open_workspace(agent=agent.name, owner_id=owner.pk) as workspace:
        try:
            return workspace.read(path)
        except FileNotFoundError:
            return None


def deeds() -> list[str]:
    return list(AuditEntry.objects.filter(action__startswith="file.").order_by("pk").values_list("action", flat=True))


def test_a_file_is_put_seen_taken_removed_and_its_removal_undone(boss: Client, agent: Agent, owner: User) -> None:
    assert "was put there" in put(boss, agent, owner, path="notes").content.decode()
    folder = boss.get(address("folder", agent, owner)).content.decode()
    assert "notes" in folder
    notes = boss.get(address("folder", agent, owner), {"path": "notes"}).content.decode()
    assert "page.html" in notes
    assert f">{len(PAGE)}<" in notes
    taken = boss.get(address("file_take", agent, owner), {"path": "notes/page.html"})
    assert taken.content == PAGE
    assert "was removed" in act(boss, "file_remove", agent, owner, "notes/page.html").content.decode()
    assert content_of(agent, owner, "notes/page.html") is None
    assert "was undone" in act(boss, "file_undo", agent, owner, "notes/page.html").content.decode()
    assert content_of(agent, owner, "notes/page.html") == PAGE
    assert deeds() == ["file.put", "file.taken", "file.deleted", "file.undone"]
    assert {each.actor for each in AuditEntry.objects.filter(action__startswith="file.")} == {"user of admin"}


def test_what_is_put_under_a_name_is_there_by_it_and_is_untrusted(boss: Client, agent: Agent, owner: User) -> None:
    with open_workspace(agent=agent.name, owner_id=owner.pk) as workspace:
        workspace.write("a/b.txt", b"mine", trusted=True)
        assert "was replaced" in put(boss, agent, owner, path="a", name="b.txt", content=b"mine").content.decode()
        assert not workspace.is_trusted("a/b.txt", b"mine")


def test_a_download_is_one_that_no_browser_runs(boss: Client, agent: Agent, owner: User) -> None:
    put(boss, agent, owner)
    answer = boss.get(address("file_take", agent, owner), {"path": "page.html"})
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="page.html"')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_names_are_shown_and_mean_nothing(boss: Client, agent: Agent, owner: User) -> None:
    with open_workspace(agent=agent.name, owner_id=owner.pk) as workspace:
        workspace.write(HOSTILE.replace("/", ""), b"x", trusted=True)
    shown = boss.get(address("folder", agent, owner)).content.decode()
    assert "&lt;script&gt;alert" in shown
    assert "<script>alert" not in shown


@pytest.mark.parametrize("path", ["../a.txt", "/etc/passwd", "a\u202eb", "x" * 256, "a\x00b", "nothing/here"])
def test_a_path_that_is_none_is_told_and_nothing_is_done(
    boss: Client, agent: Agent, owner: User, path: str, workspaces: Path
) -> None:
    asked = [
        boss.get(address("file_take", agent, owner), {"path": path}, follow=True),
        act(boss, "file_remove", agent, owner, path),
        act(boss, "file_undo", agent, owner, path),
    ]
    if "here" not in path:
        asked.append(put(boss, agent, owner, name=path))
    assert boss.get(address("folder", agent, owner), {"path": path}).status_code in (400, 404)
    assert all('id="folder"' in each.content.decode() for each in asked)
    assert deeds() == []
    assert not list(workspaces.glob("*/*/files/*"))


def test_a_form_without_a_file_and_one_that_is_too_large_are_refused(
    boss: Client, agent: Agent, owner: User, settings: Any
) -> None:
    answer = boss.post(address("file_put", agent, owner), {"path": ""}, follow=True)
    assert "No file was chosen." in answer.content.decode()
    settings.WORKSPACE_FILE_MAX_BYTES = 10
    assert "a file may have 10" in put(boss, agent, owner).content.decode()
    assert deeds() == []


def test_what_is_protected_or_under_a_hold_stays(boss: Client, agent: Agent, owner: User, settings: Any) -> None:
    put(boss, agent, owner, name="kept.txt")
    holds.place(kind="owner", owner_id=owner.pk, reason="a claim", by="the lawyer")
    for view in ("file_remove", "file_undo"):  # it was new, and would be gone
        assert "legal hold" in act(boss, view, agent, owner, "kept.txt").content.decode()
    assert "legal hold" in put(boss, agent, owner, name="kept.txt", content=b"other").content.decode()
    assert content_of(agent, owner, "kept.txt") == PAGE
    settings.WORKSPACE_PROTECTED_PATHS = ["kept.txt"]
    put(boss, agent, owner, name="kept.txt", content=b"other")
    assert content_of(agent, owner, "kept.txt") == PAGE


def test_what_is_of_nobody_has_no_page_and_makes_no_folder(boss: Client, agent: Agent, workspaces: Path) -> None:
    for agent_id, owner_id in ((agent.pk, 4711), (4711, 1), (agent.pk, 2**63)):
        assert boss.get(page("agent_agent", "folder", agent_id, owner_id)).status_code == 404
        for view in ("file_put", "file_remove", "file_undo"):
            assert boss.post(page("agent_agent", view, agent_id, owner_id), {"path": "a"}).status_code == 404
    assert not list(workspaces.glob("*/*"))


def test_owners_with_files_are_listed_and_a_shared_workspace_is_one(
    boss: Client, agent: Agent, owner: User, settings: Any
) -> None:
    other = OwnerFactory(username="without files")
    put(boss, agent, owner)
    listed = boss.get(page("agent_agent", "files", agent.pk)).content.decode()
    assert address("folder", agent, owner) in listed
    assert address("folder", agent, other) not in listed
    settings.WORKSPACE_SHARED = True
    answer = boss.get(page("agent_agent", "files", agent.pk), follow=True)
    assert "all owners" in answer.content.decode()
    assert boss.get(address("folder", agent, owner)).status_code == 404


@pytest.mark.parametrize("role", [ANONYMOUS, STRANGER, NOBODY, *ROLES])
def test_who_sees_takes_and_changes_files(agent: Agent, owner: User, role: str) -> None:
    sync_roles()
    with open_workspace(agent=agent.name, owner_id=owner.pk) as workspace:
        workspace.write("page.html", PAGE, trusted=True)
    client = client_of(role)
    sees = {VIEWER: 200, OPERATOR: 200, ADMIN: 200, NOBODY: 403}.get(role, 302)
    assert client.get(address("folder", agent, owner)).status_code == sees
    assert client.get(address("file_take", agent, owner), {"path": "page.html"}).status_code == sees
    if sees == 200:
        html = client.get(address("folder", agent, owner)).content.decode()
        assert ("Remove" in html) == (role == ADMIN)
    for view in ("file_put", "file_undo", "file_remove"):
        client.post(address(view, agent, owner), {"path": "page.html"})
    assert (content_of(agent, owner, "page.html") == PAGE) == (role != ADMIN)


def test_forms_without_a_token_change_nothing(agent: Agent, owner: User) -> None:
    sync_roles()
    with open_workspace(agent=agent.name, owner_id=owner.pk) as workspace:
        workspace.write("page.html", PAGE, trusted=True)
    User.objects.create_superuser("root")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="root"))
    for view in ("file_remove", "file_undo", "file_put"):
        assert client.post(address(view, agent, owner), {"path": "page.html"}).status_code == 403
        assert client.get(address(view, agent, owner), {"path": "page.html"}).status_code == 405
    assert content_of(agent, owner, "page.html") == PAGE
