"""The tools that a conversation brings along. They run inline, for the conversation that calls."""

import json

from conversations.models import Conversation
from nanohost.lib.text import storable
from tools.registry import Caller, tool

MOST_KEYS = 50
MOST_CHARS = 8000


@tool(effects="rows")
def session_state(caller: Caller, key: str = "", value: str | None = None) -> str:
    """Keep something for this conversation only, by key, such as the step that a task has reached; or read it.

    Args:
        key: Its name. Without one, all that is kept is shown.
        value: What to keep. Without one, what is kept is shown; an empty text forgets it.
    """
    row = Conversation.objects.select_for_update().filter(pk=caller.conversation_id)
    state = row.values_list("state", flat=True).first()
    if state is None:
        raise ValueError("The conversation was deleted.")
    if not key:
        return json.dumps(state, ensure_ascii=False) if state else "Nothing is kept."
    if value is None:
        return str(state[key]) if key in state else f"Nothing is kept as {key}."
    if not value:
        state.pop(key, None)
    else:
        state[storable(key)] = storable(value)
    if len(state) > MOST_KEYS or len(json.dumps(state, ensure_ascii=False)) > MOST_CHARS:
        raise ValueError(
            f"A conversation keeps {MOST_KEYS} keys and {MOST_CHARS} characters at most. Forget something first."
        )
    row.update(state=state)
    return f"Kept as {key}." if value else f"Nothing is kept as {key} any more."
