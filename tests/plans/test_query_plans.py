"""What the host reads does not grow with what it keeps: the plan of each hot query on a million messages.

Every operation is done once, for real, on PostgreSQL with 1,000,000 messages, 200,000 turns and 400,000 tool calls, and
each statement it runs is explained where it is run. No table that grows is read from one end to the other, and what is
read is bounded. Nothing here is timed.
"""

import inspect
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client, TestCase
from django.utils import timezone

import tools.approvals
from agent.llm.base import Completion, Usage, tool_call
from agent.models import Agent
from agent.spending import bills, book, budgets
from agent.spending.bills import Bill
from agent.spending.models import Budget, BudgetPeriod
from conversations import announced, search, sharing, taint
from conversations.api import urls
from conversations.attachments import store
from conversations.channel_models import Channel, ChannelEvent, Chat, Listener
from conversations.channels import accounts
from conversations.channels.base import Event, Heard
from conversations.deliveries import endpoints, outbox
from conversations.engine import (
    announcements,
    approvals,
    caller,
    compaction,
    daily,
    deadlines,
    deferred,
    from_channels,
    history,
    inbox,
    intake,
    lease,
    listener,
    outgoing,
    questions,
    retention,
    snapshot,
    spawned,
    steps,
    sweeper,
    tainted_texts,
    turn_control,
    undelivered,
    worker,
)
from conversations.engine.incoming import Incoming
from conversations.engine.lease import Claim
from conversations.events import answers, streams
from conversations.kinds import COMPACTIONS, DELIVERIES, TOOLS, TURNS
from conversations.models import (
    Attachment,
    AttachmentUse,
    CallerRound,
    Compaction,
    CompactionStatus,
    Conversation,
    DeferredMessage,
    Delivery,
    Message,
    Share,
    StoredResponse,
    TaintedText,
    Turn,
    WebhookEndpoint,
)
from conversations.openai_api import turn_parts
from conversations.openai_api import urls as openai_urls
from conversations.options import Options
from conversations.question_models import Question
from conversations.statuses import TurnStatus, WaitingFor
from conversations.web import gateway
from nanohost.accounts import audit
from nanohost.accounts.models import WIDE, ApiKey, AuditEntry, Scope
from nanohost.chat import embed
from nanohost.console import attention
from nanohost.lib.admin import GrowingAdmin
from nanohost.lib.clock import Now, from_now
from nanohost.lib.erasing import MAX_ROWS, Erased
from nanohost.lib.ids import new_id
from scheduler.system_jobs import sync_system_jobs
from tests.support import bulk, servers
from tests.support.query_plan import Statement, explained
from tests.support.saying import said
from tools import calls, limits
from tools import retention as of_calls
from tools.documents.reading import Read
from tools.models import Approval, CallStatus, ToolCall, ToolSetting, sync_settings
from tools.registry import ORIGIN, Caller

pytestmark = [
    pytest.mark.production(reason="the plans are PostgreSQL's; tests/engine/test_sweeper.py has those of SQLite"),
    pytest.mark.timeout(900),  # bounds a hang: a million rows take their time on a slow machine
]

GROW = {
    model._meta.db_table
    for model in (
        *(Conversation, Turn, Message, ToolCall, Compaction, DeferredMessage, Approval, Delivery, AuditEntry),
    )
}


@dataclass(frozen=True)
class Bound:
    """What one statement may read: rows in one step of its plan, and blocks of 8 kB in all."""

    rows: int
    blocks: int


# What was undone before counts as well, until PostgreSQL has cleaned up after it; hence the room.
HOT = Bound(rows=1_000, blocks=500)
# And the messages that no summary covers yet, 500 of them at most, each in a block of its own.
PROMPT = Bound(rows=1_000, blocks=1_000)
# What is compacted at once: 2,000 messages.
READING = Bound(rows=3_000, blocks=3_000)
# Of a day, which has 576 turns here.
DAILY = Bound(rows=20_000, blocks=20_000)
# Of all that is open, which is 500 turns here, a sweep takes 200 and marks each: 50 blocks a row, with its indexes.
SWEEP = Bound(rows=3_000, blocks=15_000)
# A list of the console counts to 500. PostgreSQL walks by time until it has them, or goes by another index, whichever
# is less: of n rows, some multiple of the root of 500 n.
CONSOLE = Bound(rows=60_000, blocks=11_000)
# Of what is deleted by its age, a batch: its rows, and the blocks of the indexes that each stands in.
BATCH = Bound(rows=3_000, blocks=40_000)
# Of so many conversations, the deferred messages; the long one has 5,000.
A_PAGE = Bound(rows=15_000, blocks=20_000)
# As long as the conversation is: of one with 100,000 messages, what is searched; of others, what is deleted.
WHOLE = Bound(rows=150_000, blocks=150_000)


@dataclass(frozen=True)
class Operation:
    """``prepare`` is not looked at; what it returns is."""

    prepare: Callable[[], Callable[[], object]]
    bound: Bound


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, bound: Bound = HOT
) -> Callable[[Callable[[], Callable[[], object]]], Callable[[], Callable[[], object]]]:
    """Names what is measured: ``module.function``, ``METHOD path``, and a remark behind a comma."""

    def add(prepare: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object]]:
        assert name not in OPERATIONS
        OPERATIONS[name] = Operation(prepare, bound)
        return prepare

    return add


# --- taking messages in ------------------------------------------------------------------------------------------


def the_long_one() -> Conversation:
    return Conversation.objects.select_related("agent").get(key="api:1")


def a_usual_one() -> Conversation:
    return Conversation.objects.select_related("agent").get(key="api:77")


def say(**options: Any) -> Turn:
    return said("words", conversation=the_long_one(), request_id="request", **options)


@operation("inbox.start_conversation")
def start_conversation() -> Callable[[], object]:
    return lambda: inbox.start_conversation(owner_id=1, metadata={})


@operation("inbox.conversation_of")
def conversation_of() -> Callable[[], object]:
    key = the_long_one().key
    return lambda: inbox.conversation_of(owner_id=1, key=key, metadata={})


@operation("inbox.receive")
def receive() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.receive(Incoming("words"), conversation=conversation, request_id="request")


def a_file() -> AttachmentUse:
    """Of the first owner's, with a thumbnail."""
    read = Read(media_type="image/png", width=1, height=1, thumbnail=b"small")
    row = store.store(1, b"a picture", read)
    store.refer(the_long_one().pk, new_id(), [store.reference(row, "a name")])
    return AttachmentUse.objects.get(attachment=row)


@operation("inbox.receive, with a file")
def receive_with_file() -> Callable[[], object]:
    reference = store.reference(a_file().attachment, "a name")
    return lambda: say(attachments=[reference])


@operation("store.take")
def take_file() -> Callable[[], object]:
    sha256 = a_file().attachment.sha256
    return lambda: store.take(1, sha256)


@operation("store.store")
def store_file() -> Callable[[], object]:
    read = Read(media_type="image/png", width=1, height=1, thumbnail=b"small")
    return lambda: store.store(1, b"another picture", read)


@operation("store.forget")
def forget_file() -> Callable[[], object]:
    message_id = a_file().message_id
    return lambda: store.forget([message_id])


# Who refers to a file is asked of each that is old enough: in retention's run, once.
@operation("store.collect", WHOLE)
def collect_files() -> Callable[[], object]:
    a_file().delete()
    Attachment.objects.filter(sha256=store.hash_of(b"a picture")).update(used_at=datetime(2020, 1, 1, tzinfo=UTC))
    return store.collect


@operation("inbox.receive, with an idempotency key")
def receive_with_key() -> Callable[[], object]:
    return lambda: say(idempotency_key="fresh")


@operation("inbox.receive, again")
def receive_again() -> Callable[[], object]:
    say(idempotency_key="again")
    return lambda: say(idempotency_key="again")


@operation("inbox.ask_again")
def ask_again() -> Callable[[], object]:
    turn = the_long_one().turns.filter(status=TurnStatus.FAILED).latest("number")
    return lambda: inbox.ask_again(turn, request_id="request")


@operation("turn_control.ask_models_again", BATCH)
def ask_models_again() -> Callable[[], object]:
    waiting = {"status": TurnStatus.WAITING, "waiting_for": WaitingFor.RETRY, "retry_code": "llm_unavailable"}
    turns = Turn.objects.filter(status=TurnStatus.QUEUED).order_by("pk").values_list("pk", flat=True)[:50]
    later = timezone.now() + timedelta(hours=1)
    Turn.objects.filter(pk__in=list(turns)).update(**waiting, run_after=later)
    return turn_control.ask_models_again


@operation("inbox.asked_again")
def asked_again() -> Callable[[], object]:
    turns = list(the_long_one().turns.filter(status=TurnStatus.FAILED)[:50])
    inbox.ask_again(turns[0], request_id="request")
    return lambda: inbox.asked_again(turns)


# --- a turn's life -----------------------------------------------------------------------------------------------

USAGE = Usage(prompt_tokens=1, completion_tokens=1)
CALLS = Completion(tool_calls=(tool_call("call_a", "time", "{}"), tool_call("call_b", "time", "{}")), usage=USAGE)


def claimed(turn: Turn | None = None) -> Claim:
    claim = lease.claim((turn or say()).pk, worker="worker")
    assert claim
    return claim


def waits_for_tools() -> Turn:
    claim = claimed()
    assert steps.store_calls(claim, CALLS, limit=None)
    return Turn.objects.get(pk=claim.turn_id)


@operation("lease.claim")
def claim_fresh() -> Callable[[], object]:
    turn = say()
    return lambda: claimed(turn)


@operation("lease.claim, after its tools")
def claim_again() -> Callable[[], object]:
    turn = waits_for_tools()
    ToolCall.objects.filter(turn_id=turn.pk).update(status=CallStatus.SUCCESS)
    return lambda: claimed(turn)


