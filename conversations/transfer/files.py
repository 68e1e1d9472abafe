"""nanobot's files as values, pure: the lines of a session, the entries of a history log, names of files, times.

What a line says that has no column here is kept under ``nanobot`` in the metadata of its row, and is written again.
What only this host knows stands in a line under ``nanohost``, which nanobot passes over.
"""

import hashlib
import json
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any
from urllib.parse import quote

from conversations.models import Conversation, Message
from nanohost.lib.text import storable

Record = dict[str, Any]

# Where what is nobody's column is kept in a row, and where what is ours alone stands in a line.
NANOBOT, NANOHOST = "nanobot", "nanohost"

# Characters, as the columns have room for.
_MAX_CALL_ID = _MAX_TOOL_NAME = 128
_MAX_KEY = 255

# How deep a line may be nested; databases have bounds of their own.
_MAX_DEPTH = 200


class Unreadable(Exception):
    """A line that nothing can be made of; says why."""


# --- lines -------------------------------------------------------------------------------------------------------


def record_in(line: bytes) -> Record:
    """What a line of a session says, as it comes back from every database; raises :class:`Unreadable`."""
    try:
        record = _storable(json.loads(line.decode("utf-8-sig").strip(), parse_constant=_refuse), room=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise Unreadable("this is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"this is no JSON: {error.msg} (character {error.pos + 1})") from None
    except (ValueError, OverflowError, RecursionError):
        raise Unreadable("this has a number that is none, or too large, or it is nested too deep") from None
    if not isinstance(record, dict):
        raise Unreadable("this is no object")
    return record


def _refuse(constant: str) -> Any:
    raise ValueError(constant)  # NaN and Infinity, which no database takes


def _storable(value: Any, *, room: int) -> Any:
    """A JSON value with what a database cannot store replaced, and with numbers as they come back: PostgreSQL keeps
    decimals, in which there is no -0.0 and no 1e+16."""
    if not room:
        raise ValueError("too deep")
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return int(value) if abs(value) >= 1e16 else value + 0.0
    if isinstance(value, list):
        return [_storable(each, room=room - 1) for each in value]
    if isinstance(value, dict):
        return {storable(name): _storable(each, room=room - 1) for name, each in value.items()}
    return value


# The order in which nanobot writes what it knows of; what else there is comes between, in that of the alphabet.
_FIRST: tuple[str, ...] = (
    "_type",
    "key",
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "id",
    "type",
    "function",
)
_FIRST += ("created_at", "updated_at", "metadata", "last_consolidated")
_LAST = ("arguments", "timestamp", NANOHOST)
_PLACES = {name: (-1, place, "") for place, name in enumerate(_FIRST)}
_PLACES |= {name: (1, place, "") for place, name in enumerate(_LAST)}


def as_line(record: Record) -> str:
    """A record as a line. PostgreSQL keeps no order of names, so there is one for all."""
    return json.dumps(_in_order(_storable(record, room=sys.maxsize)), ensure_ascii=False) + "\n"


def _in_order(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_order(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _in_order(value[name]) for name in sorted(value, key=lambda name: _PLACES.get(name, (0, 0, name)))}


# --- lines as they came ------------------------------------------------------------------------------------------

# Bytes that are kept of one line, with what was passed over before it: what is larger is written anew.
MAX_KEPT = 1_000_000

# Where a message's metadata has its line, if it is another than would be written.
LINE = "line"


class Passed:
    """What has gone by of a file since something was last taken in."""

    def __init__(self) -> None:
        self._bytes: bytes | None = b""

    def add(self, line: bytes) -> None:
        """One more line, whatever it is."""
        if self._bytes is not None:
            self._bytes = None if len(self._bytes) + len(line) > MAX_KEPT else self._bytes + line

    def take(self) -> bytes | None:
        """What has gone by, and begin anew; None if it is too much to be kept."""
        taken, self._bytes = self._bytes, b""
        return taken


def kept(raw: bytes) -> str | Record:
    """Bytes as every database stores them."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.encode() == raw and storable(text) == text else {"base64": b64encode(raw).decode()}


def as_it_was(stored: object) -> bytes:
    """What :func:`kept` made its argument of."""
    if isinstance(stored, dict):
        return b64decode(str(stored["base64"]))
    return str(stored).encode()


def keep_line(message: Message, raw: bytes | None, *, zone: tzinfo) -> None:
    """Keep a message's line, and what was passed over before it, unless the same would be written anyway."""
    if raw is not None and raw != as_line(record_of(message, zone=zone)).encode():
        message.metadata = (message.metadata or {}) | {LINE: kept(raw)}


def line_of(message: Message, *, zone: tzinfo, whole: bool) -> bytes:
    """A message's line: as it came, if it still tells the message in this zone. ``whole``: with what was passed over
    before it."""
    stored = (message.metadata or {}).get(LINE)
    if stored is not None:
        raw = as_it_was(stored)
        own = raw.rstrip(b"\r\n").rpartition(b"\n")[2] + raw[len(raw.rstrip(b"\r\n")) :]
        try:
            if is_told_by(message, record_in(own), zone=zone):
                return raw if whole else own
        except Unreadable:
            pass
    return as_line(record_of(message, zone=zone)).encode()


def imported(conversation: Conversation, *, header: bytes | None, rest: bytes | None, zone: tzinfo) -> Record | None:
    """What is kept of a session's file beside its messages: its first line, and what stands behind the last."""
    if header is None or rest is None:
        return None
    return {"header": kept(header), "rest": kept(rest), "as": _told(conversation, zone)}


def header_and_rest(conversation: Conversation, *, zone: tzinfo) -> tuple[bytes, bytes, bool]:
    """The first line of a session's file, and what stands behind its last message; and whether both are as they came,
    which they are as long as the conversation is."""
    here = conversation.imported
    if here and here["as"] == _told(conversation, zone):
        return as_it_was(here["header"]), as_it_was(here["rest"]), True
    return as_line(header_of(conversation, zone=zone)).encode(), b"", False


def _told(conversation: Conversation, zone: tzinfo) -> str:
    """A checksum of what the first line would tell."""
    return hashlib.sha256(as_line(header_of(conversation, zone=zone)).encode()).hexdigest()[:32]


# --- times -------------------------------------------------------------------------------------------------------


def time_in(text: object, zone: tzinfo) -> datetime | None:
    """The time a text tells, in UTC; without a zone of its own it is one of ``zone``. None if it tells none."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        at = (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at if 1 < at.year < 9999 else None  # so that it is one in every zone


def time_as_text(at: datetime, zone: tzinfo, *, sep: str = "T", timespec: str = "auto") -> str:
    """A time as nanobot writes it: local, without a zone. In the hour that the autumn repeats, the second has its."""
    local = at.astimezone(zone)
    return (local if local.fold else local.replace(tzinfo=None)).isoformat(sep, timespec)


# --- messages ----------------------------------------------------------------------------------------------------


def message_of(record: Record, *, before: datetime, zone: tzinfo) -> Message:
    """The message that a record is; raises :class:`Unreadable`. One that tells no time has that of the one before.

    What readers of a transcript rely on is made fit in its columns: texts are texts, and calls are as the chat format
    has them. What was there in fact is kept beside them.
    """
    role = record.get("role")
    if not isinstance(role, str) or role not in Message.Role:
        raise Unreadable("its role is none of system, user, assistant and tool")
    ours = record.get(NANOHOST)
    kind = ours.get("kind") if isinstance(ours, dict) else None
    message = Message(
        role=role,
        kind=kind if isinstance(kind, str) and kind in Message.Kind else Message.Kind.SAID,
        content=_text_of(record.get("content")),
        created_at=time_in(record.get("timestamp"), zone) or before,
    )
    if message.kind in (Message.Kind.ROLLING, Message.Kind.DAILY):
        message.type = Message.Type.SUMMARY
    if role == Message.Role.ASSISTANT:
        message.tool_calls = _fit_calls(record.get("tool_calls")) or None
    if role == Message.Role.TOOL:
        message.tool_call_id = _fit_id(record.get("tool_call_id"))
        message.tool_name = _text(record.get("name"))[:_MAX_TOOL_NAME]
    told = record_of(message, zone=zone)
    if left := {name: value for name, value in record.items() if name not in told or told[name] != value}:
        message.metadata = {NANOBOT: left}
    return message


def record_of(message: Message, *, zone: tzinfo) -> Record:
    """The record that a message is."""
    calls = message.tool_calls
    record: Record = {
        "role": message.role,
        "content": None if calls and not message.content else message.content,
        "timestamp": time_as_text(message.created_at, zone),
    }
    if calls:
        record["tool_calls"] = calls
    if message.tool_call_id:
        record["tool_call_id"] = message.tool_call_id
    if message.tool_name:
        record["name"] = message.tool_name
    if message.kind:
        record[NANOHOST] = {"kind": message.kind}
    left: Record = (message.metadata or {}).get(NANOBOT, {})
    return record | left


def is_told_by(message: Message, record: Record, *, zone: tzinfo) -> bool:
    """Whether a message is what the record tells of; what it does not tell may be anything."""
    told = record_of(message, zone=zone)
    if "timestamp" not in record:
        del told["timestamp"]
    if "content" not in record and not message.content:
        del told["content"]
    return told == record


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _text_of(content: object) -> str:
    """What a content of any form says."""
    if isinstance(content, list):
        return "\n".join(map(_text_of_part, content))
    return "" if content is None else _as_text(content)


def _text_of_part(part: object) -> str:
    if not isinstance(part, dict):
        return _as_text(part)
    return part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]"  # an image, say


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fit_calls(calls: object) -> list[Record]:
    """Calls as the chat format has them. Odd names and arguments stay: the prompt's pipeline mends them."""
    return [_fit_call(call, index) for index, call in enumerate(calls)] if isinstance(calls, list) else []


def _fit_call(call: object, index: int) -> Record:
    call = call if isinstance(call, dict) else {}
    function = call["function"] if isinstance(call.get("function"), dict) else call
    arguments = function.get("arguments")
    return {
        "id": _fit_id(call.get("id")) or f"call_{index}",
        "type": "function",
        "function": {"name": _text(function.get("name")), "arguments": _as_text(arguments or {})},
    }


def _fit_id(given: object) -> str:
    """The id of a call. One that is too long becomes the same shorter one wherever it stands."""
    text = _text(given)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return text if len(text) <= _MAX_CALL_ID else f"{text[: _MAX_CALL_ID - 33]}-{digest}"


# --- the metadata record -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the metadata record of a session says. ``line``: where it stands; 0 if there is none. ``consolidated`` and
    ``forgotten``: how many messages come before those that no summary covers, and before the conversation's start.
    ``left``: what has no column. ``wrong``: what could not be read in it."""

    key: str
    line: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    metadata: Record = field(default_factory=dict)
    state: Record = field(default_factory=dict)
    state_times: Record = field(default_factory=dict)
    consolidated: int = 0
    forgotten: int = 0
    left: Record = field(default_factory=dict)
    wrong: tuple[str, ...] = ()

    def kept(self, **more: Any) -> Record:
        """What a conversation's metadata is to be, with what else is left over."""
        left, metadata = self.left | more, self.metadata
        if isinstance(metadata.get(NANOBOT), dict) or (left and NANOBOT in metadata):
            left, metadata = left | {"metadata": metadata}, {}
        return metadata | ({NANOBOT: left} if left else {})


_COLUMNS = {"_type", "key", "created_at", "updated_at", "metadata", "last_consolidated", NANOHOST}


def is_header(record: Record) -> bool:
    """Whether this is a metadata record."""
    return record.get("_type") == "metadata"


def header_in(record: Record, *, line: int, stem: str, zone: tzinfo) -> Header:
    """What a metadata record says, of which anything may be missing; raises :class:`Unreadable`."""
    key = record.get("key") or stem.replace("_", ":", 1)  # as nanobot finds the key of an older file
    if not isinstance(key, str) or len(key) > _MAX_KEY:
        raise Unreadable(f"its key is no text of {_MAX_KEY} characters at most")
    left = {name: value for name, value in record.items() if name not in _COLUMNS}
    wrong, times = [], {}
    for name in ("created_at", "updated_at"):
        times[name] = time_in(record.get(name), zone)
        if record.get(name) and not times[name]:
            wrong.append(f"its {name} is no time")
    metadata = record.get("metadata", {})
    if not isinstance(metadata, dict):
        left["metadata"], metadata = metadata, {}
    ours = record.get(NANOHOST)
    ours = ours if isinstance(ours, dict) else {}
    state = ours["state"] if isinstance(ours.get("state"), dict) else {}
    kept_at = ours["state_times"] if isinstance(ours.get("state_times"), dict) else {}
    consolidated = record.get("last_consolidated", 0)
    if not _is_count(consolidated):
        wrong.append("its last_consolidated is no count of messages; it is taken as 0")
    return Header(
        key=key,
        line=line,
        **times,
        metadata=metadata,
        state=state,
        state_times={key: at.isoformat() for key in state if (at := time_in(kept_at.get(key), zone))},
        consolidated=consolidated if _is_count(consolidated) else 0,
        forgotten=ours["forgotten"] if _is_count(ours.get("forgotten")) else 0,
        left=left,
        wrong=tuple(wrong),
    )


def header_of(conversation: Conversation, *, zone: tzinfo) -> Record:
    """The metadata record of a conversation. Messages are counted by their numbers, of which none is missing unless
    messages were deleted by their age."""
    metadata = dict(conversation.metadata)
    left: Record = metadata.pop(NANOBOT) if isinstance(metadata.get(NANOBOT), dict) else {}
    counted = 0 if conversation.erased_through else left.get("last_consolidated", 0)
    forgotten = _left_through(conversation, conversation.starts_at_seq - 1)
    consolidated = _left_through(conversation, conversation.consolidated_through)
    ours = {"state": conversation.state, "state_times": conversation.state_times, "forgotten": forgotten}
    ours = {name: value for name, value in ours.items() if value}
    return {
        "created_at": time_as_text(conversation.created_at, zone),
        "updated_at": time_as_text(conversation.updated_at, zone),
        "metadata": metadata,
        **left,
        "_type": "metadata",
        "key": conversation.key,
        # nanobot may count to the middle of a turn, to which a prompt here never goes; later the count here is higher.
        "last_consolidated": max(consolidated, counted if _is_count(counted) else 0),
        **({NANOHOST: ours} if ours else {}),
    }


def _left_through(conversation: Conversation, seq: int) -> int:
    """How many messages there are up to one of them."""
    if not conversation.erased_through:
        return seq
    return Message.objects.filter(conversation=conversation, seq__lte=seq).count()


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


@dataclass(kw_only=True)
class Place:
    """Where a session's counts come to stand among the messages that were kept, as its lines go by.

    nanobot may have consolidated up to the middle of a turn, of which no prompt could show the rest: that turn is then
    not yet counted as consolidated. So each message is in the prompt, or counted.

    ``ended``: the time of the last message, at first that of the session. ``left_at``: the line from which on the file
    is left out. ``summaries``: the numbers of those for prompts, and of days.
    """

    header: Header
    ended: datetime
    began: datetime | None = None
    lines: int = 0
    kept: int = 0
    consolidated: int = 0
    forgotten: int = 0
    left_at: int = 0
    _turn: int = 0
    _next_role: str = ""
    summaries: dict[int, str] = field(default_factory=dict)

    def pass_by(self, message: Message | None) -> None:
        """Take note of the next line, which is a message, or was left out."""
        if message:
            self.began, self.ended = self.began or message.created_at, message.created_at
            is_said = message.kind == Message.Kind.SAID
            if self.lines < self.header.forgotten:
                self.forgotten += 1
            if self.lines < self.header.consolidated:
                self.consolidated += 1
                self._turn = self.kept if is_said and message.role == Message.Role.USER else self._turn
            elif is_said:
                self._next_role = self._next_role or message.role
            self.kept += 1
            if message.type == Message.Type.SUMMARY:
                self.summaries[self.kept] = message.kind
        self.lines += 1

    @property
    def through(self) -> int:
        """How many messages are consolidated here."""
        in_mid_turn = self._next_role not in ("", Message.Role.USER)
        return max(self._turn if in_mid_turn else self.consolidated, self.forgotten)

    @property
    def summary_seq(self) -> int | None:
        """The number of the summary that counts."""
        rolling = (seq for seq, kind in reversed(self.summaries.items()) if kind == Message.Kind.ROLLING)
        return next((seq for seq in rolling if seq > self.forgotten), None)


# --- names of files ----------------------------------------------------------------------------------------------

# Bytes of a name: file systems take 255.
_MAX_NAME = 200


def file_name(key: str) -> str:
    """The file of a conversation: nanobot's name for it. In a key that would share its name with another, or that is no
    name of a file, the characters that are in the way are written as in URLs."""
    channel, colon, chat = key.partition(":")
    name = quote(channel, safe="").replace("_", "%5F") + ("_" if colon else "") + quote(chat, safe="@=+, ")
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 66]}%~{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{name}.jsonl"


# --- the history log ---------------------------------------------------------------------------------------------

_STAMP = r"\[(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d(?::\d\d)?)?)?)\] ?"
_ENTRY, _MOVED, _TO_MOVE = re.compile(_STAMP), re.compile(" +" + _STAMP), re.compile(" *" + _STAMP)


def entries_in(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """The entries of a log: the number of each one's first line, its time as it is written, and its text. What stands
    before the first of them comes as one without a time."""
    first, stamp, text, after_blank = 1, "", list[str](), True
    for number, line in enumerate(lines, 1):
        if after_blank and (begun := _ENTRY.match(line)):
            if stamp or any(map(str.strip, text)):
                yield first, stamp, plain("\n".join(text))
            first, stamp, text = number, begun[1], [line[begun.end() :]]
        else:
            text.append(line[1:] if after_blank and _MOVED.match(line) else line)
        after_blank = not line.strip()
    if stamp or any(map(str.strip, text)):
        yield first, stamp, plain("\n".join(text))


def entry_as_text(stamp: str, text: str) -> str:
    """An entry as the log has it. A line of it that would begin another is moved in by a blank."""
    lines = plain(text).split("\n")
    for index in range(1, len(lines)):
        if not lines[index - 1].strip() and _TO_MOVE.match(lines[index]):
            lines[index] = f" {lines[index]}"
    return f"[{stamp}] " + "\n".join(lines) + "\n\n"


def plain(text: str) -> str:
    """A text without blanks around it, its lines ended as everywhere."""
    return re.sub(r"(?<!\r)\r+\n", "\n", text).strip()


def as_one_line(text: str) -> str:
    """A note as the line that it is in a day's file."""
    return " ".join(line.rstrip() for line in text.split("\n") if line.strip())
