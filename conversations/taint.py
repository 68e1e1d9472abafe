"""Taint of conversations: whether untrusted text has entered one since it last began anew, with which message, and from
where. It is written by the statement that takes the message's number, so that neither is stored without the other.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from conversations.models import Conversation, Message
from tools.taint import MAX_SOURCE

# Of a conversation into which nothing untrusted has entered.
NONE: dict[str, Any] = {"tainted_at_seq": None, "tainted_by": ""}

# The columns that tell what becomes of taint when a conversation begins anew.
OF_CONVERSATION = ("starts_at_seq", "erased_through", "pins", "tainted_at_seq", "tainted_by")


@dataclass(frozen=True, kw_only=True)
class Taint:
    """What has tainted a conversation; empty: nothing. ``is_new``: it has not entered yet, and does so with what is
    stored next, which was made of it."""

    by: str = ""
    is_new: bool = False

    @property
    def entering(self) -> str:
        """What enters with what is stored next."""
        return self.by if self.is_new else ""


CLEAN = Taint()


def begun_anew(conversation: Conversation, *, with_pins: bool = True) -> dict[str, Any]:
    """What changes in a conversation's row when it begins anew: of what was said, only what is pinned is in its prompts
    from then on. Of a row that nobody else changes meanwhile. If the message that brought taint was deleted by its age,
    the first that is left tells of it from now on."""
    at = conversation.tainted_at_seq
    if at is not None and at <= conversation.erased_through:
        mark_next(conversation.pk, conversation.erased_through, conversation.tainted_by)
    if conversation.tainted_at_seq is None or not with_pins:
        return NONE
    for seq in sorted(int(each["seq"]) for each in conversation.pins):
        if by := in_message(conversation, seq):
            return pinning(seq, by)
    return NONE


def pinning(seq: int, by: str) -> dict[str, Any]:
    """What changes in a conversation's row when such a message is in every prompt."""
    return {"tainted_at_seq": seq, "tainted_by": f"message {seq}, which is pinned ({by})"[:MAX_SOURCE]}


def in_message(conversation: Conversation, seq: int) -> str:
    """From where untrusted text came that a message may be made of; empty: there was none."""
    if seq < conversation.starts_at_seq:
        return last_before(conversation.pk, seq)
    at = conversation.tainted_at_seq
    return conversation.tainted_by if at is not None and at <= seq else ""


def mark_next(conversation_id: UUID, seq: int, by: str) -> None:
    """Have the first message behind a number tell that untrusted text has entered, and from where; one that tells of
    some already goes on to."""
    own = Message.objects.filter(conversation_id=conversation_id)
    following = own.filter(seq__gt=seq).order_by("seq").values_list("pk", flat=True)[:1]
    own.filter(pk__in=list(following), tainted_by=None).update(tainted_by=by)


def last_before(conversation_id: UUID, seq: int) -> str:
    """From where the last untrusted text came that had entered when a message was said, even if the conversation had
    begun anew in between; empty: none had."""
    marked = Message.objects.filter(conversation_id=conversation_id, seq__lte=seq, tainted_by__isnull=False)
    return marked.order_by("-seq").values_list("tainted_by", flat=True).first() or ""
