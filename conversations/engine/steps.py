"""Storing a turn's steps: every write of its holder.

A transaction that appends to the transcript takes its numbers from the conversation first, since locks are taken in the
order conversation, turn, call; the fence decides all the same, for it is rolled back whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DurationField,
    F,
    IntegerField,
    JSONField,
    Q,
    Subquery,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact

from agent.answer_schemas import MAX_KEPT_CHARS
from agent.llm.base import Completion, with_unique_ids
from agent.loop import ChatMessage, Limit, unanswered_calls
from agent.prompt import shorten
from agent.spending import bills, budgets
from agent.spending.bills import Bill
from conversations import announced, events
from conversations.engine import announcements, doorbell, outgoing, spawned, tainted_texts, transcript
from conversations.engine.compacting import compaction
from conversations.engine.consent import approval_notices, questions
from conversations.engine.lease import PROGRESS, Claim, held_turn
from conversations.engine.results import ids_of_calls, results_of
from conversations.engine.snapshot import Snapshot
from conversations.errors import FenceLost
from conversations.events import ASKING_TOOL, Success, tool_events
from conversations.kinds import TOOLS, TURNS
from conversations.models import MAX_REASON, CallerRound, Message, Turn
from conversations.statuses import TurnStatus, WaitingFor
from conversations.taint import CLEAN, Taint
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import RELEASED, rescheduled
from nanohost.lib.redaction import MASK, redact, redact_head, redact_json
from nanohost.lib.statements import Given, Rows, Update
from tools import calls, gate
from tools.models import CallStatus, ToolCall

_COSTS: dict[str, Any] = {
    "prompt_tokens": F("prompt_tokens") + Given("prompt_tokens", IntegerField()),
    "completion_tokens": F("completion_tokens") + Given("completion_tokens", IntegerField()),
    "cached_tokens": F("cached_tokens") + Given("cached_tokens", IntegerField()),
    # Where one of them is not known, nor is their sum.
    "cost": F("cost") + Given("cost", BigIntegerField()),
    "model_calls": F("model_calls") + Given("model_calls", IntegerField()),
    "model_ms": F("model_ms") + Given("model_ms", IntegerField()),
}
_SPENDING: dict[str, Any] = PROGRESS | _COSTS
_WAITING: dict[str, Any] = {"status": TurnStatus.WAITING, "lease_until": None}
_LATER: dict[str, Any] = _WAITING | {"waiting_for": WaitingFor.RETRY} | rescheduled(Given("wait", DurationField()))

_goes_on = held_turn(PROGRESS)
_has_paid = held_turn(_COSTS)
_goes_on_with_refusals = held_turn(_SPENDING)
_waits_for_tools = held_turn(_SPENDING | _WAITING | {"waiting_for": WaitingFor.TOOLS, "notified_at": Now()})
# People take their time, which is none of the turn's: it has all of its own when they have decided.
_waits_for_approval = held_turn(
    _SPENDING | _WAITING | {"waiting_for": WaitingFor.APPROVAL, "deadline": None, "notified_at": Now()}
)
# The caller's time is none of the turn's either; past it, nobody wants the answer any more.
_CALLER: dict[str, Any] = _WAITING | {
    "waiting_for": WaitingFor.CALLER,
    "deadline": from_now(Given("patience", DurationField())),
    "notified_at": Now(),
}
_waits_for_caller = held_turn(_SPENDING | _CALLER)
_goes_on_to_caller = held_turn(PROGRESS | _CALLER)


def _next_queued() -> Any:
    """The conversation's next queued turn."""
    queued = Turn.objects.filter(conversation_id=Given("conversation_id"), status=TurnStatus.QUEUED)
    return queued.order_by("number").values_list("pk", flat=True)[:1]


