"""What is said in chats elsewhere: stored with what says it, and sent by workers after the commit.

The replies of a conversation that a channel holds go to its chat. What an agent says elsewhere goes to destinations
that it was given, by their names; ``origin`` is where it was spoken to.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from agent.models import Agent
from conversations.attachments.parts import SentFile
from conversations.channel_models import ChannelEvent, Chat, Destination
from conversations.channels import accounts, texts
from conversations.channels.base import Capabilities
from conversations.channels.registry import NoSuchPlatform, platform_of
from conversations.deliveries import outbox
from conversations.deliveries.outbox import Said
from conversations.engine import doorbell
from conversations.errors import UnknownDestination
from conversations.kinds import DELIVERIES
from conversations.models import Conversation, Delivery, DeliveryStatus, OutgoingFile, Turn
from conversations.statuses import TurnStatus
from nanohost.accounts import audit
from nanohost.lib.redaction import redact, redact_json
from tools.registry import ORIGIN

CHAT, SYSTEM, TEST = "chat", "system", "test"
QUESTION, EDIT, REACTION, STICKER = "question", "edit", "reaction", "sticker"

PROGRESS = "progress"
MAX_EMOJI, MAX_CAPTION, MAX_HINT = 100, 1000, 40
# Tools whose calls a chat sees anyway.
_SEEN = ("message", "ask", "edit_message", "react", "card", "sticker", "send_file")
_NO_BRACKETS = str.maketrans("[]", "()")

# Of a channel whose kind this process does not know: whoever sends finds out.
_UNKNOWN = Capabilities(text_limit=2000)


def reply(*, key: str, owner_id: int, conversation_id: UUID, turn_id: UUID, text: str) -> None:
    """Have a turn's reply sent to the chat that its conversation is held in, if it is held in one; in the transaction
    that ends the turn."""
    if not text.strip() or not accounts.is_of_a_channel(key):
        return
    if chat := _chat(owner_id, key):
        answered = ChannelEvent.objects.filter(turn_id=turn_id).values_list("message_id", flat=True).first()
        _put(chat, CHAT, text, conversation_id=conversation_id, turn_id=turn_id, in_reply_to=answered or "")


def going_on(
    *, key: str, owner_id: int, conversation_id: UUID, turn_id: UUID, text: str, used: Sequence[tuple[str, str]]
) -> None:
    """Tell the chat, if its channel wants that, what an agent says before it uses tools, and which it uses; in the
    transaction that stores it. ``used``: each one's name and arguments."""
    if not accounts.is_of_a_channel(key):
        return
    chat = _chat(owner_id, key)
    if chat is None:
        return
    whose: dict[str, Any] = {"conversation_id": conversation_id, "turn_id": turn_id}
    if chat.channel.progress and text.strip():
        _put(chat, PROGRESS, redact(text), **whose)
    hints = [_hint(name, redact_json(arguments)) for name, arguments in used if name not in _SEEN]
    if chat.channel.tool_hints and hints:
        _put(chat, PROGRESS, f"`{', '.join(hints)}`", **whose)


