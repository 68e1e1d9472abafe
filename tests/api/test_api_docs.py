"""docs/api.md, held against the code and run against a host."""

import re
import shlex
from collections.abc import Iterator
from string import Template

import httpx2
from drf_spectacular.generators import SchemaGenerator

from agent.errors import LlmError
from conversations.errors import TurnProblem
from conversations.events.kinds import EventKind
from conversations.statuses import TurnStatus
from memory.errors import MemoryChanged, MemoryTooLong
from nanohost.accounts.models import Scope
from nanohost.console import problems
from nanohost.lib.errors import Problem
from tests.support.api_client import approval_of, chat, eventually, key_of, question_of, start
from tests.support.files import image_part, picture
from tests.support.hosts import PLAIN, ROOT, Host

PAGE = (ROOT / "docs/api.md").read_text()
TABLE = {
    code: (int(status), meaning)
    for code, status, meaning in re.findall(r"^\| `(\w+)` \| (\d+) \| (.+) \|$", PAGE, re.M)
}


def kinds(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from kinds(below)


def test_the_table_has_every_problem_and_no_other():
    plain = {kind.code: (kind.status, kind.title) for kind in (Problem, *kinds(Problem)) if kind is not TurnProblem}
    # What OpenAI's API alone refuses is on a page of its own; tests/api/test_openai_docs.py looks there.
    for kind in kinds(Problem):
        if kind.__module__ == "conversations.openai_api.errors":
            del plain[kind.code]
    assert plain.keys() >= {MemoryChanged.code, MemoryTooLong.code, problems.Forbidden.code}
    assert plain | TurnProblem.codes == TABLE
    assert not plain.keys() & TurnProblem.codes.keys()


def test_every_failure_of_a_model_has_its_http_status():
    assert {kind.code for kind in kinds(LlmError)} <= TurnProblem.codes.keys()


def test_the_page_tells_of_every_status_of_a_turn():
    (sentence,) = re.findall(r"^`status` is (.+?);", PAGE, re.S | re.M)
    assert re.findall(r"`(\w+)`", sentence) == list(TurnStatus)


def test_the_page_tells_of_every_kind_of_event_and_no_other():
    (table,) = re.findall(r"^\| event \| data \|\n(?:\|.*\n)+", PAGE, re.M)
    told = [kind for first in re.findall(r"^\| (`.+?`) \|", table, re.M) for kind in re.findall(r"`([^`]+)`", first)]
    assert set(told) == set(EventKind)
    assert len(told) == len(set(told))


def examples(**values: str) -> Iterator[tuple[str, str, dict[str, str], str | None]]:
    """The page's curl commands, as method, address, headers and body."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S):
        for command in re.findall(r"^curl .*$", block.replace("\\\n", ""), re.M):
            words = iter(shlex.split(Template(command).substitute(values))[1:])
            method, address, headers, body = "GET", "", {}, None
            for word in words:
                if word == "-X":
                    method = next(words)
                elif word == "-H":
                    name, _, value = next(words).partition(": ")
                    headers[name] = value
                elif word == "-d":
                    body = next(words)
                else:
                    address = word
            yield method, address, headers, body


def test_every_example_works(host: Host):
    key = key_of(host, "reader-of-the-docs", Scope.values)
    with host.client(key) as client:
        conversation_id = start(client)
        turn_id = chat(client, conversation_id, "Hello").json()["turnId"]
        for number in range(20):  # until it is summarised
            chat(client, conversation_id, f"Hello {number}")
        of_it = f"/conversations/{conversation_id}"
        message_id = client.get(f"{of_it}/messages").json()["results"][0]["id"]
        summary = eventually(lambda: client.get(f"{of_it}/summaries").json()["results"])[0]["seq"]
        yearly = {"prompt": "Hello", "cron": "0 9 24 12 *"}
        schedule_id = client.post("/schedules", json=yearly).json()["scheduleId"]
        prefix = client.post("/keys", json={}).json()["prefix"]
        sees = {"content": [image_part(picture())]}
        client.post(f"{of_it}/chat", json=sees)
        (attachment,) = client.get(f"{of_it}/messages?limit=500").json()["results"][-2]["attachments"]
        note = {"message": "Hello", "onWake": True}
        share_id = client.post(f"{of_it}/shares", json={}).json()["shareId"]
        deferred_id = client.post(f"/conversations/{conversation_id}/messages", json=note).json()["messageId"]
    things = {"CONVERSATION": conversation_id, "TURN": turn_id, "SCHEDULE": schedule_id, "DEFERRED": deferred_id}
    things |= {
        "MESSAGE": message_id,
        "ATTACHMENT": attachment["id"],
        "SUMMARY": str(summary),
        "SHARE": share_id,
        "PREFIX": prefix,
        "APPROVAL": approval_of(host, "reader-of-the-docs"),
        "QUESTION": question_of(host, "reader-of-the-docs", conversation_id),
    }
    for method, address, headers, body in examples(HOST=host.address, KEY=key, **things):
        answer = httpx2.request(method, address, headers=headers, content=body, timeout=30, verify=PLAIN)
        assert answer.is_success, (method, address, answer.text)


def test_every_route_has_an_example():
    names = ("CONVERSATION", "TURN", "SCHEDULE", "DEFERRED", "MESSAGE", "APPROVAL", "QUESTION", "ATTACHMENT", "SHARE")
    ids = {name: f"{{{name.lower()}_id}}" for name in names} | {"SUMMARY": "{seq}", "PREFIX": "{prefix}"}
    shown = {f"{method} {address.partition('?')[0]}" for method, address, _, _ in examples(HOST="", KEY="", **ids)}
    shown = {address.replace("/agents/default/", "/agents/{agent}/") for address in shown}
    shown = {address.replace("/files/notes/tea.md", "/files/{path}") for address in shown}
    document = SchemaGenerator().get_schema(request=None, public=True)
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert shown == routes | {"GET /health/live", "GET /health/ready"}
