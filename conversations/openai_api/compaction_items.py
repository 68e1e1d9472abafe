"""Items that stand for a transcript: a summary of it, sealed only so far that no client need look into it."""

import base64
import binascii
from typing import Any

from agent.loop import ChatMessage
from conversations.openai_api.errors import InvalidValue
from conversations.openai_api.values import as_text
from nanohost.lib.text import UNSTORABLE

_HEAD = "[A summary of the conversation so far]"
# What an item of ours begins with; what is behind it is the text, in base64.
_OURS = "nanohost-1."


def item_of(item_id: str, summary: str) -> dict[str, Any]:
    """The item that a summary is handed out as."""
    sealed = _OURS + base64.b64encode(summary.encode()).decode()
    return {"id": item_id, "type": "compaction", "encrypted_content": sealed}


def message_of(item: dict[str, Any], where: str) -> ChatMessage:
    """Such an item as the model is told it: what was said before; raises for one that is not of a host like this."""
    where = f"{where}.encrypted_content"
    given = as_text(item.get("encrypted_content"), where)
    try:
        if not given.startswith(_OURS):
            raise ValueError
        summary = base64.b64decode(given.removeprefix(_OURS), validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidValue(f"{where} is of no compaction that was made here.", param=where) from None
    if UNSTORABLE.search(summary):
        raise InvalidValue(f"{where}: null characters and lone surrogates are not allowed.", param=where)
    return {"role": "assistant", "content": f"{_HEAD}\n{summary}"}
