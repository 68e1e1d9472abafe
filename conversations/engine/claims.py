"""A worker's hold on a turn: the claim that starts it, and every write it allows.

A claim raises the turn's ``fence``; each write passes the fence (``… WHERE fence = mine``) in its own transaction, or
changes nothing. A transaction that appends to the transcript takes its numbers from the conversation first, since
locks are taken in the order conversation, turn, call; the fence decides all the same, for it is rolled back whole.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    JSONField,
    OuterRef,
    Q,
    Subquery,
    When,
)
from django.db.models.functions import Coalesce, Least
from django.db.models.lookups import Exact
from django.utils import timezone

from agent.history import INTERRUPTED
from agent.llm.base import Completion, Usage, with_unique_ids
from agent.loop import ChatMessage, Limit, unanswered_calls
from agent.models import Agent
from agent.prompt import Pinned, sent_at
from conversations import events, pins
from conversations.engine import compaction, doorbell, transcript
from conversations.errors import FenceLost, NotClaimed
from conversations.events import answers, tool_events
from conversations.models import MOST_REASON, Conversation, Message, Turn, TurnQuerySet, as_chat
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.redaction import MASK, redact, redact_head, redact_json
from nanohost.lib.statements import Given, Rows, Update
from tools import gate
from tools.models import ToolCall


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A held turn. ``deadline`` is on this process's monotonic clock, set by the database's."""

    turn_id: UUID
    conversation_id: UUID
    owner_id: int
    key: str
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
    """What the next step is decided on: ``own`` are the turn's messages, ``transcript`` what the model may see.

    ``retries``: failures of the provider since the last stored step. ``retry_code``: of the last of them.
    ``retrying_for``: seconds since the first of them. ``summary``: of what came before the transcript.
    ``unconsolidated``: how many messages no summary covers. ``command``: the turn's message, if it is a command to
    the host. ``first_seq``, ``last_seq`` and ``summary_seq``: where the transcript and the summary were read.
    ``pinned``: messages that are in every prompt. ``is_left_long``: it is not summarised for its length alone, since a
    summary of it was undone just now.
    """

    own: list[ChatMessage]
    transcript: list[ChatMessage]
    usage: Usage
    retries: int
    retry_code: str = ""
    retrying_for: float = 0.0
    summary: str = ""
    unconsolidated: int = 0
    command: str = ""
    first_seq: int = 0
    last_seq: int = 0
    summary_seq: int | None = None
    pinned: Sequence[Pinned] = ()
    is_left_long: bool = False

    @property
    def calls(self) -> int:
        """How many tool calls the turn has asked for."""
        return sum(len(message.get("tool_calls", ())) for message in self.own)


# --- taking hold -------------------------------------------------------------------------------------------------

_inbox = Rows(
    lambda: (
        Message.objects.filter(turn_id=Given("turn_id"), seq=None).order_by("pk").values_list("pk", "conversation_id")
    )
)
_claim = Update(
    lambda: Turn.objects.claimable().filter(pk=Given("turn_id")),
    lambda: {
        "status": TurnStatus.RUNNING,
        "waiting_for": "",
        "fence": F("fence") + 1,
        "worker": Given("worker"),
        "attempts": Case(
            When(status=TurnStatus.RUNNING, then=F("attempts") + 1), default=F("attempts"), output_field=IntegerField()
        ),
        "lease_until": from_now(Given("lease", DurationField())),
        "deadline": Coalesce("deadline", from_now(Given("timeout", DurationField()))),
        "started_at": Coalesce("started_at", Now()),
        "stepped_at": Now(),
        "run_after": None,
        "agent_version": Subquery(
            Conversation.objects.filter(pk=OuterRef("conversation_id")).values("agent__version"),
        ),
    },
)
_give_seq = Update(
    lambda: Message.objects.filter(pk=Given("message_id"), seq=None), lambda: {"seq": Given("seq", BigIntegerField())}
)
# An UPDATE that waited for another's commit looks at the turn as it then is, but at its calls as they were before. If
# the turn's former worker has stored calls meanwhile, they are open.
_claimed = Rows(
    lambda: (
        Turn.objects.select_related("conversation__agent")
        .annotate(
            time_left=ExpressionWrapper(F("deadline") - Now(), output_field=DurationField()),
            open_call=Exists(ToolCall.objects.open().filter(turn_id=Given("turn_id"))),
        )
        .filter(pk=Given("turn_id"))
    )
)