@operation("lease.claim, not its turn")
def claim_too_early() -> Callable[[], object]:
    say()
    turn = say()
    return lambda: lease.claim(turn.pk, worker="worker")


def with_claim(act: Callable[[Claim], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        claim = claimed()
        say()  # and one is queued behind it
        return lambda: act(claim)

    return prepare


def read_twice(claim: Claim) -> None:
    """All of it, and what came since."""
    recent = history.Recent()
    for _ in range(2):
        pointers: dict[str, int] = {"starts_at": 1, "consolidated_through": 0, "window": 20, "summary_seq": 1}
        history.read(claim.conversation_id, claim.turn_id, **pointers, recent=recent)


operation("lease.renew")(with_claim(lambda claim: lease.renew([claim], worker="worker")))
operation("lease.still_held")(with_claim(lambda claim: lease.still_held([claim])))
operation("snapshot.load", PROMPT)(with_claim(snapshot.load))
operation("history.read", PROMPT)(with_claim(lambda claim: read_twice(claim)))
operation("history.said_between", PROMPT)(
    with_claim(lambda claim: history.said_between(claim.conversation_id, 1_000, 1_499))
)
operation("steps.store_calls")(with_claim(lambda claim: steps.store_calls(claim, CALLS, limit=None)))
operation("steps.finish")(with_claim(lambda claim: steps.finish(claim, Completion(usage=USAGE), reply="words")))
operation("steps.charge")(with_claim(lambda claim: steps.charge(claim, Completion(usage=USAGE), bills.NOTHING)))
operation("steps.keep_invalid")(
    with_claim(
        lambda claim: steps.keep_invalid(
            claim,
            Completion(content="x", usage=USAGE),
            earlier=(),
            wrong="It is no JSON.",
            sent=None,
            bill=bills.NOTHING,
        )
    )
)
operation("steps.fail")(with_claim(lambda claim: steps.fail(claim, code="turn_error")))
operation("steps.wait_for_retry")(with_claim(lambda claim: steps.wait_for_retry(claim, seconds=1)))
operation("steps.fall_back")(with_claim(lambda claim: steps.fall_back(claim, model="m", reason="It has failed.")))
operation("steps.reschedule")(with_claim(lambda claim: steps.reschedule(claim, seconds=1)))
operation("steps.release")(with_claim(steps.release))
operation("steps.notify_next")(with_claim(lambda claim: steps.notify_next(claim.conversation_id)))


@operation("steps.store_results")
def store_results() -> Callable[[], object]:
    turn = waits_for_tools()
    ToolCall.objects.filter(turn_id=turn.pk).update(status=CallStatus.SUCCESS)
    claim = claimed(turn)
    view = snapshot.load(claim)
    return lambda: steps.store_results(claim, view)


@operation("steps.cancel_if_asked")
def cancel_if_asked() -> Callable[[], object]:
    claim = claimed()
    Turn.objects.filter(pk=claim.turn_id).update(cancel_requested=True)
    return lambda: steps.cancel_if_asked(claim)


@operation("steps.close_round")
def close_round() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: steps.close_round(turn.conversation_id, turn.pk, rule="cancelled", reason="")


# --- tools of the caller's -------------------------------------------------------------------------------------------

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
ASKS = Completion(tool_calls=(tool_call("call_c", "weather", "{}"),), usage=USAGE)


def waits_for_caller() -> Turn:
    """Of the long conversation."""
    claim = claimed(say(options=Options(tools=[WEATHER])))
    assert steps.store_calls(claim, ASKS, limit=None)
    return Turn.objects.get(pk=claim.turn_id)


def a_round() -> CallerRound:
    asked = CallerRound.objects.filter(turn=waits_for_caller()).select_related("turn__conversation__agent")
    return asked.get()


def with_round(act: Callable[[CallerRound], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        asked = a_round()
        return lambda: act(asked)

    return prepare


def outputs_of(asked: CallerRound) -> dict[str, str]:
    return {call["id"]: "rain" for call in asked.calls}


operation("caller.find")(with_round(lambda asked: caller.find(outputs_of(asked), owner_id=asked.turn.owner_id)))
operation("caller.pending")(with_round(lambda asked: caller.pending(asked.turn.conversation_id)))
operation("caller.answer")(
    with_round(lambda asked: caller.answer(asked, outputs_of(asked), options=Options(), request_id="request"))
)
operation("turn_parts.part_of")(with_round(lambda asked: turn_parts.part_of(asked.turn, 0)))
operation("turn_parts.is_over")(with_round(lambda asked: turn_parts.is_over(asked.turn, 0)))
operation("turn_parts.first_message")(with_round(lambda asked: turn_parts.first_message(asked.turn, 1)))


@operation("steps.store_calls, of the caller's")
def store_callers_calls() -> Callable[[], object]:
    claim = claimed(say(options=Options(tools=[WEATHER])))
    return lambda: steps.store_calls(claim, ASKS, limit=None)


@operation("steps.wait_for_caller")
def wait_for_caller() -> Callable[[], object]:
    claim, call = claimed(), {"id": CallerRound.call_id(new_id(), 0), "function": {"name": "weather", "arguments": ""}}
    return lambda: steps.wait_for_caller(claim, [call])


@operation("caller.expire_due")
def expire_callers() -> Callable[[], object]:
    Turn.objects.filter(pk=waits_for_caller().pk).update(deadline=from_now(-1))
    return caller.expire_due


@operation("inbox.retried")
def retried() -> Callable[[], object]:
    turn = say(options=Options(), key=ApiKey.objects.get(), body_hash="0" * 64)
    return lambda: inbox.retried(key=ApiKey.objects.get(), body_hash=turn.body_hash)


@operation("gateway.cancel")
def cancel_for_who_has_left() -> Callable[[], object]:
    turn = waits_for_caller()
    return lambda: gateway.cancel(turn.pk)


# --- tool calls --------------------------------------------------------------------------------------------------


def a_call() -> ToolCall:
    return ToolCall.objects.filter(turn_id=waits_for_tools().pk).latest("position")


def a_running_call() -> ToolCall:
    call = calls.claim(a_call().pk, worker="worker")
    assert call
    return call


def with_call(act: Callable[[ToolCall], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        call = a_running_call()
        return lambda: act(call)

    return prepare


@operation("calls.claim")
def claim_call() -> Callable[[], object]:
    call = a_call()
    return lambda: calls.claim(call.pk, worker="worker")


operation("calls.keep")(with_call(calls.keep))
operation("calls.release")(with_call(calls.release))
operation("calls.doubt_queued")(with_call(lambda call: calls.doubt_queued([call.turn_id])))
operation("calls.end")(
    with_call(lambda call: calls.end(call, calls.Outcome(status=CallStatus.SUCCESS, result="words"), duration_ms=1))
)
operation("calls.end_open")(with_call(lambda call: calls.end_open([call.turn_id], rule="cancelled", reason="")))


# A busy minute: 2,000 calls of one tool, of which the owner's are the first 100.
BUSY, OWN, ALLOWED = 2_000, 100, 75
BUSY_MINUTE = """
INSERT INTO tools_toolcall
    (id, conversation_id, turn_id, owner_id, agent, call_id, position, tool_name, arguments, arguments_hash, status,
     effects, request_id, rule, result, fence, attempts, worker, created_at)
    SELECT gen_random_uuid(), CASE WHEN n <= own THEN id ELSE gen_random_uuid() END, id,
           CASE WHEN n <= own THEN owner_id ELSE 2 + n %% 199 END, 'default', 'busy_' || n, 1000000 + n, 'time', '{}',
           repeat('0', 64), 'SUCCESS', 'read', '', '', '', 0, 0, '', now() - (busy - n) * interval '1 millisecond'
    FROM conversations_conversation, (VALUES (%s, %s)) minute (own, busy), generate_series(1, busy) n WHERE id = %s
"""


def busy_minute() -> ToolSetting:
    with connection.cursor() as cursor:
        cursor.execute(BUSY_MINUTE, [OWN, BUSY, the_long_one().pk])
        cursor.execute("ANALYZE tools_toolcall")
    ToolSetting.objects.filter(name="time").update(
        calls_per_minute_conversation=ALLOWED, calls_per_minute_owner=ALLOWED
    )
    return ToolSetting.objects.get(name="time")


@operation("steps.store_calls, within limits")
def store_limited_calls() -> Callable[[], object]:
    busy_minute()
    claim = claimed()
    return lambda: steps.store_calls(claim, CALLS, limit=None)


@operation("limits.exceeding")
def exceeding() -> Callable[[], object]:
    busy_minute()
    conversation = the_long_one()
    call = ToolCall(tool_name="time", conversation_id=conversation.pk, owner_id=conversation.owner_id)
    call.rate_limited = True

    def look() -> None:
        assert [limit.rule for _, limit, _ in limits.exceeding([call])]

    return look


@operation("limits.exceeded_by")
def exceeded_by() -> Callable[[], object]:
    setting = busy_minute()
    conversation = the_long_one()
    call = ToolCall(tool_name="time", conversation_id=conversation.pk, owner_id=conversation.owner_id)

    def look() -> None:
        assert limits.exceeded_by(call, setting)

    return look


@operation("limits.exceeded_at_start")
def exceeded_at_start() -> Callable[[], object]:
    setting = busy_minute()
    call = ToolCall.objects.filter(owner_id=the_long_one().owner_id).latest("created_at", "pk")

    def look() -> None:
        assert limits.exceeded_at_start(call, setting)

    return look


# --- compactions -------------------------------------------------------------------------------------------------


def asked_for() -> Compaction:
    compaction.request(the_long_one().pk, None, keep_tokens=1000)
    return Compaction.objects.get(status=CompactionStatus.QUEUED)


def held() -> compaction.Hold:
    hold = compaction.claim(asked_for().pk, worker="worker")
    assert hold
    return hold


def the_part(hold: compaction.Hold) -> compaction.Part:
    part = compaction.read(hold.conversation_id, agent=hold.agent, keep_tokens=hold.keep_tokens)
    assert part
    return part


def with_hold(act: Callable[[compaction.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = held()
        return lambda: act(hold)

    return prepare


def with_part(act: Callable[[compaction.Hold, compaction.Part], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = held()
        part = the_part(hold)
        return lambda: act(hold, part)

    return prepare


@operation("compaction.request")
def ask_for_compaction() -> Callable[[], object]:
    return asked_for


@operation("compaction.claim")
def claim_compaction() -> Callable[[], object]:
    row = asked_for()
    return lambda: compaction.claim(row.pk, worker="worker")


operation("compaction.charge")(with_hold(lambda hold: compaction.charge(hold, Completion(usage=USAGE), bills.NOTHING)))
operation("compaction.keep")(with_hold(compaction.keep))
operation("compaction.release")(with_hold(compaction.release))
operation("compaction.drop")(with_hold(compaction.drop))
operation("compaction.fail")(with_hold(compaction.fail))
operation("compaction.reschedule")(with_hold(lambda hold: compaction.reschedule(hold, error="", counts=True)))
operation("compaction.fall_back")(with_hold(lambda hold: compaction.fall_back(hold, model="m", reason="It failed.")))
# 2,000 messages at once; a stub reads them again, whole.
operation("compaction.read", READING)(with_hold(the_part))
operation("compaction.keep_so_far", READING)(
    with_part(lambda hold, part: compaction.keep_so_far(hold, part, compaction.Result(summary="words")))
)
operation("compaction.keep_memory", READING)(
    with_part(lambda hold, part: compaction.keep_memory(part, "- words", model="m", turn_id=None, hold=hold))
)
operation("compaction.store", READING)(
    with_part(lambda hold, part: compaction.store(hold, part, replace(compaction.stub_of(part), memory="- words")))
)


@operation("daily.request", DAILY)
def ask_for_summaries() -> Callable[[], object]:
    until = timezone.now()
    return lambda: daily.request(day=until.date(), since=until - timedelta(days=1), until=until)


def a_day() -> compaction.Hold:
    until = timezone.now()
    daily.request(day=until.date(), since=until - timedelta(days=1), until=until)
    hold = compaction.claim(Compaction.objects.filter(day=until.date())[0].pk, worker="worker")
    assert hold
    return hold


@operation("daily.read")
def read_day() -> Callable[[], object]:
    hold = a_day()
    return lambda: daily.read(hold)


@operation("daily.store")
def store_day() -> Callable[[], object]:
    hold = a_day()
    lines = daily.read(hold)
    return lambda: daily.store(hold, lines, compaction.Result(summary="words"))


# --- budgets -----------------------------------------------------------------------------------------------------


def a_budget() -> Budget:
    """One with a year behind it, beside others."""
    every = [Budget(name=f"{n}", whose="host", measure="tokens", every="day", amount=10**9) for n in range(100)]
    made = Budget.objects.bulk_create(every)
    days = [timezone.localdate() - timedelta(days=day) for day in range(100)]
    BudgetPeriod.objects.bulk_create(BudgetPeriod(budget=each, start=day) for each in made for day in days)
    return made[-1]


def reserved() -> Bill:
    """Of a budget of which others have reserved as well."""
    limit = next(each for each in book.read().limits if each.id == a_budget_id())
    estimate = budgets.Estimate(model="m", prompt_tokens=1, completion_tokens=1)
    for _ in range(50):
        ids = {name: new_id() for name in ("call_id", "work_id", "conversation_id")}
        made = budgets.reserve([limit], estimate, price=None, **ids)
    return Bill(reserved=made, counted=Usage(prompt_tokens=9 * 10**8))


def a_budget_id() -> int:
    latest = Budget.objects.order_by("-pk").first()
    assert latest
    return latest.pk


@operation("budgets.reserve")
def reserve() -> Callable[[], object]:
    a_budget()
    book.forget()
    reserved()
    return reserved


@operation("budgets.settle")
def settle() -> Callable[[], object]:
    a_budget()
    book.forget()
    bill = reserved()
    return lambda: budgets.settle(bill)


@operation("budgets.used_up")
def used_up() -> Callable[[], object]:
    a_budget()
    book.forget()
    limits = book.read().limits[-3:]
    return lambda: budgets.used_up(limits, timezone.now())


@operation("taint.last_before", READING)
def last_mark() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: taint.last_before(conversation.pk, conversation.next_seq)


@operation("inbox.begin_anew")
def begin_anew() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.begin_anew(conversation_id=conversation.pk)


# --- deferred messages --------------------------------------------------------------------------------------------


def defer(kind: deferred.Kind, when: str = "2020-01-01T00:00Z") -> None:
    run_after = datetime.fromisoformat(when)
    deferred.put(the_long_one(), kind=kind, content="words", run_after=run_after, request_id="request")


@operation("deferred.put")
def put_deferred() -> Callable[[], object]:
    return lambda: defer(deferred.Kind.CONTEXT)


@operation("deferred.cancel")
def cancel_deferred() -> Callable[[], object]:
    defer(deferred.Kind.CONTEXT)
    message = DeferredMessage.objects.latest("pk")
    return lambda: deferred.cancel(message)


@operation("inbox.receive, with what rides along")
def receive_with_more() -> Callable[[], object]:
    defer(deferred.Kind.CONTEXT)
    return say


@operation("deferred.fire_due")
def fire_due() -> Callable[[], object]:
    defer(deferred.Kind.WAKE)
    return deferred.fire_due


@operation("deferred.fire")
def fire() -> Callable[[], object]:
    defer(deferred.Kind.WAKE)
    message = DeferredMessage.objects.latest("pk")
    return lambda: deferred.fire(message.pk)


# --- what goes out -----------------------------------------------------------------------------------------------


def to_go_out() -> Delivery:
    (row,) = outbox.put(announced.AUDIT_HEAD, {}, once=str(new_id()))[:1]
    return Delivery.objects.get(pk=row.pk)


def with_delivery(act: Callable[[outbox.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = outbox.claim(to_go_out().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


@operation("outbox.put")
def put_out() -> Callable[[], object]:
    return lambda: outbox.put(announced.AUDIT_HEAD, {})


@operation("outbox.put_for")
def put_out_for() -> Callable[[], object]:
    endpoint = WebhookEndpoint.objects.first()
    return lambda: outbox.put_for(endpoint, announced.TEST, {})


@operation("outbox.put_emails")
def put_out_emails() -> Callable[[], object]:
    return lambda: outbox.put_emails(["anna@example.org"], announced.APPROVAL_REQUESTED, {}, owner_id=1)


@operation("outbox.again")
def put_out_again() -> Callable[[], object]:
    row = to_go_out()
    return lambda: outbox.again(row)


@operation("outbox.claim")
def claim_delivery() -> Callable[[], object]:
    row = to_go_out()
    return lambda: outbox.claim(row.pk, worker="worker")


@operation("outbox.forget_old")
def forget_deliveries() -> Callable[[], object]:
    rows = Delivery.objects.filter(status="delivered").order_by("created_at").values_list("pk", flat=True)[:20]
    Delivery.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=31))
    return outbox.forget_old


operation("outbox.renew")(with_delivery(lambda hold: outbox.renew([hold.id], worker="worker")))
operation("outbox.release")(with_delivery(outbox.release))
operation("outbox.settle, delivered")(with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(status=204))))
operation("outbox.settle, rescheduled")(with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(error="words"))))
operation("outbox.settle, given up")(
    with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(error="words", is_final=True, disable="words")))
)


# --- platforms that are asked ------------------------------------------------------------------------------------


def to_be_asked() -> Listener:
    values = {"kind": "telegram", "settings": {"token": "CHANNEL_SECRET_TOKEN"}}
    agent, owner = Agent.objects.order_by("pk")[:1].get(), get_user_model().objects.order_by("pk")[:1].get()
    made, _ = accounts.make(name=f"bot-{new_id().hex[-20:]}", agent=agent, owner=owner, **values)
    return Listener.objects.get(channel=made)


def with_listener(act: Callable[[listener.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = listener.claim(to_be_asked().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


@operation("listener.claim")
def claim_listener() -> Callable[[], object]:
    row = to_be_asked()
    return lambda: listener.claim(row.pk, worker="worker")


operation("listener.renew")(with_listener(lambda hold: listener.renew([hold.id], worker="worker")))
operation("listener.still_held")(with_listener(lambda hold: listener.still_held([hold])))
operation("listener.take")(with_listener(lambda hold: listener.take(hold, Heard(events=(), cursor={}))))
operation("listener.reschedule")(with_listener(lambda hold: listener.reschedule(hold, "words", seconds=1)))
operation("listener.release")(with_listener(listener.release))


# --- what is said in chats ---------------------------------------------------------------------------------------


def a_chat() -> Chat:
    return Chat.objects.select_related("channel").get(key="shop:7")


def in_a_chat() -> Conversation:
    """The conversation that is held in one."""
    chat = a_chat()
    made, _ = Conversation.objects.get_or_create(
        owner_id=chat.owner_id, key=chat.key, defaults={"agent": chat.channel.agent, "cost": 0}
    )
    return made


def spoken() -> Delivery:
    (row,) = outgoing.say(in_a_chat(), "words")
    return row


def with_message(act: Callable[[outbox.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        Delivery.objects.filter(chat=a_chat(), status="queued").update(status="delivered")
        hold = outbox.claim(spoken().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


def said_in_a_chat(kind: str = "message") -> Event:
    return Event(external_id=str(new_id()), kind=kind, chat_id="7", sender_id="anna", text="words", message_id="m")


@operation("outbox.put_in_chat")
def put_in_chat() -> Callable[[], object]:
    chat = a_chat()
    return lambda: outbox.put_in_chat(chat, [outbox.Said(kind="chat", data={"text": "words"})])


@operation("outbox.claim, of a chat")
def claim_in_chat() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.claim(row.pk, worker="worker")


@operation("outbox.cancel")
def cancel_delivery() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.cancel(row)


@operation("outbox.wake_next")
def wake_next() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.wake_next(row)


@operation("outbox.forget_said")
def forget_said() -> Callable[[], object]:
    conversation_id = Delivery.objects.filter(chat=a_chat()).values_list("conversation_id", flat=True)[0]
    return lambda: outbox.forget_said(conversation_id)


@operation("outgoing.not_taken")
def say_that_it_was_not_taken() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.not_taken(a_chat(), "words", conversation_id=conversation.pk)


@operation("outgoing.say")
def say_in_chat() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.say(conversation, "words")


@operation("outgoing.pass_on")
def pass_on() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.pass_on(conversation, "words", destination=ORIGIN)


@operation("outgoing.names")
def names_of_destinations() -> Callable[[], object]:
    agent = in_a_chat().agent
    return lambda: outgoing.names(agent)


@operation("outgoing.destinations")
def destinations() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.destinations(conversation)


def of_a_turn() -> dict[str, Any]:
    conversation = in_a_chat()
    return {
        "key": conversation.key,
        "owner_id": conversation.owner_id,
        "conversation_id": conversation.pk,
        "turn_id": a_turn().pk,
    }


@operation("outgoing.reply")
def reply_in_chat() -> Callable[[], object]:
    whose = of_a_turn()
    return lambda: outgoing.reply(**whose, text="words")


@operation("outgoing.no_reply")
def no_reply_in_chat() -> Callable[[], object]:
    whose = of_a_turn()
    return lambda: outgoing.no_reply(**whose, status="failed", code="turn_error")


@operation("outgoing.no_reply_to")
def no_reply_to() -> Callable[[], object]:
    turn = Turn.objects.get(pk=a_turn().pk)
    return lambda: outgoing.no_reply_to(turn, "failed", code="turn_error")


@operation("outgoing.try_out")
def try_a_chat_out() -> Callable[[], object]:
    chat = a_chat()
    return lambda: outgoing.try_out(chat)


@operation("outgoing.cancel")
def cancel_message() -> Callable[[], object]:
    row = spoken()
    return lambda: outgoing.cancel(row)


operation("undelivered.settle, delivered")(with_message(lambda hold: undelivered.settle(hold, outbox.Outcome())))
operation("undelivered.settle, lost")(
    with_message(lambda hold: undelivered.settle(hold, outbox.Outcome(error="words", is_final=True)))
)
operation("undelivered.leave_in_doubt")(with_message(undelivered.leave_in_doubt))


@operation("from_channels.active")
def active_channel() -> Callable[[], object]:
    return lambda: from_channels.active("shop")


@operation("from_channels.take")
def take_from_channel() -> Callable[[], object]:
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat()], request_id="request")


@operation("from_channels.take, a reaction")
def take_reaction() -> Callable[[], object]:
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat("reaction")], request_id="request")


@operation("from_channels.take, of nobody who may")
def take_from_nobody() -> Callable[[], object]:
    Channel.objects.update(allow_from=[])
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat()], request_id="request")


@operation("from_channels.forget_old")
def forget_events() -> Callable[[], object]:
    rows = ChannelEvent.objects.order_by("created_at").values_list("pk", flat=True)[:20]
    ChannelEvent.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=31))
    return from_channels.forget_old


def many_tainted_texts(*, owner_id: int) -> None:
    """As many as a host has after a while."""
    made = (TaintedText(owner_id=owner_id, digest=f"{number:064}", tainted_by="web") for number in range(20_000))
    TaintedText.objects.bulk_create(made, batch_size=5_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE conversations_taintedtext")


@operation("tainted_texts.forget_old")
def forget_tainted_texts() -> Callable[[], object]:
    many_tainted_texts(owner_id=the_long_one().owner_id)
    rows = TaintedText.objects.order_by("created_at").values_list("pk", flat=True)[:20]
    TaintedText.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=400))
    return tainted_texts.forget_old


@operation("tainted_texts.recognised, of a long transcript", READING)
def recognise_texts() -> Callable[[], object]:
    owner_id = the_long_one().owner_id
    many_tainted_texts(owner_id=owner_id)
    said = [{"role": "assistant", "content": f"An answer {number}."} for number in range(2_000)]
    return lambda: tainted_texts.recognised(said, owner_id=owner_id)


@operation("tainted_texts.keep_answer", READING)
def keep_tainted_answer() -> Callable[[], object]:
    turn = the_long_one().turns.order_by("-number")[0]
    return lambda: tainted_texts.keep_answer(turn.pk, owner_id=turn.owner_id, by="web", call_ids=["call_1"])


@operation("tainted_texts.keep_calls")
def keep_tainted_calls() -> Callable[[], object]:
    turn = the_long_one().turns.order_by("-number")[0]
    return lambda: tainted_texts.keep_calls(turn.pk, owner_id=turn.owner_id, by="web")


@operation("announcements.anchor")
def anchor() -> Callable[[], object]:
    audit.record("tried")
    audit.seal()
    return announcements.anchor


@operation("announcements.turn_ended")
def turn_ended() -> Callable[[], object]:
    turn = a_turn()
    return lambda: announcements.turn_ended(turn.pk, TurnStatus.SUCCEEDED)


@operation("announcements.part_ended")
def part_ended() -> Callable[[], object]:
    turn = a_turn()
    endpoints.change(WebhookEndpoint.objects.earliest("pk"), kinds=sorted(announced.RESPONSES))
    row_id = StoredResponse.id_of(turn.pk, 0)
    StoredResponse.objects.create(id=row_id, turn=turn, number=0, asked={}, is_background=True)
    return lambda: announcements.part_ended(turn.pk, TurnStatus.SUCCEEDED)


@operation("announcements.announce")
def announce() -> Callable[[], object]:
    return lambda: announcements.announce(announced.AUDIT_HEAD, {})


@operation("announcements.try_out")
def try_out() -> Callable[[], object]:
    endpoint = WebhookEndpoint.objects.first()
    return lambda: announcements.try_out(endpoint)


@operation("announcements.send_again")
def send_again() -> Callable[[], object]:
    row = to_go_out()
    return lambda: announcements.send_again(row)


# --- sweeps, ends, and what the house does -----------------------------------------------------------------------


@operation("sweeper.find, turns", SWEEP)
def find_turns() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(TURNS)) == sweeper.MAX_FOUND

    return sweep


@operation("deadlines.end_overdue_calls", SWEEP)
def overdue_calls() -> Callable[[], object]:
    overdue = Turn.objects.filter(status=TurnStatus.WAITING, waiting_for="tools").values_list("pk", flat=True)[:3]
    Turn.objects.filter(pk__in=list(overdue)).update(deadline="2020-01-01T00:00Z")
    return deadlines.end_overdue_calls


@operation("sweeper.find, calls", SWEEP)
def find_calls() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(TOOLS)) == 40

    return sweep


@operation("sweeper.find, compactions", SWEEP)
def find_compactions() -> Callable[[], object]:
    return lambda: sweeper.find(COMPACTIONS, wanted=10)


@operation("sweeper.find, deliveries", SWEEP)
def find_deliveries() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(DELIVERIES)) == sweeper.MAX_FOUND

    return sweep


@operation("inbox.note")
def note() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.note(conversation_id=conversation.pk, content="words")


@operation("turn_control.cancel_turn, queued")
def cancel_queued() -> Callable[[], object]:
    turn = say()
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, waiting")
def cancel_waiting() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, running")
def cancel_running() -> Callable[[], object]:
    turn = Turn.objects.get(pk=claimed().turn_id)
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, ended")
def cancel_ended() -> Callable[[], object]:
    turn = the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).latest("number")
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.fail_turn")
def fail_turn() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.fail_turn(turn, reason="words")


@operation("turn_control.requeue_turn, running")
def requeue_running() -> Callable[[], object]:
    turn = Turn.objects.get(pk=claimed().turn_id)
    return lambda: turn_control.requeue_turn(turn)


@operation("turn_control.requeue_turn, waiting")
def requeue_waiting() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.requeue_turn(turn)


@operation("sweeper.overlooked", SWEEP)
def overlooked() -> Callable[[], object]:
    def look() -> None:
        assert len(sweeper.overlooked()[TURNS]) == sweeper.MAX_FOUND

    return look


@operation("sweeper.notify_again", SWEEP)
def notify_again() -> Callable[[], object]:
    return sweeper.notify_again


def paused() -> None:
    assert intake.pause(by="boss", because="words")


@operation("intake.pause")
def pause() -> Callable[[], object]:
    return paused


@operation("intake.resume", SWEEP)
def resume() -> Callable[[], object]:
    paused()
    return lambda: intake.resume(by="boss")


@operation("intake.current_pause")
def current_pause() -> Callable[[], object]:
    return intake.current_pause


@operation("intake.left", SWEEP)
def left() -> Callable[[], object]:
    return intake.left


@operation("inbox.receive, while the intake is paused")
def receive_paused() -> Callable[[], object]:
    paused()
    return say


@operation("turn_control.count_open")
def count_open() -> Callable[[], object]:
    say()
    return turn_control.count_open


@operation("turn_control.end_restored")
def end_restored() -> Callable[[], object]:
    waits_for_tools()
    return turn_control.end_restored


def a_sub_agent() -> Conversation:
    """Of a call in the long conversation; its turn is open."""
    turn = a_turn()
    call = ToolCall.objects.filter(turn_id=turn.pk).order_by("position")[0]
    ToolCall.objects.filter(pk=call.pk).update(tool_name=spawned.TOOL, owner_id=turn.owner_id)
    made_for = new_id()
    key = f"{spawned.CHANNEL}{made_for}"
    whose: dict[str, Any] = {"owner_id": turn.owner_id, "agent": turn.conversation.agent, "spawned_by": call.pk}
    whose["spawned_in"] = turn.conversation_id
    made = Conversation.objects.create(id=made_for, key=key, name="words", cost=0, **whose)
    said("words", conversation=made, request_id="r")
    return made


@operation("turn_control.cancel_spawned")
def cancel_spawned() -> Callable[[], object]:
    above = a_sub_agent().spawned_in
    return lambda: turn_control.cancel_spawned(above)


@operation("turn_control.cancel_turn of one with sub-agents")
def cancel_turn_with_sub_agents() -> Callable[[], object]:
    above = Turn.objects.get(pk=ToolCall.objects.get(pk=a_sub_agent().spawned_by).turn_id)
    Turn.objects.filter(pk=above.pk).update(status=TurnStatus.QUEUED, ended_at=None)
    return lambda: turn_control.cancel_turn(above)


@operation("spawned.report")
def report_of_a_sub_agent() -> Callable[[], object]:
    turn = Turn.objects.select_related("conversation").get(conversation=a_sub_agent())
    whose: dict[str, Any] = {"owner_id": turn.owner_id, "conversation_id": turn.conversation_id, "turn_id": turn.pk}
    return lambda: spawned.report(key=turn.conversation.key, **whose, status="succeeded", text="words")


@operation("spawned.is_report")
def is_a_report() -> Callable[[], object]:
    turn, made_of = a_turn(), a_deferred_one()
    turn.idempotency_key = f"later {made_of.pk} 1"
    return lambda: spawned.is_report(turn)


@operation("turn_control.delete_conversation")
def delete_conversation() -> Callable[[], object]:
    conversation = a_usual_one()
    return lambda: turn_control.delete_conversation(conversation.pk)


def ripe(before: datetime | None = None) -> dict[str, Any]:
    """The oldest half of a year is old enough."""
    return {"before": before or timezone.now() - timedelta(days=180)}


@operation("retention.page", A_PAGE)
def retention_page() -> Callable[[], object]:
    agent = the_long_one().agent_id
    return lambda: [retention.page(agent, what, **ripe(), after=None) for what in retention.WHAT]


@operation("retention.page, behind others", A_PAGE)
def retention_page_behind() -> Callable[[], object]:
    agent, after = the_long_one().agent_id, a_usual_one().pk
    return lambda: [retention.page(agent, what, **ripe(), after=after) for what in retention.WHAT]


def erasing(erase: Callable[..., object], conversation: Conversation) -> Callable[[], object]:
    return lambda: erase(conversation.pk, **ripe(), rows=MAX_ROWS, erased=Erased())


@operation("retention.erase_messages", WHOLE)
def erase_messages() -> Callable[[], object]:
    return erasing(retention.erase_messages, the_long_one())


@operation("retention.erase_sent", WHOLE)
def erase_sent() -> Callable[[], object]:
    return erasing(retention.erase_sent, the_long_one())


@operation("retention.erase_results", WHOLE)
def erase_results() -> Callable[[], object]:
    return erasing(retention.erase_results, the_long_one())


@operation("retention.erase_messages, of a usual one", BATCH)
def erase_usual_messages() -> Callable[[], object]:
    return erasing(retention.erase_messages, a_usual_one())


@operation("retention.erase_sent, of a usual one", BATCH)
def erase_usual_sent() -> Callable[[], object]:
    return erasing(retention.erase_sent, a_usual_one())


@operation("retention.erase_results, of a usual one", BATCH)
def erase_usual_results() -> Callable[[], object]:
    return erasing(retention.erase_results, a_usual_one())


@operation("retention.count_messages", WHOLE)
def count_messages() -> Callable[[], object]:
    return lambda: retention.count_messages(the_long_one().pk, **ripe())


@operation("retention.count_sent", WHOLE)
def count_sent() -> Callable[[], object]:
    return lambda: retention.count_sent(the_long_one().pk, **ripe())


@operation("retention.count_results", WHOLE)
def count_results() -> Callable[[], object]:
    return lambda: retention.count_results(the_long_one().pk, **ripe())


@operation("retention.forget_transient", BATCH)
def forget_transient() -> Callable[[], object]:
    return lambda: retention.forget_transient(seconds=0.001)


@operation("retention.forget_transient, dropped", BATCH)
def forget_dropped() -> Callable[[], object]:
    Conversation.objects.filter(is_transient=True).update(created_at=Now())
    made = inbox.start_conversation(owner_id=a_turn().owner_id, metadata={})
    Conversation.objects.filter(pk=made.pk).update(is_dropped=True, created_at=from_now(-86_400))

    def forget() -> None:
        assert retention.forget_transient(seconds=60) == 1

    return forget


@operation("of_calls.page", PROMPT)
def page_of_calls() -> Callable[[], object]:
    return lambda: of_calls.page("default", **ripe(), after=None)


@operation("of_calls.page, behind others", PROMPT)
def page_of_calls_behind() -> Callable[[], object]:
    (first, *_) = of_calls.page("default", **ripe(), after=None)
    return lambda: of_calls.page("default", **ripe(), after=(first.created_at, first.id))


@operation("of_calls.erase", BATCH)
def erase_calls() -> Callable[[], object]:
    found = [each.id for each in of_calls.page("default", **ripe(), after=None)]
    return lambda: of_calls.erase(found, erased=Erased())


@operation("of_calls.of_conversation")
def calls_of_a_conversation() -> Callable[[], object]:
    return lambda: of_calls.of_conversation(a_usual_one().pk).count()


@operation("of_calls.of_owner", READING)
def calls_of_an_owner() -> Callable[[], object]:
    return lambda: list(of_calls.of_owner(7)[:MAX_ROWS])


@operation("an owner is deleted", WHOLE)
def delete_owner() -> Callable[[], object]:
    owner = get_user_model().objects.get(username="owner-7")
    return lambda: owner.delete()


@operation("worker.forget_dead_workers")
def forget_dead_workers() -> Callable[[], object]:
    return worker.forget_dead_workers


@operation("the gateway looks")
def what_the_gateway_waits_for() -> Callable[[], object]:
    waited_for = list(Turn.objects.order_by("-created_at").values_list("pk", flat=True)[:20])
    return lambda: gateway.still_open(waited_for)


# --- the API -----------------------------------------------------------------------------------------------------

KEY = "nh_plans_0123456789abcdefghij"


def call_api(method: str, path: str, *, status: int = 200, body: object = None, under: str = "/api/v1/") -> Any:
    client = Client(headers={"Authorization": f"Bearer {KEY}"})
    request = {"data": body, "content_type": "application/json"} if body is not None else {}
    response = getattr(client, method.lower())(f"{under}{path}", secure=True, **request)
    assert response.status_code == status, response.content
    return response


def on_api(name: str, path: Callable[[], str], bound: Bound = HOT, **options: Any) -> None:
    """An operation of the API; ``path`` fills in what its name leaves open."""

    def prepare() -> Callable[[], object]:
        filled_in = path()
        return lambda: call_api(name.split(" ")[0], filled_in, **options)

    operation(name, bound)(prepare)


def a_workspace_file(name: str) -> str:
    """Where a file is that was put into a workspace."""
    path = f"agents/default/files/{new_id().hex}-{name}"
    call_api("PUT", path, body={"content": "words"}, status=201)
    return path


def cursor(**position: object) -> str:
    """As the API makes it: ``p`` is a position, ``r=1`` goes back from it."""
    return quote(b64encode(urlencode(position).encode()))


def a_turn() -> Turn:
    return the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).order_by("number")[1000]


def a_deferred_one() -> DeferredMessage:
    defer(deferred.Kind.WAKE, when="2100-01-01T00:00Z")
    return DeferredMessage.objects.latest("pk")


def an_approval() -> Approval:
    """Of a turn that waits for it, and for nothing else."""
    turn = the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).order_by("number")[1001]
    about = {"conversation_id": turn.conversation_id, "turn_id": turn.pk, "owner_id": 1, "agent": "default"}
    asked = {"call_id": "call_1001", "position": 1001, "tool_name": "time", "arguments": "{}", "effects": "read"}
    call = calls.new_call(**about, **asked, request_id="", refused=None, rate_limited=False, consent="consent:always")
    calls.store([call])
    return tools.approvals.request(call, four_eyes=False)