_next = Rows(_next_queued)
_succeeds = held_turn(
    _SPENDING | {"status": TurnStatus.SUCCEEDED, "lease_until": None, "ended_at": Now()},
    returning=("prompt_tokens", "completion_tokens", "cached_tokens", "cost"),
    # Whoever queues one has the conversation's lock, as we have by now.
    returning_also=lambda: Subquery(_next_queued()),
)
_is_rescheduled = held_turn(_LATER)
_waits_for_retry = held_turn(
    _LATER
    | {
        "retries": Given("retries", IntegerField()),
        "retry_code": Given("code"),
        "retry_detail": Given("detail"),
        "retrying_since": Case(
            When(Q(Exact(Given("retries", IntegerField()), 1)), then=Now()), default=Coalesce("retrying_since", Now())
        ),
        "sent": Given("sent", JSONField()),
    },
)
_falls_back = held_turn(
    {
        **PROGRESS,
        "fallback_model": Given("model"),
        "fallback_reason": Given("reason"),
        "sent": Given("sent", JSONField()),
    }
)
_has_answered_otherwise = held_turn({**_SPENDING, "invalid_answers": Given("invalid_answers", JSONField())})
_is_released = held_turn(
    _WAITING | RELEASED | {"waiting_for": WaitingFor.RETRY, "run_after": Now()}, unless_cancelled=False
)


def store_calls(
    claim: Claim,
    completion: Completion,
    *,
    limit: Limit | None,
    before: int = 0,
    number: int | None = None,
    sent: dict[str, Any] | None = None,
    bill: Bill = bills.NOTHING,
    taint: Taint = CLEAN,
) -> bool:
    """Store a model's tool calls, each decided on by the gate; True if the turn now waits for them.

    Calls of the caller's own tools are the caller's to run. Where there are others beside them, those run first.
    Beyond a limit all of them are refused. Refused calls have their outcome at once; of the others workers are
    notified, but for one that this process has room for, which is claimed and begins here. Those of tools with a rate
    limit are decided on last, when the turn already waits: if none is left, the turn is notified.
    ``before``: how many calls the turn had when the model was asked, by which a round is stored once, though the answer
    to its commit was lost. ``number``: which of the turn's answers it is. ``sent``: the record of what the model was
    sent. ``bill``: what its answer costs. ``taint``: untrusted text that was in what it was sent.
    """
    refusal = gate.Refused(f"limit:{limit}", f"The turn's limit was met: {limit}.") if limit else None
    taken = ids_of_calls(claim.turn_id) if before else set()
    named = [_with_plain_name(call) for call in completion.tool_calls]
    wanted = with_unique_ids(named, taken=taken, fresh=lambda: f"call_{new_id().hex}")
    round_id, callers = new_id(), [call["function"]["name"] in claim.callers_tools for call in wanted]
    wanted = tuple(
        call | {"id": CallerRound.call_id(round_id, index)} if is_callers else call
        for index, (call, is_callers) in enumerate(zip(wanted, callers, strict=True))
    )
    rows = [
        gate.request(
            conversation_id=claim.conversation_id,
            turn_id=claim.turn_id,
            owner_id=claim.owner_id,
            agent=claim.agent.name,
            agent_tools=claim.agent.allowed_tools(
                tainted_by=taint.by,
                destinations=partial(outgoing.names, claim.agent),
                owner_id=claim.owner_id,
            ),
            request_id=claim.request_id,
            call_id=call["id"],
            position=before + index,
            tool_name=call["function"]["name"],
            arguments=call["function"]["arguments"],
            refusal=refusal,
        )
        for index, call in enumerate(wanted)
        if not callers[index]
    ]
    queued = [row for row in rows if not row.ended]
    waits = any(row.status == CallStatus.WAITING for row in rows)
    change = _waits_for_approval if waits else _waits_for_tools if queued else _goes_on_with_refusals
    if not rows:
        change = _waits_for_caller
    used = _used(completion, bill) | {"patience": _patience()}
    first = next(filter(calls.may_be_claimed_as_stored, rows), None)
    try:
        with (
            doorbell.place(TOOLS) if first else nullcontext() as place,
            _writing(claim, change, messages=1, marks=[taint.entering], **used) as seq,
        ):
            asks = completion.as_message() | {"tool_calls": [_without_secrets(call) for call in wanted]}
            _append(claim, seq, [asks], sent=sent, usage=bill.kept, marks=[taint.entering], number=number)
            hinted = [(call["function"]["name"], call["function"]["arguments"]) for call in wanted]
            outgoing.going_on(**_whose(claim), text=completion.content or "", used=hinted)
            if first and place:
                calls.claim_as_stored(first, worker=place.worker)
                transaction.on_commit(partial(place.begin, first))
            asked = gate.store_within_limits(rows)
            for row, approval in asked:
                announcements.approval(announced.APPROVAL_REQUESTED, approval)
                approval_notices.tell(approval)
                kind, data = events.approval_requested(approval, row)
                events.publish_after_commit(claim.turn_id, kind, data, fence=claim.fence)
            for row in rows:
                if row.status == CallStatus.QUEUED:
                    doorbell.notify(TOOLS, row.pk)
                for kind, data in tool_events(row) if row.ended else []:  # they are refused
                    events.publish_after_commit(claim.turn_id, kind, data, fence=claim.fence)
            if queued and all(row.ended for row in queued):
                # A rate limit has refused them all just now: there is nothing to wait for, and nobody else notifies.
                doorbell.notify(TURNS, claim.turn_id)
            if not rows:
                _ask_caller(claim, wanted)
            budgets.settle(bill)
    except IntegrityError:
        if not ToolCall.objects.filter(turn_id=claim.turn_id, position__gte=before).exists():
            raise
        # Stored already; had calls been queued by it, the fence would have said so.
        return False
    return bool(queued) or not rows


