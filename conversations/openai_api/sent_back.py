"""Transcripts that clients send back: what is known from where untrusted text had entered says so again."""

from collections.abc import Sequence

from agent.loop import ChatMessage
from conversations.engine import tainted_texts
from conversations.openai_api import ids


def marked(messages: Sequence[ChatMessage], *, owner_id: int) -> list[ChatMessage]:
    """The same messages; those that taint have ``tainted_by``."""
    return tainted_texts.recognised(messages, owner_id=owner_id, name_of=_name_of)


def _name_of(call_id: str) -> str:
    """A call of the host's is shown as an item of its own."""
    row_id = ids.row_of(call_id, ids.HOSTS_CALL)
    return str(row_id) if row_id else call_id
