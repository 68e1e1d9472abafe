"""Retention: what is older than its agent keeps it goes, kind by kind; the rest stays whole."""

import json
from collections import Counter
from datetime import UTC, timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agent.models import Agent, AgentVersion, DeletedAgent
from conversations import summaries
from conversations.engine import inbox, model_request, turn_control
from conversations.engine.incoming import Incoming
from conversations.engine.retention import ERASED_RESULT
from conversations.models import CallerRound, Compaction, Conversation, DeferredMessage, Message, Turn
from conversations.options import Options
from conversations.transfer.files import header_of
from memory import documents, log
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.accounts import holds
from nanohost.accounts.models import AuditEntry
from nanohost.lib import clock, erasing
from nanohost.lib.erasing import FIRST_ROWS, MAX_ROWS, Erased, from_pairs
from scheduler import retention
from scheduler.models import RetentionRun
from scheduler.tasks import data_retention
from tests.support.ageing import age, go, keep, would_go
from tests.support.compacting import compact
from tests.support.scripts import script
from tests.support.working import advance
from tests.support.working import settle as settle_all
from tools import retention as of_calls
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def settle(turn):
    """Work until it has ended."""
    return settle_all([turn])[0]


def contents():
    return list(Message.objects.transcript().values_list("content", flat=True))


def talk(say, *words):
    """A turn for each, with its answer."""
    return [settle(say(each)) for each in words]


def with_a_call(say):
    """A turn that calls a tool and tells what it answered."""
    return settle(say(script({"call": [{"name": "time", "arguments": {"zone": "Europe/Paris"}}]}, {"say": "Done."})))


# --- messages ----------------------------------------------------------------------------------------------------


def test_by_default_everything_is_kept(say):
    talk(say, "one", "two")
    age(5000)
    assert would_go() == go() == Counter()
    assert len(contents()) == 4


def test_old_messages_go_and_young_ones_stay(say, agent, conversation):
    talk(say, "one", "two")
    age(31)
    talk(say, "three")
    keep(agent, messages=30)
    assert would_go() == {("default", "messages"): 4}
    assert go() == {("default", "messages"): 4}
    conversation.refresh_from_db()
    assert contents()[0] == "three"
    assert (conversation.erased_through, conversation.starts_at_seq, conversation.consolidated_through) == (4, 5, 4)
    assert go() == Counter()


def test_no_turn_is_cut_in_two(say, agent, tool_settings):
    tool_settings("time")
    with_a_call(say)
    age(31)
    Message.objects.filter(role="tool").update(created_at=clock.read())
    keep(agent, messages=30)
    assert go() == Counter()
    assert [message.role for message in Message.objects.transcript()] == ["user", "assistant", "tool", "assistant"]


def test_of_an_import_no_result_is_left_without_its_call(agent, conversation):
    for seq, role in enumerate(("user", "assistant", "tool", "assistant"), 1):
        calls = [{"id": "1", "function": {"name": "time", "arguments": "{}"}}] if seq == 2 else None
        Message.objects.create(conversation=conversation, seq=seq, role=role, content=role, tool_calls=calls)
    Conversation.objects.update(next_seq=5)
    age(31)
    Message.objects.filter(seq__gte=3).update(created_at=clock.read())
    keep(agent, messages=30)
    assert go() == {("default", "messages"): 1}
    assert contents() == ["assistant", "tool", "assistant"]


def test_the_next_turn_works_and_sees_what_is_left(say, agent, model):
    talk(say, "one", "two")
    age(31)
    talk(say, "three")
    keep(agent, messages=30)
    go()
    assert settle(say("four")).status == "succeeded"
    prompt = json.dumps(model.requests[-1].body)
    assert "three" in prompt
    assert "one" not in prompt


def test_what_the_prompt_of_an_open_turn_may_have_is_left(say, agent, conversation, settings):
    settings.MEMORY_WINDOW = 2
    talk(say, "one", "two", "three")
    Conversation.objects.update(consolidated_through=4)
    opened = say("four")
    age(31)
    keep(agent, messages=30)
    assert would_go() == {("default", "messages"): 4}
    go()
    assert contents()[0] == "three"
    assert settle(opened).status == "succeeded"
    assert Message.objects.filter(content="four").exists()


