"""A worker's hold on a turn: the claim that starts it, and every write it allows.

A claim raises the turn's ``fence``; each write passes the fence (``… WHERE fence = mine``) in its own transaction, or
changes nothing. A transaction that appends to the transcript takes its numbers from the conversation first, since
locks are taken in the order conversation, turn, call; the fence decides all the same, for it is rolled back whole.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Case, DurationField, Exists, ExpressionWrapper, F, IntegerField, When
from django.db.models.functions import Coalesce, Least

from agent.history import INTERRUPTED
from agent.llm.base import Completion, Usage, with_unique_ids
from agent.loop import ChatMessage, Limit, unanswered_calls
from agent.models import Agent
from conversations import doorbell, events
from conversations.errors import FenceLost, NotClaimed
from conversations.events import tool_events
from conversations.models import Conversation, Message, Turn, TurnQuerySet, TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.redaction import redact, redact_json
from tools import gate
from tools.models import ToolCall


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A held turn. ``deadline`` is on this process's monotonic clock, set by the database's."""

    turn_id: UUID
    conversation_id: UUID
    owner_id: int
    agent: Agent
    model: str
    request_id: str
    fence: int
    attempts: int
    deadline: float = field(compare=False)

    @property
    def max_rounds(self) -> int:
        """Rounds of tool calls that may run."""
        return settings.AGENT_MAX_TOOL_ROUNDS if self.agent.max_tool_rounds is None else self.agent.max_tool_rounds

    def seconds_left(self) -> float:
        """Until the turn's deadline; below 0 past it."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, kw_only=True)
class View:
    """What the next step is decided on: ``own`` are the turn's messages, ``transcript`` what the model may see."""

    own: list[ChatMessage]
    transcript: list[ChatMessage]
    usage: Usage
    retries: int


# --- taking hold -------------------------------------------------------------------------------------------------


def claim(turn_id: UUID, *, worker: str) -> Claim | None:
    """Take a turn: one short transaction, and None if it is not to be had.

    It is to be had if it is due, no earlier turn of its conversation is open, no call of it is open, and no other
    turn of the conversation is active (a unique index). A fresh turn's messages get their place in the transcript.
    """
    inbox = list(Message.objects.filter(turn_id=turn_id, seq=None).order_by("pk").values_list("pk", "conversation_id"))
    expired = When(status=TurnStatus.RUNNING, then=F("attempts") + 1)
    try:
        with transaction.atomic():
            seq = _take_seqs(inbox[0][1], len(inbox)) if inbox else 0
            won = (
                Turn.objects.claimable()
                .filter(pk=turn_id)
                .update(
                    status=TurnStatus.RUNNING,
                    waiting_for="",
                    fence=F("fence") + 1,
                    worker=worker,
                    attempts=Case(expired, default=F("attempts"), output_field=IntegerField()),
                    lease_until=from_now(settings.TURN_LEASE_SECONDS),
                    deadline=Coalesce("deadline", from_now(settings.TURN_TIMEOUT_SECONDS)),
                    started_at=Coalesce("started_at", Now()),
                    run_after=None,
                )
            )
            if won != 1:
                raise NotClaimed
            for offset, (message_id, _) in enumerate(inbox):
                if Message.objects.filter(pk=message_id, seq=None).update(seq=seq + offset) != 1:
                    raise NotClaimed  # since we read the inbox, somebody took the turn and let it go again
            # An UPDATE that waited for another's commit looks at the turn as it then is, but at its calls as they were
            # before. If the turn's former worker has stored calls meanwhile, they are open.
            open_call = Exists(ToolCall.objects.open().filter(turn_id=turn_id))
            time_left = ExpressionWrapper(F("deadline") - Now(), output_field=DurationField())
            rows = Turn.objects.select_related("conversation__agent")
            turn = rows.annotate(time_left=time_left, open_call=open_call).get(pk=turn_id)
            if turn.open_call:  # type: ignore[attr-defined]  # annotated above
                raise NotClaimed
    except (NotClaimed, IntegrityError, FenceLost):
        return None
    return Claim(
        turn_id=turn.pk,
        conversation_id=turn.conversation_id,
        owner_id=turn.owner_id,
        agent=turn.conversation.agent,
        model=turn.model,
        request_id=turn.request_id,
        fence=turn.fence,
        attempts=turn.attempts,
        deadline=time.monotonic() + turn.time_left.total_seconds(),  # type: ignore[attr-defined]  # annotated above
    )


