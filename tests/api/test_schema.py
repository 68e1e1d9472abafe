"""The OpenAPI document and the running host, held against each other by schemathesis."""

import html
import os
import re
import subprocess
import sys
from datetime import date, timedelta
from functools import cache
from threading import Barrier
from typing import Any
from uuid import UUID

import httpx2
import pytest
import schemathesis
import yaml
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import ignored_auth

from conversations.attachments.parts import MAX_PARTS
from nanohost.lib import openapi
from tests.support.hosts import KEY, ROOT, Host
from tests.support.schemas import lend_an_id, own_host
from tests.support.threads import in_threads

CONFIG = SchemathesisConfig.from_dict(
    {
        "seed": 1,
        # A database stores no NUL in a text, and JSON Schema has no way to say so of every text inside `metadata`;
        # test_api_bad_input.py holds that it is refused.
        # A query parameter nobody knows is ignored, as on the web at large: proxies and browsers add their own.
        "generation": {
            "max-examples": 2,  # besides those that cover each keyword of the schema, of which there are a thousand
            "deterministic": True,
            "allow-x00": False,
            "allow-extra-parameters": False,
            # Each request carries a good key; keys have a matrix of their own.
            "with-security-parameters": False,
        },
    }
)


@cache
def document() -> dict[str, Any]:
    return SchemaGenerator().get_schema(request=None, public=True)


host = pytest.fixture(scope="module")(own_host)


@pytest.fixture
def documented(request: pytest.FixtureRequest) -> Any:
    """Made by the process that runs these tests: to make up the requests takes seconds, and every process collects."""
    lend_an_id(request.node)
    return schemathesis.openapi.from_dict(document(), config=CONFIG)


schema = schemathesis.pytest.from_fixture("documented")


def use_real_things(host: Host, case: Any) -> None:
    """Put things that exist in the place of values that merely fit: the schema cannot list ids, agents and cursors."""
    with host.client() as client:
        if is_uuid(case.path_parameters.get("conversation_id")):
            case.path_parameters["conversation_id"] = client.post("/conversations").json()["conversationId"]
        if all(is_uuid(case.path_parameters.get(name)) for name in ("conversation_id", "message_id")):
            path = f"/conversations/{case.path_parameters['conversation_id']}"
            client.post(f"{path}/chat", json={"message": "Hello"})
            case.path_parameters["message_id"] = client.get(f"{path}/messages").json()["results"][0]["id"]
        if is_uuid(case.path_parameters.get("turn_id")):
            conversation_id = client.post("/conversations").json()["conversationId"]
            answer = client.post(f"/conversations/{conversation_id}/chat", json={"message": "Hello"})
            case.path_parameters["turn_id"] = answer.json()["turnId"]
        if is_uuid(case.path_parameters.get("schedule_id")):
            yearly = {"prompt": "Hello", "cron": "0 9 24 12 *"}
            case.path_parameters["schedule_id"] = client.post("/schedules", json=yearly).json()["scheduleId"]
        if is_uuid(case.path_parameters.get("deferred_id")):
            conversation_id = client.post("/conversations").json()["conversationId"]
            note = {"message": "Hello", "onWake": True}
            answer = client.post(f"/conversations/{conversation_id}/messages", json=note)
            case.path_parameters["deferred_id"] = answer.json()["messageId"]
    if case.method == "POST" and case.path.endswith(("/chat", "/turns", "/messages")):
        if not isinstance(case.body, dict | list | str | int | float | None):
            case.body, case.media_type = {}, "application/json"
        if isinstance(case.body, dict):
            say_one_thing(case.body)
    if isinstance(case.body, dict) and case.body.get("onWake") is True and case.body.get("trigger") is True:
        del case.body["trigger"]  # OpenAPI cannot say that the two exclude each other
    if case.path.endswith("/schedules/preview") and not isinstance(case.body, dict | list | str | int | float | None):
        case.body, case.media_type = {}, "application/json"  # OpenAPI cannot say that one of its fields is needed
    is_new = case.method == "POST" and case.path.endswith(("/schedules", "/schedules/preview"))
    if (is_new or case.method == "PATCH") and isinstance(case.body, dict):
        use_real_times(case.body, is_new=is_new)
    for place in (case.query, case.body):
        if isinstance(place, dict) and is_agent(place.get("agent")):
            place["agent"] = "default"
    if isinstance(case.body, dict) and str(case.body.get("key")).startswith("heartbeat:"):
        case.body["key"] = "telegram:1"  # OpenAPI cannot say that this channel is the host's own
    form = case.body.get("response_format") if isinstance(case.body, dict) else None
    if (
        isinstance(form, dict)
        and isinstance(named := form.get("json_schema"), dict)
        and isinstance(named.get("schema"), dict)
    ):
        named["schema"] = {"type": "object"}  # OpenAPI cannot say what a JSON Schema is
    if isinstance(case.body, dict) and is_model(case.body.get("model")):
        case.body["model"] = "gpt-4.1-mini"
    if case.path.endswith("/usage") and isinstance(case.query, dict):
        # OpenAPI cannot say that the one is no later than the other, and not long before it.
        real_days = {"from": f"{date.today() - timedelta(days=7)}", "to": f"{date.today()}"}
        case.query.update({name: day for name, day in real_days.items() if is_day(case.query.get(name))})
    if isinstance(case.query, dict) and isinstance(case.query.get("cursor"), str):
        if case.path.endswith("v1/turns"):  # a turn's id
            if is_uuid(case.query["cursor"]):
                del case.query["cursor"]
        else:
            case.query["cursor"] = ""