def _patience() -> timedelta:
    """How long to wait for a caller."""
    return timedelta(seconds=settings.CALLER_WAIT_SECONDS)


_totals = Rows[Any](
    lambda: (
        Turn.objects.filter(pk=Given("turn_id"))
        .annotate(
            rounds=Count("caller_rounds", distinct=True),
            spoken=Count("messages", distinct=True, filter=Q(messages__role=Message.Role.ASSISTANT)),
        )
        .order_by()
        .values_list(
            *("prompt_tokens", "completion_tokens", "cached_tokens", "rounds", "spoken", "conversation__tainted_by")
        )
    )
)


def _ask_caller(claim: Claim, calls: Sequence[dict[str, Any]]) -> None:
    """Have the caller run these calls, which have its round in their ids; in the transaction that has the turn wait for
    it. Whoever waits for the turn has what there is for now."""
    round_id = CallerRound.id_of(calls[0]["id"])
    ((prompt_tokens, completion_tokens, cached_tokens, rounds, spoken, by),) = _totals(turn_id=claim.turn_id)
    if by:
        call_ids = [call["id"] for call in calls]
        tainted_texts.keep_answer(claim.turn_id, owner_id=claim.owner_id, by=by, call_ids=call_ids)
    CallerRound.objects.create(
        id=round_id,
        turn_id=claim.turn_id,
        number=rounds,
        calls=[_without_secrets(call) for call in calls],
        messages=spoken,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
    )
    events.publish_end_after_commit(claim.turn_id)
    announcements.part_ended(claim.turn_id, TurnStatus.SUCCEEDED, number=rounds)


def wait_for_caller(claim: Claim, calls: Sequence[dict[str, Any]]) -> None:
    """Have the turn wait until its caller has run these calls, which are stored; the others beside them have ended."""
    with _writing(claim, _goes_on_to_caller, patience=_patience()):
        _ask_caller(claim, calls)