@pytest.mark.parametrize("needs", ["pinned", "summary"])
def test_a_pinned_message_and_the_summary_of_an_open_turn_are_left(say, agent, conversation, settings, needs):
    settings.MEMORY_WINDOW = 2
    talk(say, "one", "two", "three")
    pins = [{"seq": 1, "by": "anna", "at": ""}] if needs == "pinned" else []
    Conversation.objects.update(consolidated_through=4, pins=pins, summary_seq=1 if needs == "summary" else None)
    say("four")
    age(31)
    keep(agent, messages=30)
    assert would_go() == go() == Counter()


def test_a_summary_goes_with_the_last_message_it_tells_of(fill, conversation, agent):
    fill(44)
    row = compact(conversation)
    Message.objects.filter(seq__lte=row.through_seq).update(created_at=clock.read() - timedelta(days=31))
    keep(agent, messages=30)
    assert would_go() == {("default", "messages"): row.through_seq + 2}  # the summary, and its record
    assert go() == {("default", "messages"): row.through_seq + 2}
    conversation.refresh_from_db()
    assert (conversation.summary_seq, conversation.consolidated_through) == (None, row.through_seq)
    assert not Message.objects.filter(type="SUMMARY").exists()
    assert not Compaction.objects.exists()


def test_a_summary_that_is_undone_gives_way_to_none_where_the_one_before_is_gone(fill, conversation, agent, say):
    fill(44)
    first = compact(conversation)
    Message.objects.filter(seq__lte=first.through_seq).update(created_at=clock.read() - timedelta(days=31))
    fill(44)
    second = compact(conversation)
    keep(agent, messages=30)
    go()
    summaries.undo(conversation.pk, second.summary_seq, by="anna")
    conversation.refresh_from_db()
    assert conversation.summary_seq is None
    assert settle(say("go on")).status == "succeeded"


def test_what_was_never_said_goes_and_what_is_to_come_stays(say, agent, conversation):
    turn = say("never begun")
    Turn.objects.filter(pk=turn.pk).update(status="cancelled")
    DeferredMessage.objects.create(conversation=conversation, kind="wake", content="was said", state="done")
    DeferredMessage.objects.create(conversation=conversation, kind="context", content="waits", state="waiting")
    age(31)
    keep(agent, messages=30)
    assert would_go() == go() == {("default", "messages"): 2}
    assert not Message.objects.exists()
    assert [each.content for each in DeferredMessage.objects.all()] == ["waits"]


def test_pins_and_the_file_it_was_taken_in_from_go_with_the_messages(say, agent, conversation):
    talk(say, "one", "two")
    Conversation.objects.update(pins=[{"seq": seq, "by": "anna", "at": ""} for seq in (1, 3)], imported={"rest": "one"})
    Message.objects.filter(seq__lte=2).update(created_at=clock.read() - timedelta(days=31))
    keep(agent, messages=30)
    go()
    conversation.refresh_from_db()
    assert [pin["seq"] for pin in conversation.pins] == [3]
    assert conversation.imported is None


def test_an_export_counts_what_is_left(say, agent, conversation):
    talk(say, "one", "two")
    Conversation.objects.update(consolidated_through=4)
    age(31)
    talk(say, "three")
    keep(agent, messages=30)
    go()
    conversation.refresh_from_db()
    assert header_of(conversation, zone=UTC)["last_consolidated"] == 0
    Conversation.objects.update(consolidated_through=5)
    conversation.refresh_from_db()
    assert header_of(conversation, zone=UTC)["last_consolidated"] == 1


# --- prompts, results, memory, history ---------------------------------------------------------------------------


def test_what_a_model_was_sent_cannot_be_told_any_more(say, agent):
    (turn,) = talk(say, "one")
    age(31)
    (young,) = talk(say, "two")
    keep(agent, sent=30)
    assert would_go() == go() == {("default", "sent"): 1}
    assert [call.record for call in model_request.calls_of(turn)] == [None]
    assert [call.record is None for call in model_request.calls_of(young)] == [False]


