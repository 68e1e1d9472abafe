"""The tools that a conversation brings along. They run inline, for the conversation that calls."""

import json

from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from conversations.engine import inbox, outgoing, spawned
from conversations.engine.incoming import Incoming
from conversations.events import SAYING_TOOL
from conversations.models import Conversation, Turn
from memory import documents
from nanohost.accounts.models import ApiKey
from nanohost.lib import clock
from nanohost.lib.ids import new_id
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


@tool(effects="rows", name=spawned.TOOL)
def spawn(caller: Caller, task: str, label: str = "") -> str:
    """Start a sub-agent for a task of its own: it works by itself, in a conversation of its own, while you go on.

    Its result comes to this conversation as a message, when it is there. Do not wait for it: tell the user that it has
    been started, and end your turn.

    Args:
        task: What it is to do, and all that it has to know for that: it sees nothing of this conversation.
        label: What it is for, in a few words for people.
    """
    if not task.strip():
        raise ValueError("Give a task: what the sub-agent is to do.")
    if Incoming(task).command:
        raise ValueError("The task is a command to the host, which only people give. Say what is to be done instead.")
    parent = Conversation.objects.select_related("agent").filter(pk=caller.conversation_id).first()
    turn = Turn.objects.filter(pk=caller.turn_id).first()
    if parent is None or turn is None:
        raise ValueError("The conversation was deleted.")
    _check_bounds(turn, parent)
    child_id, called = new_id(), storable(redact(" ".join((label.strip() or task).split())))
    child = Conversation.objects.create(
        id=child_id,
        key=f"{spawned.CHANNEL}{child_id}",
        owner_id=caller.owner_id,
        agent=parent.agent,
        name=called[: Conversation.TITLE_CHARS],
        spawned_by=caller.call_id,
        spawned_in=parent.pk,
        metadata={"spawnedIn": str(parent.pk)},
        cost=0,
    )
    source = documents.learnt_in(parent.pk, caller.tainted_by)
    inbox.receive(
        Incoming(task, tainted_by=source),
        conversation=child,
        request_id=caller.request_id,
        key=ApiKey.objects.filter(pk=turn.api_key_id).first() if turn.api_key_id else None,
    )
    return f"Started the sub-agent {child.pk}. Its result will come as a message to this conversation."


def _check_bounds(turn: Turn, parent: Conversation) -> None:
    """Raises a ValueError if a sub-agent may not be started here, or is one too many."""
    if parent.is_transient:
        raise ValueError("This conversation is kept for one request only: no result could come back to it.")
    if spawned.is_report(turn):
        raise ValueError(
            "This turn was begun by a sub-agent's result, and may start no further ones, or agents would go on without"
            " end. Do the rest yourself, or tell the user what there is to do."
        )
    if _depth(parent) >= settings.SPAWN_MAX_DEPTH:
        raise ValueError("Sub-agents are nested as deep as they may be here. Do the task yourself.")
    # Calls of one round run side by side: they are counted one after the other.
    get_user_model().objects.select_for_update(no_key=True).get(pk=parent.owner_id)
    theirs = Conversation.objects.filter(owner_id=parent.owner_id, spawned_by__isnull=False)
    if Turn.objects.open().filter(conversation__in=theirs.values("pk")).count() >= settings.SPAWN_MAX_OPEN:
        raise ValueError(
            f"{settings.SPAWN_MAX_OPEN} sub-agents are at work, which is as many as may be. Start this one when the"
            " result of another has come, or do the task yourself."
        )


def _depth(conversation: Conversation) -> int:
    """How many conversations it was started through; none, where a person began it."""
    depth, here = 0, conversation
    while here.spawned_in:
        depth += 1
        above = Conversation.objects.filter(pk=here.spawned_in).first()
        if above is None:
            break
        here = above
    return depth


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
