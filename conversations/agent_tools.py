"""The tools that a conversation brings along. They run inline, for the conversation that calls."""

import json

from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from conversations.attachments.parts import SentFile
from conversations.engine import between_agents, inbox, outgoing, spawned
from conversations.engine.consent import questions
from conversations.engine.incoming import Incoming
from conversations.events import ASKING_TOOL, SAYING_TOOL
from conversations.models import Conversation, Delivery, Turn
from conversations.options import Options
from memory import documents
from nanohost.accounts.models import ApiKey
from nanohost.lib import clock
from nanohost.lib.ids import new_id
from nanohost.lib.redaction import redact
from nanohost.lib.text import storable
from tools.models import ToolCall
from tools.registry import ORIGIN, Caller, Untrusted, Waits, tool
from tools.workspace.store import file_of

MAX_KEYS = 50
MAX_CHARS = 8000
# A week.
MAX_DELAY_MINUTES = 10_080
# Where nanobot's agents have them.
STICKERS = "stickers/index.json"


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
def message(caller: Caller, content: str, destination: str = ORIGIN, delay_minutes: int = 0) -> str:
    """Say something to the user at once, while you go on working: that you have begun, how far you are, a first result.

    Your answer at the end reaches the user by itself: do not say it with this tool as well.

    Args:
        content: What is said.
        destination: Where: origin is where you were spoken to; others are those that you were given, by their names.
            One may be another agent: its answer comes to this conversation as a message, so do not wait for it.
        delay_minutes: Have it sent to a chat so much later, a week (10080) at most; until then, `edit_message` changes
            it. It is sent as it is: for something to be done later, use a schedule.
    """
    if not content.strip():
        raise ValueError("Give a content: what is said to the user.")
    if not 0 <= delay_minutes <= MAX_DELAY_MINUTES:
        raise ValueError(f"Give a delay_minutes from 0 to {MAX_DELAY_MINUTES}.")
    conversation = _conversation(caller)
    target = between_agents.named(conversation.agent, destination)
    if delay_minutes and (target or destination not in outgoing.destinations(conversation)):
        raise ValueError("Only what goes to a chat is sent later: leave delay_minutes out, or use a schedule.")
    if target:
        child = between_agents.send(caller, conversation, target, content)
        return f"Said to the agent {target.name} ({child.pk}). Its answer will come as a message to this conversation."
    if destination == ORIGIN and ORIGIN not in outgoing.destinations(conversation):
        # No channel holds it: who reads the conversation, or follows its turn, reads it there.
        return "Said."
    # Committed with the call's outcome: a call that is run again has sent nothing before.
    after = delay_minutes * 60.0
    rows = outgoing.say(conversation, redact(content), destination=destination, turn_id=caller.turn_id, after=after)
    when = f"will be sent in {delay_minutes} minutes" if delay_minutes else "is being sent"
    return f"Said; it {when} to {destination}{_numbered(rows)}."


@tool(effects="rows", writes_to="destination")
def edit_message(caller: Caller, number: int, content: str, destination: str = ORIGIN) -> str:
    """Change something that you have said in a chat, where the chat can show that.

    Args:
        number: Of the message, as the result of the tool `message` told it.
        content: All of its new text.
        destination: Where you have said it.
    """
    if not content.strip():
        raise ValueError("Give a content: the message's new text.")
    conversation = _conversation(caller)
    outgoing.edit(conversation, number, redact(content), destination=destination, turn_id=caller.turn_id)
    return f"Message {number} is being changed."


@tool(effects="rows")
def react(caller: Caller, emoji: str) -> str:
    """React with an emoji to the message that you answer, in the chat where the user has written it.

    Args:
        emoji: One, such as 👍.
    """
    emoji = storable(emoji.strip())
    if not emoji or len(emoji) > outgoing.MAX_EMOJI:
        raise ValueError("Give one emoji.")
    outgoing.react(_conversation(caller), emoji, turn_id=caller.turn_id)
    return "It is being shown."


@tool(effects="rows", writes_to="destination")
def card(
    caller: Caller,
    title: str,
    description: str = "",
    items: list[str] | None = None,
    links: dict[str, str] | None = None,
    destination: str = ORIGIN,
) -> str:
    """Show a card in a chat: a title, a few words, points and links. It asks nothing: use `ask` for that.

    Args:
        title: In bold, in a line of its own.
        description: A paragraph below it.
        items: Points, a line each.
        links: Web addresses by what they are called; https only.
        destination: Where: origin is where you were spoken to; others are those that you were given, by their names.
    """
    text = outgoing.as_card(title, description, items or [], links or {})
    return message(caller, text, destination)