def test_what_a_failed_turn_asked_goes_as_well(say, agent):
    (turn,) = talk(say, "one")
    Turn.objects.filter(pk=turn.pk).update(sent={"agent": 1, "last": 1}, status="failed")
    age(31)
    keep(agent, sent=30)
    assert would_go() == go() == {("default", "sent"): 2}
    turn.refresh_from_db()
    assert turn.sent is None


@pytest.mark.parametrize("what", ["sent", "messages"])
def test_answers_in_another_form_go_with_what_was_sent_and_with_messages(say, agent, what):
    (turn,) = talk(say, "one")
    invalid = [{"content": "secret", "wrong": "It is no JSON.", "sent": {}, "usage": None}]
    Turn.objects.filter(pk=turn.pk).update(invalid_answers=invalid)
    age(31)
    keep(agent, **{what: 30})
    assert go()
    turn.refresh_from_db()
    assert turn.invalid_answers is None


def test_where_messages_are_gone_it_is_said_that_they_are(say, agent):
    talk(say, "one")
    (turn,) = talk(say, "two")
    Message.objects.filter(seq__lte=2).update(created_at=clock.read() - timedelta(days=31))
    keep(agent, messages=30)
    go()
    (call,) = model_request.calls_of(turn)
    doubts = model_request.build_again(Conversation.objects.get(), turn.model, call.record).doubts
    assert "messages up to 2 were deleted, by their age" in doubts


def test_replaced_versions_of_the_agent_go_with_what_was_sent(agent):
    for prompt in ("one", "two", "three"):
        agent.system_prompt = prompt
        agent.save_version(by="anna")
    age(40)
    keep(agent, sent=30)  # the version after those
    assert would_go() == go() == {("default", "sent"): 3}
    assert list(AgentVersion.objects.order_by("number").values_list("number", flat=True)) == [4, 5]


def test_results_and_arguments_go_and_the_audit_of_the_call_stays(say, agent, tool_settings):
    tool_settings("time")
    with_a_call(say)
    age(31)
    with_a_call(say)
    old, young = ToolCall.objects.order_by("created_at")
    keep(agent, results=30)
    assert would_go() == go() == {("default", "results"): 3}  # the call, and two messages
    after = ToolCall.objects.get(pk=old.pk)
    assert (after.arguments, after.result, after.erased_at is None) == ("", "", False)
    kept = ("tool_name", "arguments_hash", "status", "rule", "duration_ms", "effects")
    assert [getattr(after, name) for name in kept] == [getattr(old, name) for name in kept]
    assert ToolCall.objects.get(pk=young.pk).result == young.result != ""
    first, second = Message.objects.filter(role="tool").order_by("seq")
    assert first.content == ERASED_RESULT != second.content
    asked = Message.objects.exclude(tool_calls=None).order_by("seq")[0].tool_calls[0]
    assert (asked["function"]["name"], asked["function"]["arguments"]) == ("time", "{}")
    assert settle(say("go on")).status == "succeeded"


def test_a_call_of_an_open_turn_is_left_and_one_without_its_conversation_goes(say, agent, tool_settings):
    tool_settings("time")
    with_a_call(say)
    opened = say(script({"call": [{"name": "time"}]}, {"say": "Done."}))
    advance(opened)
    age(31)
    keep(agent, results=30)
    Turn.objects.exclude(pk=opened.pk).delete()
    go()
    assert [call.turn_id == opened.pk for call in ToolCall.objects.filter(erased_at=None)] == [True]


def test_a_call_is_emptied_once_whoever_comes_to_it(say, tool_settings):
    tool_settings("time")
    with_a_call(say)
    ids = [call.pk for call in ToolCall.objects.all()]
    first, second = Erased(), Erased()
    for erased in (first, second):
        with transaction.atomic():
            of_calls.erase(ids, erased=erased)
    assert (first.rows, second.rows) == (1, 0)


