"""A worker's lease on a turn: the claim that starts it, and the fence that every write passes.

A claim raises the turn's ``fence``; each write passes the fence (``… WHERE fence = mine``) in its own transaction, or
changes nothing. What is stored under a lease stands in :mod:`conversations.engine.steps`, but for what is stored with
the claim.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import (
    BigIntegerField,
    Case,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Subquery,
    When,
)
from django.db.models.functions import Coalesce

from agent import answer_schemas
from agent.answer_schemas import AnswerFormat
from agent.models import Agent
from conversations.engine import tainted_texts, transcript
from conversations.engine.results import Answers
from conversations.errors import FenceLost, NotClaimed
from conversations.models import Conversation, Message, Turn, TurnQuerySet
from conversations.options import Options
from conversations.statuses import TurnStatus
from nanohost.lib import traces
from nanohost.lib.clock import Now, from_now
from nanohost.lib.lease import lease_length
from nanohost.lib.statements import Given, Rows, Update
from tools.models import ToolCall


@dataclass(frozen=True)
class TurnState:
    """What a step needs to know of a turn and of where its conversation stands, beside the messages; each as its
    column's."""

    prompt_tokens: int
    completion_tokens: int
    retries: int
    retry_code: str
    retrying_for: timedelta | None
    fallback_model: str
    invalid_answers: Any
    starts_at_seq: int
    consolidated_through: int
    summary_seq: int | None
    summarise_from_seq: int
    pins: Any
    tainted_by: str
    deletions: int = 0


