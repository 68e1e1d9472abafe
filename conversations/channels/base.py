"""What a channel is: one class a platform, and the plain values that go in and out of it.

A class of one's own is found by the entry point group ``nanohost.channels``; see ``docs/channels.md``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from conversations.attachments.parts import SentFile
from conversations.channels.fields import OF_GROUPS, Setting, check_settings
from nanohost.lib.errors import Problem

# In the list of who may write.
EVERYBODY = "*"

# Seconds within which a platform that is asked for news has to answer.
ASK_SECONDS = 40.0


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a platform can do. ``text_limit``: characters of one message. ``tells_duplicates``: it knows a message again
    by its key, for ``remembers_for`` seconds, so that one of which nobody knows whether it has arrived is sent again
    within that time. ``signs``: the host's own secret
    signs what comes in and goes out. ``reads_answers``: who sends a request reads in its answer why a message was not
    taken in; others are told in the chat. ``buttons``: so many options of a question are shown as buttons; one with
    more is asked with numbers. ``edits``, ``reacts``, ``files``: it has :meth:`Platform.edit`,
    :meth:`Platform.react`, :meth:`Platform.send_file`. ``captions``: what is said with a file is part of its message;
    elsewhere it is a message of its own before it. ``typing``: it has :meth:`Platform.show_typing`."""

    text_limit: int
    tells_duplicates: bool = False
    remembers_for: float = math.inf
    signs: bool = False
    reads_answers: bool = False
    buttons: int = 0
    edits: bool = False
    reacts: bool = False
    files: bool = False
    captions: bool = True
    typing: bool = False


class NotGenuine(Problem):
    """What came in was not sent by the platform, or is older than it may be."""

    code, status, title = "not_genuine", 401, "The signature is wrong, or the message is too old."


class NotTakenNow(Problem):
    """The platform tells of something that it does not give for now, such as a file."""

    code, status, title = (
        "not_taken_now",
        503,
        "A file of the message is not available now; send it again later.",
    )


class Retry(Exception):
    """The platform took nothing, and may later. ``after``: seconds that it asks for; of ``everything``: it wants no
    other message either before then."""

    def __init__(self, reason: str, *, after: float = 0.0, status: int | None = None, everything: bool = False) -> None:
        super().__init__(reason)
        self.after, self.status, self.everything = after, status, everything


