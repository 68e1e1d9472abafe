"""nanobot's files, taken in and written: sessions, long-term memory, history log and notes of the day.

Each file is taken in in one transaction. What is wrong in it is reported, and the rest is kept; what is here already
is not taken in again, and what has gone on here is left alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from agent.models import DOCUMENTS, Agent, AgentVersion, validate_documents
from conversations import taint
from conversations.engine import transcript
from conversations.errors import FolderInUse
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from conversations.transfer.files import (
    Header,
    Passed,
    Place,
    Record,
    Unreadable,
    as_one_line,
    entries_in,
    entry_as_text,
    file_name,
    header_and_rest,
    header_in,
    imported,
    is_header,
    is_told_by,
    keep_line,
    line_of,
    message_of,
    plain,
    record_in,
    time_as_text,
    time_in,
)
from memory import documents, log
from memory.consolidation import without_stamp
from memory.models import HistoryEntry
from nanohost.lib.ids import new_id
from nanohost.lib.redaction import redact
from nanohost.lib.statements import Insert
from nanohost.lib.text import storable
from tools import registry
from tools.errors import UnknownTool
from tools.taint import MAX_SOURCE

Kind = HistoryEntry.Kind

Records = Iterator[tuple[int, Record | None]]

# Messages that are stored, or read, together.
BATCH = 200

# Who has made a version of an agent that an import made.
BY_IMPORT = "import_sessions"

# What stands before the text of a raw entry in nanobot's log.
RAW = "[RAW] "

_insert_message = Insert(
    Message,
    *("id", "conversation_id", "seq", "role", "type", "kind", "content"),
    *("tool_calls", "tool_call_id", "tool_name", "tainted_by", "metadata", "created_at"),
    turn_id=None,
)


# --- import ------------------------------------------------------------------------------------------------------


def import_folder(
    folder: Path,
    *,
    owner_id: int,
    agent: Agent,
    dry_run: bool,
    report: Callable[[str], None],
    with_documents: bool = False,
) -> Counter[str]:
    """Take in what there is of nanobot's in a folder: its data folder, its workspace, or one of either's folders.

    Returns how many there were of what. ``report`` is given a line for each thing that is wrong, which begins with its
    file and, mostly, the number of its line there. With ``dry_run``, all is done and then undone.
    ``with_documents``: the workspace's are taken into the agent, which all owners share; without, they are reported.
    """
    importing = _Import(owner_id=owner_id, agent=agent, dry_run=dry_run, report=report, with_documents=with_documents)
    for place in (folder / "workspace" / "sessions", folder / "sessions", folder):
        for path in sorted(place.glob("*.jsonl")):
            importing.take_in(path, importing.session)
    for place in (folder / "workspace", folder):
        for name in DOCUMENTS:
            importing.take_in(place / f"{name}.md", importing.document)
    for place in (folder / "workspace" / "memory", folder / "memory", folder):
        importing.take_in(place / "MEMORY.md", importing.memory)
        importing.take_in(place / "HISTORY.md", importing.history)
        for path in sorted(place.glob("????-??-??.md")):
            importing.take_in(path, importing.notes)
    if not importing.files:
        report(f"{folder}: there is none of nanobot's files here")
    return importing.counts


@dataclass(kw_only=True)
class _Import:
    owner_id: int
    agent: Agent
    dry_run: bool
    report: Callable[[str], None]
    with_documents: bool
    counts: Counter[str] = field(default_factory=Counter)
    path: Path = Path()
    files: int = 0
    passed: Passed = field(default_factory=Passed)
    zone: tzinfo = field(default_factory=timezone.get_default_timezone)

    @property
    def whose(self) -> dict[str, Any]:
        """Whose memory and log it is."""
        return {"agent": self.agent.name, "owner_id": self.owner_id}

    def take_in(self, path: Path, take_in: Callable[[BinaryIO], None]) -> None:
        """Take in a file, if it is there."""
        self.path = path
        try:
            if not path.exists():
                return
            self.files += 1
            with path.open("rb") as file, transaction.atomic():
                take_in(file)
                if self.dry_run:
                    transaction.set_rollback(True)
        except OSError as error:
            self.wrong(0, f"it cannot be read: {error.strerror}")

    def wrong(self, line: int, what: str) -> None:
        """Report what is wrong in a line of the file, or (0) with the file."""
        self.report(storable(f"{self.path}{f':{line}' if line else ''}: {what}"))

    def session(self, file: BinaryIO) -> None:
        """A conversation: made if there is none of its key, else continued where it ends."""
        self.passed = Passed()
        records = self._records(file)
        header, records = self._header(records)
        if header is None:
            return
        first_line = self.passed.take() if header.line else b""
        conversation, is_new = Conversation.objects.select_for_update().get_or_create(
            owner_id=self.owner_id, key=header.key, defaults={"agent": self.agent, "cost": 0}
        )
        if conversation.agent_id != self.agent.pk:
            self.wrong(header.line, f"its conversation has the agent {conversation.agent}; the file is left out")
            return
        place, added = Place(header=header, ended=header.created_at or conversation.created_at), 0
        lacking = self._lacking(conversation, records, place)
        while batch := list(islice(lacking, BATCH)):
            added += _append(conversation, batch)
        if place.left_at:
            self.wrong(place.left_at, "the conversation has gone on here in another way; from here on this is left out")
            return
        if not (header.line or place.kept):  # this is no session
            transaction.set_rollback(True)
            return
        if conversation.next_turn > 1 or conversation.next_seq > place.kept + 1:
            self.counts["conversations as they were"] += 1
            return
        if header.consolidated > place.lines:
            self.wrong(header.line, f"its last_consolidated is {header.consolidated}, of {place.lines} messages")
        in_mid_turn = {"last_consolidated": place.consolidated} if place.consolidated > place.through else {}
        Conversation.objects.filter(pk=conversation.pk).update(
            metadata=header.kept(**in_mid_turn),
            state=header.state,
            state_times=header.state_times,
            starts_at_seq=place.forgotten + 1,
            consolidated_through=place.through,
            summary_seq=place.summary_seq,
            **_entered(conversation, starts_at=place.forgotten + 1),
            created_at=header.created_at or place.began or conversation.created_at,
            updated_at=header.updated_at or place.ended,
        )
        conversation.refresh_from_db()
        kept = imported(conversation, header=first_line, rest=self.passed.take(), zone=self.zone)
        Conversation.objects.filter(pk=conversation.pk).update(imported=kept)
        _record(conversation, place.summaries)
        self.counts[f"conversations {'made' if is_new else 'continued' if added else 'as they were'}"] += 1
        self.counts["messages"] += added

    def _lacking(self, conversation: Conversation, records: Records, place: Place) -> Iterator[Message]:
        """The messages that the conversation lacks; none if it has others, or turns of its own."""
        stored = Message.objects.transcript().filter(conversation=conversation).iterator(BATCH)
        for number, record in records:
            message = self._message(number, record, before=place.ended) if record else None
            place.pass_by(message)
            if not (message and record):
                continue
            keep_line(message, self.passed.take(), zone=self.zone)
            row = next(stored, None)
            if row and is_told_by(row, record, zone=self.zone):
                continue
            if row or conversation.next_turn > 1:
                place.left_at = number
                return
            yield message

    def _records(self, file: BinaryIO) -> Records:
        """Each line's number and record, or None where there is something else; blank lines are passed over."""
        for number, line in enumerate(file, 1):
            self.passed.add(line)
            if line.strip():
                try:
                    yield number, record_in(line)
                except Unreadable as error:
                    self.wrong(number, f"{error}; it is left out")
                    yield number, None

    def _header(self, records: Records) -> tuple[Header | None, Records]:
        """What the metadata record says, and the records that follow it."""
        number, record = next(records, (0, None))
        if not number:
            self.wrong(0, "it is empty")
            return None, records
        if record is None or not is_header(record):
            self.wrong(number, "there is no metadata record; the key is taken from the file's name")
            records = chain([(number, record)], records)
            number, record = 0, {}
        try:
            header = header_in(record, line=number, stem=storable(self.path.stem), zone=self.zone)
        except Unreadable as error:
            self.wrong(number, f"{error}; the file is left out")
            return None, records
        for what in header.wrong:
            self.wrong(number, what)
        return header, records

    def _message(self, number: int, record: Record, *, before: datetime) -> Message | None:
        try:
            if is_header(record):
                raise Unreadable("this is another metadata record")
            message = message_of(record, before=before, zone=self.zone)
        except Unreadable as error:
            self.wrong(number, f"{error}; it is left out")
            return None
        if record.get("timestamp") and not time_in(record["timestamp"], self.zone):
            self.wrong(number, "its timestamp is no time; it has that of the message before it")
        return message

    def document(self, file: BinaryIO) -> None:
        """A document of the agent, such as SOUL.md: a new version of it, unless people have written theirs."""
        name, text = self.path.stem, storable(redact("\n".join(self._lines(file, end=True))))
        agent = Agent.objects.select_for_update().get(pk=self.agent.pk)
        here = agent.documents.get(name, "")
        if not text.strip() or text.strip() == here.strip():
            return
        if not self.with_documents:
            self.wrong(0, "it is a document of an agent; name one with --agent to have it taken in")
        elif here.strip() and not _came_by_import(agent, name):
            self.wrong(0, f"the agent {agent} has another {name}, which people wrote: it is left as it is")
        else:
            agent.documents = agent.documents | {name: text}
            try:
                validate_documents(agent.documents)
            except ValidationError as error:
                self.wrong(0, f"{error.message} It is left out")
                return
            agent.save_version(by=BY_IMPORT)
            self.counts["documents of the agent"] += 1

    def memory(self, file: BinaryIO) -> None:
        """The long-term memory."""
        content = "\n".join(self._lines(file))
        version = documents.take_in(**self.whose, content=content)
        if version and version.number:
            self.counts["versions of the memory"] += 1
        elif version:
            self.wrong(0, f"it is kept aside, for you to decide on: {version.aside_because}")

    def history(self, file: BinaryIO) -> None:
        """Entries of the log, which are told from one another by their minute and their text."""
        documents.locked_head(**self.whose)  # so that of two imports at once, one is first
        here = Counter[tuple[str, datetime, str]]()
        for number, stamp, text in entries_in(self._lines(file)):
            at = time_in(stamp, self.zone)
            if at is None:
                self.wrong(number, "no entry begins here, with its time in brackets; it is left out")
                continue
            kind, text = (Kind.RAW, text.removeprefix(RAW)) if text.startswith(RAW) else (Kind.ENTRY, text)
            text = storable(redact(text))
            here[kind, at, plain(text)] += 1
            if text and self._times_logged(kind, at, plain(text)) < here[kind, at, plain(text)]:
                log.append(**self.whose, kind=kind, content=text, happened_at=at)
                self.counts["entries of the history log"] += 1

    def _times_logged(self, kind: str, at: datetime, text: str) -> int:
        minute = time_in(_minute(at, self.zone), self.zone)
        assert minute is not None
        rows = _entries(**self.whose).filter(
            kind=kind, happened_at__gte=minute, happened_at__lt=minute + timedelta(minutes=1)
        )
        return sum(plain(_as_written(row)) == text for row in rows.only("kind", "content", "model"))

    def notes(self, file: BinaryIO) -> None:
        """A day's notes, a line each. Today's are in the prompt, too."""
        begins = time_in(self.path.stem, self.zone)
        if begins is None:
            self.wrong(0, "its name is no day")
            return
        day = date.fromisoformat(self.path.stem)
        documents.locked_head(**self.whose)
        rows = _entries(**self.whose).filter(kind=Kind.NOTE, day=day)
        here = Counter(map(as_one_line, rows.values_list("content", flat=True)))
        # Whole: a key may go over several lines.
        for line in redact("\n".join(self._lines(file))).split("\n"):
            note = as_one_line(storable(redact(line)))
            here[note] -= 1
            if not note or here[note] >= 0:
                continue
            if day == timezone.localdate():
                log.note(**self.whose, text=note, today=day)
            else:
                log.append(**self.whose, content=note, kind=Kind.NOTE, happened_at=begins, day=day)
            self.counts["notes"] += 1

    def _lines(self, file: BinaryIO, *, end: bool = False) -> Iterator[str]:
        """The lines of a text; with ``end``, one more behind a last line feed."""
        line = b""
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig").removesuffix("\n")
            except UnicodeDecodeError:
                self.wrong(number, "what is no UTF-8 in it is replaced")
                yield line.decode(errors="replace").removesuffix("\n")
        if end and line.endswith(b"\n"):
            yield ""