def claim(turn_id: UUID, *, worker: str) -> Claim | None:
    """Take a turn: one short transaction, and None if it is not to be had.

    It is to be had if it is due, no earlier turn of its conversation is open, no call of it is open, and no other
    turn of the conversation is active (a unique index). A fresh turn's messages get their place in the transcript.
    """
    inbox = _inbox(turn_id=turn_id)
    try:
        with transaction.atomic():
            seq = transcript.take_seqs(inbox[0][1], len(inbox)) if inbox else 0
            lease = timedelta(seconds=settings.TURN_LEASE_SECONDS)
            timeout = timedelta(seconds=settings.TURN_TIMEOUT_SECONDS)
            if _claim(turn_id=turn_id, worker=worker, lease=lease, timeout=timeout) != 1:
                raise NotClaimed
            for offset, (message_id, _) in enumerate(inbox):
                if _give_seq(message_id=message_id, seq=seq + offset) != 1:
                    raise NotClaimed  # since we read the inbox, somebody took the turn and let it go again
            (turn,) = _claimed(turn_id=turn_id)
            if turn.open_call:  # type: ignore[attr-defined]  # annotated above
                raise NotClaimed
    except (NotClaimed, IntegrityError, FenceLost):
        return None
    return Claim(
        turn_id=turn.pk,
        conversation_id=turn.conversation_id,
        owner_id=turn.owner_id,
        key=turn.conversation.key,
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

_standing = Rows(
    lambda: (
        _mine(unless_cancelled=True)
        .annotate(retrying_for=ExpressionWrapper(Now() - F("retrying_since"), output_field=DurationField()))
        .values_list(
            *("prompt_tokens", "completion_tokens", "retries", "retry_code", "retrying_for"),
            *("conversation__starts_at_seq", "conversation__consolidated_through", "conversation__summary_seq"),
            *("conversation__summarise_from_seq", "conversation__pins"),
        )
    ),
)
_FOR_CHAT = ("role", "content", "tool_calls", "tool_call_id")
# Whether it is the turn's own is the database's to say: to make an id of each row costs as much as all else of it.
_FOR_VIEW = ("seq", "own", "kind", "created_at", *_FOR_CHAT)

# However few of them are consolidated: an older summary of what comes before these is worth more than their beginning.
MOST_MESSAGES = 500


def _said() -> Any:
    """What was said, and the turn's own command."""
    mine = Message.objects.filter(conversation_id=Given("conversation_id"), seq__isnull=False)
    own = ExpressionWrapper(Q(turn_id=Given("turn_id")), output_field=BooleanField())
    return mine.annotate(own=own).filter(
        Q(kind=Message.Kind.SAID) | Q(turn_id=Given("turn_id")), type=Message.Type.NORMAL
    )


@cache
def _latest(window: int) -> Rows[Any]:
    """What no summary covers, and the last ``window`` in any case; nothing from before the conversation's start."""

    def query() -> Any:
        since = _said().filter(seq__gte=Given("starts_at"))
        nth_last = Subquery(since.order_by("-seq").values("seq")[window - 1 : window])
        first = Least(Given("first", BigIntegerField()), Coalesce(nth_last, 0), output_field=BigIntegerField())
        return since.filter(seq__gte=first).order_by("-seq").values_list(*_FOR_VIEW)[:MOST_MESSAGES]

    return Rows(query)


_of_turn = Rows[Any](lambda: _said().filter(turn_id=Given("turn_id")).order_by("seq").values_list(*_FOR_VIEW))
_content_at = Rows[Any](
    lambda: Message.objects.filter(conversation_id=Given("conversation_id"), seq=Given("seq")).values_list(
        "content", flat=True
    )
)


def read(claim: Claim) -> View:
    """What is stored now; raises :class:`FenceLost` if the turn is no longer ours or is to be cancelled."""
    standing = _standing(turn_id=claim.turn_id, fence=claim.fence)
    if not standing:
        raise FenceLost
    ((prompt_tokens, completion_tokens, retries, retry_code, retrying_for, *pointers),) = standing
    starts_at, consolidated_through, summary_seq, summarise_from, pinned = pointers
    whose = {"conversation_id": claim.conversation_id, "turn_id": claim.turn_id}
    rows = _latest(settings.MEMORY_WINDOW)(**whose, starts_at=starts_at, first=consolidated_through + 1)[::-1]
    if len(rows) == MOST_MESSAGES and rows[0][1]:
        # The turn alone may fill the prompt; all of it is needed to decide what comes next.
        rows = _of_turn(**whose)
    zone = timezone.get_current_timezone()
    own = [(kind, as_chat(*row)) for _, is_own, kind, _, *row in rows if is_own]
    first_seq, last_seq = (rows[0][0], rows[-1][0]) if rows else (0, 0)
    unconsolidated = sum(seq > consolidated_through for seq, *_ in rows)
    return View(
        own=[message for _, message in own],
        transcript=[for_model(zone, *row) for _, _, kind, *row in rows if kind == Message.Kind.SAID],
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens),
        retries=retries,
        retry_code=retry_code,
        retrying_for=retrying_for.total_seconds() if retrying_for else 0.0,
        summary=_content_at(conversation_id=claim.conversation_id, seq=summary_seq)[0] if summary_seq else "",
        unconsolidated=unconsolidated,
        command=str(own[0][1]["content"]) if own and own[0][0] == Message.Kind.COMMAND else "",
        first_seq=first_seq,
        last_seq=last_seq,
        summary_seq=summary_seq,
        pinned=pins.for_prompt(claim.conversation_id, pins.seqs_of(pinned), first_seq=first_seq),
        # But not so long that the prompt would lack the beginning of what no summary covers.
        is_left_long=last_seq < summarise_from and unconsolidated < MOST_MESSAGES // 2,
    )