def keep(held: Sequence[Claim], *, worker: str) -> None:
    """Renew the leases of held turns, up to their deadlines and never past them."""
    Turn.objects.of_worker(worker).filter(pk__in=[claim.turn_id for claim in held]).update(
        lease_until=Least(from_now(settings.TURN_LEASE_SECONDS), F("deadline"))
    )


def still_held(held: Sequence[Claim]) -> dict[UUID, bool]:
    """For each turn that is still ours: whether somebody asked to cancel it. Others are missing."""
    rows = Turn.objects.filter(pk__in=[claim.turn_id for claim in held], status=TurnStatus.RUNNING)
    fences = {claim.turn_id: claim.fence for claim in held}
    flags = rows.values_list("pk", "fence", "cancel_requested")
    return {pk: cancel_requested for pk, fence, cancel_requested in flags if fence == fences[pk]}


# --- reading -----------------------------------------------------------------------------------------------------


def read(claim: Claim) -> View:
    """What is stored now; raises :class:`FenceLost` if the turn is no longer ours or is to be cancelled."""
    turn = _mine(claim, unless_cancelled=True).values("prompt_tokens", "completion_tokens", "retries").first()
    if turn is None:
        raise FenceLost
    normal = Message.objects.filter(conversation_id=claim.conversation_id, type=Message.Type.NORMAL, seq__isnull=False)
    rows = list(normal.order_by("-seq")[: settings.MEMORY_WINDOW])[::-1]
    if len(rows) == settings.MEMORY_WINDOW and rows[0].turn_id == claim.turn_id:
        # The turn alone may fill the window; all of it is needed to decide what comes next.
        rows = list(normal.filter(turn_id=claim.turn_id).order_by("seq"))
    return View(
        own=[row.as_chat() for row in rows if row.turn_id == claim.turn_id],
        transcript=[row.as_chat() for row in rows],
        usage=Usage(prompt_tokens=turn["prompt_tokens"], completion_tokens=turn["completion_tokens"]),
        retries=turn["retries"],
    )


# --- storing a step ----------------------------------------------------------------------------------------------


def store_calls(claim: Claim, completion: Completion, *, limit: Limit | None) -> bool:
    """Store a model's tool calls, each decided on by the gate; True if the turn now waits for them.

    Beyond a limit all of them are refused. Refused calls have their outcome at once; the others are rung for. Those of
    tools with a rate limit are decided on last, when the turn already waits: if none is left, the turn is rung for.
    """
    refusal = gate.Refused(f"limit:{limit}", f"The turn's limit was met: {limit}.") if limit else None
    taken = set(ToolCall.objects.filter(turn_id=claim.turn_id).values_list("call_id", flat=True))
    wanted = with_unique_ids(completion.tool_calls, taken=taken, fresh=lambda: f"call_{new_id().hex}")
    rows = [
        gate.request(
            conversation_id=claim.conversation_id,
            turn_id=claim.turn_id,
            owner_id=claim.owner_id,
            agent=claim.agent.name,
            agent_tools=claim.agent.allowed_tools(),
            request_id=claim.request_id,
            call_id=call["id"],
            position=len(taken) + index,
            tool_name=call["function"]["name"],
            arguments=call["function"]["arguments"],
            refusal=refusal,
        )
        for index, call in enumerate(wanted)
    ]
    queued = [row for row in rows if not row.ended]
    waits: dict[str, object] = (
        {"status": TurnStatus.WAITING, "waiting_for": WaitingFor.TOOLS, "lease_until": None, "rung_at": Now()}
        if queued
        else {}
    )
    with _writing(claim, messages=1, unless_cancelled=True, **_used(completion), **waits) as seq:
        _append(claim, seq, [completion.as_message() | {"tool_calls": [_without_secrets(call) for call in wanted]}])
        gate.record(rows)
        for row in rows:
            if not row.ended:
                doorbell.ring_for_call(row.pk)
            for kind, data in tool_events(row):  # of those that are refused
                events.publish_after_commit(claim.turn_id, kind, data, fence=claim.fence)
        if queued and all(row.ended for row in queued):
            # A rate limit has refused them all just now: there is nothing to wait for, and nobody else rings.
            doorbell.ring_for_turn(claim.turn_id)
    return bool(queued)