def test_versions_that_were_replaced_go_and_what_is_known_stays(agent, owner):
    whose = {"agent": agent.name, "owner_id": owner.pk}
    for base, content in enumerate(("one", "two", "three")):
        documents.rewrite(**whose, base=base, content=content, source="person", checked=False)
    log.note(**whose, text="noted", today=clock.read().date())
    MemoryVersion.objects.create(**whose, base=1, content="aside", source="compaction", aside_because="doubt")
    age(31)
    documents.rewrite(**whose, base=3, content="four", source="person", checked=False)
    keep(agent, memory=30)
    # Version 3 was replaced just now.
    assert would_go() == go() == {("default", "memory"): 5}
    assert set(MemoryVersion.objects.values_list("content", flat=True)) == {"three", "four"}
    head = Memory.objects.get()
    assert (head.content, head.notes, head.notes_on) == ("four", "", None)
    assert not HistoryEntry.objects.exists()


def test_the_log_goes_by_when_it_happened_and_is_not_found_any_more(agent, owner):
    whose = {"agent": agent.name, "owner_id": owner.pk}
    log.append(**whose, content="elephants", happened_at=clock.read() - timedelta(days=31))
    log.append(**whose, content="elephants again", happened_at=clock.read())
    keep(agent, history=30)
    assert would_go() == go() == {("default", "history"): 1}
    found = log.recall(**whose, query="elephants", today=clock.read().date())
    assert [each.content for each in found] == ["elephants again"]


# --- agents that were deleted ------------------------------------------------------------------------------------


@pytest.fixture
def clerk(owner, tool_settings):
    """An agent with something of each kind that does not go with its conversations."""
    tool_settings("time")
    clerk = Agent(name="clerk", every_tool=True)
    clerk.save_version(by="anna")
    conversation = inbox.start_conversation(owner_id=owner.pk, agent=clerk, metadata={})
    asked = Incoming(script({"call": [{"name": "time"}]}, {"say": "Done."}))
    settle(inbox.receive(asked, conversation=conversation, request_id="r"))
    whose = {"agent": "clerk", "owner_id": owner.pk}
    for base, content in enumerate(("one", "two")):
        documents.rewrite(**whose, base=base, content=content, source="person", checked=False)
    log.append(**whose, content="words", happened_at=clock.read())
    return clerk


ALL_OF_IT = {("clerk", "results"): 1, ("clerk", "memory"): 3, ("clerk", "history"): 1}


def is_deleted(agent, **days):
    """Its conversations are, and then the agent; this long it kept what it leaves behind."""
    keep(agent, **days)
    for pk in Conversation.objects.filter(agent=agent).values_list("pk", flat=True):
        turn_control.delete_conversation(pk)
    agent.remove()


def left_behind():
    of_clerk = {"agent": "clerk"}
    calls = ToolCall.objects.filter(**of_clerk, erased_at=None).exclude(result="")
    return [rows.count() for rows in (calls, *(each.objects.filter(**of_clerk) for each in KEPT_BY_NAME))]


KEPT_BY_NAME = (Memory, MemoryVersion, HistoryEntry)


def test_what_a_deleted_agent_leaves_behind_is_kept_as_long_as_it_kept_it(clerk):
    is_deleted(clerk, messages=5, sent=5, results=30, memory=30, history=30)
    assert left_behind() == [1, 1, 2, 1]
    age(29)
    assert go() == {}
    age(2)
    assert would_go() == go() == ALL_OF_IT
    assert left_behind() == [0, 0, 0, 0]
    entry = AuditEntry.objects.filter(action="retention.erased").latest("pk")
    assert (entry.object_type, entry.object_name) == ("agent.deletedagent", "clerk")
    assert ToolCall.objects.get().status == "SUCCESS"


def test_what_it_knew_last_is_counted_from_when_it_was_deleted(clerk):
    age(40)
    is_deleted(clerk, memory=30)
    assert would_go() == go() == {("clerk", "memory"): 1}
    assert left_behind() == [1, 1, 1, 1]
    age(31)
    assert would_go() == go() == {("clerk", "memory"): 2}
    assert left_behind() == [1, 0, 0, 1]