def said_between(conversation_id: UUID, first_seq: int, last_seq: int) -> list[ChatMessage]:
    """Messages as :func:`read` has them in a view's transcript."""
    said = Message.objects.filter(conversation_id=conversation_id, seq__range=(first_seq, last_seq))
    said = said.filter(type=Message.Type.NORMAL, kind=Message.Kind.SAID).order_by("seq")
    zone = timezone.get_current_timezone()
    return [for_model(zone, *row) for row in said.values_list("created_at", *_FOR_CHAT)]


def for_model(
    zone: tzinfo, created_at: datetime, role: str, content: str, tool_calls: object, tool_call_id: str
) -> ChatMessage:
    """A message as the prompt has it: a user's with the time at which it was sent."""
    if role == Message.Role.USER:
        content = sent_at(content, created_at.astimezone(zone))
    return as_chat(role, content, tool_calls, tool_call_id)


# --- storing a step ----------------------------------------------------------------------------------------------


def _mine(*, unless_cancelled: bool) -> TurnQuerySet:
    held = Turn.objects.filter(pk=Given("turn_id"), fence=Given("fence"), status=TurnStatus.RUNNING)
    return held.filter(cancel_requested=False) if unless_cancelled else held


def _held_turn(changes: dict[str, Any], *, unless_cancelled: bool = True, returning: Sequence[str] = ()) -> Update:
    """An update of a held turn, which passes its fence."""
    return Update(lambda: _mine(unless_cancelled=unless_cancelled), lambda: changes, returning=returning)


# A stored step ends the count of what went wrong before it.
_PROGRESS: dict[str, Any] = {
    "attempts": 0,
    "retries": 0,
    "retry_code": "",
    "retry_detail": "",
    "retrying_since": None,
    "stepped_at": Now(),
}
_SPENDING: dict[str, Any] = {
    **_PROGRESS,
    "prompt_tokens": F("prompt_tokens") + Given("prompt_tokens", IntegerField()),
    "completion_tokens": F("completion_tokens") + Given("completion_tokens", IntegerField()),
    "model_calls": F("model_calls") + Given("model_calls", IntegerField()),
    "model_ms": F("model_ms") + Given("model_ms", IntegerField()),
}
_WAITING: dict[str, Any] = {"status": TurnStatus.WAITING, "lease_until": None}
_LATER: dict[str, Any] = dict.fromkeys(("run_after", "rung_at"), from_now(Given("wait", DurationField())))

_goes_on = _held_turn(_PROGRESS)
_goes_on_with_refusals = _held_turn(_SPENDING)
_waits_for_tools = _held_turn(_SPENDING | _WAITING | {"waiting_for": WaitingFor.TOOLS, "rung_at": Now()})
_succeeds = _held_turn(
    _SPENDING | {"status": TurnStatus.SUCCEEDED, "lease_until": None, "ended_at": Now()},
    returning=("prompt_tokens", "completion_tokens"),
)
_stands_back = _held_turn(_WAITING | _LATER | {"waiting_for": WaitingFor.RETRY})
_waits_for_retry = _held_turn(
    _WAITING
    | _LATER
    | {
        "waiting_for": WaitingFor.RETRY,
        "retries": Given("retries", IntegerField()),
        "retry_code": Given("code"),
        "retry_detail": Given("detail"),
        "retrying_since": Case(
            When(Q(Exact(Given("retries", IntegerField()), 1)), then=Now()), default=Coalesce("retrying_since", Now())
        ),
        "sent": Given("sent", JSONField()),
    },
)
_is_handed_back = _held_turn(
    _WAITING | {"waiting_for": WaitingFor.RETRY, "run_after": Now(), "rung_at": None}, unless_cancelled=False
)