@operation("approvals.decide")
def decide() -> Callable[[], object]:
    approval = an_approval()
    return lambda: approvals.decide(approval.pk, by=tools.approvals.Voter(pk=1, name="anna"), decision="approve")


def a_question() -> Question:
    """Of the same turn."""
    call = ToolCall.objects.get(pk=an_approval().call_id)
    about = {"conversation_id": call.conversation_id, "turn_id": call.turn_id, "owner_id": 1, "agent": "default"}
    return Question.objects.create(**about, call_id=call.pk, text="Which?", options=["a"], expires_at=from_now(60))


@operation("questions.answer")
def answer_question() -> Callable[[], object]:
    question = a_question()
    return lambda: questions.answer(question.pk, "1", by="anna")


@operation("questions.ask")
def ask_something() -> Callable[[], object]:
    question = a_question()
    call = ToolCall.objects.get(pk=question.call_id)
    Question.objects.all().delete()
    asks = Caller(conversation_id=call.conversation_id, turn_id=call.turn_id, owner_id=1, agent="default",
                  call_id=call.pk, request_id="")  # fmt: skip
    return lambda: questions.ask(asks, "Which?", ["a", "b"], minutes=5)


@operation("questions.asked_in")
def answer_in_a_chat() -> Callable[[], object]:
    channel, chat = from_channels.active("shop"), Chat.objects.latest("pk")
    return lambda: questions.asked_in(channel, said_in_a_chat(), chat)


