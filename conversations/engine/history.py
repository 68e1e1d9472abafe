"""The messages that a prompt may have, read from the transcript.

A transcript is only appended to. So a process that has read a conversation's messages for one prompt reads what has
come since for the next one, and keeps what it has made of each: a prompt of 40 messages costs what one of 4 does.
"""

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import cache, cached_property
from typing import Any
from uuid import UUID

from django.db.models import BigIntegerField, BooleanField, Case, ExpressionWrapper, F, Q, Subquery, When
from django.db.models.functions import Coalesce, Least
from django.utils import timezone

from agent.fixed import Fixed
from agent.loop import ChatMessage
from agent.prompt import sent_at
from conversations.attachments import prompts as attachments
from conversations.models import Message, as_chat
from nanohost.lib.statements import Given, Rows

# However few of them are consolidated: an older summary of what comes before these is worth more than their beginning.
MAX_MESSAGES = 500

# So many characters of messages are kept in a process; and the messages of a conversation for so long: then they are
# read anew, though nothing but a hand in the database would have changed them.
MAX_KEPT_CHARS = 16 * 1024 * 1024
KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Said:
    """A message. ``turn``: the turn it was read for, if it is that turn's own, by its id as an integer, which compares
    faster. ``chat``: in the chat format. ``shown``: as the prompt has it. ``chars``: how many are kept of it,
    about: it is kept as it is, as the prompt has it, and as JSON."""

    seq: int
    turn: int | None
    is_command: bool
    chat: ChatMessage
    shown: ChatMessage
    chars: int


# More than any number of a message.
_MAX_SEQ = 2**63 - 1
_FOR_CHAT = ("role", "content", "tool_calls", "tool_call_id")
# Whether it is the turn's own is the database's to say: to make an id of each row costs as much as all else of it.
_COLUMNS = ("seq", "own", "kind", "created_at", *_FOR_CHAT, "own_thoughts", "attachments")


def _said() -> Any:
    """What was said, and the turn's own command."""
    mine = Message.objects.filter(conversation_id=Given("conversation_id"), seq__isnull=False)
    own = ExpressionWrapper(Q(turn_id=Given("turn_id")), output_field=BooleanField())
    # What a model thought is sent back within its turn only; of other turns it is not read.
    thoughts = Case(When(turn_id=Given("turn_id"), then=F("thoughts")))
    return mine.annotate(own=own, own_thoughts=thoughts).filter(
        Q(kind=Message.Kind.SAID) | Q(turn_id=Given("turn_id")), type=Message.Type.NORMAL
    )


@cache
def _latest(window: int) -> Rows[Any]:
    """What no summary covers, and the last ``window`` in any case; nothing from before the conversation's start."""

    def query() -> Any:
        since = _said().filter(seq__gte=Given("starts_at"))
        nth_last = Subquery(since.order_by("-seq").values("seq")[window - 1 : window])
        first = Least(Given("first", BigIntegerField()), Coalesce(nth_last, 0), output_field=BigIntegerField())
        return since.filter(seq__gte=first).order_by("-seq").values_list(*_COLUMNS)[:MAX_MESSAGES]

    return Rows(query)


_of_turn = Rows[Any](lambda: _said().filter(turn_id=Given("turn_id")).order_by("seq").values_list(*_COLUMNS))
_content_at = Rows[str](
    lambda: Message.objects.filter(conversation_id=Given("conversation_id"), seq=Given("seq")).values_list(
        "content", flat=True
    )
)
_since = Rows[Any](
    # Of a range with an end PostgreSQL expects a few rows, and keeps its plan; without, it makes one each time.
    lambda: (
        _said()
        .filter(seq__gt=Given("after"), seq__lt=_MAX_SEQ)
        .order_by("seq")
        .values_list(*_COLUMNS)[: MAX_MESSAGES + 1]
    )
)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """All that was said in a conversation from one number on; and the text of the summary that was read last, with its
    number."""

    messages: list[Said]
    from_seq: int
    zone: tzinfo | None
    until: float
    deletions: int = 0
    summary_seq: int | None = None
    summary: str = ""

    @cached_property
    def chars(self) -> int:
        """About how many."""
        return len(self.summary) + sum([each.chars for each in self.messages])


