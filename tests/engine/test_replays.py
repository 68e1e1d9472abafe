"""Replays: a stored turn is asked again, and nothing of it has an effect."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from agent.models import Agent
from agent.spending import book
from agent.spending.models import Budget, BudgetPeriod, ModelPrice, Reservation
from conversations.engine import retention, sweeper
from conversations.engine.replaying import frozen, replays
from conversations.engine.replaying.frozen import Changes, Record, canonical
from conversations.errors import CannotReplay, FenceLost
from conversations.kinds import REPLAYS
from conversations.models import Conversation, Message, Replay, Turn
from nanohost.accounts.models import AuditEntry
from nanohost.console import figures, people, uses
from nanohost.lib.clock import from_now
from nanohost.lib.erasing import Erased
from tests.support.openai_server import call, completion
from tests.support.replaying import replay, run
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

ASKS_TIME = {"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}


def rows() -> dict[str, int]:
    """How many rows each table has, but for those of replays and of what is paid for them."""
    paid = {Replay, BudgetPeriod, Reservation}
    return {each._meta.label: each._default_manager.count() for each in apps.get_models() if each not in paid}


def asks(name: str, **arguments: Any) -> Any:
    return completion(None, tool_calls=[call(name, json.dumps(arguments))], finish_reason="tool_calls")


@pytest.fixture
def asked(agent: Agent, say: Callable[..., Turn], tool_settings: Callable[..., None]) -> Turn:
    """A turn that has asked for the time."""
    agent.every_tool = True
    agent.save_version(by="anna")
    tool_settings("time")
    tool_settings("append_line", grants=["FS_WRITE"])
    (turn,) = settle([say(script(ASKS_TIME, {"say": "It is {results}"}))])
    assert ToolCall.objects.get().status == "SUCCESS"
    return turn


def test_a_replay_has_the_prompt_and_the_answers_of_its_turn_and_writes_nothing_else(say, model, tool_settings):
    tool_settings("time")
    model.answer(asks("time", timezone="UTC"), completion("Noon."))
    (turn,) = settle([say("What time is it?")])
    before, messages = rows(), list(Message.objects.order_by("pk").values())
    model.answer(asks("time", timezone="UTC"), completion("Noon, again.", usage={"prompt_tokens": 9}))
    row = replay(turn, model="other", temperature=0.5)
    assert (row.status, row.words(), row.result["doubts"]) == ("succeeded", "Noon, again.", []), row.error_detail
    first, second, again, last = (request.body for request in model.requests)
    assert (again["model"], again["temperature"]) == ("other", 0.5)
    assert (again["messages"], again["tools"]) == (first["messages"], first["tools"])
    # The ids of calls are the provider's, and the tool's answer is the recorded one, as the turn's model was shown it.
    assert last["messages"][-1]["content"] == second["messages"][-1]["content"]
    (made,) = row.result["calls"]
    assert (made["name"], made["source"]) == ("time", "record")
    assert rows() == before
    assert list(Message.objects.order_by("pk").values()) == messages
    beside = frozen.original_of(turn)
    assert (beside["words"], [each["name"] for each in beside["calls"]]) == ("Noon.", ["time"])


def test_what_is_not_on_record_never_runs(asked, model, marks):
    before = rows()
    for unrecorded, source, told in (("refuse", "refused", "replay:not_on_record"), ("simulate", "simulated", "SIMU")):
        path = str(marks / "line")
        model.answer(asks("append_line", path=path, line="x"), asks("time", timezone="CET"), completion("Done."))
        row = replay(asked, unrecorded=unrecorded, model="m", tools=["append_line", "time"])
        assert (row.status, row.words()) == ("succeeded", "Done."), row.error_detail
        assert [each["source"] for each in row.result["calls"]] == [source, source], row.result["calls"][0]["answer"]
        assert all(told in each["answer"] for each in row.result["calls"])
    model.answer(asks("no_such_tool"), completion("Done."))
    (refused,) = replay(asked, unrecorded="simulate", model="m").result["calls"]
    assert (refused["source"], json.loads(refused["answer"])["rule"]) == ("refused", "not_registered")
    assert rows() == before
    assert not list(marks.iterdir())


def test_a_record_is_found_by_name_and_arguments_in_whatever_order_they_are_written():
    def asking(call_id: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "function": {"name": "f", "arguments": arguments}}

    first, second = asking("1", '{"a": 1, "b": [2]}'), asking("2", '{"b":[2],"a":1}')
    results = [{"role": "tool", "tool_call_id": each, "content": f"result {each}"} for each in "12"]
    record = Record([{"role": "assistant", "content": "", "tool_calls": [first, second]}, *results])
    assert [record.answer(second) for _ in range(3)] == ["result 1", "result 2", "result 2"]
    assert record.answer(asking("3", '{"a": 2, "b": [2]}')) is None
    assert canonical("no JSON") == "no JSON"
    assert canonical("[" * 10**6) == "[" * 10**6
    assert canonical("") == "{}"


def test_another_version_of_the_agent_is_asked_within_its_own_limits(say, agent, tool_settings):
    tool_settings("time")
    (turn,) = settle([say(script(ASKS_TIME, {"say": "Noon."}))])
    agent.system_prompt, agent.max_tool_rounds = "You are new.", 0
    agent.save_version(by="anna")
    row = replay(turn, version=agent.version)
    assert row.status == "succeeded"
    assert "limit of 0 tool rounds" in row.words()
    assert [each["source"] for each in row.result["calls"]] == ["refused"]
    with pytest.raises(CannotReplay, match="Version 99"):
        replays.request(turn, Changes(version=99), by="anna")


def test_a_turn_of_which_too_little_is_kept_is_not_replayed(asked, say):
    with pytest.raises(CannotReplay, match="not ended"):
        replays.request(say("Hello"), Changes(), by="anna")
    Message.objects.update(sent=None)
    row = replay(asked)
    assert (row.status, row.error_code) == ("failed", "cannot_replay")
    assert "Nothing is kept" in row.error_detail


def test_who_has_lost_its_lease_stores_nothing_and_a_replay_ends_once(asked):
    row = replays.request(asked, Changes(), by="anna")
    first = replays.claim(row.pk, worker="killed")
    assert replays.claim(row.pk, worker="other") is None
    Replay.objects.update(lease_until=from_now(-1), notified_at=from_now(-60))
    assert list(sweeper.find(REPLAYS)) == [row.pk]
    run(row.pk)
    row.refresh_from_db()
    assert (row.status, row.failures, row.model_calls) == ("succeeded", 1, 2)
    with pytest.raises(FenceLost):
        replays.finish(first, {"words": "late", "calls": []})
    replays.fail(first, code="late", detail="late")
    assert not replays.renew(first)
    run(row.pk)
    row.refresh_from_db()
    assert (row.status, row.model_calls) == ("succeeded", 2)
    assert not sweeper.find(REPLAYS)


def test_a_provider_that_fails_is_asked_again_three_times_at_most(say):
    (turn,) = settle([say("Hello")])
    Message.objects.filter(turn=turn, role="user").update(content=script({"fail": "unavailable"}))
    row = replay(turn, model="mock")
    for failures in (1, 2):
        assert (row.status, row.failures, row.error_code) == ("queued", failures, "llm_unavailable")
        run(row.pk)
        assert Replay.objects.get().failures == failures, "not before its time"
        Replay.objects.update(run_after=None)
        run(row.pk)
        row.refresh_from_db()
    assert (row.status, row.error_code) == ("failed", "llm_unavailable")


def test_replays_count_in_budgets_and_in_usage_as_their_own_kind(asked):
    ModelPrice.objects.create(model="mock", prompt=2, completion=10, valid_from=from_now(-60))
    house = Budget.objects.create(name="house", whose="host", measure="tokens", every="day", amount=10**9)
    book.forget()
    row = replay(asked, model="mock")
    spent = row.prompt_tokens + row.completion_tokens
    assert sum(house.periods.values_list("spent", flat=True)) == spent > 0
    assert row.cost == row.result["cost"] > 0
    figures.look()
    today = timezone.localdate()
    found = {line.name: line.sums for line in uses.report(group_by="kind", first=today, last=today).lines}
    assert set(found) == {"turns and summaries", "replays"}
    assert (found["replays"].turns, found["replays"].calls, found["replays"].cost) == (0, 2, row.cost)
    assert "replays" in {line.name for line in uses.report(group_by="key", first=today, last=today).lines}
    Budget.objects.update(amount=0)
    book.forget()
    refused = replay(asked, model="mock")
    assert (refused.status, refused.error_code, refused.model_calls) == ("failed", "budget_exceeded", 0)


def test_replays_go_with_what_was_said_and_with_their_owner(asked, say, owner):
    replay(asked)
    of_all: dict[str, Any] = {"before": timezone.now() + timedelta(hours=1), "rows": 100}
    with transaction.atomic():
        retention.erase_results(asked.conversation_id, **of_all, erased=Erased())
    assert not Replay.objects.exists()
    replay(asked)
    with transaction.atomic():
        retention.erase_messages(asked.conversation_id, **of_all, erased=Erased())
    assert not Replay.objects.exists()
    (turn,) = settle([say("Hello")])
    replay(turn)
    assert people.belongings(owner)["replays"] == 1
    people.erase(owner)
    assert not Replay.objects.exists()
    assert not Conversation.objects.exists()


def test_the_command_shows_both(asked, capsys):
    call_command("replay", str(asked.pk), "--model", "other", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["original"]["words"] == told["replay"]["words"]
    assert (told["original"]["model"], told["replay"]["model"]) == (asked.model, "other")
    assert [each["name"] for each in told["replay"]["calls"]] == ["time"]
    call_command("replay", str(asked.pk))
    assert "Replay: " in capsys.readouterr().out
    assert Replay.objects.filter(asked_by="manage.py").count() == 2
    with pytest.raises(CommandError, match="There is no turn"):
        call_command("replay", "00000000-0000-0000-0000-000000000000")
    with pytest.raises(CommandError, match="from 0 to 2"):
        call_command("replay", str(asked.pk), "--temperature", "nan")
    with pytest.raises(CommandError, match="Version 99"):
        call_command("replay", str(asked.pk), "--agent-version", "99")
    assert not AuditEntry.objects.filter(action="turn.changed").exists()