@operation("questions.expire_due")
def expire_question() -> Callable[[], object]:
    Question.objects.filter(pk=a_question().pk).update(expires_at=from_now(-1))
    return questions.expire_due


@operation("questions.forget_old")
def forget_questions() -> Callable[[], object]:
    Question.objects.filter(pk=a_question().pk).update(state="answered", asked_at=from_now(-31 * 86_400))
    return questions.forget_old


@operation("steps.end_calls")
def withdraw() -> Callable[[], object]:
    approval = an_approval()
    return lambda: steps.end_calls([approval.turn_id], rule="cancelled", reason="")


@operation("approvals.expire_due")
def expire() -> Callable[[], object]:
    approval = an_approval()
    Approval.objects.filter(pk=approval.pk).update(expires_at=from_now(-1))
    return approvals.expire_due


def far_into_the_list() -> str:
    middle = Conversation.objects.filter(owner=1).order_by("-created_at")[1000]
    return str(middle.created_at)


on_api("POST conversations", lambda: "conversations", body={}, status=201)
on_api("POST conversations, by a key", lambda: "conversations", body={"key": "plans:1"}, status=201)
on_api("POST conversations, by a key there is", lambda: "conversations", body={"key": "api:1"})
ASKED = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
V1 = {"under": "/v1/", "body": ASKED}
on_api("POST chat/completions", lambda: "chat/completions", status=202, **V1)