def store_results(claim: Claim, view: View) -> None:
    """Answer the calls of the last round with their outcomes, in the order in which they were asked for."""
    unanswered = unanswered_calls(view.own)
    with _writing(claim, messages=len(unanswered), unless_cancelled=True) as seq:
        _append(claim, seq, _results_of(claim.turn_id, unanswered))


def finish(claim: Claim, completion: Completion, *, reply: str) -> None:
    """Reply and status in one transaction; then ring for the conversation's next turn."""
    ends = {"status": TurnStatus.SUCCEEDED, "lease_until": None, "ended_at": Now()}
    with _writing(claim, messages=1, unless_cancelled=True, **_used(completion), **ends) as seq:
        _append(claim, seq, [{"role": "assistant", "content": reply}])
        events.publish_end_after_commit(claim.turn_id)
        ring_for_next(claim.conversation_id)


def fail(claim: Claim, *, code: str, detail: str = "") -> None:
    """End the turn without an answer: the stable code for programs, the detail for people."""
    _end(claim, status=TurnStatus.FAILED, error_code=code, error_detail=redact(detail)[:500])


def cancel_if_asked(claim: Claim) -> bool:
    """End a held turn that somebody asked to cancel; False if it is not ours, or nobody did."""
    try:
        _end(claim, status=TurnStatus.CANCELLED, error_code="turn_cancelled")
    except FenceLost:
        return False
    return True


def wait_for_retry(claim: Claim, *, seconds: float) -> None:
    """Let go of the turn for a while; it stays active, so that nothing of its conversation overtakes it."""
    with _writing(
        claim,
        unless_cancelled=True,
        status=TurnStatus.WAITING,
        waiting_for=WaitingFor.RETRY,
        retries=F("retries") + 1,
        run_after=from_now(seconds),
        rung_at=from_now(seconds),
        lease_until=None,
    ):
        pass


def stand_back(claim: Claim, *, seconds: float) -> None:
    """Let go of the turn for a while, before anything was done for it."""
    waits: dict[str, Any] = {"status": TurnStatus.WAITING, "waiting_for": WaitingFor.RETRY, "lease_until": None}
    with _writing(claim, unless_cancelled=True, run_after=from_now(seconds), rung_at=from_now(seconds), **waits):
        pass


def hand_back(claim: Claim) -> None:
    """Let go of the turn at a shutdown: whoever comes next takes it, at no cost in attempts."""
    waits: dict[str, Any] = {"status": TurnStatus.WAITING, "waiting_for": WaitingFor.RETRY, "lease_until": None}
    with _writing(claim, run_after=Now(), rung_at=None, **waits):
        doorbell.ring_for_turn(claim.turn_id)


# --- ending a turn -----------------------------------------------------------------------------------------------


def ring_for_next(conversation_id: UUID) -> None:
    """Ring for the conversation's next queued turn, once the current transaction has committed."""
    queued = Turn.objects.filter(conversation_id=conversation_id, status=TurnStatus.QUEUED).order_by("number")
    if next_turn := queued.values_list("pk", flat=True).first():
        doorbell.ring_for_turn(next_turn)