def store_results(claim: Claim, snapshot: Snapshot) -> None:
    """Answer the calls of the last round with their outcomes, in the order in which they were asked for; but for those
    that the caller runs. Where it can be, it is done with the turn's claim (:func:`conversations.engine.lease.claim`).
    """
    unanswered = [
        call for call in unanswered_calls(snapshot.own) if call["function"]["name"] not in claim.callers_tools
    ]
    results, marks = results_of(claim.turn_id, unanswered)
    with _writing(claim, _goes_on, messages=len(results), marks=marks) as seq:
        _append(claim, seq, results, marks=marks)
        if by := snapshot.tainted_by or next(filter(None, marks), ""):
            tainted_texts.keep_calls(claim.turn_id, owner_id=claim.owner_id, by=by)


def finish(
    claim: Claim,
    completion: Completion,
    *,
    reply: str,
    has_called: bool = True,
    number: int | None = None,
    rounds: int = 0,
    compact_to: int | None = None,
    summary_seq: int | None = None,
    kind: str = Message.Kind.SAID,
    also: Callable[[int], None] | None = None,
    sent: dict[str, Any] | None = None,
    bill: Bill = bills.NOTHING,
    taint: Taint = CLEAN,
) -> None:
    """Store reply and status in one transaction; then publish it, and notify workers of the conversation's next turn.

    ``has_called``: whether the turn has called tools, whose outcomes belong to what is told. ``number``: which of the
    turn's answers it is. ``rounds``: how often it has asked its caller to. ``compact_to``: how many tokens of the
    conversation are to stay in its prompt, if it is to be compacted; ``summary_seq``: the summary that it had then.
    ``kind``: of the reply. ``also``: what else is
    done in the transaction; it is given the reply's number. ``sent``: the record of what the model was sent. ``bill``:
    what its answer costs. ``taint``: untrusted text that was in what the model was sent.
    """
    with transaction.atomic():
        seq = transcript.take_seqs(claim.conversation_id, 1, cost=bill.cost, marks=[taint.entering])
        mine = {"turn_id": claim.turn_id, "fence": claim.fence, "conversation_id": claim.conversation_id}
        spent = _succeeds(**mine, **_used(completion, bill))
        if not spent:
            raise FenceLost
        answer = completion.as_message() | {"content": reply}
        _append(claim, seq, [_without_calls(answer)], kind, sent, bill.kept, [taint.entering], number)
        if taint.by:
            tainted_texts.keep_answer(claim.turn_id, owner_id=claim.owner_id, by=taint.by)
        if also:
            also(seq)
        prompt_tokens, completion_tokens, cached_tokens, cost, next_turn = spent[0]
        success = Success(
            conversation_id=str(claim.conversation_id),
            turn_id=str(claim.turn_id),
            reply=reply,
            calls=calls.outcomes(claim.turn_id) if has_called else [],
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
            cost=cost,
            rounds=rounds,
            is_cut=completion.is_cut,
        )
        events.publish_end_after_commit(claim.turn_id, success)
        announcements.turn_ended(claim.turn_id, TurnStatus.SUCCEEDED)
        outgoing.reply(**_whose(claim), text=reply)
        spawned.report(**_whose(claim), status=TurnStatus.SUCCEEDED, text=reply)
        if next_turn:
            doorbell.notify(TURNS, next_turn)
        if compact_to is not None:
            compaction.request_after(summary_seq, claim.conversation_id, claim.turn_id, keep_tokens=compact_to)
        budgets.settle(bill)


def keep_invalid(
    claim: Claim,
    completion: Completion,
    *,
    earlier: Sequence[dict[str, Any]],
    wrong: str,
    sent: dict[str, Any] | None,
    bill: Bill,
) -> None:
    """Keep an answer that was not in the form that was asked for, and what it has cost: not in the transcript, which
    goes on as if it had not been given. ``earlier``: those before it. ``wrong``: what is wrong with it."""
    kept = {
        "content": shorten(completion.content, MAX_KEPT_CHARS),
        "wrong": redact_head(wrong, MAX_REASON),
        "sent": sent,
        "usage": bill.kept,
    }
    with _writing(claim, _has_answered_otherwise, **_used(completion, bill), invalid_answers=[*earlier, kept]):
        budgets.settle(bill)