ANSWERED = ASKED["messages"] + [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And now?"}]  # type: ignore[operator]
on_api(
    "POST chat/completions, with what was said before",
    lambda: "chat/completions",
    under="/v1/",
    body=ASKED | {"messages": ANSWERED},
    status=202,
)


@operation("POST chat/completions, to a conversation")
def chat_that_stays() -> Callable[[], object]:
    body = ASKED | {"metadata": {"conversation_id": str(the_long_one().pk)}}
    return lambda: call_api("POST", "chat/completions", status=202, under="/v1/", body=body)


on_api("GET models", lambda: "models", under="/v1/")
on_api("GET models/{}", lambda: "models/default", under="/v1/")


def of_the_long_one(rest: str = "") -> str:
    return f"conversations/conv_{the_long_one().pk.hex}{rest}"


def an_item() -> str:
    """The id of what a user said in its midst."""
    said = the_long_one().messages.filter(role=Message.Role.USER, seq__gt=5000).order_by("seq").first()
    assert said
    return f"msg_{said.pk.hex}"


def a_response() -> str:
    """The id of one in the midst of the long conversation."""
    turn = a_turn()
    row_id = StoredResponse.id_of(turn.pk, 0)
    StoredResponse.objects.get_or_create(pk=row_id, defaults={"turn": turn, "number": 0, "asked": {"model": "default"}})
    return f"resp_{row_id.hex}"


ITEMS = {"items": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "default", "input": "Hello"}
AS_V1: dict[str, Any] = {"under": "/v1/"}
on_api("POST conversations, as OpenAI has them", lambda: "conversations", body=ITEMS, **AS_V1)
on_api("GET conversations/{}, as OpenAI has them", lambda: of_the_long_one(), **AS_V1)
on_api("POST conversations/{}", lambda: of_the_long_one(), body={"metadata": {}}, **AS_V1)
on_api("GET conversations/{}/items", lambda: of_the_long_one("/items"), **AS_V1)
on_api("GET conversations/{}/items, far down", lambda: of_the_long_one(f"/items?after={an_item()}"), **AS_V1)
on_api("GET conversations/{}/items/{}", lambda: of_the_long_one(f"/items/{an_item()}"), **AS_V1)
on_api("DELETE conversations/{}/items/{}", lambda: of_the_long_one(f"/items/{an_item()}"), **AS_V1)
on_api("POST conversations/{}/items", lambda: of_the_long_one("/items"), body=ITEMS, **AS_V1)
on_api("POST responses", lambda: "responses", body=RESPONSE, status=202, **AS_V1)
on_api("POST responses/input_tokens", lambda: "responses/input_tokens", body=RESPONSE, **AS_V1)
on_api("POST responses/compact", lambda: "responses/compact", body=RESPONSE, status=202, **AS_V1)
on_api("GET responses/{}", lambda: f"responses/{a_response()}", **AS_V1)
on_api("GET responses/{}, as a stream", lambda: f"responses/{a_response()}?stream=true", status=202, **AS_V1)
on_api("GET responses/{}/input_items", lambda: f"responses/{a_response()}/input_items", **AS_V1)
on_api("POST responses/{}/cancel", lambda: f"responses/{a_response()}/cancel", body={}, **AS_V1)
on_api("DELETE responses/{}", lambda: f"responses/{a_response()}", **AS_V1)


# It stores what it copies: some 400 messages, each in five indexes.
@operation("POST responses, from an earlier one", replace(HOT, blocks=5000))
def branch() -> Callable[[], object]:
    body = RESPONSE | {"previous_response_id": a_response()}
    return lambda: call_api("POST", "responses", status=202, body=body, **AS_V1)


# Of the 1,000 turns that a page looks at, each is read, and its calls are where these are asked for.
TURNS_PAGE = Bound(rows=10_000, blocks=6_000)
on_api("GET turns", lambda: "turns")
on_api("GET turns, that match", lambda: "turns?status=failed&tag=a:b&agent=default&minSeconds=999", bound=TURNS_PAGE)
on_api("GET turns, far down", lambda: f"turns?cursor={a_turn().pk}&minCost=99", bound=TURNS_PAGE)
on_api("GET turns, by a tool", lambda: "turns?tool=unknown&rule=unknown", bound=TURNS_PAGE)
on_api("GET turns, by words", lambda: "turns?search=found", bound=A_PAGE)
on_api("GET conversations", lambda: "conversations")
on_api("GET conversations, by a key", lambda: "conversations?key=api:1")
on_api("GET conversations, far down", lambda: f"conversations?cursor={cursor(p=far_into_the_list())}")
on_api("GET conversations, and back", lambda: f"conversations?cursor={cursor(r=1, p=far_into_the_list())}")
on_api("GET conversations, that are not archived", lambda: "conversations?archived=false&pinned=false")
on_api("GET conversations, that are archived", lambda: "conversations?archived=true")
on_api("GET conversations, that are pinned", lambda: "conversations?pinned=true")
on_api("GET conversations, by their titles", lambda: "conversations?search=found", bound=A_PAGE)
on_api("GET conversations/{}", lambda: f"conversations/{the_long_one().pk}")
on_api("PATCH conversations/{}", lambda: f"conversations/{the_long_one().pk}", body={"pinned": True})
on_api("DELETE conversations/{}", lambda: f"conversations/{a_usual_one().pk}", status=204)
on_api(
    "POST conversations/{}/chat", lambda: f"conversations/{the_long_one().pk}/chat", body={"message": "x"}, status=202
)
on_api("GET conversations/{}/messages", lambda: f"conversations/{the_long_one().pk}/messages?limit=50")
on_api(
    "GET conversations/{}/messages, far down",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(p=90000)}",
)
on_api(
    "GET conversations/{}/messages, and back",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(r=1, p=90000)}",
)
on_api(
    "GET conversations/{}/messages, from the end",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(r=1)}",
)
on_api(
    "POST conversations/{}/messages",
    lambda: f"conversations/{the_long_one().pk}/messages",
    body={"message": "x", "trigger": False},
    status=202,
)
on_api("GET conversations/{}/deferred", lambda: f"conversations/{the_long_one().pk}/deferred?limit=50")
on_api("GET deferred/{}", lambda: f"deferred/{a_deferred_one().pk}")
on_api("POST deferred/{}/cancel", lambda: f"deferred/{a_deferred_one().pk}/cancel", body={})
on_api("GET conversations/{}/turns", lambda: f"conversations/{the_long_one().pk}/turns?limit=50")
on_api(
    "GET conversations/{}/turns, far down",
    lambda: f"conversations/{the_long_one().pk}/turns?cursor={cursor(p=a_turn().number)}",
)
on_api(
    "POST conversations/{}/turns", lambda: f"conversations/{the_long_one().pk}/turns", body={"message": "x"}, status=202
)