def _hint(name: str, arguments: str) -> str:
    """A call as nanobot shows it: its name, and the beginning of its first argument."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return name
    first = next(iter(given.values()), "") if isinstance(given, dict) else ""
    if not isinstance(first, str) or not first:
        return name
    said = " ".join(first.replace("`", "'").split())
    return f'{name}("{said[:MAX_HINT]}…")' if len(said) > MAX_HINT else f'{name}("{said}")'


def no_reply(turn_id: UUID, status: str, *, key: str, owner_id: int, conversation_id: UUID, code: str) -> None:
    """Say in the chat that a turn has failed, which nobody there would find out otherwise."""
    if status != TurnStatus.FAILED or not accounts.is_of_a_channel(key):
        return
    if chat := _chat(owner_id, key):
        words = f"This message could not be answered ({code}). Please send it again later."
        _put(chat, SYSTEM, words, conversation_id=conversation_id, turn_id=turn_id)


def no_reply_to(turn: Turn, status: str, *, code: str) -> None:
    """The same of a turn that its worker has not ended."""
    if status == TurnStatus.FAILED and accounts.names():
        conversation = turn.conversation
        whose: dict[str, Any] = {"key": conversation.key, "owner_id": conversation.owner_id}
        no_reply(turn.pk, status, **whose, conversation_id=conversation.pk, code=code)


def not_taken(chat: Chat, code: str, *, conversation_id: UUID, in_reply_to: str = "") -> None:
    """Say in a chat that a message was not taken in; in the transaction that remembers it."""
    words = f"This message was not accepted ({code})."
    _put(chat, SYSTEM, words, conversation_id=conversation_id, in_reply_to=in_reply_to)


def tell(chat: Chat, text: str, *, conversation_id: UUID) -> None:
    """Say something in a chat that is the host's and not the agent's; in the caller's transaction."""
    _put(chat, SYSTEM, text, conversation_id=conversation_id)


def _chat(owner_id: int, key: str) -> Chat | None:
    active = Chat.objects.select_related("channel").filter(owner_id=owner_id, key=key, channel__is_active=True)
    return active.first()


def names(agent: Agent) -> list[str]:
    """Where an agent may write, as the gate takes it: the destinations it was given, and where it was spoken to."""
    given = Destination.objects.filter(Q(chat__channel__is_active=True) | Q(to_agent__isnull=False), agent=agent)
    return [ORIGIN, *given.order_by("name").values_list("name", flat=True)]


def names_of_chats(agent: Agent) -> list[str]:
    """The same of chats alone, to which schedules and check-ins answer."""
    given = Destination.objects.filter(agent=agent, chat__channel__is_active=True).order_by("name")
    return [ORIGIN, *given.values_list("name", flat=True)]


def destinations(conversation: Conversation) -> dict[str, Chat]:
    """Where an agent may write from a conversation, by name."""
    given = Destination.objects.filter(agent=conversation.agent_id, chat__channel__is_active=True)
    found = {each.name: each.chat for each in given.select_related("chat__channel").order_by("name") if each.chat}
    origin = _chat(conversation.owner_id, conversation.key)
    return found | ({ORIGIN: origin} if origin else {})


def say(
    conversation: Conversation,
    text: str,
    *,
    destination: str = ORIGIN,
    turn_id: UUID | None = None,
    after: float = 0.0,
) -> list[Delivery]:
    """Have something said in a chat: as many messages as the platform's length makes of it, in their order. ``after``:
    seconds before which it is not sent. Raises :class:`UnknownDestination`, whose words name those that there are."""
    found = destinations(conversation)
    if destination not in found:
        raise UnknownDestination.named(destination, found)
    with transaction.atomic():
        whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": turn_id}
        return _put(found[destination], CHAT, text, name=destination, after=after, **whose)


def edit(conversation: Conversation, number: int, text: str, *, destination: str, turn_id: UUID) -> None:
    """Give something that was said in this conversation another text, also before it is sent. Raises ``ValueError``,
    and :class:`UnknownDestination`."""
    found = destinations(conversation)
    if destination not in found:
        raise UnknownDestination.named(destination, found)
    chat = found[destination]
    in_chat = Delivery.objects.filter(chat=chat, status__in=DeliveryStatus.values, number=number)  # as the index has it
    before = in_chat.filter(conversation_id=conversation.pk, kind=CHAT).first()
    if before is None:
        raise ValueError(f"You have said no message {number} there.")
    if len(text) > _can(chat).text_limit:
        raise ValueError(f"The new text has to have {_can(chat).text_limit} characters at most.")
    if outbox.change(before, text):
        return
    if not _can(chat).edits:
        raise ValueError("What was said in this chat cannot be changed: say something new.")
    whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": turn_id}
    with transaction.atomic():
        _store(chat, Said(kind=EDIT, data={"text": text}, about=before.pk, name=destination, **whose))