def charge(claim: Claim, completion: Completion, bill: Bill) -> None:
    """Store what an answer of a model has cost of which nothing else is stored: it was of no use, or is part of
    something. Of a turn that is no longer ours, the budgets count it all the same."""
    try:
        with _writing(claim, _has_paid, messages=0, **_used(completion, bill)):
            budgets.settle(bill)
    except FenceLost:
        budgets.settle_alone(bill)


def charge_lost(claim: Claim, bill: Bill) -> None:
    """Have the budgets count an answer that could not be stored, since the turn is no longer ours."""
    if bill.reserved:
        budgets.settle_alone(bill)


def fail(claim: Claim, *, code: str, detail: str = "", sent: dict[str, Any] | None = None) -> None:
    """End the turn without an answer: the stable code for programs, the detail for people. ``sent``: the record of what
    the model was sent that did not answer."""
    unanswered = {"sent": sent} if sent else {}
    _end(claim, status=TurnStatus.FAILED, error_code=code, error_detail=redact_head(detail, MAX_REASON), **unanswered)


def cancel_if_asked(claim: Claim) -> bool:
    """End a held turn that somebody asked to cancel; False if it is not ours, or nobody did."""
    try:
        _end(claim, status=TurnStatus.CANCELLED, error_code="turn_cancelled")
    except FenceLost:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Failed:
    """How a step has failed that is tried again: so many ``times`` in a row, last with this ``code``."""

    times: int = 1
    code: str = ""
    detail: str = ""


def wait_for_retry(
    claim: Claim, *, seconds: float, failed: Failed = Failed(), sent: dict[str, Any] | None = None
) -> None:
    """Release the turn for a while; it stays active, so that no later turn of its conversation overtakes it. ``sent``:
    as in :func:`fail`."""
    why: dict[str, Any] = {"retries": failed.times, "code": failed.code, "detail": redact_head(failed.detail, 200)}
    with _writing(claim, _waits_for_retry, wait=timedelta(seconds=seconds), sent=sent, **why):
        pass


def fall_back(claim: Claim, *, model: str, reason: str, sent: dict[str, Any] | None = None) -> None:
    """Have another model asked in place of one that has failed; its failures are counted anew. ``sent``: as in
    :func:`fail`."""
    with _writing(claim, _falls_back, model=model, reason=redact_head(reason, 200), sent=sent):
        pass


def reschedule(claim: Claim, *, seconds: float) -> None:
    """Release the turn for a while, before anything was done for it."""
    with _writing(claim, _is_rescheduled, wait=timedelta(seconds=seconds)):
        pass


def release(claim: Claim) -> None:
    """Release the turn at a shutdown: the next worker claims it, at no cost in attempts."""
    with _writing(claim, _is_released):
        doorbell.notify(TURNS, claim.turn_id)


# --- ending a turn -----------------------------------------------------------------------------------------------


def notify_next(conversation_id: UUID) -> None:
    """Notify workers of the conversation's next queued turn, once the current transaction has committed."""
    for next_turn in _next(conversation_id=conversation_id):
        doorbell.notify(TURNS, next_turn)


def end_calls(turn_ids: Sequence[UUID], *, rule: str, reason: str) -> None:
    """End the calls that turns leave open, inside the transaction that ends those; and tell whoever was told that they
    wait for consent, or an answer, that they do no longer."""
    ended, withdrawn = gate.end_open(turn_ids, rule=rule, reason=reason)
    questions.withdraw([call for call in ended if call.tool_name == ASKING_TOOL])
    for approval in withdrawn:
        announcements.approval(announced.APPROVAL_DECIDED, approval)
        approval_notices.reword(approval)
        kind, data = events.approval_decided(approval, ToolCall.objects.get(pk=approval.call_id))
        events.publish_after_commit(approval.turn_id, kind, data)