@tool(permissions=["FS_READ"], effects="rows", writes_to="destination", requires=["openat2"])
def send_file(caller: Caller, path: str, content: str = "", destination: str = ORIGIN) -> str:
    """Send a file of your workspace to a chat.

    Args:
        path: The file, such as reports/may.pdf; 5 MB at most.
        content: What is said with it.
        destination: Where: origin is where you were spoken to; others are those that you were given, by their names.
    """
    conversation = _conversation(caller)
    if destination not in outgoing.destinations(conversation):
        raise ValueError("No chat holds this conversation: name a destination that you were given.")
    data = file_of(agent=caller.agent, owner_id=caller.owner_id, path=path)
    file = SentFile(name=storable(path.rsplit("/", 1)[-1])[:100], data=data)
    outgoing.send_file(conversation, file, redact(content), destination=destination, turn_id=caller.turn_id)
    return f"The file is being sent to {destination}."


@tool(permissions=["FS_READ"], effects="rows", writes_to="destination", requires=["openat2"])
def sticker(caller: Caller, name: str, destination: str = ORIGIN) -> str:
    """Show a sticker in a chat. Those that there are stand in the file stickers/index.json of your workspace, an object
    of names, each with the https address of a picture.

    Args:
        name: Which one.
        destination: Where: origin is where you were spoken to; others are those that you were given, by their names.
    """
    conversation = _conversation(caller)
    if destination not in outgoing.destinations(conversation):
        raise ValueError("No chat holds this conversation: name a destination that you were given.")
    try:
        index = json.loads(file_of(agent=caller.agent, owner_id=caller.owner_id, path=STICKERS))
    except (ValueError, RecursionError):
        index = None
    if not isinstance(index, dict):
        raise ValueError(f"{STICKERS} has to be an object of names, each with an address.")
    address = index.get(name)
    if not isinstance(address, str):
        # What stands in the file may be anybody's words.
        raise ValueError(f"There is no sticker {name[:50]!r}: {STICKERS} says which there are.")
    called, shown = redact(storable(name)), storable(address)
    outgoing.show_sticker(conversation, called, shown, destination=destination, turn_id=caller.turn_id)
    return f"The sticker is being sent to {destination}."


def _numbered(rows: list[Delivery]) -> str:
    numbers = ", ".join(str(row.number) for row in rows)
    return f" as message {numbers}" if numbers else ""


def _conversation(caller: Caller) -> Conversation:
    found = Conversation.objects.select_related("agent").filter(pk=caller.conversation_id).first()
    if found is None:
        raise ValueError("The conversation was deleted.")
    return found


@tool(effects="rows", name=ASKING_TOOL)
def ask(caller: Caller, question: str, options: list[str] | None = None, wait_minutes: int = 60) -> str:
    """Ask the user something and wait for the answer, which is this tool's result. Do so only where you cannot go on
    without: your turn stands still meanwhile.

    Only the user whom you talk with can answer. They may choose an option, or write something else.

    Args:
        question: What is asked, with all that one has to know to answer it.
        options: Up to ten answers to choose from, of a few words each.
        wait_minutes: How long to wait, a week (10080) at most; then you go on without an answer.
    """
    questions.ask(caller, question, options or [], minutes=wait_minutes)
    return Waits()


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
    share = _share_of_tokens(turn, parent)
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
        Incoming(task, tainted_by=source, options=Options(turn_tokens=share) if share else None),
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


def _share_of_tokens(turn: Turn, parent: Conversation) -> int:
    """How many tokens a sub-agent's task may use: a share of what is left to the turn that starts it, behind what it
    has given to others. 0: the turn has no limit. Raises a ValueError if nothing is left."""
    most = Options.of(turn.options).most_tokens(parent.agent.max_turn_tokens)
    if most is None:
        return 0
    calls = ToolCall.objects.filter(turn_id=turn.pk, tool_name=spawned.TOOL).values("pk")
    started = Conversation.objects.filter(
        owner_id=parent.owner_id, spawned_by__in=list(calls.values_list("pk", flat=True))
    )
    tasks = Turn.objects.filter(conversation__in=started.values("pk"), number=1).values_list("options", flat=True)
    given = sum(Options.of(each).turn_tokens for each in tasks)
    share = (most - turn.prompt_tokens - turn.completion_tokens - given) * settings.SPAWN_BUDGET_PERCENT // 100
    if share <= 0:
        raise ValueError("No tokens of this turn are left for a sub-agent. Do the task yourself, or tell the user.")
    return share


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
