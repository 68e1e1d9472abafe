"""What is stored of a turn and its conversation, as its next step is decided on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import (
    BigIntegerField,
    BooleanField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    Subquery,
)
from django.db.models.functions import Coalesce, Least
from django.utils import timezone

from agent.llm.base import Usage
from agent.loop import ChatMessage
from agent.prompt import Pinned, sent_at
from conversations import pins
from conversations.engine.lease import Claim, mine
from conversations.errors import FenceLost
from conversations.models import (
    Message,
    as_chat,
)
from nanohost.lib.clock import Now
from nanohost.lib.statements import Given, Rows


@dataclass(frozen=True, kw_only=True)
class Snapshot:
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


_state = Rows(
    lambda: (
        mine(unless_cancelled=True)
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
_FOR_SNAPSHOT = ("seq", "own", "kind", "created_at", *_FOR_CHAT)

# However few of them are consolidated: an older summary of what comes before these is worth more than their beginning.
MAX_MESSAGES = 500


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
        return since.filter(seq__gte=first).order_by("-seq").values_list(*_FOR_SNAPSHOT)[:MAX_MESSAGES]

    return Rows(query)


_of_turn = Rows[Any](lambda: _said().filter(turn_id=Given("turn_id")).order_by("seq").values_list(*_FOR_SNAPSHOT))
_content_at = Rows[Any](
    lambda: Message.objects.filter(conversation_id=Given("conversation_id"), seq=Given("seq")).values_list(
        "content", flat=True
    )
)


def load(claim: Claim) -> Snapshot:
    """What is stored now; raises :class:`FenceLost` if the turn is no longer ours or is to be cancelled."""
    state = _state(turn_id=claim.turn_id, fence=claim.fence)
    if not state:
        raise FenceLost
    ((prompt_tokens, completion_tokens, retries, retry_code, retrying_for, *pointers),) = state
    starts_at, consolidated_through, summary_seq, summarise_from, pinned = pointers
    whose = {"conversation_id": claim.conversation_id, "turn_id": claim.turn_id}
    rows = _latest(settings.MEMORY_WINDOW)(**whose, starts_at=starts_at, first=consolidated_through + 1)[::-1]
    if len(rows) == MAX_MESSAGES and rows[0][1]:
        # The turn alone may fill the prompt; all of it is needed to decide what comes next.
        rows = _of_turn(**whose)
    zone = timezone.get_current_timezone()
    own = [(kind, as_chat(*row)) for _, is_own, kind, _, *row in rows if is_own]
    first_seq, last_seq = (rows[0][0], rows[-1][0]) if rows else (0, 0)
    unconsolidated = sum(seq > consolidated_through for seq, *_ in rows)
    return Snapshot(
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
        is_left_long=last_seq < summarise_from and unconsolidated < MAX_MESSAGES // 2,
    )


def said_between(conversation_id: UUID, first_seq: int, last_seq: int) -> list[ChatMessage]:
    """Messages as :func:`load` has them in a snapshot's transcript."""
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