@operation("POST conversations/{}/branches", READING)
def branches() -> Callable[[], object]:
    conversation = the_long_one()
    asked = Message.objects.get(conversation=conversation, seq=90_001)
    path = f"conversations/{conversation.pk}/branches"
    return lambda: call_api("POST", path, status=201, body={"before": str(asked.pk)})


def a_share() -> Share:
    return sharing.share(the_long_one(), days=1, with_tools=False)[0]


on_api("POST conversations/{}/shares", lambda: f"conversations/{the_long_one().pk}/shares", body={}, status=201)
on_api("GET shares", lambda: "shares")
on_api("GET shares, of a conversation", lambda: f"shares?conversationId={a_share().conversation_id}")
on_api("DELETE shares/{}", lambda: f"shares/{a_share().pk}", status=204)


@operation("sharing.find")
def found_by_its_token() -> Callable[[], object]:
    _, token = sharing.share(the_long_one(), days=1, with_tools=False)
    return lambda: sharing.find(token)


@operation("sharing.read")
def shared_messages() -> Callable[[], object]:
    link = a_share()
    return lambda: sharing.read(link, after=50_000, most=200)


# --- searching ---------------------------------------------------------------------------------------------------


@operation("search.find")
def found_by_words() -> Callable[[], object]:
    say()
    return lambda: search.find("hello")


@operation("search.find, of an owner")
def found_of_an_owner() -> Callable[[], object]:
    turn = say()
    return lambda: search.find("hello", owner_id=turn.owner_id)


# --- the chat in other people's pages ---------------------------------------------------------------------------


def embedded() -> str:
    """The address of the chat that a key of these pages opens."""
    ApiKey.objects.update(allowed_origins=["https://shop.example"], requests_per_minute=1_000)
    return f"/chat/embed/{ApiKey.objects.get().prefix}/"


