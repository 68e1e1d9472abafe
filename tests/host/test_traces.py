"""Telemetry of a running host, as a collector has it: one trace from a question to its delivery, over all processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from conversations.announced import TURN_ENDED
from tests import shapes
from tests.support.api_client import chat, eventually, key_of, start
from tests.support.collector import Collector
from tests.support.hosts import KEY, PREPARED, Host
from tests.support.receiver import Receiver
from tests.support.scripts import script

CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = CALLERS[3:35], CALLERS[36:52]
SECRET = "collect-with-this-0123456789"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector, receiver: Receiver) -> Iterator[Host]:
    running = Host(
        tmp_path_factory.mktemp("traces"),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.address,
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{SECRET}",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_SERVICE_NAME="the-host",
        OTEL_BSP_SCHEDULE_DELAY="100",
        OTEL_METRIC_EXPORT_INTERVAL="500",
        HTTP_ALLOWED_PRIVATE_CIDRS="127.0.0.1/32",
        MEMORY_WINDOW="2",
        MEMORY_COMPACT_AFTER="4",
        HTTP_ALLOWED_PORTS=str(receiver.port),
    ).start()
    yield running
    running.kill()


def set_up(traced: Host, receiver: Receiver) -> None:
    """A webhook for turns that succeed, and a tool whose calls wait for consent, by the console's forms."""
    traced.allow("time", "http_get", grants=("NET_HTTP",))
    with httpx2.Client(base_url=traced.address, follow_redirects=True, timeout=60) as browser:

        def post(address: str, **form: object) -> str:
            browser.get(address)
            return browser.post(address, data={"csrfmiddlewaretoken": browser.cookies["csrftoken"], **form}).text

        post("/admin/login/", username="admin", password=PREPARED["NANOHOST_ADMIN_PASSWORD"], next="/admin/")
        kinds = [TURN_ENDED["succeeded"]]
        post("/admin/conversations/webhookendpoint/add/", name="mine", url=receiver.url, kinds=kinds)
    traced.sql("UPDATE tools_toolsetting SET approval = 'always' WHERE name = 'time'")


def decide(client: httpx2.Client, turn: str) -> None:
    (asked,) = eventually(
        lambda: [each for each in client.get("/approvals").json()["results"] if each["turnId"] == turn],
        seconds=60,
    )
    client.post(f"/approvals/{asked['approvalId']}/decide", json={"decision": "approve"}).raise_for_status()


def asks(receiver: Receiver) -> str:
    address = receiver.url.replace("/hook", "/page")
    calls = [{"name": "time"}, {"name": "http_get", "arguments": {"url": address}}]
    return script({"call": calls}, {"say": "done"})


def test_one_trace_goes_from_the_question_to_the_delivery(traced: Host, collector: Collector, receiver: Receiver):
    set_up(traced, receiver)
    with traced.client(key_of(traced, "of traces", ["chat", "read", "approve"])) as client:
        talk = start(client)

        def ends() -> object:
            """Once the workers have heard of the webhook, which takes a second."""
            headers = {"traceparent": CALLERS, "Prefer": "respond-async"}
            turn = client.post(f"/conversations/{talk}/chat", json={"message": asks(receiver)}, headers=headers).json()[
                "turnId"
            ]
            decide(client, turn)
            eventually(lambda: client.get(f"/turns/{turn}").json()["status"].lower() == "succeeded", seconds=60)
            told = [each for each in receiver.received if turn.encode() in each.body]
            return (turn, told) if told or traced.sql("SELECT id FROM conversations_delivery") else None

        turn, _ = eventually(ends, seconds=90)
    (hook,) = eventually(lambda: [each for each in receiver.received if turn.encode() in each.body], seconds=60)

    def of(name: str) -> list[Any]:
        found = collector.spans(TRACE, name)
        return [each for each in found if each.attributes.get("nanohost.turn.id", turn) == turn]

    (deliver,) = eventually(lambda: of("deliver webhook"), seconds=60)
    request = eventually(lambda: of("POST /api/v1/conversations/{id}/chat"), seconds=60)[-1]
    runs = eventually(lambda: found if len(found := of("invoke_agent default")) >= 2 else None, seconds=60)
    by_id = {each.id: each for each in collector.spans(TRACE)}
    asked = [each for each in of("chat ") if by_id[each.parent] in runs]
    tools = eventually(lambda: found if len(found := of("execute_tool ")) >= 2 else None, seconds=60)
    approval = eventually(lambda: of("approval time"), seconds=60)[-1]

    assert (request.parent, request.kind, request.attributes["http.response.status_code"]) == (PARENT, 2, 202)
    assert {each.parent for each in (*runs, *tools, approval, deliver)} == {request.id}
    assert [each.attributes["gen_ai.response.finish_reasons"] for each in asked] == [["tool_calls"], ["stop"]]
    assert {each.attributes["gen_ai.operation.name"] for each in asked} == {"chat"}
    assert all(each.attributes["gen_ai.usage.input_tokens"] > 0 for each in asked)
    assert {each.attributes["gen_ai.tool.name"] for each in tools} == {"time", "http_get"}
    assert not any(each.failed for each in (*runs, *asked, *tools, deliver))
    # The call that had to be approved began when that was over.
    assert approval.ended <= max(each.began for each in tools)
    processes = {request.process, runs[0].process, tools[0].process}
    assert len(processes) == (1 if shapes.shape() == shapes.EMBEDDED else 3)

    # And it goes on at those who are asked and told.
    page = [each for each in receiver.received if each.path == "GET /page"][-1]
    (fetched,) = [each for each in tools if each.attributes["gen_ai.tool.name"] == "http_get"]
    (child,) = [each for each in collector.spans(TRACE, "child http_get") if each.parent == fetched.id]
    assert (child.attributes, child.failed) == ({"code.function.name": "tools.agent_tools.http_get"}, False)
    assert fetched.began <= child.began <= child.ended <= fetched.ended
    assert page.headers["traceparent"] == f"00-{TRACE}-{child.id}-01"
    assert hook.headers["traceparent"] == f"00-{TRACE}-{deliver.id}-01"