class Permanent(Exception):
    """The platform takes it neither now nor later."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class InDoubt(Exception):
    """Nobody knows whether the platform has it: the connection ended in the middle."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class SecretNotSet(Exception):
    """The settings name a variable that this process has not."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A channel as its class sees it. ``settings``: what people have entered. ``secrets``: what the host signs with,
    first the one that is current; raises what makes them impossible. ``secret``: the value of the variable that a
    setting names; raises :class:`SecretNotSet`. ``allow_from``: who may write, by the platform's ids."""

    id: int
    name: str
    settings: Mapping[str, Any]
    secrets: Callable[[], Sequence[str]] = field(repr=False)
    secret: Callable[[str], str] = field(repr=False)
    allow_from: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the platform's. ``headers``: names in lower case."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a chat. ``external_id``: the platform's, unique for its account; the same event has
    the same one whenever it is told. ``message_id``: of the message that was sent, edited or reacted to. ``title``:
    what the chat is called, where it is called something. ``fetch``: gets its files, once it is known that its sender
    may write; raises :class:`Retry`, or :class:`Permanent` if they are not available. ``is_proven``: whether the
    platform vouches for who has sent it. A ``choice`` is a button that was pressed: its ``text`` is the
    :attr:`Option.value` that the button was sent with. ``acknowledge``: tells the platform that it was taken in, once
    it was; what that raises of a platform's failures changes nothing. ``is_called``: it is for the agent, since it
    was said to it alone, mentions it or answers it; of others, the host decides by the setting ``groups``."""

    external_id: str
    chat_id: str
    sender_id: str
    kind: Literal["message", "edit", "reaction", "choice"] = "message"
    text: str = ""
    thread: str = ""
    sender_name: str = ""
    message_id: str = ""
    title: str = ""
    files: Sequence[SentFile] = ()
    fetch: Callable[[], Sequence[SentFile]] | None = field(default=None, repr=False, compare=False)
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    is_proven: bool = True
    is_called: bool = True


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a platform answers when it is asked for news. ``cursor``: from where it is asked next. ``pause``: seconds
    before that."""

    events: Sequence[Event]
    cursor: Mapping[str, Any]
    pause: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Option:
    """A button below a question. ``value``: what the platform gives back once it is pressed, of 64 bytes at most."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    """A message to a chat. ``text``: Markdown, no longer than the limit; of a long one, it is one of ``parts``.
    ``in_reply_to``: the platform's id of what it answers; ``began_by``: and of what began the turn that says it.
    ``title``: what the chat is called. ``options``: buttons, as
    many at most as the capabilities say. ``message_id``: the platform's id of what is edited or reacted to. ``emoji``:
    of a reaction. ``file``: what :meth:`Platform.send_file` sends, with ``text`` as its caption. ``picture``: the
    address of a sticker, to which ``text`` is a link."""

    chat_id: str
    text: str
    thread: str = ""
    in_reply_to: str = ""
    began_by: str = ""
    title: str = ""
    part: int = 1
    parts: int = 1
    options: Sequence[Option] = ()
    message_id: str = ""
    emoji: str = ""
    picture: str = ""
    file: SentFile | None = None


class Platform(ABC):
    """How a platform is spoken to, by one account. It knows no database: its methods are given all they need. One that
    sends requests has :meth:`parse`, one that has to be asked has :meth:`ask`. ``taken``: the status that a request is
    answered with that was taken in; with 202 goes how much of it was, with others ``taken_body``."""

    kind: ClassVar[str]
    title: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    fields: ClassVar[Sequence[Setting]] = ()
    taken: ClassVar[int] = 202
    taken_body: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, account: Account) -> None:
        self.account = account

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise ``ValidationError``, in words for people, if these settings make no sense."""
        has_groups = any(each.name == "groups" for each in cls.fields)
        check_settings(settings, (*cls.fields, *(OF_GROUPS if has_groups else ())), title=cls.title)

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        """Whether a worker asks the platform for what is new, by :meth:`ask`, rather than being told."""
        return False

    def parse(self, request: Request) -> Sequence[Event]:
        """What the platform tells; empty if none of it is of interest. Raises :class:`NotGenuine`, and
        :class:`nanohost.lib.errors.InvalidRequest`."""
        raise NotGenuine("This channel is polled; it accepts no requests.")

    def answer(self, request: Request) -> Mapping[str, Any] | None:
        """What a request is answered with that tells nothing but wants to know whether somebody is there; None for all
        others. Raises as :meth:`parse` does."""
        return None

    def confirm(self, query: Mapping[str, str]) -> str | None:
        """The text that a GET is answered with, by which a platform makes sure that an address is the account's; None
        for a platform that sends none. Raises :class:`NotGenuine`."""
        return None

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        """What has happened since, within :data:`ASK_SECONDS`; the platform may wait so long for something to happen.
        ``cursor``: as the last answer has it, empty at first: what was there before then is old. Runs in a thread.
        Raises :class:`Retry`, and :class:`Permanent` if nothing will come until somebody changes something."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 -- most have nothing open
        """It is asked no more: what it has open is closed. Another thread may be in :meth:`ask`, which then ends."""

    @abstractmethod
    def send(self, message: OutgoingMessage, key: str) -> str:
        """Do it, and return the platform's id of the message; empty if it tells none. ``key``: the same at each
        attempt. Raises :class:`Retry`, :class:`Permanent` or :class:`InDoubt`."""

    def edit(self, message: OutgoingMessage, key: str) -> None:
        """Give a message of the host's, ``message_id``, another text, and take its buttons away. It is done again if
        nobody knows whether it was. Raises as :meth:`send` does."""
        raise Permanent(f"{self.title} changes no message that it has")

    def react(self, message: OutgoingMessage, key: str) -> None:
        """React to a message, ``message_id``, with an ``emoji``; as :meth:`edit`."""
        raise Permanent(f"{self.title} has no reactions")

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        """Send a ``file``; as :meth:`send`."""
        raise Permanent(f"{self.title} takes no files")

    def send_sticker(self, message: OutgoingMessage, key: str) -> str:
        """Show a ``picture``; as :meth:`send`. Where there are no stickers, it is a link."""
        return self.send(message, key)

    def show_typing(self, message: OutgoingMessage) -> None:  # noqa: B027 -- most have none
        """Show in a chat, for some seconds, that somebody writes; ``message`` says which. What it raises changes
        nothing."""

    def setting(self, name: str) -> Any:
        """What people have entered, or what counts if they have entered nothing."""
        (known,) = (each for each in self.fields if each.name == name)
        value = self.account.settings.get(name, known.default)
        return known.default if value in (None, "") else value

    def secret(self, name: str) -> str:
        """The secret that a setting names; raises :class:`Permanent` if none is named, :class:`SecretNotSet`."""
        if not (variable := self.setting(name)):
            raise Permanent(f"The channel has no {name}: name the variable that has it in its settings")
        return self.account.secret(variable)