def close_round(conversation_id: UUID, turn_id: UUID, *, rule: str, reason: str) -> None:
    """End what a turn leaves open, inside the transaction that ends it: its calls, and their answers in the transcript.

    The next turn's model thereby learns what became of the calls, above all of those that are UNKNOWN.
    """
    end_calls([turn_id], rule=rule, reason=reason)
    own = Message.objects.filter(turn_id=turn_id, seq__isnull=False).order_by("seq")
    if unanswered := unanswered_calls([message.as_chat() for message in own]):
        results, marks = results_of(turn_id, unanswered)
        seq = transcript.take_seqs(conversation_id, len(results), marks=marks)
        transcript.append(conversation_id, turn_id, seq, results, marks=marks)


def _end(claim: Claim, *, status: TurnStatus, **fields: object) -> None:
    with transaction.atomic():
        # The conversation is locked first: closing the round may append to it.
        transcript.take_seqs(claim.conversation_id, 0)
        # Whoever was told that a turn is being cancelled finds it cancelled.
        mine = Turn.objects.held(claim.turn_id, claim.fence)
        mine = mine.filter(cancel_requested=status == TurnStatus.CANCELLED)
        if mine.update(status=status, waiting_for="", lease_until=None, ended_at=Now(), **fields) != 1:
            raise FenceLost
        close_round(claim.conversation_id, claim.turn_id, rule="turn_ended", reason="the turn was ended")
        events.publish_end_after_commit(claim.turn_id)
        announcements.turn_ended(claim.turn_id, status)
        code = str(fields.get("error_code", ""))
        outgoing.no_reply(**_whose(claim), status=status, code=code)
        spawned.report(**_whose(claim), status=status, code=code)
        notify_next(claim.conversation_id)


def _whose(claim: Claim) -> dict[str, Any]:
    """The conversation and the turn that messages belong to."""
    return {
        "key": claim.key,
        "owner_id": claim.owner_id,
        "conversation_id": claim.conversation_id,
        "turn_id": claim.turn_id,
    }


# --- the pieces --------------------------------------------------------------------------------------------------


@contextmanager
def _writing(
    claim: Claim, change: Update, *, messages: int = 0, marks: Sequence[str] = (), **given: Any
) -> Iterator[int]:
    """A transaction of a held turn: takes numbers for ``messages``, passes the fence, and yields the first number.
    ``marks``: of the messages, from where untrusted text in each came."""
    with transaction.atomic():
        cost = given.get("cost", 0)
        takes = messages or cost != 0
        seq = transcript.take_seqs(claim.conversation_id, messages, cost=cost, marks=marks) if takes else 0
        if change(turn_id=claim.turn_id, fence=claim.fence, **given) != 1:
            raise FenceLost
        yield seq


def _used(completion: Completion, bill: Bill) -> dict[str, Any]:
    usage = completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": bill.cost,
        "model_calls": int(completion.took_ms > 0),
        "model_ms": completion.took_ms,
    }


def _with_plain_name(call: dict[str, Any]) -> dict[str, Any]:
    """The name of a tool is stored and told as it was asked for, except for a secret in it, which no tool's has."""
    function = call["function"]
    # Without the brackets, which providers refuse in a name.
    return call | {"function": function | {"name": redact(function["name"]).replace(MASK, MASK.strip("[]"))}}


def _without_secrets(call: dict[str, Any]) -> dict[str, Any]:
    """For the transcript; the call itself is run with its arguments whole."""
    function = call["function"]
    return call | {"function": function | {"arguments": redact_json(function["arguments"])}}


def _without_calls(message: ChatMessage) -> ChatMessage:
    return {name: value for name, value in message.items() if name != "tool_calls"}


def _append(
    claim: Claim,
    seq: int,
    messages: Sequence[ChatMessage],
    kind: str = Message.Kind.SAID,
    sent: dict[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
    marks: Sequence[str] = (),
    number: int | None = None,
) -> None:
    transcript.append(claim.conversation_id, claim.turn_id, seq, messages, kind, sent, usage, marks, number)