def opened(answer: Any) -> Any:
    assert answer.status_code == 200, answer.content
    return answer


@operation("embed.show")
def embedded_page() -> Callable[[], object]:
    address = embedded()
    return lambda: opened(Client().get(address, secure=True))


@operation("embed.begin")
def embedded_begins() -> Callable[[], object]:
    address = embedded()
    return lambda: opened(Client().post(f"{address}begin/", secure=True))


@operation("embed.EmbedAuthentication")
def a_visitor() -> Callable[[], object]:
    told = Client().post(f"{embedded()}begin/", secure=True).json()
    visitor = Client(headers={embed.HEADER: told["token"]})
    turn = inbox.receive(
        Incoming("Hello"), conversation=Conversation.objects.get(pk=told["conversationId"]), request_id="r"
    )
    return lambda: opened(visitor.get(f"/api/v1/turns/{turn.pk}", secure=True))


on_api("GET attachments/{}", lambda: f"attachments/{a_file().attachment_id}")
on_api("GET attachments/{}/thumbnail", lambda: f"attachments/{a_file().attachment_id}/thumbnail")
on_api("GET turns/{}/events", lambda: f"turns/{a_turn().pk}/events", status=202)


on_api("GET approvals", lambda: "approvals")
on_api("GET approvals, of a state", lambda: "approvals?state=pending")
on_api("GET questions", lambda: "questions")
on_api("GET questions, of a state", lambda: "questions?state=pending")
on_api("POST questions/{}/answer", lambda: f"questions/{a_question().pk}/answer", body={"answer": "a"})
on_api("GET approvals/{}", lambda: f"approvals/{an_approval().pk}")
on_api("POST approvals/{}/decide", lambda: f"approvals/{an_approval().pk}/decide", body={"decision": "approve"})


OF_KEY = KEY.split("_")[1]
# It counts what was asked for within the hour, as the overview does.
on_api("GET usage", lambda: "usage?group_by=day", CONSOLE)
on_api("GET keys", lambda: "keys")
on_api("POST keys", lambda: "keys", body={}, status=201)
on_api("GET keys/{}", lambda: f"keys/{OF_KEY}")
on_api("PATCH keys/{}", lambda: f"keys/{OF_KEY}", body={"name": "shop"})
on_api("DELETE keys/{}", lambda: f"keys/{OF_KEY}", status=204)


@operation("audit.seal")
def seal() -> Callable[[], object]:
    for number in range(20):
        audit.record("host.tried", key=number)
    return audit.seal


@operation("audit.head")
def audit_head() -> Callable[[], object]:
    audit.record("host.tried")
    audit.seal()
    return audit.head


@operation("streams.read_replay")
def read_replay() -> Callable[[], object]:
    turn = a_turn()
    return lambda: streams.read_replay(turn.pk, renderer=answers, request_id="request")


on_api("GET turns/{}", lambda: f"turns/{a_turn().pk}")
on_api("POST turns/{}/cancel", lambda: f"turns/{a_turn().pk}/cancel", body={})
on_api("GET tools", lambda: "tools")
on_api("GET conversations/{}/summaries", lambda: f"conversations/{the_long_one().pk}/summaries")


def a_summary_that_counts() -> str:
    """The address to undo it at."""
    conversation = the_long_one()
    Compaction.objects.create(
        conversation=conversation, keep_tokens=0, status="done", first_seq=2, through_seq=900, summary_seq=901
    )
    Conversation.objects.filter(pk=conversation.pk).update(summary_seq=901, consolidated_through=900)
    return f"conversations/{conversation.pk}/summaries/901/undo"


def a_pin() -> str:
    """The address of one that is taken, among as many as there may be."""
    conversation = the_long_one()
    message = Message.objects.get(conversation=conversation, seq=2001)
    Conversation.objects.filter(pk=conversation.pk).update(
        pins=[{"seq": seq, "by": "x", "at": ""} for seq in range(2001, 2039, 2)]
    )
    return f"conversations/{conversation.pk}/messages/{message.pk}/pin"


on_api("POST conversations/{}/summaries/{}/undo", a_summary_that_counts, body={})
on_api("DELETE conversations/{}/messages/{}/pin", a_pin, status=204)


@operation("PUT conversations/{}/messages/{}/pin")
def put_pin() -> Callable[[], object]:
    a_pin()
    conversation = the_long_one()
    asked = Message.objects.filter(conversation=conversation, seq__range=(3001, 3100), role="user", kind="")
    message = asked.order_by("seq")[0]
    path = f"conversations/{conversation.pk}/messages/{message.pk}/pin"
    return lambda: call_api("PUT", path, body={})


on_api("GET agents/{}/memory", lambda: "agents/default/memory")
on_api("PUT agents/{}/memory", lambda: "agents/default/memory", body={"content": "- words", "version": 0})
on_api("GET agents/{}/files", lambda: "agents/default/files")
on_api("GET agents/{}/files/{}", lambda: a_workspace_file("taken.md"))
on_api("PUT agents/{}/files/{}", lambda: a_workspace_file("put.md"), body={"content": "words"})
on_api("DELETE agents/{}/files/{}", lambda: a_workspace_file("deleted.md"), status=204)
on_api("GET agents/{}/history", lambda: "agents/default/history")


@operation("calls.outcomes")
def calls_of() -> Callable[[], object]:
    call = a_call()
    return lambda: calls.outcomes(call.turn_id)


@operation("answers.current")
def chat_answer() -> Callable[[], object]:
    turn = a_turn()
    return lambda: answers.current(turn.pk, request_id="request")


@operation("GET /health/ready")
def ready() -> Callable[[], object]:
    return lambda: Client().get("/health/ready", secure=True)


@operation("attention.needs")
def what_needs_attention() -> Callable[[], object]:
    return attention.needs


# --- the console -------------------------------------------------------------------------------------------------


def growing() -> list[GrowingAdmin]:
    return [page for model, page in admin.site._registry.items() if model._meta.db_table in GROW]


def path_of(page: GrowingAdmin) -> str:
    return f"/admin/{page.opts.app_label}/{page.opts.model_name}/"


# One for all pages: to log in takes longer than to look.
boss = Client()


def look_at(path: str) -> Any:
    response = boss.get(path, secure=True)
    assert response.status_code == 200, path
    return response


def console_paths() -> Iterator[tuple[str, str]]:
    """Each list, by each filter, by what is searched, and as other pages link to it; each page of a row."""
    turn, call = a_turn(), ToolCall.objects.order_by("-created_at").first()
    message = turn.messages.order_by("seq")[0]
    rows = {Conversation: the_long_one(), Turn: turn, Message: message, ToolCall: call}
    rows[DeferredMessage] = DeferredMessage.objects.order_by("-created_at").first()
    rows[Approval] = Approval.objects.order_by("-requested_at").first()
    rows[Delivery] = Delivery.objects.order_by("-created_at").first()
    rows[AuditEntry] = AuditEntry.objects.order_by("-id").first()
    rows[Compaction] = Compaction.objects.order_by("-created_at").first()
    for page in growing():
        path, name = path_of(page), page.opts.model_name
        yield f"{name} list", path
        yield f"{name} list, its third page", f"{path}?p=3"
        for part in ("", *(str(turn.pk)[:length] for length in (4, 13, 36)), str(the_long_one().pk), "api:5", "time"):
            yield f"{name} search {part}", f"{path}?q={part}"
        yield f"{name} search of two words", f"{path}?q={turn.pk}+{turn.request_id}"
        changelist = look_at(path).context["cl"]
        for spec in changelist.filter_specs:
            choices = [choice["query_string"] for choice in spec.choices(changelist)]
            # Of tools, rules and owners there are many. The first owner has a quarter of all, the others have little.
            for choice in choices if len(choices) < 10 else choices[:3]:
                yield f"{name} filter {choice}", f"{path}{choice}"
        yield f"{name} page", f"{path}{rows[page.model].pk}/change/"
    for conversation in (the_long_one(), a_usual_one()):
        pk = conversation.pk
        yield f"turns of {conversation}", f"/admin/conversations/turn/?conversation__exact={pk}"
        yield f"messages of {conversation}", f"/admin/conversations/message/?conversation__exact={pk}"
        yield f"messages of {conversation} in words", f"/admin/conversations/message/?conversation__exact={pk}&q=found"
        yield f"compactions of {conversation}", f"/admin/conversations/compaction/?conversation__exact={pk}"
        yield f"deletion of {conversation}", f"/admin/conversations/conversation/{pk}/delete/"
        yield f"calls of {conversation}", f"/admin/tools/toolcall/?conversation_id__exact={pk}"
        for query in ("", "?before=50", "?after=50"):
            yield f"transcript of {conversation} {query}", f"/admin/conversations/conversation/{pk}/transcript/{query}"
    yield "transcript, in the middle", f"/admin/conversations/conversation/{the_long_one().pk}/transcript/?before=50000"
    for window in ("24 hours", "7 days", "30 days"):
        yield f"overview of {window}", f"/admin/?{urlencode({'window': window})}"
        overview = look_at(f"/admin/?{urlencode({'window': window})}").context["overview"]
        for figure in (*overview["outcomes"], *overview["models"], *overview["calls"], *overview["open"]):
            yield f"{figure['link']} of {window}", figure["link"]
        for drawn in overview["charts"]:
            yield f"{drawn['title']} before {window}", drawn["compared_link"]
            yield f"{drawn['title']} in {window}", drawn["bars"][-1]["link"]
            for series in drawn["series"]:
                if series["link"]:
                    yield f"{drawn['title']}, {series['name']}, in {window}", series["link"]
    yield from audit_paths()
    yield "all about an agent", f"/admin/agent/agent/{turn.conversation.agent_id}/whole/"
    yield "owners with files", f"/admin/agent/agent/{turn.conversation.agent_id}/files/"
    yield "files of an owner", f"/admin/agent/agent/{turn.conversation.agent_id}/files/{turn.owner_id}/"
    yield "what the model was sent", f"/admin/conversations/turn/{turn.pk}/sent/"
    yield "a turn over time", f"/admin/conversations/turn/{turn.pk}/time/"
    for state in ("all", "running", "waiting", "queued", "held"):
        yield f"queue, {state}", f"/admin/queue/?state={state}"
    yield "getting started", "/admin/start/"
    yield "daily summary", "/admin/daily-summary/"
    yield "queue, the list that it leads to", look_at("/admin/queue/").context["turns_link"]
    yield "turns of a worker", "/admin/conversations/turn/?worker__exact=host:1:1&status__exact=running"


