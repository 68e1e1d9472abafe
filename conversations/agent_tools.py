"""The tools that a conversation brings along. They run inline, for the conversation that calls."""

import json

from django.utils import timezone

from conversations.engine import outgoing
from conversations.events import SAYING_TOOL
from conversations.models import Conversation
from nanohost.lib import clock
from nanohost.lib.redaction import redact
from nanohost.lib.text import storable
from tools.registry import ORIGIN, Caller, Untrusted, tool

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


@tool(effects="rows", writes_to="destination", name=SAYING_TOOL)
def message(caller: Caller, content: str, destination: str = ORIGIN) -> str:
    """Say something to the user at once, while you go on working: that you have begun, how far you are, a first result.

    Your answer at the end reaches the user by itself: do not say it with this tool as well.

    Args:
        content: What is said.
        destination: Where: origin is where you were spoken to; others are those that you were given, by their names.
    """
    if not content.strip():
        raise ValueError("Give a content: what is said to the user.")
    conversation = Conversation.objects.select_related("agent").filter(pk=caller.conversation_id).first()
    if conversation is None:
        raise ValueError("The conversation was deleted.")
    if destination == ORIGIN and ORIGIN not in outgoing.destinations(conversation):
        # No channel holds it: who reads the conversation, or follows its turn, reads it there.
        return "Said."
    # Committed with the call's outcome: a call that is run again has sent nothing before.
    outgoing.say(conversation, redact(content), destination=destination, turn_id=caller.turn_id)
    return f"Said; it is being sent to {destination}."


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