def react(conversation: Conversation, emoji: str, *, turn_id: UUID) -> None:
    """React to the message that a turn answers. Raises ``ValueError``."""
    chat = _chat(conversation.owner_id, conversation.key) if accounts.is_of_a_channel(conversation.key) else None
    begun = ChannelEvent.objects.filter(turn_id=turn_id).order_by("created_at")
    message_id = begun.values_list("message_id", flat=True).first()
    if chat is None or not message_id:
        raise ValueError("This turn answers no message of a chat.")
    if not _can(chat).reacts:
        raise ValueError("This chat has no reactions.")
    whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": turn_id}
    with transaction.atomic():
        _store(chat, Said(kind=REACTION, data={"messageId": message_id, "emoji": emoji}, name=ORIGIN, **whose))


def send_file(conversation: Conversation, file: SentFile, text: str, *, destination: str, turn_id: UUID) -> Delivery:
    """Send a file to a chat. Raises ``ValueError``, and :class:`UnknownDestination`."""
    found = destinations(conversation)
    if destination not in found:
        raise UnknownDestination.named(destination, found)
    chat = found[destination]
    if not _can(chat).files:
        raise ValueError("This chat takes no files.")
    if not 0 < len(file.data) <= OutgoingFile.MAX_BYTES:
        raise ValueError(f"A file to send has 1 to {OutgoingFile.MAX_BYTES} bytes.")
    if len(text) > MAX_CAPTION:
        raise ValueError(f"What is said with a file has {MAX_CAPTION} characters at most.")
    whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": turn_id}
    with transaction.atomic():
        if text.strip() and not _can(chat).captions:
            _put(chat, CHAT, text, name=destination, **whose)
            text = ""
        said = Said(kind=outbox.FILE, data={"text": text, "file": file.name}, name=destination, **whose)
        row = _store(chat, said)
        OutgoingFile.objects.create(delivery=row, name=file.name, data=file.data)
    return row


def as_card(title: str, description: str, items: Sequence[str], links: Mapping[str, str]) -> str:
    """A card as Markdown, which each platform shows in its own form. Raises ``ValueError``."""
    if not title.strip() or len(title) > 200:
        raise ValueError("Give a title of 1 to 200 characters.")
    for name, address in links.items():
        _check_address(name, address)
    parts = [f"**{' '.join(title.split())}**", description.strip()]
    parts.append("\n".join(f"- {' '.join(each.split())}" for each in items if each.strip()))
    parts.append("\n".join(_link(name, address) for name, address in links.items()))
    return "\n\n".join(part for part in parts if part)


def show_sticker(conversation: Conversation, name: str, address: str, *, destination: str, turn_id: UUID) -> None:
    """Show a picture in a chat as a sticker, or a link to it where the platform has none. Raises ``ValueError``, and
    :class:`UnknownDestination`."""
    found = destinations(conversation)
    if destination not in found:
        raise UnknownDestination.named(destination, found)
    _check_address(name, address)
    data = {"picture": address, "text": _link(name, address)}
    with transaction.atomic():
        whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": turn_id}
        _store(found[destination], Said(kind=STICKER, data=data, name=destination, **whose))


def _check_address(name: str, address: str) -> None:
    if not address.startswith("https://") or len(address) > 1000 or any(each in address for each in " <>()\n"):
        raise ValueError(f"The address of {name[:50]!r} is none that begins with https://.")


def _link(name: str, address: str) -> str:
    return f"[{' '.join(name.translate(_NO_BRACKETS).split())}]({address})"


def pass_on(conversation: Conversation, text: str, *, destination: str, turn_id: UUID | None = None) -> list[Delivery]:
    """The same of an answer that somebody has asked to be sent elsewhere as well; not to where it was given, and has
    gone to anyway."""
    chat = destinations(conversation).get(destination)
    if not text.strip() or (chat and (chat.owner_id, chat.key) == (conversation.owner_id, conversation.key)):
        return []
    return say(conversation, text, destination=destination, turn_id=turn_id)