def store_calls(
    claim: Claim, completion: Completion, *, limit: Limit | None, before: int = 0, sent: dict[str, Any] | None = None
) -> bool:
    """Store a model's tool calls, each decided on by the gate; True if the turn now waits for them.

    Beyond a limit all of them are refused. Refused calls have their outcome at once; the others are rung for. Those of
    tools with a rate limit are decided on last, when the turn already waits: if none is left, the turn is rung for.
    ``before``: how many calls the turn had when the model was asked, by which a round is stored once, though the answer
    to its commit was lost. ``sent``: the record of what the model was sent.
    """
    refusal = gate.Refused(f"limit:{limit}", f"The turn's limit was met: {limit}.") if limit else None
    taken = {call_id for call_id, _ in _results(turn_id=claim.turn_id)}
    asked = [_with_plain_name(call) for call in completion.tool_calls]
    wanted = with_unique_ids(asked, taken=taken, fresh=lambda: f"call_{new_id().hex}")
    rows = [
        gate.request(
            conversation_id=claim.conversation_id,
            turn_id=claim.turn_id,
            owner_id=claim.owner_id,
            agent=claim.agent.name,
            agent_tools=claim.agent.allowed_tools(),
            request_id=claim.request_id,
            call_id=call["id"],
            position=before + index,
            tool_name=call["function"]["name"],
            arguments=call["function"]["arguments"],
            refusal=refusal,
        )
        for index, call in enumerate(wanted)
    ]
    queued = [row for row in rows if not row.ended]
    change = _waits_for_tools if queued else _goes_on_with_refusals
    try:
        with _writing(claim, change, messages=1, **_used(completion)) as seq:
            asks = completion.as_message() | {"tool_calls": [_without_secrets(call) for call in wanted]}
            _append(claim, seq, [asks], sent=sent)
            gate.record(rows)
            for row in rows:
                if not row.ended:
                    doorbell.ring_for_call(row.pk)
                for kind, data in tool_events(row):  # of those that are refused
                    events.publish_after_commit(claim.turn_id, kind, data, fence=claim.fence)
            if queued and all(row.ended for row in queued):
                # A rate limit has refused them all just now: there is nothing to wait for, and nobody else rings.
                doorbell.ring_for_turn(claim.turn_id)
    except IntegrityError:
        if ToolCall.objects.filter(turn_id=claim.turn_id).count() == before:
            raise
        # Stored already; had calls been queued by it, the fence would have said so.
        return False
    return bool(queued)


def store_results(claim: Claim, view: View) -> None:
    """Answer the calls of the last round with their outcomes, in the order in which they were asked for."""
    unanswered = unanswered_calls(view.own)
    with _writing(claim, _goes_on, messages=len(unanswered)) as seq:
        _append(claim, seq, _results_of(claim.turn_id, unanswered))


def finish(
    claim: Claim,
    completion: Completion,
    *,
    reply: str,
    has_called: bool = True,
    compact_to: int | None = None,
    kind: str = Message.Kind.SAID,
    also: Callable[[int], None] | None = None,
    sent: dict[str, Any] | None = None,
) -> None:
    """Reply and status in one transaction; then tell of it, and ring for the conversation's next turn.

    ``has_called``: whether the turn has called tools, whose outcomes belong to what is told. ``compact_to``: how many
    tokens of the conversation are to stay in its prompt, if it is to be compacted. ``kind``: of the reply. ``also``:
    what else is done in the transaction; it is given the reply's number. ``sent``: the record of what the model was
    sent.
    """
    with transaction.atomic():
        seq = transcript.take_seqs(claim.conversation_id, 1)
        spent = _succeeds(turn_id=claim.turn_id, fence=claim.fence, **_used(completion))
        if not spent:
            raise FenceLost
        _append(claim, seq, [{"role": "assistant", "content": reply}], kind, sent)
        if also:
            also(seq)
        calls = answers.calls_of(claim.turn_id) if has_called else []
        usage = answers.usage_of(*spent[0])
        told = answers.succeeded(claim.conversation_id, claim.turn_id, reply=reply, calls=calls, usage=usage)
        events.publish_end_after_commit(claim.turn_id, told)
        ring_for_next(claim.conversation_id)
        if compact_to is not None:
            compaction.request(claim.conversation_id, claim.turn_id, keep_tokens=compact_to)


