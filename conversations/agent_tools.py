"""The tools that a conversation brings along. They run inline, for the conversation that calls."""

import json

from django.utils import timezone

from conversations.models import Conversation
from nanohost.lib import clock
from nanohost.lib.text import storable
from tools.registry import Caller, Untrusted, tool

MAX_KEYS = 50
MAX_CHARS = 8000


@tool(effects="rows", stays_inside=True)
def session_state(caller: Caller, key: str = "", value: str | None = None) -> str:
    """Keep something for this conversation only, by key, such as the step that a task has reached; or read it.

    Args:
        key: Its name. Without one, all that is kept is shown, and when each was kept.
        value: What to keep. Without one, what is kept is shown; an empty text forgets it.
    """
    row = Conversation.objects.select_for_update().filter(pk=caller.conversation_id)
    conversation = row.first()
    if conversation is None:
        raise ValueError("The conversation was deleted.")
    state, times, tainted = conversation.state, conversation.state_times, conversation.state_tainted
    if not key:
        return _marked(_shown(conversation), tainted) if state else "Nothing is kept."
    if value is None:
        known = {key: tainted[key]} if key in tainted else {}
        return _marked(str(state[key]), known) if key in state else f"Nothing is kept as {key}."
    key = storable(key)
    tainted.pop(key, None)
    if not value:
        state.pop(key, None)
        times.pop(key, None)
    else:
        state[key] = storable(value)
        times[key] = clock.read().isoformat()
        if caller.tainted_by:
            tainted[key] = caller.tainted_by
    if len(state) > MAX_KEYS or len(json.dumps(state, ensure_ascii=False)) > MAX_CHARS:
        raise ValueError(
            f"A conversation keeps {MAX_KEYS} keys and {MAX_CHARS} characters at most. Forget something first."
        )
    row.update(state=state, state_times=times, state_tainted=tainted)
    return f"Kept as {key}." if value else f"Nothing is kept as {key} any more."


def _marked(text: str, tainted: dict[str, str]) -> str:
    """What is shown; it is untrusted if some of it was kept when the conversation was tainted."""
    by = next(iter(tainted.values()), "")
    return Untrusted(text, by=f"what was kept for the conversation ({by})") if by else text


def _shown(conversation: Conversation) -> str:
    """The state as JSON, with times by the clock that the agent sees."""
    kept = {
        key: {"value": value, "keptAt": at and timezone.localtime(at).isoformat(timespec="seconds")}
        for key, (value, at) in conversation.kept().items()
    }
    return json.dumps(kept, ensure_ascii=False)