def put_question(
    chat: Chat,
    text: str,
    options: Sequence[tuple[str, str]],
    *,
    conversation_id: UUID,
    turn_id: UUID,
    instead: str = "",
) -> Delivery:
    """Put a question in a chat, in the caller's transaction: with buttons, each a label and what it gives back, or with
    numbers where there are none. ``instead``: what is said in the place of those numbers."""
    whose: dict[str, Any] = {"conversation_id": conversation_id, "turn_id": turn_id}
    if options and len(options) <= _can(chat).buttons:
        buttons = [{"label": label, "value": value} for label, value in options]
        said = {"text": text, "options": buttons}
    elif instead:
        said = {"text": f"{text}\n\n{instead}"}
    else:
        numbers = "\n".join(f"{number}. {label}" for number, (label, _) in enumerate(options, start=1))
        said = {"text": f"{text}\n\n{numbers}\n\nAnswer with a number." if options else text}
    return _store(chat, Said(kind=QUESTION, data=said, name=ORIGIN, **whose))


def reword(chat: Chat, delivery_id: UUID, text: str) -> None:
    """Give a message of the host's another text, and take its buttons away, where the platform can."""
    before = Delivery.objects.filter(pk=delivery_id).first()
    if before is None or (before.status == DeliveryStatus.QUEUED and outbox.cancel(before)):
        return
    if _can(chat).edits and chat.channel.is_active:
        _store(
            chat,
            Said(
                kind=outbox.REWORDED,
                data={"text": text},
                about=delivery_id,
                conversation_id=before.conversation_id,
                turn_id=before.turn_id,
            ),
        )


def _store(chat: Chat, said: Said) -> Delivery:
    (row,) = outbox.put_in_chat(chat, [said])
    doorbell.notify(DELIVERIES, row.pk)
    return row


def _put(chat: Chat, kind: str, text: str, *, name: str = ORIGIN, **whose: Any) -> list[Delivery]:
    parts = texts.split(text, _can(chat).text_limit)
    numbered = [
        {"text": part} | ({"part": number, "parts": len(parts)} if len(parts) > 1 else {})
        for number, part in enumerate(parts, start=1)
    ]
    rows = outbox.put_in_chat(chat, [Said(kind=kind, data=data, name=name, **whose) for data in numbered])
    for row in rows if not whose.get("after") else ():  # a sweep finds what is for later
        doorbell.notify(DELIVERIES, row.pk)
    return rows


def _can(chat: Chat) -> Capabilities:
    try:
        return platform_of(chat.channel.kind).capabilities
    except NoSuchPlatform:
        return _UNKNOWN


def try_out(chat: Chat) -> Delivery:
    """Send a chat a message that says that it can be reached."""
    with transaction.atomic():
        (row,) = _put(chat, TEST, f"This is a test of the channel {chat.channel.name}.")
        audit.record("channel.tried", about=chat.channel, after={"delivery": str(row.pk)})
    return row


def cancel(delivery: Delivery) -> bool:
    """Have a delivery sent no more; False if it is being sent, or has ended."""
    with transaction.atomic():
        if not outbox.cancel(delivery):
            return False
        audit.record("delivery.cancelled", about=delivery, name=delivery.kind, before={"status": delivery.status})
    return True


def change(delivery: Delivery, text: str) -> bool:
    """Have a message to a chat say something else before it is sent; False once that has begun, or if it says nothing.
    Raises ``ValueError``, in words for people."""
    if delivery.chat is None or "text" not in delivery.data or delivery.kind == STICKER:
        return False
    most = _can(delivery.chat).text_limit
    if not text.strip() or len(text) > most:
        raise ValueError(f"The new text has to have 1 to {most} characters.")
    with transaction.atomic():
        if not outbox.change(delivery, text):
            return False
        audit.record("delivery.changed", about=delivery, name=delivery.kind, after={"characters": len(text)})
    return True