def close_round(conversation_id: UUID, turn_id: UUID, *, rule: str, reason: str) -> None:
    """End what a turn leaves open, inside the transaction that ends it: its calls, and their answers in the transcript.

    The next turn's model thereby learns what became of the calls, above all of those that are UNKNOWN.
    """
    gate.end_open([turn_id], rule=rule, reason=reason)
    own = Message.objects.filter(turn_id=turn_id, seq__isnull=False).order_by("seq")
    if unanswered := unanswered_calls([message.as_chat() for message in own]):
        seq = _take_seqs(conversation_id, len(unanswered))
        _insert(conversation_id, turn_id, seq, _results_of(turn_id, unanswered))


def _end(claim: Claim, *, status: TurnStatus, **fields: object) -> None:
    with transaction.atomic():
        # The conversation is locked first: closing the round may append to it.
        _take_seqs(claim.conversation_id, 0)
        # Whoever was told that a turn is being cancelled finds it cancelled.
        mine = _mine(claim).filter(cancel_requested=status == TurnStatus.CANCELLED)
        if mine.update(status=status, waiting_for="", lease_until=None, ended_at=Now(), **fields) != 1:
            raise FenceLost
        close_round(claim.conversation_id, claim.turn_id, rule="turn_ended", reason="the turn was ended")
        events.publish_end_after_commit(claim.turn_id)
        ring_for_next(claim.conversation_id)


# --- the pieces --------------------------------------------------------------------------------------------------


@contextmanager
def _writing(claim: Claim, *, messages: int = 0, unless_cancelled: bool = False, **fields: Any) -> Iterator[int]:
    """A transaction of a held turn: takes numbers for ``messages``, passes the fence, and yields the first number."""
    with transaction.atomic():
        seq = _take_seqs(claim.conversation_id, messages) if messages else 0
        # A stored step ends the count of what went wrong before it.
        progress = {"attempts": 0, "retries": 0} if messages else {}
        changes = progress | fields or {"fence": claim.fence}
        if _mine(claim, unless_cancelled=unless_cancelled).update(**changes) != 1:
            raise FenceLost
        yield seq


def _mine(claim: Claim, *, unless_cancelled: bool = False) -> TurnQuerySet:
    held = Turn.objects.filter(pk=claim.turn_id, fence=claim.fence, status=TurnStatus.RUNNING)
    return held.filter(cancel_requested=False) if unless_cancelled else held


def _take_seqs(conversation_id: UUID, count: int) -> int:
    """Take ``count`` numbers under the conversation's lock and return the first; FenceLost if it was deleted."""
    mine = Conversation.objects.filter(pk=conversation_id)
    if mine.update(next_seq=F("next_seq") + count, updated_at=Now()) != 1:
        raise FenceLost
    return mine.values_list("next_seq", flat=True).get() - count


def _used(completion: Completion) -> dict[str, object]:
    return {
        "prompt_tokens": F("prompt_tokens") + completion.usage.prompt_tokens,
        "completion_tokens": F("completion_tokens") + completion.usage.completion_tokens,
    }


def _without_secrets(call: dict[str, Any]) -> dict[str, Any]:
    """For the transcript; the call itself is run with its arguments whole."""
    function = call["function"]
    return call | {"function": function | {"arguments": redact_json(function["arguments"])}}


def _append(claim: Claim, seq: int, messages: Sequence[ChatMessage]) -> None:
    _insert(claim.conversation_id, claim.turn_id, seq, messages)


def _insert(conversation_id: UUID, turn_id: UUID, seq: int, messages: Sequence[ChatMessage]) -> None:
    Message.objects.bulk_create(
        Message(
            conversation_id=conversation_id,
            turn_id=turn_id,
            seq=seq + offset,
            role=message["role"],
            content=message["content"],
            tool_calls=message.get("tool_calls"),
            tool_call_id=message.get("tool_call_id", ""),
            tool_name=message.get("name", ""),
        )
        for offset, message in enumerate(messages)
    )


def _results_of(turn_id: UUID, unanswered: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    results = dict(ToolCall.objects.filter(turn_id=turn_id).values_list("call_id", "result"))
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": call["function"]["name"][:128],
            "content": results.get(call["id"], INTERRUPTED),
        }
        for call in unanswered
    ]
