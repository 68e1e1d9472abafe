"""What was said where untrusted text had entered, known again when a client sends it back.

Clients of ``/v1`` keep their transcripts themselves: each request brings what was said before, and nothing in it says
where it came from. So of each answer in a tainted conversation, and of each call there, a hash is kept for its owner.
An answer that was altered, but for its white space, is not known again; nor is one whose stream was cut.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from agent.loop import ChatMessage
from conversations.models import CallerRound, Message, TaintedText, Turn
from conversations.options import Options
from nanohost.lib.clock import from_now
from tools.models import ToolCall

KEPT_DAYS = 365

# Shorter ones, such as "Done.", are said everywhere: they are told apart by what was asked.
_LONG = 40

# Of a transcript's end: what is answered to a text that is known is kept as well, so the last one tells.
_MAX_LOOKED_UP = 200

# Deleted in one statement.
_MANY = 1_000


def keep_answer(turn_id: UUID, *, owner_id: int, by: str, call_ids: Iterable[str] = ()) -> None:
    """Keep what a turn has said, in the transaction that ends it or has it wait for its caller: message by message, and
    all of the last part, as chat completions show it. ``by``: what has tainted it. ``call_ids``: what its caller is to
    run."""
    roles = (Message.Role.USER, Message.Role.ASSISTANT)
    own = Message.objects.filter(turn_id=turn_id, seq__isnull=False, role__in=roles).order_by("seq")
    asked, said = "", []
    for role, content in own.values_list("role", "content"):
        if role == Message.Role.USER:
            asked = content
        else:
            said.append(content)
    texts = {*said, "\n\n".join(text for text in said[_before_last_part(turn_id) :] if text.strip())}
    _keep(
        [*(_of_answer(owner_id, asked, text) for text in texts), *(_of_call(owner_id, each) for each in call_ids)],
        owner_id,
        by,
    )


def keep_calls(turn_id: UUID, *, owner_id: int, by: str) -> None:
    """Keep a turn's calls of the host's tools, in the transaction that has their results enter."""
    calls = ToolCall.objects.filter(turn_id=turn_id).values_list("pk", flat=True)
    _keep([_of_call(owner_id, str(pk)) for pk in calls], owner_id, by)


def recognised(
    messages: Sequence[ChatMessage], *, owner_id: int, name_of: Callable[[str], str] = str
) -> list[ChatMessage]:
    """The same transcript, in which whatever is known from where untrusted text had entered is marked with that, as of
    :class:`conversations.engine.incoming.Incoming`. ``name_of``: a call of the host's, by the id that it was shown as.
    One look-up, if anybody but the user has said anything."""
    places: dict[str, int] = {}
    asked = ""
    for at, message in enumerate(messages):
        if message["role"] == "user":
            asked = message["content"]
        elif message["role"] == "assistant":
            places.setdefault(_of_answer(owner_id, asked, message.get("content") or ""), at)
            for call in message.get("tool_calls") or ():
                places.setdefault(_of_call(owner_id, name_of(call["id"])), at)
    if not places:
        return list(messages)
    wanted = list(places)[-_MAX_LOOKED_UP:]
    found = TaintedText.objects.filter(owner=owner_id, digest__in=wanted).values_list("digest", "tainted_by")
    marks = {places[digest]: by for digest, by in found}
    return [{"tainted_by": marks[at]} | message if at in marks else message for at, message in enumerate(messages)]


def forget_old() -> int:
    """Delete what is KEPT_DAYS old; returns how many."""
    old = TaintedText.objects.filter(created_at__lt=from_now(-timedelta(days=KEPT_DAYS).total_seconds()))
    gone = 0
    while found := list(old.values_list("pk", flat=True)[:_MANY]):
        gone += TaintedText.objects.filter(pk__in=found).delete()[0]
    return gone


def _before_last_part(turn_id: UUID) -> int:
    """How many messages of the assistant a turn had before the part that ends now."""
    rounds = CallerRound.objects.filter(turn_id=turn_id).order_by("-number").values_list("messages", flat=True)
    if (before := rounds.first()) is not None:
        return before
    return Options.of(Turn.objects.values_list("options", flat=True).get(pk=turn_id)).brought


def _keep(digests: Iterable[str], owner_id: int, by: str) -> None:
    rows = [TaintedText(owner_id=owner_id, digest=digest, tainted_by=by) for digest in sorted(set(digests) - {""})]
    TaintedText.objects.bulk_create(rows, ignore_conflicts=True)


def _of_answer(owner_id: int, asked: str, text: str) -> str:
    """Of an answer; empty if there are no words in it."""
    words = " ".join(text.split())
    if not words:
        return ""
    return (
        _digest(owner_id, "said", words)
        if len(words) >= _LONG
        else _digest(owner_id, "said", " ".join(asked.split()), words)
    )


def _of_call(owner_id: int, name: str) -> str:
    return _digest(owner_id, "called", name)


def _digest(owner_id: int, *texts: str) -> str:
    # Each with its length before it, so that no two lists are told alike.
    told = b"".join(b"%d:%b" % (len(each), each) for each in (text.encode() for text in texts))
    return hashlib.blake2b(told, digest_size=32, key=f"tainted texts of {owner_id}".encode()).hexdigest()