# Its fields: of the turn, and of its conversation.
OF_TURN = (
    *("prompt_tokens", "completion_tokens", "retries", "retry_code", "retrying_for"),
    *("fallback_model", "invalid_answers"),
)
POINTERS = (
    *("starts_at_seq", "consolidated_through", "summary_seq", "summarise_from_seq", "pins", "tainted_by"),
    "deletions",
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A held turn. ``traceparent``: its place in a trace; ``claimed_from`` and ``claimed_at``: when it was claimed, in
    nanoseconds, if that is traced. ``deadline`` is on this process's monotonic clock, set by the database's.
    ``as_claimed``: what was stored of it as it was claimed, unless it was to be cancelled. ``is_transient``: its
    conversation is of this one request."""

    turn_id: UUID
    conversation_id: UUID
    owner_id: int
    key: str
    agent: Agent
    model: str
    response_format: str
    request_id: str
    api_key_id: int | None
    is_transient: bool
    options: Options
    traceparent: str = ""
    claimed_from: int = field(default=0, compare=False)
    claimed_at: int = field(default=0, compare=False)
    fence: int
    attempts: int
    deadline: float = field(compare=False)
    as_claimed: TurnState | None = field(compare=False, repr=False)

    @cached_property
    def callers_tools(self) -> frozenset[str]:
        """Names of tools that the caller runs."""
        return self.options.names()

    @property
    def max_rounds(self) -> int:
        """Rounds of tool calls that may run."""
        return settings.AGENT_MAX_TOOL_ROUNDS if self.agent.max_tool_rounds is None else self.agent.max_tool_rounds

    def model_after(self, model: str) -> str:
        """The agent's next model, to be asked in the place of one; empty: there is none."""
        return self.agent.model_after(model, own=self.model)

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The form that its answer is to have; None: text."""
        return answer_schemas.stored(self.response_format, self.agent.answer_schema, self.agent.name)

    def seconds_left(self) -> float:
        """Until the turn's deadline; below 0 past it."""
        return self.deadline - time.monotonic()


# A stored step ends the count of what went wrong before it.
PROGRESS: dict[str, Any] = {
    "attempts": 0,
    "retries": 0,
    "retry_code": "",
    "retry_detail": "",
    "retrying_since": None,
    "stepped_at": Now(),
}
RETRYING_FOR = ExpressionWrapper(Now() - F("retrying_since"), output_field=DurationField())

_inbox = Rows(
    lambda: (
        Message.objects.filter(turn_id=Given("turn_id"), seq=None)
        .order_by("pk")
        .values_list("pk", "conversation_id", "tainted_by")
    )
)


def _claimed_now() -> dict[str, Any]:
    return {
        **Turn.claimed(worker=Given("worker"), lease=Given("lease", DurationField())),
        "waiting_for": "",
        "attempts": Case(
            When(status=TurnStatus.RUNNING, then=F("attempts") + 1), default=F("attempts"), output_field=IntegerField()
        ),
        "deadline": Coalesce("deadline", from_now(Given("timeout", DurationField()))),
        "started_at": Coalesce("started_at", Now()),
        "stepped_at": Now(),
        "run_after": None,
        "agent_version": Subquery(
            Conversation.objects.filter(pk=OuterRef("conversation_id")).values("agent__version"),
        ),
    }


_claim = Update(lambda: Turn.objects.claimable().filter(pk=Given("turn_id")), _claimed_now)
# With what its calls have come to, which was read at this fence.
_claim_answered = Update(
    lambda: Turn.objects.claimable().filter(pk=Given("turn_id"), fence=Given("fence")),
    lambda: _claimed_now() | PROGRESS,
)
_give_seq = Update(
    # With the conversation, by which the table may be in parts.
    lambda: Message.objects.filter(conversation_id=Given("conversation_id"), pk=Given("message_id"), seq=None),
    lambda: {"seq": Given("seq", BigIntegerField())},
)
# An UPDATE that waited for another's commit looks at the turn as it then is, but at its calls as they were before. If
# the turn's former worker has stored calls meanwhile, they are open.
_claimed = Rows(
    lambda: (
        Turn.objects.select_related("conversation__agent")
        .annotate(
            time_left=ExpressionWrapper(F("deadline") - Now(), output_field=DurationField()),
            retrying_for=RETRYING_FOR,
            open_call=Exists(ToolCall.objects.open().filter(turn_id=Given("turn_id"))),
        )
        .filter(pk=Given("turn_id"))
    )
)


def claim(
    turn_id: UUID, *, worker: str, answers_of: Callable[[UUID], Answers | None] = lambda turn_id: None
) -> Claim | None:
    """Claim a turn in one short transaction; None if it is not claimable.

    It is claimable if it is due, no earlier turn of its conversation is open, no call of it is open, and no other
    turn of the conversation is active (a unique index). A fresh turn's messages get their place in the transcript; so
    do the answers to calls that it has waited for, if ``answers_of`` tells them. What goes wrong with these is raised.
    """
    began = time.time_ns() if traces.is_on else 0
    inbox = _inbox(turn_id=turn_id)
    answers = None if inbox else answers_of(turn_id)
    timeout = timedelta(seconds=settings.TURN_TIMEOUT_SECONDS)
    taking = {"turn_id": turn_id, "worker": worker, "lease": lease_length(), "timeout": timeout}
    try:
        with transaction.atomic():
            # The conversation is locked first, as everywhere.
            seq = _take_seqs(inbox, answers)
            claimed = _claim_answered(**taking, fence=answers.fence) if answers else _claim(**taking)
            if claimed != 1:
                raise NotClaimed  # or, with answers, somebody took the turn since they were read
            for offset, (message_id, conversation_id, _) in enumerate(inbox):
                if _give_seq(conversation_id=conversation_id, message_id=message_id, seq=seq + offset) != 1:
                    raise NotClaimed  # since we read the inbox, somebody took the turn and let it go again
            if answers:
                transcript.append(answers.conversation_id, turn_id, seq, answers.messages, marks=answers.marks)
            (turn,) = _claimed(turn_id=turn_id)
            if turn.open_call:  # type: ignore[attr-defined]  # annotated above
                raise NotClaimed
            if answers and (by := turn.conversation.tainted_by):
                tainted_texts.keep_calls(turn_id, owner_id=turn.owner_id, by=by)
    except (NotClaimed, FenceLost):
        return None
    except IntegrityError:
        if answers:
            raise
        return None
    conversation = turn.conversation
    state = TurnState(
        turn.prompt_tokens,
        turn.completion_tokens,
        turn.retries,
        turn.retry_code,
        turn.retrying_for,  # type: ignore[attr-defined]  # annotated above
        turn.fallback_model,
        turn.invalid_answers,
        conversation.starts_at_seq,
        conversation.consolidated_through,
        conversation.summary_seq,
        conversation.summarise_from_seq,
        conversation.pins,
        conversation.tainted_by,
        conversation.deletions,
    )
    return Claim(
        turn_id=turn.pk,
        conversation_id=turn.conversation_id,
        owner_id=turn.owner_id,
        key=conversation.key,
        agent=conversation.agent,
        model=turn.model,
        response_format=turn.response_format,
        request_id=turn.request_id,
        api_key_id=turn.api_key_id,
        is_transient=conversation.is_transient,
        options=Options.of(turn.options),
        traceparent=turn.traceparent,
        claimed_from=began,
        claimed_at=time.time_ns() if began else 0,
        fence=turn.fence,
        attempts=turn.attempts,
        deadline=time.monotonic() + turn.time_left.total_seconds(),  # type: ignore[attr-defined]  # annotated above
        as_claimed=None if turn.cancel_requested else state,
    )


def _take_seqs(inbox: Sequence[tuple[UUID, UUID, str | None]], answers: Answers | None) -> int:
    """Numbers for what a claim puts in the transcript: the first."""
    if inbox:
        marks = [marked or "" for _, _, marked in inbox]
        return transcript.take_seqs(inbox[0][1], len(inbox), marks=marks)
    if answers:
        return transcript.take_seqs(answers.conversation_id, len(answers.messages), marks=answers.marks)
    return 0


def renew(held: Sequence[Claim], *, worker: str) -> None:
    """Renew the leases of held turns, up to their deadlines and never past them."""
    Turn.objects.of_worker(worker).filter(pk__in=[claim.turn_id for claim in held]).renew()


def still_held(held: Sequence[Claim]) -> dict[UUID, bool]:
    """For each turn that is still ours: whether somebody asked to cancel it. Others are missing."""
    rows = Turn.objects.filter(pk__in=[claim.turn_id for claim in held], status=TurnStatus.RUNNING)
    fences = {claim.turn_id: claim.fence for claim in held}
    flags = rows.values_list("pk", "fence", "cancel_requested")
    return {pk: cancel_requested for pk, fence, cancel_requested in flags if fence == fences[pk]}


def mine(*, unless_cancelled: bool) -> TurnQuerySet:
    held = Turn.objects.held(Given("turn_id"), Given("fence"))
    return held.filter(cancel_requested=False) if unless_cancelled else held


def held_turn(changes: dict[str, Any], *, unless_cancelled: bool = True, **returning: Any) -> Update:
    """An update of a held turn, which passes its fence. ``returning``: as of :class:`Update`."""
    return Update(lambda: mine(unless_cancelled=unless_cancelled), lambda: changes, **returning)