def test_what_it_kept_for_ever_is_kept(clerk, owner):
    is_deleted(clerk)
    age(1000)
    assert go() == {}
    data_retention()
    assert left_behind() == [1, 1, 2, 1]


def test_an_agent_that_is_made_again_says_itself_how_long(clerk):
    is_deleted(clerk, results=30, memory=30, history=30)
    age(40)
    again = Agent(name="clerk", retention={"history": 30})
    again.save_version(by="anna")
    assert would_go() == go() == {("clerk", "history"): 1}
    assert left_behind() == [1, 1, 2, 0]
    again.remove()
    assert go() == {}


def test_a_hold_on_somebody_keeps_what_a_deleted_agent_left_of_theirs(clerk, owner):
    is_deleted(clerk, results=30, memory=30, history=30)
    age(40)
    hold = holds.place(kind="owner", owner_id=owner.pk, reason="A lawsuit.", by="anna")
    assert would_go() == go() == {}
    holds.release(hold, reason="It is over.", by="anna")
    assert go() == ALL_OF_IT


def test_a_run_in_pieces_comes_to_deleted_agents_after_all_others(clerk, agent, fill, monkeypatch):
    is_deleted(clerk, results=30, memory=30, history=30)
    Agent.objects.create(name="last", retention={"messages": 30})  # its number is behind the deleted one's
    fill(30)
    keep(agent, messages=30)
    age(40)
    monkeypatch.setattr(retention, "RUN_SECONDS", -1.0)
    data_retention()
    for _ in range(100):
        if RetentionRun.objects.get().position is None:
            break
        data_retention()
    assert not Message.objects.exists()
    assert left_behind() == [0, 0, 0, 0]


@pytest.mark.parametrize("was_made_again", [False, True])
def test_agents_that_an_earlier_release_deleted_are_known_by_the_audit_log(clerk, was_made_again):
    is_deleted(clerk, results=30)
    DeletedAgent.objects.all().delete()
    if was_made_again:
        Agent.objects.create(name="clerk")
    import_module("agent.migrations.0019_deleted_agents").remember_deleted_agents(apps, None)
    assert [each.retention for each in DeletedAgent.objects.all()] == ([] if was_made_again else [{"results": 30}])
    age(31)
    assert go() == ({} if was_made_again else {("clerk", "results"): 1})


# --- batches, and what is told -----------------------------------------------------------------------------------


def test_each_batch_is_small_and_tells_what_it_deleted(fill, conversation, agent):
    fill(2500)
    age(31)
    keep(agent, messages=30)
    go()
    told = [json.loads(each.after) for each in AuditEntry.objects.filter(action="retention.erased").order_by("pk")]
    batches = [from_pairs(each["rows"])["conversations_message"] for each in told]
    assert sum(batches) == 2500
    assert batches[0] <= FIRST_ROWS
    assert max(batches) <= MAX_ROWS
    assert len(batches) >= 4
    assert all(len(each["hash"]) == 64 and each["kind"] == "messages" for each in told)
    assert "Remember" not in AuditEntry.objects.filter(action="retention.erased")[0].after


def test_many_small_conversations_share_a_batch(agent, owner, monkeypatch):
    monkeypatch.setattr(erasing, "USUAL_SECONDS", 60.0)  # on a machine that is slow, batches are small
    monkeypatch.setattr(erasing, "MAX_SECONDS", 120.0)
    for number in range(12):
        inbox.receive(
            Incoming(f"{number}"), conversation=inbox.start_conversation(owner_id=owner.pk, metadata={}), request_id="r"
        )
    Turn.objects.update(status="cancelled")
    age(31)
    keep(agent, messages=30)
    go()
    assert 1 < AuditEntry.objects.filter(action="retention.erased").count() < 12
    assert not Message.objects.exists()