def say_one_thing(body: dict[str, Any]) -> None:
    """OpenAPI cannot say that one of the two is needed, and not both, nor what makes a real file of a part. What does
    not fit stays."""
    if "content" in body and not is_content(body["content"]):
        return
    if "message" in body:
        body.pop("content", None)
    elif "content" in body:
        body["content"] = [{"type": "text", "text": "Hello"}]
    else:
        body["message"] = "Hello"


def is_content(value: Any) -> bool:
    if isinstance(value, list):
        texts = all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in value)
        return texts and len(value) <= MAX_PARTS and all(part.get("type") in TYPES for part in value)
    return isinstance(value, str)


def use_real_times(body: dict[str, Any], *, is_new: bool) -> None:
    """Put times that exist in the place of those that merely fit, and one kind of them; what does not fit stays."""
    longest = {"at": 64, "cron": 200, "zone": 64, "endsAt": 64}
    texts = {name: body[name] for name in longest if body.get(name) is not None}
    seconds = body.get("everySeconds")
    if not all(isinstance(text, str) and 1 <= len(text) <= longest[name] for name, text in texts.items()):
        return
    if seconds is not None and not (type(seconds) is int and 60 <= seconds <= 3660 * 86_400):
        return
    real = {"at": "2126-12-24T09:00", "cron": "0 9 24 12 *", "zone": "Europe/Berlin", "endsAt": "2127-01-01"}
    body.update({name: real[name] for name in texts})
    kinds = [name for name in ("everySeconds", "at", "cron") if body.get(name) is not None]
    for name in kinds[:-1]:
        body[name] = None
    if is_new and not kinds:
        body["cron"] = real["cron"]
    if is_uuid(body.get("conversationId")):
        body["conversationId"] = None
    if is_destination(body.get("deliverTo")):
        body["deliverTo"] = {}  # no agent here has been given one


TYPES = ("text", "image_url", "file", "image", "input_text", "input_image", "input_file")


def is_uuid(value: Any) -> bool:
    try:
        return str(UUID(value)) == value
    except (ValueError, TypeError, AttributeError):
        return False


def is_destination(value: Any) -> bool:
    name = value.get("destination", "") if isinstance(value, dict) and set(value) <= {"destination"} else None
    return isinstance(name, str) and len(name) <= 32


def is_day(value: Any) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except (ValueError, TypeError):
        return False


