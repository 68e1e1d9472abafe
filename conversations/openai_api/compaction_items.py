"""Items that stand for a transcript: a summary of it, sealed only so far that no client need look into it."""

import base64
import binascii
import json
from typing import Any

from agent.loop import ChatMessage
from conversations.openai_api.errors import InvalidValue
from conversations.openai_api.values import as_text
from nanohost.lib.text import UNSTORABLE, clip
from tools.taint import MAX_SOURCE

_HEAD = "[A summary of the conversation so far]"
# What an item of ours begins with; what is behind it is the text and what has tainted it, as JSON in base64.
_OURS = "nanohost-1."


def item_of(item_id: str, summary: str, *, tainted_by: str) -> dict[str, Any]:
    """The item that a summary is handed out as. ``tainted_by``: from where untrusted text had entered what it sums up;
    it then enters with the item, wherever that is sent."""
    told = json.dumps({"summary": summary, "taintedBy": tainted_by})
    sealed = _OURS + base64.b64encode(told.encode()).decode()
    return {"id": item_id, "type": "compaction", "encrypted_content": sealed}


def message_of(item: dict[str, Any], where: str) -> ChatMessage:
    """Such an item as the model is told it: what was said before; raises for one that is not of a host like this."""
    where = f"{where}.encrypted_content"
    given = as_text(item.get("encrypted_content"), where)
    try:
        if not given.startswith(_OURS):
            raise ValueError
        told = json.loads(base64.b64decode(given.removeprefix(_OURS), validate=True))
        summary, tainted_by = told["summary"], told["taintedBy"]
        if not (isinstance(summary, str) and isinstance(tainted_by, str)):
            raise ValueError
    except (binascii.Error, ValueError, LookupError, TypeError, RecursionError):
        raise InvalidValue(f"{where} is of no compaction that was made here.", param=where) from None
    if UNSTORABLE.search(summary) or UNSTORABLE.search(tainted_by):
        raise InvalidValue(f"{where}: null characters and lone surrogates are not allowed.", param=where)
    message = {"role": "assistant", "content": f"{_HEAD}\n{summary}"}
    return message | ({"tainted_by": clip(tainted_by, MAX_SOURCE)} if tainted_by else {})