def test_a_run_in_pieces_comes_to_the_end_and_then_rests(fill, conversation, agent, monkeypatch, owner):
    fill(300)
    log.append(agent=agent.name, owner_id=owner.pk, content="x", happened_at=clock.read() - timedelta(days=9))
    age(31)
    keep(agent, messages=30, history=30)
    monkeypatch.setattr(retention, "RUN_SECONDS", -1.0)
    data_retention()
    row = RetentionRun.objects.get()
    assert row.position is not None
    assert 0 < Message.objects.count() < 300
    for _ in range(100):
        if RetentionRun.objects.get().position is None:
            break
        data_retention()
    assert not Message.objects.exists()
    assert not HistoryEntry.objects.exists()
    fill(5)
    age(31)
    data_retention()
    assert Message.objects.count() == 5
    RetentionRun.objects.update(began_at=row.began_at - timedelta(days=1, minutes=1))
    monkeypatch.undo()
    data_retention()
    assert not Message.objects.exists()


def test_a_run_that_somebody_else_is_at_is_left_to_them(fill, agent):
    fill(5)
    age(31)
    keep(agent, messages=30)
    RetentionRun.objects.create(lease_until=clock.read() + timedelta(seconds=60))
    data_retention()
    assert Message.objects.count() == 5
    RetentionRun.objects.update(lease_until=clock.read() - timedelta(seconds=1))
    data_retention()
    assert not Message.objects.exists()


def test_messages_are_deleted_by_their_conversation_too(fill, agent):
    """In a table in parts, that says in which part they are."""
    fill(5)
    age(31)
    keep(agent, messages=30)
    with CaptureQueriesContext(connection) as queries:
        go()
    deletes = [each["sql"] for each in queries if each["sql"].startswith('DELETE FROM "conversations_message"')]
    assert deletes
    assert all('"conversation_id" = ' in each for each in deletes)


# --- conversations of one request each ---------------------------------------------------------------------------


def a_request(agent, owner, content="Hello"):
    """A turn of a request that has brought its whole history."""
    history = [{"role": "user", "content": "Before."}, {"role": "assistant", "content": "Yes."}]
    return inbox.receive(
        Incoming(content, history=history, options=Options()),
        conversation=inbox.transient_conversation(owner_id=owner.pk, agent=agent, metadata={}),
        request_id="r",
    )


def make_old(days):
    Conversation.objects.update(created_at=clock.read() - timedelta(days=days))


def test_conversations_of_one_request_go_whole_and_the_others_stay(say, agent, owner):
    talk(say, "one")
    turn = settle(a_request(agent, owner))
    assert (turn.status, Message.objects.count()) == ("succeeded", 6)
    make_old(29)
    data_retention()
    assert Message.objects.count() == 6
    make_old(31)
    data_retention()
    assert contents() == ["one", "You said: one"]
    assert not Conversation.objects.filter(is_transient=True).exists()
    entry = AuditEntry.objects.get(action="retention.erased")
    assert json.loads(entry.after)["kind"] == "transient"


def test_those_whose_turn_is_open_or_that_a_hold_keeps_stay(agent, owner):
    waiting = a_request(agent, owner)
    held = settle(a_request(agent, owner))
    hold = holds.place(
        kind="conversation",
        owner_id=owner.pk,
        agent=agent.name,
        conversation_id=held.conversation_id,
        reason="A lawsuit.",
        by="anna",
    )
    make_old(31)
    data_retention()
    assert set(Conversation.objects.values_list("pk", flat=True)) == {waiting.conversation_id, held.conversation_id}
    settle(waiting)
    holds.release(hold, reason="It is over.", by="anna")
    data_retention()
    assert not Conversation.objects.exists()


def test_what_a_turn_was_asked_with_goes_with_its_messages(agent, owner, conversation):
    keep(agent, messages=30)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    options = Options(instructions="Be brief.", tools=[tool])
    incoming = Incoming(script({"call": [{"name": "weather"}]}), options=options)
    turn = inbox.receive(incoming, conversation=conversation, request_id="r")
    turn = advance(turn)
    asked = CallerRound.objects.get()
    turn_control.cancel_turn(turn)
    age(31)
    go()
    turn.refresh_from_db()
    assert turn.options is None
    assert not CallerRound.objects.filter(pk=asked.pk).exists()