class Recent:
    """What is kept of the conversations that were read last. Safe to use from any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, _Kept] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def get(self, conversation_id: UUID) -> _Kept | None:
        with self._lock:
            if conversation_id in self._kept:
                self._kept.move_to_end(conversation_id)
            return self._kept.get(conversation_id)

    def put(self, conversation_id: UUID, kept: _Kept) -> None:
        with self._lock:
            if before := self._kept.pop(conversation_id, None):
                self._chars -= before.chars
            self._chars += kept.chars
            self._kept[conversation_id] = kept
            while self._chars > MAX_KEPT_CHARS:
                _, oldest = self._kept.popitem(last=False)
                self._chars -= oldest.chars


recent = Recent()


def read(
    conversation_id: UUID,
    turn_id: UUID,
    *,
    starts_at: int,
    consolidated_through: int,
    window: int,
    summary_seq: int | None = None,
    is_stamped: bool = True,
    deletions: int = 0,
    recent: Recent = recent,
) -> tuple[Sequence[Said], str]:
    """What no summary covers, and the last ``window`` messages in any case, but nothing from before ``starts_at``; in
    order, and the last ``MAX_MESSAGES`` at most, unless the turn itself has more. And the summary of that number.
    ``is_stamped``: whether a user's messages tell when they were sent; the same for all of a conversation.
    ``deletions``: how often something was deleted of it."""
    first, zone = max(consolidated_through + 1, starts_at), _zone(is_stamped)
    whose = {"conversation_id": conversation_id, "turn_id": turn_id}
    known = recent.get(conversation_id)
    is_current = known and known.zone is zone and known.deletions == deletions
    if known and is_current and time.monotonic() < known.until:
        known = _with_what_came_since(known, whose, starts_at=starts_at, first=first, window=window)
    else:
        known = None
    if known is None:
        rows = _latest(window)(**whose, starts_at=starts_at, first=first)
        messages = _made(reversed(rows), turn_id, zone)
        from_seq = messages[0].seq if len(rows) >= window else starts_at
        until = time.monotonic() + KEPT_SECONDS
        known = _Kept(messages=messages, from_seq=from_seq, zone=zone, until=until, deletions=deletions)
    if summary_seq != known.summary_seq:
        found = _content_at(conversation_id=conversation_id, seq=summary_seq)[0] if summary_seq else ""
        known = replace(known, summary_seq=summary_seq, summary=found)
    messages = known.messages[-MAX_MESSAGES:]
    if len(messages) == MAX_MESSAGES and messages[0].turn == turn_id.int:
        # The turn alone may fill the prompt; all of it is needed to decide what comes next.
        return _made(_of_turn(**whose), turn_id, zone), known.summary
    if messages:
        recent.put(conversation_id, known)
    return messages, known.summary


def _with_what_came_since(
    kept: _Kept, whose: Mapping[str, UUID], *, starts_at: int, first: int, window: int
) -> _Kept | None:
    """What is kept and wanted now, and what has come since; None if that cannot be told."""
    rows = _since(**whose, after=kept.messages[-1].seq)
    if len(rows) > MAX_MESSAGES:
        return None
    turn_id = whose["turn_id"]
    every = [*kept.messages, *_made(rows, turn_id, kept.zone)]
    # Commands are of their own turn only.
    seen = [each for each in every if each.seq >= starts_at and (not each.is_command or each.turn == turn_id.int)]
    is_enough = kept.from_seq <= starts_at or (kept.from_seq <= first and len(seen) >= window)
    if not seen or not (is_enough or len(seen) >= MAX_MESSAGES):
        return None
    begin = max(min(bisect_left(seen, first, key=lambda each: each.seq), len(seen) - window), 0)
    begin = max(begin, len(seen) - MAX_MESSAGES)
    from_seq = seen[begin].seq if begin else max(kept.from_seq, starts_at)
    return replace(kept, messages=seen[begin:], from_seq=from_seq)


def _zone(is_stamped: bool) -> tzinfo | None:
    """In which a user's messages tell when they were sent; None: they do not."""
    return timezone.get_current_timezone() if is_stamped else None


def _made(rows: Iterable[Any], turn_id: UUID, zone: tzinfo | None) -> list[Said]:
    made, rows = [], list(rows)
    texts = attachments.texts_of(row[-1] for row in rows if row[-1])
    for seq, is_own, kind, created_at, *row in rows:
        chat = Fixed(attachments.with_texts(as_chat(*row), texts))
        shown = Fixed(for_model(zone, created_at, chat)) if chat["role"] == Message.Role.USER else chat
        is_command = kind == Message.Kind.COMMAND
        chars = 200 + 3 * (len(str(chat["content"] or "")) + len(str(chat.get("thoughts", ""))))
        made.append(Said(seq, turn_id.int if is_own else None, is_command, chat, shown, chars))
    return made


def said_between(conversation_id: UUID, first_seq: int, last_seq: int, *, is_stamped: bool = True) -> list[ChatMessage]:
    """Messages as the prompt had them whose history was read from the first number to the last."""
    said = Message.objects.filter(conversation_id=conversation_id, seq__range=(first_seq, last_seq))
    said = said.filter(type=Message.Type.NORMAL, kind=Message.Kind.SAID).order_by("seq")
    zone = _zone(is_stamped)
    rows = list(said.values_list("created_at", *_FOR_CHAT, "thoughts", "attachments"))
    texts = attachments.texts_of(row[-1] for row in rows if row[-1])
    return [for_model(zone, created_at, attachments.with_texts(as_chat(*row), texts)) for created_at, *row in rows]


def for_model(zone: tzinfo | None, created_at: datetime, chat: ChatMessage) -> ChatMessage:
    """A message as the prompt has it: a user's with the time at which it was sent, if that is known."""
    if chat["role"] != Message.Role.USER or zone is None:
        return chat
    return chat | {"content": sent_at(chat["content"], created_at.astimezone(zone))}