def test_a_compaction_s_model_call_is_in_the_trace_of_the_turn_that_made_it_necessary(
    traced: Host, collector: Collector
):
    of_its_own = f"00-{'5e' * 16}-{'cd' * 8}-01"
    with traced.client() as client:
        talk = start(client)
        for _ in range(3):
            chat(client, talk, "Hello", headers={"traceparent": of_its_own})
    requests = eventually(lambda: found if len(found := collector.spans("5e" * 16, "POST")) == 3 else None, seconds=60)
    by_id = {each.id for each in requests}
    asked = eventually(
        lambda: [each for each in collector.spans("5e" * 16, "chat ") if each.parent in by_id], seconds=60
    )
    assert {each.attributes["gen_ai.conversation.id"] for each in asked} == {talk}
    assert {(each.attributes["gen_ai.response.finish_reasons"][0], each.failed) for each in asked} == {
        ("tool_calls", False)
    }


def test_a_replay_is_a_trace_of_its_own_with_its_model_calls(traced: Host, collector: Collector):
    with traced.client() as client:
        talk = start(client)
        turn = chat(client, talk, "Hello").json()["turnId"]
    asked = traced.manage("replay", turn, "--json", "--seconds", "60")
    assert asked.returncode == 0, asked.stderr
    (replay,) = eventually(
        lambda: [each for each in collector.spans(name="replay") if each.attributes["nanohost.turn.id"] == turn],
        seconds=60,
    )
    assert (replay.parent, replay.failed) == ("", False)
    (call,) = [each for each in collector.spans(replay.trace, "chat ") if each.parent == replay.id]
    assert call.attributes["gen_ai.conversation.id"] == talk
    assert replay.began <= call.began <= call.ended <= replay.ended


def test_figures_and_lines_are_exported_as_well(traced: Host, collector: Collector):
    eventually(lambda: "nanohost_turns" in collector.metrics and collector.lines, seconds=60)
    assert collector.metrics["nanohost_turns"].sum.is_monotonic
    line = eventually(lambda: [each for each in collector.lines if each.trace_id.hex() == TRACE], seconds=60)[0]
    assert TRACE in line.body.string_value
    assert collector.faults == []
    assert {each["authorization"] for each in collector.headers} == {f"Bearer {SECRET}"}


def test_the_caller_s_flag_decides_and_a_senseless_header_is_none(
    traced: Host, collector: Collector, receiver: Receiver
):
    unwanted = f"00-{'ab' * 16}-{'cd' * 8}-00"
    with traced.client() as client:
        talk = start(client)
        for header in (unwanted, "00-zz", f"00-{'0' * 32}-{'cd' * 8}-01", "x" * 5000, CALLERS):
            chat(client, talk, "Hello", headers={"traceparent": header})
        assert traced.sql("SELECT id FROM conversations_turn WHERE traceparent = ?", unwanted)
    eventually(lambda: len({each.trace for each in collector.spans(name="POST")}) >= 4, seconds=60)
    assert collector.spans("ab" * 16) == []


def test_a_collector_that_is_away_for_a_moment_is_sent_the_batch_again(traced: Host, collector: Collector):
    collector.answers += [503, 500, 429]
    with traced.client() as client:
        turn = chat(client, start(client), "Hello").json()["turnId"]
    eventually(lambda: not collector.answers, seconds=60)
    assert collector.refused
    with traced.client() as client:
        turn = chat(client, start(client), "Hello").json()["turnId"]
    eventually(
        lambda: [each for each in collector.spans(name="chat") if turn] and collector.spans(name="invoke_agent"),
        seconds=60,
    )
    assert collector.faults == []


def test_nothing_that_is_exported_holds_a_secret_or_a_prompt(traced: Host, collector: Collector):
    said = "What is exported holds no words of mine."
    with traced.client() as client:
        talk = start(client)
        turn = chat(client, talk, said).json()["turnId"]
        client.get(f"/turns/{turn}?key={KEY}")
        eventually(
            lambda: any(each.attributes.get("nanohost.turn.id") == turn for each in collector.spans()), seconds=60
        )
    raw = bytes(collector.raw)
    assert turn.encode() in raw
    for secret in (said, KEY, SECRET, PREPARED["NANOHOST_ADMIN_PASSWORD"]):
        assert secret.encode() not in raw
    assert SECRET not in traced.log_text()


@pytest.mark.shapeless(reason="a process that is alone; the shape is not looked at")
def test_off_imports_nothing_of_it(tmp_path):
    heavy = "opentelemetry|google.protobuf|nanohost.lib.telemetry"
    code = f"import re, sys, nanohost.asgi; print([each for each in sys.modules if re.match({heavy!r}, each)])"
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "nanohost.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]"