def fail(claim: Claim, *, code: str, detail: str = "", sent: dict[str, Any] | None = None) -> None:
    """End the turn without an answer: the stable code for programs, the detail for people. ``sent``: the record of what
    the model was sent that did not answer."""
    unanswered = {"sent": sent} if sent else {}
    _end(claim, status=TurnStatus.FAILED, error_code=code, error_detail=redact_head(detail, MOST_REASON), **unanswered)


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
    """Let go of the turn for a while; it stays active, so that nothing of its conversation overtakes it. ``sent``: as
    in :func:`fail`."""
    why: dict[str, Any] = {"retries": failed.times, "code": failed.code, "detail": redact_head(failed.detail, 200)}
    with _writing(claim, _waits_for_retry, wait=timedelta(seconds=seconds), sent=sent, **why):
        pass


def stand_back(claim: Claim, *, seconds: float) -> None:
    """Let go of the turn for a while, before anything was done for it."""
    with _writing(claim, _stands_back, wait=timedelta(seconds=seconds)):
        pass


def hand_back(claim: Claim) -> None:
    """Let go of the turn at a shutdown: whoever comes next takes it, at no cost in attempts."""
    with _writing(claim, _is_handed_back):
        doorbell.ring_for_turn(claim.turn_id)


# --- ending a turn -----------------------------------------------------------------------------------------------


_next = Rows(
    lambda: (
        Turn.objects.filter(conversation_id=Given("conversation_id"), status=TurnStatus.QUEUED)
        .order_by("number")
        .values_list("pk", flat=True)[:1]
    )
)


def ring_for_next(conversation_id: UUID) -> None:
    """Ring for the conversation's next queued turn, once the current transaction has committed."""
    for next_turn in _next(conversation_id=conversation_id):
        doorbell.ring_for_turn(next_turn)


def close_round(conversation_id: UUID, turn_id: UUID, *, rule: str, reason: str) -> None:
    """End what a turn leaves open, inside the transaction that ends it: its calls, and their answers in the transcript.

    The next turn's model thereby learns what became of the calls, above all of those that are UNKNOWN.
    """
    gate.end_open([turn_id], rule=rule, reason=reason)
    own = Message.objects.filter(turn_id=turn_id, seq__isnull=False).order_by("seq")
    if unanswered := unanswered_calls([message.as_chat() for message in own]):
        seq = transcript.take_seqs(conversation_id, len(unanswered))
        transcript.append(conversation_id, turn_id, seq, _results_of(turn_id, unanswered))


def _end(claim: Claim, *, status: TurnStatus, **fields: object) -> None:
    with transaction.atomic():
        # The conversation is locked first: closing the round may append to it.
        transcript.take_seqs(claim.conversation_id, 0)
        # Whoever was told that a turn is being cancelled finds it cancelled.
        mine = Turn.objects.filter(pk=claim.turn_id, fence=claim.fence, status=TurnStatus.RUNNING)
        mine = mine.filter(cancel_requested=status == TurnStatus.CANCELLED)
        if mine.update(status=status, waiting_for="", lease_until=None, ended_at=Now(), **fields) != 1:
            raise FenceLost
        close_round(claim.conversation_id, claim.turn_id, rule="turn_ended", reason="the turn was ended")
        events.publish_end_after_commit(claim.turn_id)
        ring_for_next(claim.conversation_id)


# --- the pieces --------------------------------------------------------------------------------------------------


@contextmanager
def _writing(claim: Claim, change: Update, *, messages: int = 0, **given: Any) -> Iterator[int]:
    """A transaction of a held turn: takes numbers for ``messages``, passes the fence, and yields the first number."""
    with transaction.atomic():
        seq = transcript.take_seqs(claim.conversation_id, messages) if messages else 0
        if change(turn_id=claim.turn_id, fence=claim.fence, **given) != 1:
            raise FenceLost
        yield seq


def _used(completion: Completion) -> dict[str, int]:
    usage = completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
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


def _append(
    claim: Claim,
    seq: int,
    messages: Sequence[ChatMessage],
    kind: str = Message.Kind.SAID,
    sent: dict[str, Any] | None = None,
) -> None:
    transcript.append(claim.conversation_id, claim.turn_id, seq, messages, kind, sent)


_results = Rows[Any](lambda: ToolCall.objects.filter(turn_id=Given("turn_id")).values_list("call_id", "result"))


def _results_of(turn_id: UUID, unanswered: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    results = dict(_results(turn_id=turn_id))
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": call["function"]["name"][:128],
            "content": results.get(call["id"], INTERRUPTED),
        }
        for call in unanswered
    ]