def _came_by_import(agent: Agent, name: str) -> bool:
    """Whether what a document says was taken in, and not written by people."""
    changes = AgentVersion.objects.filter(agent=agent).order_by("-number").values_list("changed", "made_by")
    return next((by == BY_IMPORT for changed, by in changes if name in changed.split(", ")), False)


def _record(conversation: Conversation, summaries: dict[int, str]) -> None:
    """Give each of these summaries its record. Of which messages, by which model: no file says."""
    has_one = Compaction.objects.filter(conversation=conversation, summary_seq__in=list(summaries))
    kinds: dict[int | None, str] = dict(summaries.items())
    lacking = set(summaries) - set(has_one.values_list("summary_seq", flat=True))
    made = Message.objects.filter(conversation=conversation, seq__in=lacking).values_list("seq", "created_at")
    Compaction.objects.bulk_create(
        Compaction(
            conversation=conversation,
            kind=kinds[seq],
            status=CompactionStatus.DONE,
            keep_tokens=0,
            summary_seq=seq,
            ended_at=created_at,
            cost=0,
        )
        for seq, created_at in made
    )


def _append(conversation: Conversation, messages: list[Message]) -> int:
    """Store messages behind those there are; returns how many."""
    marks = [_mark_of(message) for message in messages]
    seq = transcript.take_seqs(conversation.pk, len(messages), marks=marks)
    _insert_message.many(
        {
            "id": new_id(),
            "conversation_id": conversation.pk,
            "seq": seq + offset,
            "role": message.role,
            "type": message.type,
            "kind": message.kind,
            "content": message.content,
            "tool_calls": message.tool_calls,
            "tool_call_id": message.tool_call_id,
            "tool_name": message.tool_name,
            "tainted_by": marks[offset] or None,
            "metadata": message.metadata,
            "created_at": message.created_at,
        }
        for offset, message in enumerate(messages)
    )
    return len(messages)