def audit_paths() -> Iterator[tuple[str, str]]:
    """The audit log by who, what, object and time, and by some of these at once; often and seldom."""
    path, turn = "/admin/accounts/auditentry/", a_turn()
    call = ToolCall.objects.filter(turn_id=turn.pk).earliest("position")
    day = {"from": f"{turn.created_at:%Y-%m-%d}", "until": f"{turn.created_at + timedelta(days=1):%Y-%m-%d}"}
    of_user, action = {"object_type": "auth.user", "object_id__exact": "7"}, {"action": "signed_in"}
    for query in (
        *({"q": term} for term in ("agent default", "default", "user owner-7", "owner-7", "7", "append_line")),
        *({"q": term} for term in (str(call.pk), turn.request_id, "user nobody")),
        *(day, action, of_user, {"object_type": "accounts.legalhold"}, {"object_type": "auth.user"}),
        {"q": "agent default", **day},
        *({"q": "owner-7", **narrowed} for narrowed in (day, action, {"object_type": "auth.user"})),
    ):
        yield f"audit log, {query}", f"{path}?{urlencode(query)}"


# --- the fixture -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_messages(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The connection leads to a database of its own, with much in it."""
    tests_own, full = connection.settings_dict["NAME"], servers.name_of("plans")
    servers.create(full, template=servers.name_of("migrated"))
    with django_db_blocker.unblock():
        connect_to(full)
        try:
            sync_settings()
            bulk.fill()
            sync_system_jobs()
            owner = get_user_model().objects.get(username="owner-1")
            ApiKey.objects.register(KEY, owner=owner, **WIDE | {"scopes": Scope.values})
            boss.force_login(get_user_model().objects.create_superuser("boss"))
            yield
        finally:
            connect_to(tests_own)


def connect_to(database: str) -> None:
    connection.close()
    connection.close_pool()
    connection.settings_dict["NAME"] = database


Seen = Callable[[str], list[Statement]]


@pytest.fixture(scope="module")
def seen(many_messages: None) -> Seen:
    """What an operation ran; it is done once, and undone."""
    return cache(lambda name: look_twice(OPERATIONS[name].prepare, OPERATIONS[name].bound))


@pytest.fixture(scope="module")
def seen_in_console(many_messages: None) -> dict[str, list[Statement]]:
    """What each page of the console ran."""
    with transaction.atomic():
        paths = dict(console_paths())
        transaction.set_rollback(True)
    return {name: look_twice(partial(looking_at, path), bound_of(name)) for name, path in paths.items()}


def looking_at(path: str) -> Callable[[], object]:
    return lambda: look_at(path)


def bound_of(page: str) -> Bound:
    return WHOLE if "in words" in page else CONSOLE


def look_twice(prepare: Callable[[], Callable[[], object]], bound: Bound) -> list[Statement]:
    """Once more if something is wrong: statistics are a sample, and now and then a bound of a histogram lies just where
    is looked, which makes few rows look like many; and what others have undone is read until it is cleaned up."""
    statements = run(prepare)
    if any(wrong(statement, bound) for statement in statements):
        bulk.analyze()
        statements = run(prepare)
    return statements


def run(prepare: Callable[[], Callable[[], object]]) -> list[Statement]:
    with transaction.atomic():
        act = prepare()
        with explained() as statements, TestCase.captureOnCommitCallbacks(execute=True):
            act()
        transaction.set_rollback(True)
    return statements


# --- what is held ------------------------------------------------------------------------------------------------


def wrong(statement: Statement, bound: Bound) -> list[str]:
    """What is wrong with a statement."""
    found = [f"reads all of {table}" for table in sorted(statement.scanned() & GROW)]
    if (rows := statement.rows()) > bound.rows:
        found.append(f"takes up {rows} rows, of {bound.rows}")
    if statement.blocks > bound.blocks:
        found.append(f"reads {statement.blocks} blocks, of {bound.blocks}")
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_goes_by_index_and_reads_little(seen: Seen, name: str) -> None:
    assert seen(name), "it ran no statement"
    for statement in seen(name):
        assert not wrong(statement, OPERATIONS[name].bound), statement


def test_the_console_goes_by_index_and_reads_a_bounded_part(seen_in_console: dict[str, list[Statement]]) -> None:
    failures = []
    for name, statements in seen_in_console.items():
        assert statements, name
        failures += [(name, found, each) for each in statements if (found := wrong(each, bound_of(name)))]
    assert not failures, "\n".join(f"{name}: {', '.join(found)}\n{statement}" for name, found, statement in failures)


def test_each_index_is_used_by_something(seen: Seen, seen_in_console: dict[str, list[Statement]]) -> None:
    """An index costs a write with each row; one that nothing reads by is a loss, unless it keeps something unique."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = ANY(%s::regclass[]) AND NOT indisunique",
            [sorted(GROW)],
        )
        indexes = {name for (name,) in cursor.fetchall()}
    statements = [each for many in (*map(seen, OPERATIONS), *seen_in_console.values()) for each in many]
    used = {step["Index Name"] for each in statements for step in each.steps() if "Index Name" in step}
    assert len(indexes) > 10
    # All agents have their conversations by this one, and whoever is deleted; here there is one agent, and one webhook.
    assert indexes - used <= {"conversations_of_an_agent", "deliveries_of_a_webhook"}


def test_each_foreign_key_has_an_index_to_delete_by(many_messages: None) -> None:
    """What refers to a deleted row is looked for, also by PostgreSQL itself: without one, in all of the table."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conrelid::regclass::text, attname FROM pg_constraint
            JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]
            WHERE contype = 'f' AND NOT EXISTS (
                SELECT 1 FROM pg_index WHERE indrelid = conrelid AND indkey[0] = conkey[1] AND indpred IS NULL
            )
            """
        )
        assert cursor.fetchall() == []
        cursor.execute(
            "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text = ANY(%s)",
            [sorted(GROW)],
        )
        assert cursor.fetchone()[0] >= 6


# --- and the list of operations does not rot ---------------------------------------------------------------------


MODULES = (
    announcements,
    answers,
    calls,
    history,
    lease,
    snapshot,
    steps,
    compaction,
    daily,
    deadlines,
    turn_control,
    spawned,
    inbox,
    intake,
    deferred,
    approvals,
    limits,
    outbox,
    outgoing,
    undelivered,
    questions,
    from_channels,
    listener,
    streams,
    sweeper,
    retention,
    caller,
    turn_parts,
)


def test_each_function_that_moves_a_turn_or_a_call_is_looked_at() -> None:
    without_query = {
        *("deadlines.time_for_last_answer", "calls.new_call", "calls.refuse", "answers.problem_answer"),
        *("limits.limits_of", "answers.accepted", "answers.succeeded", "answers.usage_of", "streams.stream"),
        *("history.for_model", "lease.mine", "lease.held_turn"),
        "turn_control.holds_on",
        *("inbox.refuse_other_models", "inbox.may_be_asked_again"),
        *("outbox.id_of", "outgoing.as_card"),
        *("questions.of_button", "questions.answer_as"),
        "from_channels.take_request",  # a signature, and then from_channels.take
        *("compaction.line_of", "compaction.stub_of"),
        *("compaction.made_so_far", "compaction.next_chunk", "compaction.told_besides"),
        *("answers.as_response", "answers.is_answered", "answers.wire", "inbox.transient_conversation"),
        *("caller.is_open", "caller.is_repeated"),
        *("spawned.deferred_in", "spawned.tell_at_once", "spawned.call_in", "spawned.hops_in"),
    }
    # The route GET turns/{} is nothing else.
    elsewhere = {
        "steps.charge_lost",
        "calls.end_waiting",
        # Rows by their keys, and a message to a chat.
        *("calls.suspend", "outgoing.put_question", "outgoing.reword", "questions.withdraw", "questions.is_for"),
        *("outgoing.edit", "outgoing.react", "outgoing.send_file", "outgoing.tell", "outgoing.going_on"),
        *("outgoing.names_of_chats", "spawned.reported_on", "from_channels.take_held"),
        "announcements.approval",
        "answers.turns_as_json",
        "answers.success_of",
        "calls.store",
        "compaction.apply",
        "compaction.end",
    }
    there_are = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    looked_at = {name.split(",")[0] for name in OPERATIONS}
    assert len(there_are) > 25
    assert there_are - looked_at == without_query | elsewhere


def test_each_route_of_the_api_is_looked_at() -> None:
    routes = {
        f"{method.upper()} {re.sub('<(uuid|str|int|path):.*?>', '{}', str(pattern.pattern))}"
        for pattern in (*urls.urlpatterns, *openai_urls.urlpatterns)
        for method in ("get", "post", "put", "patch", "delete")
        if hasattr(pattern.callback.view_class, method)
    }
    looked_at = {name.split(",")[0] for name in OPERATIONS}
    assert len(routes) >= 9
    assert routes <= looked_at


def test_each_list_of_what_grows_is_bounded() -> None:
    pages = growing()
    assert {page.model._meta.db_table for page in pages} == GROW
    for page in pages:
        assert isinstance(page, GrowingAdmin)
        # It looks for the first and the last row, and for each month between them, in everything that is listed.
        assert page.date_hierarchy is None
        assert not page.show_full_result_count
