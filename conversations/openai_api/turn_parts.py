"""A turn as these routes answer with it: in parts. Each ends with calls that the caller is to run, and the last with
the answer. A request is answered with one part, whatever has become of the turn since."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conversations.errors import TOLD, TurnProblem
from conversations.models import CallerRound, Message, Turn
from conversations.options import Options
from conversations.statuses import TurnStatus


@dataclass(frozen=True, kw_only=True)
class Used:
    """Tokens of one part."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """``texts``: what the agent has said in it, message by message. ``calls``: what the caller is to run, in the chat
    format. ``is_cut``: it ends where the model had no more tokens."""

    texts: list[str]
    calls: list[dict[str, Any]]
    is_cut: bool
    used: Used

    @property
    def text(self) -> str:
        """All of it: what is said before a call of a tool, and after."""
        return "\n\n".join(self.texts)


def is_over(turn: Turn, number: int) -> bool:
    """Whether a part has come to its end."""
    return turn.ended or CallerRound.objects.filter(turn=turn, number=number).exists()


def part_of(turn: Turn, number: int) -> Part | None:
    """A part that has come to its end; None if it has not. Raises :class:`TurnProblem` if the turn has failed in it."""
    rounds = list(CallerRound.objects.filter(turn=turn, number__in=(number - 1, number)).order_by("number"))
    before = next((each for each in rounds if each.number == number - 1), None)
    asked = next((each for each in rounds if each.number == number), None)
    if asked is None and not turn.ended:
        return None
    if asked is None and turn.status != TurnStatus.SUCCEEDED:
        told = turn.error_detail if turn.error_code in TOLD else ""
        raise TurnProblem(turn.error_code, told, turnId=str(turn.pk))
    first, last = before.messages if before else _brought(turn), asked.messages if asked else None
    spoken = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False).order_by("seq")
    said: Sequence[Any] = list(spoken.values_list("content", "usage")[first:last])
    return Part(
        texts=[content for content, _ in said if content.strip()],
        calls=asked.calls if asked else [],
        is_cut=bool(said and (said[-1][1] or {}).get("cut")),
        used=_used(asked or turn, before),
    )


def _used(at_its_end: Turn | CallerRound, before: CallerRound | None) -> Used:
    return Used(
        prompt_tokens=at_its_end.prompt_tokens - (before.prompt_tokens if before else 0),
        completion_tokens=at_its_end.completion_tokens - (before.completion_tokens if before else 0),
        cached_tokens=at_its_end.cached_tokens - (before.cached_tokens if before else 0),
    )


def first_message(turn: Turn, number: int) -> int:
    """Which of the turn's messages, counted from 0, is the first of a part."""
    if number == 0:
        return _brought(turn)
    found = CallerRound.objects.filter(turn=turn, number=number - 1).values_list("messages", flat=True)
    return next(iter(found), 0)


def _brought(turn: Turn) -> int:
    """How many answers its request has brought along, which are none of ours."""
    return Options.of(turn.options).brought