def _mark_of(message: Message) -> str:
    """From where untrusted text in a message came: of the tools of elsewhere, nobody says which of their results are
    trusted."""
    if message.role != Message.Role.TOOL:
        return ""
    try:
        is_trusted = not registry.get(message.tool_name).untrusted
    except UnknownTool:
        is_trusted = False
    return "" if is_trusted else f"a file, a result of the tool {message.tool_name or 'without a name'}"[:MAX_SOURCE]


def _entered(conversation: Conversation, *, starts_at: int) -> dict[str, Any]:
    """What tells with which message untrusted text first entered, of those from ``starts_at`` on."""
    marked = Message.objects.filter(conversation=conversation, seq__gte=starts_at, tainted_by__isnull=False)
    for seq, by in marked.order_by("seq").values_list("seq", "tainted_by")[:1]:
        return {"tainted_at_seq": seq, "tainted_by": by}
    return taint.NONE


def _entries(*, agent: str, owner_id: int) -> QuerySet[HistoryEntry]:
    return HistoryEntry.objects.filter(owner_id=owner_id, agent=agent)


def _as_written(entry: HistoryEntry) -> str:
    """The text of an entry behind its time: of some that models wrote, it begins with one of its own."""
    return without_stamp(entry.content) if entry.model else entry.content