def is_model(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 128


def is_agent(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64


@pytest.mark.timeout(1200)  # bounds a hang: it is a hundred routes
@pytest.mark.embedded(reason="what a route takes is decided in the same code; test_api_bad_input.py is on both")
@schema.parametrize()
def test_the_host_does_as_its_schema_says(case: Any, host: Host) -> None:
    use_real_things(host, case)
    headers = {"Authorization": f"Bearer {KEY}"}
    case.call_and_validate(base_url=host.address, headers=headers, timeout=30, excluded_checks=[ignored_auth])


def test_every_route_is_in_the_schema(host: Host) -> None:
    from conversations.api.urls import urlpatterns as of_conversations
    from nanohost.console.usage_api import urlpatterns as of_usage
    from scheduler.api.urls import urlpatterns as of_schedules

    documented = yaml.safe_load(httpx2.get(f"{host.address}/api/schema").text)
    assert documented == yaml.safe_load(OpenApiYamlRenderer().render(document()))
    there_are = of_conversations + of_schedules + of_usage
    routes = {re.sub(r"<\w+:(\w+)>", r"{\1}", f"/api/v1/{route.pattern}") for route in there_are}
    assert routes == set(documented["paths"])


DOCUMENTS = {"/api/schema": "nanohost", "/api/schema/openai": "nanohost, as OpenAI's API"}
# What once had the document be another, or made it anew.
WAYS = [
    {},
    {"query_params": {"version": "2"}},
    {"query_params": {"lang": "de"}},
    {"headers": {"Accept": "application/json; indent=8"}},
    {"headers": {"Authorization": "Bearer nh_x", "Host": "127.0.0.1", "X-Forwarded-Host": "elsewhere.example"}},
]


@pytest.mark.embedded(reason="a process makes it in the same way")
def test_a_process_makes_each_document_once_however_many_ask_at_once(monkeypatch):
    """It is open to everybody, and to make it takes a third of a second of the processor."""
    made, make = [], SchemaGenerator.get_schema

    def counted(generator, *args, **options):
        made.append(type(generator))
        return make(generator, *args, **options)

    monkeypatch.setattr(SchemaGenerator, "get_schema", counted)
    openapi.forget()
    asked = [(address, way) for address in DOCUMENTS for way in WAYS]
    together = Barrier(len(asked))

    def asking(address, way):
        def ask():
            together.wait(30)
            return address, Client().get(address, **way)

        return ask

    answers = in_threads([asking(*each) for each in asked])
    assert len(made) == len(set(made)) == 2
    for address, title in DOCUMENTS.items():
        found = [answer for each, answer in answers if each == address]
        assert {answer.status_code for answer in found} == {200}
        assert len({answer.content for answer in found}) == 1
        assert found[0].json()["info"]["title"] == title
        assert {answer["Content-Disposition"] for answer in found} == {f'inline; filename="{title}.json"'}
        assert {answer["Content-Type"] for answer in found} == {"application/vnd.oai.openapi+json"}


def test_every_route_declares_that_it_needs_a_key() -> None:
    operations = [operation for path in document()["paths"].values() for operation in path.values()]
    assert operations
    # The second is of whoever is signed in with a browser.
    assert all(operation.get("security") == [{"apiKey": []}, {"browser": []}] for operation in operations)


def test_the_schema_is_valid_and_made_without_warnings(tmp_path) -> None:
    made = subprocess.run(
        [sys.executable, "manage.py", "spectacular", "--validate", "--fail-on-warn"],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "nanohost.settings", "DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr


def policy_of(page: httpx2.Response) -> set[str]:
    """Of the contents of a page, the nonce of its own styles aside."""
    return set(re.sub(r" 'nonce-[^']+'", "", page.headers["content-security-policy"]).split("; "))


def test_the_docs_need_no_other_server(host: Host) -> None:
    page = httpx2.get(f"{host.address}/api/docs")
    assert page.status_code == 200
    assert policy_of(page) == policy_of(httpx2.get(f"{host.address}/admin/login/"))
    assert not re.search(r"<style|<script(?! src=)", page.text)
    assert not re.search(r"(?:https?:)?//(?!127\.0\.0\.1)[a-z0-9.-]+\.[a-z]", page.text)
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) == 5
    for asset in assets:
        answer = httpx2.get(f"{host.address}{html.unescape(asset)}")
        assert answer.status_code == 200, asset
        assert asset.endswith((".css", ".png")) or "javascript" in answer.headers["content-type"], asset
