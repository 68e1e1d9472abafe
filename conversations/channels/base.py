"""What a channel is: one class a platform, and the plain values that go in and out of it.

A class of one's own is found by the entry point group ``nanohost.channels``; see ``docs/channels.md``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from conversations.attachments.parts import SentFile
from nanohost.lib.errors import Problem


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a platform can do. ``text_limit``: characters of one message. ``tells_duplicates``: it knows a message again
    by its key, so that one of which nobody knows whether it has arrived is sent again."""

    text_limit: int
    tells_duplicates: bool = False


class NotGenuine(Problem):
    """What came in was not sent by the platform, or is older than it may be."""

    code, status, title = "not_genuine", 401, "The signature is wrong, or the message is too old."


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


@dataclass(frozen=True, kw_only=True)
class Account:
    """A channel as its class sees it. ``settings``: what people have entered. ``secrets``: what it signs with, first
    the one that is current; raises what makes them impossible."""

    id: int
    name: str
    settings: Mapping[str, Any]
    secrets: Callable[[], Sequence[str]] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the platform's. ``headers``: names in lower case."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a chat. ``external_id``: the platform's, unique for its account; the same event has
    the same one whenever it is told. ``message_id``: of the message that was sent, edited or reacted to."""

    external_id: str
    chat_id: str
    sender_id: str
    kind: Literal["message", "edit", "reaction"] = "message"
    text: str = ""
    thread: str = ""
    sender_name: str = ""
    message_id: str = ""
    files: Sequence[SentFile] = ()


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    """A message to a chat. ``text``: no longer than the limit; of a long one, it is one of ``parts``. ``in_reply_to``:
    the platform's id of what it answers."""

    chat_id: str
    text: str
    thread: str = ""
    in_reply_to: str = ""
    part: int = 1
    parts: int = 1


class Platform(ABC):
    """How a platform is spoken to, by one account. It knows no database: both methods are given all they need."""

    kind: ClassVar[str]
    title: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, account: Account) -> None:
        self.account = account

    @classmethod
    @abstractmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise ``ValidationError``, in words for people, if these settings make no sense."""

    @abstractmethod
    def parse(self, request: Request) -> Sequence[Event]:
        """What the platform tells; empty if none of it is of interest. Raises :class:`NotGenuine`, and
        :class:`nanohost.lib.errors.InvalidRequest`."""

    @abstractmethod
    def send(self, message: OutgoingMessage, key: str) -> str:
        """Do it, and return the platform's id of the message; empty if it tells none. ``key``: the same at each
        attempt. Raises :class:`Retry`, :class:`Permanent` or :class:`InDoubt`."""