def _minute(at: datetime, zone: tzinfo) -> str:
    return time_as_text(at, zone, sep=" ", timespec="minutes")


# --- export ------------------------------------------------------------------------------------------------------


def export_folder(folder: Path, *, owner_id: int, agent: Agent, force: bool) -> Counter[str]:
    """Write what an agent and an owner have, as nanobot has it; returns how many there were of what. What waits in an
    inbox is not in a transcript yet, and is left out.

    Raises :class:`FolderInUse` if there is something in the folder, unless ``force``, and OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not force and any(folder.iterdir()):
        raise FolderInUse
    zone, counts = timezone.get_default_timezone(), Counter[str]()
    conversations = Conversation.objects.filter(owner_id=owner_id, agent=agent).order_by("created_at", "pk")
    for conversation in conversations.iterator(BATCH):
        path = folder / "sessions" / file_name(conversation.key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("wb") as file:
            header, rest, is_as_it_came = header_and_rest(conversation, zone=zone)
            out = _Lines(file)
            out.write(header)
            # What comes in from now on is not in the first line.
            messages = Message.objects.transcript().filter(conversation=conversation, seq__lt=conversation.next_seq)
            for message in messages.iterator(BATCH):
                out.write(line_of(message, zone=zone, whole=is_as_it_came))
                counts["messages"] += 1
            out.write(rest)
        counts["conversations"] += 1
    known = documents.background(agent=agent.name, owner_id=owner_id, today=timezone.localdate())
    if content := plain(known.content):
        with _written(folder / "memory" / "MEMORY.md") as file:
            file.write(f"{content}\n")
    logged = _entries(agent=agent.name, owner_id=owner_id).order_by("happened_at", "pk")
    if logged.exclude(kind=Kind.NOTE).exists():
        with _written(folder / "memory" / "HISTORY.md") as file:
            for entry in logged.exclude(kind=Kind.NOTE).iterator(BATCH):
                text = RAW + plain(entry.content) if entry.kind == Kind.RAW else _as_written(entry)
                file.write(entry_as_text(_minute(entry.happened_at, zone), text))
                counts["entries of the history log"] += 1
    for name, document in agent.documents.items():
        if document.strip():
            with _written(folder / f"{name}.md") as file:
                file.write(document)
                counts["documents of the agent"] += 1
    notes = logged.filter(kind=Kind.NOTE, day__isnull=False).order_by("day", "happened_at", "pk")
    for day, of_day in groupby(notes.iterator(BATCH), key=attrgetter("day")):
        with _written(folder / "memory" / f"{day}.md") as file:
            for note in of_day:
                file.write(f"{as_one_line(note.content)}\n")
                counts["notes"] += 1
    return counts


class _Lines:
    """Writes lines, of which the last that came may have had no end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._is_open = file, False

    def write(self, line: bytes) -> None:
        """One line, or several."""
        if line:
            self._file.write(b"\n" + line if self._is_open else line)
            self._is_open = not line.endswith(b"\n")


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
