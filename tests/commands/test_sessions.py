"""nanobot's files, taken in and written: nothing is lost or taken in twice, and what comes out is what went in."""

import json
import os
import re
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import BaseCommand, CommandError, call_command, load_command_class
from django.db import connection, transaction
from django.utils import timezone as django_timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.models import DOCUMENTS, AgentVersion
from conversations.engine import inbox
from conversations.engine.compacting import parts
from conversations.engine.incoming import Incoming
from conversations.errors import FolderInUse
from conversations.models import Compaction, Conversation, Message
from conversations.transfer import sessions
from conversations.transfer.files import (
    MAX_KEPT,
    Header,
    Place,
    as_line,
    as_one_line,
    entries_in,
    entry_as_text,
    file_name,
    header_in,
    header_of,
    message_of,
    plain,
    record_in,
    record_of,
    time_as_text,
    time_in,
)
from memory import documents, log
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.accounts.models import ApiKey
from tests.support.compacting import run_last
from tests.support.factories import AgentFactory
from tests.support.hosts import ROOT
from tests.support.scripts import script
from tests.support.working import prompt_of, settle

pytestmark = pytest.mark.django_db(transaction=True)
shapeless = pytest.mark.shapeless(reason="pure functions")

HEADER = {
    "_type": "metadata",
    "key": "telegram:12345",
    "created_at": "2026-03-01T10:00:00",
    "updated_at": "2026-03-15T14:30:00",
    "metadata": {},
    "last_consolidated": 0,
}
CALL = {"id": "call_abc", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "weather"}'}}
WEATHER = [
    {"role": "user", "content": "What is the weather?", "timestamp": "2026-03-15T14:30:00.123456"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "timestamp": "2026-03-15T14:30:01.234567"},
    {
        "role": "tool",
        "content": "Sunny, 22°C",
        "tool_call_id": "call_abc",
        "name": "web_search",
        "timestamp": "2026-03-15T14:30:02.345678",
    },
    {"role": "assistant", "content": "It is sunny.", "timestamp": "2026-03-15T14:30:03"},
]


HISTORY = """\
# History

[2026-03-10 14:30] User asked about the bot.

More of it.
[2026-03-10 14:31] still the same.

[2026-03-12] A day.

[2026-13-40 25:61] No time.

[2026-03-13 09:15] [RAW] 2 messages
[2026-03-13T09:14] USER: hi
"""

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def say(role: str, content: str = "words", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "timestamp": "2026-03-15T14:30:00"} | more


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """nanobot's data folder."""
    (tmp_path / "sessions").mkdir()
    (tmp_path / "memory").mkdir()
    return tmp_path


def write(folder: Path, *lines: Any, name: str = "telegram_12345") -> Path:
    """A session of these lines: records, or bytes."""
    path = folder / "sessions" / f"{name}.jsonl"
    as_bytes = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in as_bytes))
    return path


@pytest.fixture
def take_in(owner: Any, agent: Any, folder: Path) -> Callable[..., list[str]]:
    """Import the folder; returns what was reported, without the folder's name."""

    def run(folder: Path = folder, **options: Any) -> list[str]:
        told: list[str] = []
        options = {"owner_id": owner.pk, "agent": agent, "dry_run": False, "report": told.append} | options
        sessions.import_folder(folder, **options)
        return [line.removeprefix(f"{folder}/") for line in told]

    return run


def everything() -> list[Any]:
    """All rows that an import may touch."""
    models = (Conversation, Message, Memory, MemoryVersion, HistoryEntry)
    return [list(model.objects.order_by("pk").values()) for model in models]


def said() -> list[str]:
    return list(Message.objects.order_by("seq").values_list("content", flat=True))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def export(folder: Path, owner: Any, agent: Any, **options: Any) -> dict[str, bytes]:
    """What an export writes into a new folder."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        sessions.export_folder(Path(made), owner_id=owner.pk, agent=agent, force=False, **options)
        return files(Path(made))


def records(written: dict[str, bytes], name: str = "telegram_12345") -> list[dict[str, Any]]:
    return [json.loads(line) for line in written[f"sessions/{name}.jsonl"].split(b"\n") if line]


# --- sessions ----------------------------------------------------------------------------------------------------


def test_results_of_tools_that_nobody_here_trusts_taint_it(folder, take_in):
    said = [{"role": role, "content": "words", "timestamp": "2026-01-01T10:00:00"} for role in ("user", "tool", "tool")]
    for record, name in zip(said[1:], ("time", "web_fetch"), strict=True):
        record |= {"name": name, "tool_call_id": "call_1"}
    write(folder, HEADER, *said)
    assert take_in() == []
    conversation = Conversation.objects.get()
    assert (conversation.tainted_at_seq, conversation.tainted_by) == (3, "a file, a result of the tool web_fetch")


def test_results_from_before_a_session_began_anew_do_not(folder, take_in):
    fetched = {"role": "tool", "content": "words", "name": "web_fetch", "tool_call_id": "call_1"}
    header = HEADER | {"nanohost": {"forgotten": 2}, "last_consolidated": 2}
    write(folder, header, {"role": "user", "content": "Hello"}, fetched, {"role": "user", "content": "Hello again"})
    take_in()
    conversation = Conversation.objects.get()
    assert (conversation.starts_at_seq, conversation.tainted_at_seq, conversation.tainted_by) == (3, None, "")


def test_a_session_becomes_a_conversation(folder, take_in, owner):
    write(folder, HEADER | {"last_consolidated": 4, "metadata": {"lang": "de"}}, *WEATHER)
    assert take_in() == []
    conversation = Conversation.objects.get(key="telegram:12345", owner=owner)
    assert (conversation.next_seq, conversation.consolidated_through, conversation.summary_seq) == (5, 4, None)
    assert conversation.metadata == {"lang": "de"}
    assert conversation.created_at == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert conversation.updated_at == datetime(2026, 3, 15, 14, 30, tzinfo=UTC)
    chat = [message.as_chat() for message in Message.objects.transcript()]
    assert chat[1:3] == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "Sunny, 22°C", "tool_call_id": "call_abc"},
    ]
    assert [message.tool_name for message in Message.objects.transcript()] == ["", "", "web_search", ""]


def test_times_without_a_zone_are_local(folder, take_in, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    write(folder, HEADER, say("user", timestamp="2026-07-01T12:00:00"), say("user", timestamp="2026-07-01T12:00:00Z"))
    assert take_in() == []
    times = [message.created_at.hour for message in Message.objects.transcript()]
    assert times == [10, 12]


def test_an_older_session_without_a_key_has_that_of_its_name(folder, take_in):
    old = {"_type": "metadata", "created_at": "2026-02-01T10:00:00", "updated_at": "2026-02-01T11:00:00"}
    write(folder, old, say("user", "Hello"), say("assistant", "Hi"), name="dingtalk_0309_50")
    assert take_in() == []
    conversation = Conversation.objects.get()
    assert (conversation.key, conversation.consolidated_through) == ("dingtalk:0309_50", 0)
    assert said() == ["Hello", "Hi"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"role": "user", "content": "half', "this is no JSON: Unterminated string starting at (character 29)"),
        (b'\xff{"role": "user"}', "this is no UTF-8"),
        (b"[1, 2]", "this is no object"),
        (b"null", "this is no object"),
        (b'{"role": "user", "content": NaN}', "a number that is none"),
        (b'{"role": "user", "content": 1e999}', "a number that is none, or too large"),
        (b'{"role": "user", "content": %s}' % (b"9" * 5000), "a number that is none, or too large"),
        (b'{"role": "user", "content": %s1%s}' % (b"[" * 300, b"]" * 300), "nested too deep"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"role": "developer", "content": "x"}', "its role is none of system, user, assistant and tool"),
        (b'{"role": ["user"], "content": "x"}', "its role is none of"),
        (b'{"content": "x"}', "its role is none of"),
        (json.dumps(HEADER).encode(), "this is another metadata record"),
    ],
    ids=range(13),
)
def test_a_broken_line_is_reported_and_the_rest_is_kept(folder, take_in, line, what):
    write(folder, HEADER, b"", say("user", "before"), line, say("assistant", "after"))
    (told,) = take_in()
    assert told.startswith("sessions/telegram_12345.jsonl:4: ")
    assert what in told
    assert told.endswith("; it is left out")
    assert said() == ["before", "after"]


def test_a_line_that_is_still_being_written_comes_with_the_next_run(folder, take_in):
    path = write(folder, HEADER, say("user", "Hello"), json.dumps(say("assistant", "Hi"))[:-9].encode())
    assert take_in()
    path.write_bytes(path.read_bytes()[:-1] + json.dumps(say("assistant", "Hi"))[-9:].encode())
    assert take_in() == []
    assert said() == ["Hello", "Hi"]


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (HEADER | {"key": "k" * 256}, ":1: its key is no text of 255 characters at most; the file is left out"),
        (HEADER | {"key": 7}, ":1: its key is no text of 255 characters at most; the file is left out"),
        (HEADER | {"created_at": "yesterday"}, ":1: its created_at is no time"),
        (HEADER | {"last_consolidated": "9"}, ":1: its last_consolidated is no count of messages; it is taken as 0"),
        (HEADER | {"last_consolidated": -9}, ":1: its last_consolidated is no count of messages; it is taken as 0"),
        (HEADER | {"last_consolidated": 9}, ":1: its last_consolidated is 9, of 1 messages"),
        (b"{", ":1: this is no JSON: Expecting property name enclosed in double quotes (character 2)"),
    ],
    ids=range(7),
)
def test_a_broken_metadata_record_is_reported(folder, take_in, header, what):
    write(folder, header, say("user", "Hello"))
    assert take_in()[0].startswith(f"sessions/telegram_12345.jsonl{what}")
    assert said() == ([] if "left out" in what else ["Hello"])


def test_without_a_metadata_record_the_key_is_that_of_the_name(folder, take_in):
    write(folder, say("user", "Hello"))
    assert take_in() == [
        "sessions/telegram_12345.jsonl:1: there is no metadata record; the key is taken from the file's name"
    ]
    assert Conversation.objects.get().key == "telegram:12345"


def test_what_is_no_session_at_all_makes_no_conversation(folder, take_in):
    write(folder, b"These are", b"not the lines you are looking for", name="notes")
    (folder / "sessions" / "empty.jsonl").touch()
    (folder / "sessions" / "folder.jsonl").mkdir()
    told = take_in()
    assert told[:2] == [
        "sessions/empty.jsonl: it is empty",
        "sessions/folder.jsonl: it cannot be read: Is a directory",
    ]
    assert len(told) == 5
    assert not Conversation.objects.exists()


def test_a_message_without_a_readable_time_has_that_of_the_one_before(folder, take_in):
    timeless = {"role": "user", "content": "when?"}
    write(folder, HEADER, timeless, WEATHER[0], timeless, timeless | {"timestamp": "noon"})
    assert take_in() == [
        "sessions/telegram_12345.jsonl:5: its timestamp is no time; it has that of the message before it"
    ]
    times = [message.created_at for message in Message.objects.transcript()]
    assert times[0] == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert len(set(times[1:])) == 1


ODD = [
    say("assistant", None, tool_calls=[{"id": "1", "function": {"name": "exec", "arguments": {"a": 1}}}]),
    say("assistant", "", tool_calls=[{"name": "flat", "arguments": "{}"}, "call", None, {"id": 7, "function": None}]),
    say("assistant", "both", tool_calls={}),
    say("tool", "whose?", tool_call_id=None, name=None),
    say("tool", "long", tool_call_id="x" * 500, name="n" * 500),
    say("user", [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}, "so"]),
    say("user", 7, tool_calls=[CALL], media=["a.png"]),
    say("user", "nul \0 and half \ud83d", extra={"\0": "\udfff"}),
    say("assistant", None, reasoning_content="hm", tools_used=["exec"], nanohost=7),
]


def test_what_is_odd_stays_and_breaks_no_turn(folder, take_in):
    write(folder, HEADER, say("user", "Begin"), *ODD)
    assert take_in() == []
    conversation = Conversation.objects.get()
    turn = inbox.receive(Incoming("Go on"), conversation=conversation, request_id="request-1")
    assert settle([turn])[0].status == "succeeded"
    part = parts.read(conversation.pk, agent=conversation.agent, keep_tokens=None)
    assert '(calls exec with {"a": 1})' in str(part.lines[1])
    assert Message.objects.get(seq=7).content == "Look:\n[image_url]\nso"


def test_a_call_with_a_very_long_id_keeps_its_result(folder, take_in):
    long = "fc_" + "x" * 500
    write(
        folder, HEADER, WEATHER[0], WEATHER[1] | {"tool_calls": [CALL | {"id": long}]}, say("tool", tool_call_id=long)
    )
    assert take_in() == []
    asks, answers = Message.objects.transcript()[1:]
    assert asks.tool_calls[0]["id"] == answers.tool_call_id
    assert len(answers.tool_call_id) == 128


# --- what is in the prompt, and what is consolidated ------------------------------------------------------------


def place(roles: str, **header: int) -> Place:
    """Where counts come to stand among messages of these roles: u, a, t; x was left out, S and C are ours."""
    place = Place(header=Header(key="k", **header), ended=NOON)
    names = {"u": "user", "a": "assistant", "t": "tool", "S": "system", "C": "user"}
    for role in roles:
        kind = {"S": "rolling", "C": "command"}.get(role, "")
        place.pass_by(
            None
            if role == "x"
            else Message(
                role=names[role], kind=kind, type="SUMMARY" if kind == "rolling" else "NORMAL", created_at=NOON
            )
        )
    return place


@shapeless
@pytest.mark.parametrize(
    ("roles", "consolidated", "through"),
    [
        ("uaua", 0, 0),
        ("uaua", 2, 2),
        ("uaua", 4, 4),
        ("uaua", 9, 4),
        ("uauata", 4, 2),  # between a call and its result
        ("uauata", 3, 2),
        ("aaua", 1, 0),  # nothing of a user's before it
        ("uxaua", 3, 2),  # one that was left out before it
        ("uauxa", 4, 2),
        ("uaxua", 3, 2),
        ("uaSua", 2, 2),
        ("uaSua", 3, 3),
        ("uaCau", 2, 0),
        ("", 0, 0),
    ],
)
def test_where_the_pointer_comes_to_stand(roles, consolidated, through):
    assert place(roles, consolidated=consolidated).through == through


@shapeless
@given(st.text("uatx", max_size=30), st.integers(0, 40))
def test_what_is_not_counted_as_consolidated_begins_with_a_user(roles, consolidated):
    through = place(roles, consolidated=consolidated).through
    kept = roles.replace("x", "")
    counted = len(roles[:consolidated].replace("x", ""))
    assert through <= counted
    assert kept[through : through + 1] in ("", "u") or "u" not in kept[:counted]
    assert "u" not in kept[through + 1 : counted]  # never further back than that turn


@shapeless
def test_only_a_summary_from_after_the_start_counts():
    assert place("uaSuaSua", consolidated=5).summary_seq == 6
    assert place("uaSCau", consolidated=5, forgotten=5).summary_seq is None


def test_the_next_prompt_has_all_that_is_not_consolidated(folder, take_in):
    write(folder, HEADER | {"last_consolidated": 2}, say("user", "old"), say("assistant"), *WEATHER)
    assert take_in() == []
    conversation = Conversation.objects.get()
    assert conversation.consolidated_through == 2
    turn = inbox.receive(Incoming("Thanks"), conversation=conversation, request_id="request-1")
    texts = [WEATHER[0]["content"], "", "<untrusted>", "It is sunny.", "Thanks"]
    assert prompt_of(turn)[-5:] == texts


# --- again ---------------------------------------------------------------------------------------------------------


def test_a_second_run_changes_nothing(folder, take_in):
    write(folder, HEADER | {"last_consolidated": 3}, *WEATHER, *ODD, {"role": "user", "content": "when?"})
    write(folder, say("user"), b"broken", say("user", timestamp="noon"), name="cli_direct")
    (folder / "memory" / "MEMORY.md").write_text("- likes tea\n")
    (folder / "memory" / "HISTORY.md").write_text("[2026-03-10 14:30] Tea.\n\n[2026-03-10 14:30] Milk.\n\n")
    (folder / "memory" / "2026-02-13.md").write_text("# Today\n\n- tea\n- tea\n")
    first = take_in()
    before = everything()
    assert all(before)
    assert take_in() == first
    assert everything() == before


def test_a_session_that_has_grown_is_continued(folder, take_in):
    write(folder, HEADER, *WEATHER)
    take_in()
    ids = list(Message.objects.values_list("pk", flat=True))
    write(folder, HEADER | {"last_consolidated": 4, "updated_at": "2026-03-16T09:00:00"}, *WEATHER, say("user", "more"))
    assert take_in() == []
    assert list(Message.objects.values_list("pk", flat=True))[:4] == ids
    assert said()[4:] == ["more"]
    conversation = Conversation.objects.get()
    assert (conversation.next_seq, conversation.consolidated_through, conversation.updated_at.day) == (6, 4, 16)


def test_a_conversation_that_has_gone_on_here_is_left_alone(folder, take_in):
    write(folder, HEADER, *WEATHER)
    take_in()
    inbox.receive(Incoming("Go on"), conversation=Conversation.objects.get(), request_id="request-1")
    before = everything()
    assert take_in() == []  # all of it is here
    write(folder, HEADER | {"last_consolidated": 4}, *WEATHER, say("user", "more"))
    assert take_in() == [
        "sessions/telegram_12345.jsonl:6:"
        " the conversation has gone on here in another way; from here on this is left out"
    ]
    assert everything() == before


def test_a_session_that_was_begun_anew_is_reported_and_left_alone(folder, take_in):
    write(folder, HEADER, *WEATHER)
    take_in()
    before = everything()
    write(folder, HEADER, say("user", "Something else"), *WEATHER)
    assert [told.partition(": ")[0] for told in take_in()] == ["sessions/telegram_12345.jsonl:2"]
    assert everything() == before


def test_a_conversation_of_another_agent_is_left_alone(folder, take_in):
    write(folder, HEADER, *WEATHER)
    take_in()
    assert take_in(agent=AgentFactory(name="other")) == [
        "sessions/telegram_12345.jsonl:1: its conversation has the agent default; the file is left out"
    ]


def test_a_dry_run_tells_the_same_and_changes_nothing(folder, take_in):
    write(folder, HEADER, *WEATHER, b"broken")
    (folder / "memory" / "MEMORY.md").write_text("- likes tea")
    (folder / "memory" / "HISTORY.md").write_text("[2026-03-10 14:30] Tea.")
    (folder / "memory" / f"{date.today()}.md").write_text("- tea")
    told = take_in(dry_run=True)
    assert not any(everything())
    assert take_in() == told


def test_a_file_is_taken_in_whole_or_not_at_all(folder, take_in):
    write(folder, HEADER, *[say("user")] * (sessions.BATCH + 1), b"broken")
    write(folder, HEADER | {"key": "a:b"}, say("user", "other"), name="a_b")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(report=stop)
    assert said() == ["other"]


@pytest.mark.parametrize(
    ("name", "text", "made"),
    [
        ("sessions/a_b.jsonl", "\n".join(map(json.dumps, [HEADER, *WEATHER * 100])), [1, 400, 0, 0, 0]),
        ("memory/MEMORY.md", "- tea", [0, 0, 1, 1, 0]),
        ("memory/HISTORY.md", "".join(entry_as_text("2026-03-10", f"{n}") for n in range(100)), [0, 0, 1, 0, 100]),
        ("memory/2026-02-13.md", "\n".join(map(str, range(100))), [0, 0, 1, 0, 100]),
    ],
)
def test_of_two_imports_at_once_each_thing_is_taken_in_once(folder, take_in, name, text, made):
    (folder / name).write_text(text)
    ready = threading.Barrier(2)

    def run() -> None:
        try:
            ready.wait(20)
            take_in()
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(rows) for rows in everything()] == made


def test_a_long_session_takes_little_memory(folder, take_in, owner, agent):
    size = write(folder, HEADER, *[say("user", "words " * 800)] * 1500).stat().st_size
    tracemalloc.start()
    take_in()
    sessions.export_folder(folder / "out", owner_id=owner.pk, agent=agent, force=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2


# --- long-term memory ----------------------------------------------------------------------------------------------


@pytest.fixture
def memory(folder: Path, take_in: Any, owner: Any) -> Callable[[str], list[str]]:
    """Import this as MEMORY.md."""

    def run(text: str) -> list[str]:
        (folder / "memory" / "MEMORY.md").write_text(text)
        return take_in()

    return run


def versions() -> list[tuple[int | None, str, str]]:
    return list(MemoryVersion.objects.order_by("pk").values_list("number", "source", "content"))


def test_a_memory_becomes_a_version_each_time_it_differs(memory):
    for text in ("- tea\n", "- tea\n", "- milk\n", "- tea", "  \n"):
        assert memory(text) == []
    assert versions() == [(1, "import", "- tea"), (2, "import", "- milk"), (3, "import", "- tea")]
    assert Memory.objects.get().content == "- tea"


def test_what_was_written_here_since_stays_and_the_import_is_kept_aside_once(memory, owner):
    memory("- tea")
    documents.rewrite(agent="default", owner_id=owner.pk, base=1, content="- coffee", source="person")
    assert memory("- tea") == []  # that was here before
    assert memory("- milk") == [
        "memory/MEMORY.md: it is kept aside, for you to decide on:"
        " The memory was written here since; an import does not take its place."
    ]
    assert memory("- milk") == []
    assert Memory.objects.get().content == "- coffee"
    assert versions()[2:] == [(None, "import", "- milk")]
    documents.restore(MemoryVersion.objects.get(number=None), by="anna")
    assert Memory.objects.get().content == "- milk"


def test_a_memory_that_is_too_long_is_kept_aside_once(memory, settings):
    settings.MEMORY_MAX_CHARS = 10
    (told,) = memory("x" * 21)
    assert "It has 21 characters; 20 is the most a memory may have." in told
    assert memory("x" * 21) == []
    assert versions() == [(None, "import", "x" * 21)]


# --- the log -------------------------------------------------------------------------------------------------------


def entries(**which: Any) -> list[tuple[str, str, str]]:
    rows = HistoryEntry.objects.filter(**which).order_by("happened_at", "pk")
    return [(f"{row.happened_at:%d %H:%M}", row.kind, row.content) for row in rows]


def test_paragraphs_with_their_time_become_entries(folder, take_in):
    (folder / "memory" / "HISTORY.md").write_text(HISTORY)
    assert take_in() == [
        f"memory/HISTORY.md:{line}: no entry begins here, with its time in brackets; it is left out" for line in (1, 10)
    ]
    assert entries() == [
        ("10 14:30", "entry", "User asked about the bot.\n\nMore of it.\n[2026-03-10 14:31] still the same."),
        ("12 00:00", "entry", "A day."),
        ("13 09:15", "raw", "2 messages\n[2026-03-13T09:14] USER: hi"),
    ]


def test_entries_are_told_by_their_minute_and_their_text(folder, take_in, owner):
    at = datetime(2026, 3, 10, 14, 30, 59, 999999, tzinfo=UTC)
    log.append(agent="default", owner_id=owner.pk, content=" Tea.\r\nMilk. ", happened_at=at)
    (folder / "memory" / "HISTORY.md").write_text(
        "".join(
            entry_as_text(f"2026-03-10 {at}", text)
            for at, text in [("14:30", "Tea.\nMilk."), ("14:31", "Tea.\nMilk."), ("14:30", "Tea."), ("14:30", "Tea.")]
        )
    )
    assert take_in() == []
    assert HistoryEntry.objects.count() == 4
    assert take_in() == []
    assert HistoryEntry.objects.count() == 4


def test_what_is_no_utf_8_is_replaced_and_told(folder, take_in):
    (folder / "memory" / "HISTORY.md").write_bytes(b"[2026-03-10 14:30] Tea\n\xff and milk.\n")
    assert take_in() == ["memory/HISTORY.md:2: what is no UTF-8 in it is replaced"]
    assert entries() == [("10 14:30", "entry", "Tea\n\ufffd and milk.")]


def test_daily_notes_become_notes_and_todays_are_in_the_prompt(folder, take_in, owner):
    today = django_timezone.localdate()
    (folder / "memory" / "2026-02-13.md").write_text("# Friday\n\n- tea\n  - hot\n- tea\n")
    (folder / "memory" / f"{today}.md").write_text("- milk\n")
    (folder / "memory" / "2026-02-30.md").write_text("- never\n")
    assert take_in() == ["memory/2026-02-30.md: its name is no day"]
    assert [note for *_, note in entries(kind="note", day=date(2026, 2, 13))] == [
        "# Friday",
        "- tea",
        "  - hot",
        "- tea",
    ]
    assert documents.background(agent="default", owner_id=owner.pk, today=today).notes == "- milk"
    (folder / "memory" / "2026-02-13.md").write_text("# Friday\n- tea\n  - hot\n- tea\n- tea\n")
    take_in()
    assert len(entries(day=date(2026, 2, 13))) == 5


def test_secrets_reach_neither_memory_nor_log(folder, take_in):
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA75\nabcdefghijkl\n-----END RSA PRIVATE KEY-----"
    text = f"sk-abcdefghijklmnop0123\n{key}\npassword: hunter2hunter2\n"
    for name, begins in (("MEMORY", ""), ("HISTORY", "[2026-03-10 14:30] "), ("2026-03-10", "")):
        (folder / "memory" / f"{name}.md").write_text(begins + text)
    write(folder, HEADER, say("user", "My key is sk-abcdefghijklmnop0123"))
    assert take_in() == []
    kept = json.dumps(everything()[2:], default=str)
    assert not any(secret in kept for secret in ("sk-abc", "MIIEp", "abcdefgh", "hunter2"))
    assert said() == ["My key is sk-abcdefghijklmnop0123"]
    before = everything()
    take_in()
    assert everything() == before


# --- out, and in again ---------------------------------------------------------------------------------------------


def test_what_came_from_nanobot_goes_out_with_the_same_values(folder, take_in, owner, agent, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    header = HEADER | {"last_consolidated": 3, "metadata": {"nanobot": {"deep": [1, 2.5]}}, "version": 2}
    history = "[2026-03-10 14:30] User asked.\n\nAnd again.\n\n[2026-10-25 02:30+01:00] Autumn.\n\n"
    write(folder, header, *WEATHER, *ODD[:-2])
    (folder / "memory" / "MEMORY.md").write_text("# Facts\n\n- tea\n")
    (folder / "memory" / "HISTORY.md").write_text(history)
    (folder / "memory" / "2026-02-13.md").write_text("# Friday\n- tea\n")
    assert take_in() == []
    written = export(folder, owner, agent)
    assert records(written) == [header, *WEATHER, *ODD[:-2]]
    del written["sessions/telegram_12345.jsonl"]
    assert written == {
        "memory/MEMORY.md": b"# Facts\n\n- tea\n",
        "memory/HISTORY.md": history.encode(),
        "memory/2026-02-13.md": b"# Friday\n- tea\n",
    }


def test_the_count_goes_on_when_the_conversation_does(folder, take_in, owner, agent):
    write(folder, HEADER | {"last_consolidated": 3}, *WEATHER)
    take_in()
    Conversation.objects.update(consolidated_through=4)
    assert records(export(folder, owner, agent))[0]["last_consolidated"] == 4


@pytest.fixture
def lived(conversation: Conversation, fill: Any, say: Any, tool_settings: Any) -> Conversation:
    """A conversation with all that there is in one: calls, commands, summaries, a new beginning, a state."""
    tool_settings("echo")
    fill(30, words="Remember word")
    settle([say(script({"call": [{"name": "echo", "arguments": {"value": 1}}]}, {"say": "{results}"}))])
    fill(30, words="Remember word")
    settle([say("One more.")])
    run_last()
    settle([say("/new")])
    settle([say("/help"), say("Hello again.")])
    Conversation.objects.filter(pk=conversation.pk).update(
        state={"step": 3}, state_times={"step": "2026-03-01T12:00:00+00:00"}, metadata={"nanobot": 5, "mine": [1.5]}
    )
    log.note(agent="default", owner_id=conversation.owner_id, text="tea\nat five", today=date(2026, 3, 1))
    at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    log.append(agent="default", owner_id=conversation.owner_id, content="USER: hi", kind="raw", happened_at=at)
    inbox.receive(Incoming("waits in the inbox"), conversation=conversation, request_id="request-2")
    return Conversation.objects.get(pk=conversation.pk)


def of(owner: Any) -> list[Any]:
    """What matters of all that an owner has."""
    conversations = Conversation.objects.filter(owner=owner)
    pointers = ("key", "next_seq", "starts_at_seq", "consolidated_through", "summary_seq", "state", "metadata")
    pointers += ("state_times",)
    messages = Message.objects.filter(conversation__owner=owner, seq__isnull=False).order_by("conversation__key", "seq")
    fields = ("seq", "role", "type", "kind", "content", "tool_calls", "tool_call_id", "tool_name", "metadata")
    log = HistoryEntry.objects.filter(owner=owner).order_by("happened_at", "pk")
    return [
        list(conversations.order_by("key").values(*pointers, "created_at", "updated_at")),
        list(messages.values(*fields, "created_at")),
        list(Memory.objects.filter(owner=owner).values_list("agent", "content")),
        sorted(((row.kind, row.day, row.content.split()) for row in log), key=lambda entry: entry[0]),
    ]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_an_export_makes_the_same_rows_where_there_are_none_and_the_same_bytes(
    lived, folder, take_in, agent, outsider, settings, zone
):
    settings.TIME_ZONE = zone
    owner = lived.owner
    sessions.export_folder(folder / "out", owner_id=owner.pk, agent=agent, force=False)
    assert take_in(folder=folder / "out", owner_id=outsider.pk) == []
    assert of(outsider) == of(owner)
    assert Message.objects.filter(conversation__owner=outsider, kind="rolling").exists()
    assert Conversation.objects.get(owner=outsider).starts_at_seq > 1
    assert export(folder, outsider, agent) == files(folder / "out")


def summaries(client, owner, conversation):
    """What the API lists."""
    _, secret = ApiKey.objects.issue(owner=owner)
    address = f"/api/v1/conversations/{conversation.pk}/summaries"
    return client.get(address, headers={"Authorization": f"Bearer {secret}"}).json()["results"]


def test_summaries_that_were_taken_in_are_listed_like_those_that_were_made_here(
    lived, folder, take_in, agent, outsider, client
):
    sessions.export_folder(folder / "out", owner_id=lived.owner_id, agent=agent, force=False)
    take_in(folder=folder / "out", owner_id=outsider.pk)
    here = summaries(client, lived.owner, lived)
    there = summaries(client, outsider, Conversation.objects.get(owner=outsider))
    assert here
    assert [(each["seq"], each["content"]) for each in there] == [(each["seq"], each["content"]) for each in here]
    assert {(each["fromSeq"], each["throughSeq"], each["model"]) for each in there} == {(None, None, None)}
    before = list(Compaction.objects.order_by("pk").values())
    take_in(folder=folder / "out", owner_id=outsider.pk)
    assert list(Compaction.objects.order_by("pk").values()) == before


def test_an_export_that_comes_back_changes_nothing(lived, folder, take_in, agent):
    sessions.export_folder(folder / "out", owner_id=lived.owner_id, agent=agent, force=False)
    before = everything()
    assert take_in(folder=folder / "out") == []
    assert everything() == before


def test_an_export_has_what_one_owner_has_with_one_agent(folder, take_in, owner, outsider, agent):
    write(folder, HEADER, *WEATHER)
    (folder / "memory" / "MEMORY.md").write_text("- tea")
    (folder / "memory" / "HISTORY.md").write_text("[2026-03-10 14:30] Tea.")
    (folder / "memory" / "2026-02-13.md").write_text("- tea")
    take_in()
    assert len(export(folder, owner, agent)) == 4
    assert export(folder, outsider, agent) == {}
    assert export(folder, owner, AgentFactory(name="other")) == {}


def test_a_folder_with_something_in_it_is_not_written_to(folder, owner, agent):
    write(folder, HEADER)
    with pytest.raises(FolderInUse):
        sessions.export_folder(folder, owner_id=owner.pk, agent=agent, force=False)
    sessions.export_folder(folder, owner_id=owner.pk, agent=agent, force=True)


def test_what_comes_in_while_an_export_writes_is_left_for_the_next(folder, take_in, owner, agent):
    """A named pipe holds the export in the first of two conversations, when it has both their rows."""
    write(folder, HEADER, *[say("user", "words " * 100)] * 300)
    write(folder, HEADER | {"key": "a:b", "created_at": "2026-03-02T10:00:00"}, say("user", "one"), name="a_b")
    take_in()
    out = folder / "out"
    (out / "sessions").mkdir(parents=True)
    os.mkfifo(out / "sessions" / "telegram_12345.jsonl")

    def write_all() -> None:
        sessions.export_folder(out, owner_id=owner.pk, agent=agent, force=True)
        connection.close()

    exporting = threading.Thread(target=write_all)
    exporting.start()
    with (out / "sessions" / "telegram_12345.jsonl").open() as pipe:
        pipe.read(1)
        write(
            folder, HEADER | {"key": "a:b", "last_consolidated": 2}, say("user", "one"), say("user", "two"), name="a_b"
        )
        take_in()
        pipe.read()
    exporting.join()
    header, *written = records(files(out), "a_b")
    assert (header["last_consolidated"], [line["content"] for line in written]) == (0, ["one"])


def test_what_is_written_is_for_its_owner_alone(lived, tmp_path, agent):
    sessions.export_folder(tmp_path / "a" / "b", owner_id=lived.owner_id, agent=agent, force=False)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o77 == 0


# --- as they came --------------------------------------------------------------------------------------------------

_HEAD = json.dumps(HEADER).encode()
_SAID = b'{"role": "user", "content": "Hello", "timestamp": "2026-03-15T14:30:00"}'

AS_THEY_CAME = {
    "nanobot's own": b"\n".join([_HEAD, *(json.dumps(each, ensure_ascii=False).encode() for each in WEATHER), b""]),
    "another order": _HEAD + b'\n{"timestamp": "2026-03-15T14:30:00", "content": "Hello", "role": "user"}\n',
    "numbers": _HEAD + b'\n{"role": "user", "content": "x", "n": [1.0, 1e3, -0.0, 1E+16, 123456789012345678901]}\n',
    "no times": _HEAD + b'\n{"role": "user", "content": "x"}\n{"role": "assistant", "content": "y"}\n',
    "no content": _HEAD + b'\n{"role": "assistant"}\n',
    "blanks": b" " + _HEAD + b'  \n{ "role":"user",\t"content" : "x" }\n',
    "escapes": _HEAD + b'\n{"role": "user", "content": "\\u00e9 \\ud83d\\ude00 \\/ \\u0000 \\ud83d"}\n',
    "names twice": _HEAD + b'\n{"role": "user", "content": "one", "content": "two"}\n',
    "empty lines": b"\n" + _HEAD + b"\n\n \t\n" + _SAID + b"\n\n" + _SAID + b"\n\n\n",
    "CRLF": _HEAD + b"\r\n" + _SAID + b"\r\n\r\n" + _SAID + b"\r\n",
    "no end": _HEAD + b"\n" + _SAID + b"\n" + _SAID,
    "a mark at the beginning": b"\xef\xbb\xbf" + _HEAD + b"\n" + _SAID + b"\n",
    "no messages": _HEAD,
    "another header": b'{"last_consolidated": 1, "key": "telegram:12345", "x": 1.0, "_type": "metadata"}\n'
    + _SAID
    + b"\n",
    "times in other words": _HEAD.replace(b"10:00:00", b"10:00")
    + b"\n"
    + _SAID.replace(b"T14:30:00", b" 14:30")
    + b"\n",
    "what is left out": b"\n".join([_HEAD, b"broken", _SAID, b"\xff\x00", b'{"role": "developer"}', _SAID, b"[7]"]),
    "no header": _SAID + b"\n",
}


@pytest.mark.parametrize("raw", AS_THEY_CAME.values(), ids=AS_THEY_CAME.keys())
def test_a_file_that_nobody_touched_goes_out_byte_by_byte(folder, take_in, owner, agent, raw):
    path = folder / "sessions" / "telegram_12345.jsonl"
    path.write_bytes(raw)
    take_in()
    assert export(folder, owner, agent) == {"sessions/telegram_12345.jsonl": raw}
    before = everything()
    take_in()
    assert everything() == before
    assert export(folder, owner, agent) == {"sessions/telegram_12345.jsonl": raw}


def test_nanobots_own_lines_are_not_kept_twice(folder, take_in):
    (folder / "sessions" / "telegram_12345.jsonl").write_bytes(AS_THEY_CAME["nanobot's own"])
    take_in()
    assert not Message.objects.exclude(metadata=None).exists()


def test_what_has_gone_on_begins_as_it_came(folder, take_in, owner, agent):
    raw = AS_THEY_CAME["what is left out"] + b"\n" + AS_THEY_CAME["another order"].partition(b"\n")[2].rstrip()
    (folder / "sessions" / "telegram_12345.jsonl").write_bytes(raw)
    take_in()
    settle([inbox.receive(Incoming("Go on"), conversation=Conversation.objects.get(), request_id="request-1")])
    (written,) = export(folder, owner, agent).values()
    header, *lines = written.split(b"\n")
    assert json.loads(header)["updated_at"] > HEADER["updated_at"]
    # What was left out is not counted by the new header.
    assert lines[:3] == [_SAID, _SAID, raw.split(b"\n")[-1]]
    assert [json.loads(line)["role"] for line in lines[3:-1]] == ["user", "assistant"]


def test_a_file_that_has_grown_goes_out_as_it_is_then(folder, take_in, owner, agent):
    path = folder / "sessions" / "telegram_12345.jsonl"
    for name in ("no end", "empty lines"):
        Conversation.objects.all().delete()
        path.write_bytes(AS_THEY_CAME[name])
        take_in()
        grown = AS_THEY_CAME[name] + (b"" if name == "empty lines" else b"\n") + b'{"content": "more", "role": "user"}'
        path.write_bytes(grown)
        assert take_in() == []
        assert export(folder, owner, agent) == {"sessions/telegram_12345.jsonl": grown}


def test_in_another_zone_times_are_written_anew(folder, take_in, owner, agent, settings):
    (folder / "sessions" / "telegram_12345.jsonl").write_bytes(AS_THEY_CAME["another order"])
    take_in()
    settings.TIME_ZONE = "Europe/Berlin"
    header, line = records(export(folder, owner, agent))
    assert (header["created_at"], line["timestamp"]) == ("2026-03-01T11:00:00", "2026-03-15T15:30:00")


def test_what_is_larger_than_is_kept_is_written_anew(folder, take_in, owner, agent):
    line = b'{"content": "%s", "role": "user", "timestamp": "2026-03-15T14:30:00"}\n' % (b"x" * MAX_KEPT)
    (folder / "sessions" / "telegram_12345.jsonl").write_bytes(
        _HEAD + b"\n" + line + _SAID + b"\n" + b"y" * MAX_KEPT * 2
    )
    take_in()
    _, first, second = records(export(folder, owner, agent))
    assert (first, second) == (json.loads(line), json.loads(_SAID))
    assert not Message.objects.exclude(metadata=None).exists()


def test_entries_with_equal_texts_in_a_minute_are_as_many_as_came(folder, take_in, owner, agent):
    history = "".join(entry_as_text("2026-03-10 14:30", text) for text in ("Tea.", "Milk.", "Tea.", "Tea."))
    for _ in range(2):
        (folder / "memory" / "HISTORY.md").write_text(history)
        assert take_in() == []
        assert export(folder, owner, agent) == {"memory/HISTORY.md": history.encode()}
    (folder / "memory" / "HISTORY.md").write_text(history + entry_as_text("2026-03-10 14:30", "Tea."))
    take_in()
    assert HistoryEntry.objects.count() == 5


def test_an_entry_that_a_model_gave_its_own_time_has_one_stamp(folder, take_in, owner, agent):
    at = datetime(2026, 3, 10, 14, 30, tzinfo=UTC)
    whose = {"agent": "default", "owner_id": owner.pk, "happened_at": at}
    log.append(**whose, content="[2026-03-10 14:31] They spoke.", model="gpt-4.1-mini")
    written = export(folder, owner, agent)
    assert written == {"memory/HISTORY.md": b"[2026-03-10 14:30] They spoke.\n\n"}
    (folder / "memory" / "HISTORY.md").write_bytes(written["memory/HISTORY.md"])
    assert take_in() == []
    assert HistoryEntry.objects.count() == 1


# --- documents of the workspace ------------------------------------------------------------------------------------


@pytest.fixture
def workspace(folder):
    """What people write for nanobot."""
    (folder / "workspace").mkdir()
    (folder / "workspace" / "SOUL.md").write_bytes(b"# Soul\r\n\nYou are patient.\n")
    (folder / "workspace" / "HEARTBEAT.md").write_text("- [ ] water the roses\n")
    (folder / "workspace" / "USER.md").write_text(" \n")
    return folder / "workspace"


def test_documents_are_taken_into_the_agent_as_a_version(workspace, take_in, agent, owner, folder):
    assert take_in(with_documents=True) == []
    agent.refresh_from_db()
    assert agent.documents == {"SOUL": "# Soul\r\n\nYou are patient.\n", "HEARTBEAT": "- [ ] water the roses\n"}
    made = AgentVersion.objects.filter(made_by="import_sessions").order_by("number")
    assert [version.changed for version in made] == ["SOUL", "HEARTBEAT"]
    written = export(folder, owner, agent)
    assert written == {name: (workspace / name).read_bytes() for name in ("SOUL.md", "HEARTBEAT.md")}
    assert take_in(with_documents=True) == take_in() == []
    assert AgentVersion.objects.filter(made_by="import_sessions").count() == 2


def test_each_kind_of_document_is_taken_in_and_written_as_it_was(workspace, take_in, agent, owner, folder):
    texts = {name: f"# {name}\r\n\nÄ {name}.\n" for name in DOCUMENTS}
    for name, text in texts.items():
        (workspace / f"{name}.md").write_bytes(text.encode())
    assert take_in(with_documents=True) == []
    agent.refresh_from_db()
    assert agent.documents == texts
    assert export(folder, owner, agent) == {f"{name}.md": text.encode() for name, text in texts.items()}


def test_without_an_agent_documents_are_reported(workspace, take_in, agent):
    why = "it is a document of an agent; name one with --agent to have it taken in"
    assert take_in() == [f"workspace/SOUL.md: {why}", f"workspace/HEARTBEAT.md: {why}"]
    agent.refresh_from_db()
    assert agent.documents == {}


def test_what_people_wrote_into_the_agent_stays(workspace, take_in, agent):
    take_in(with_documents=True)
    (workspace / "SOUL.md").write_text("You are quick.")
    assert take_in(with_documents=True) == []
    agent.refresh_from_db()
    assert agent.documents["SOUL"] == "You are quick."
    agent.documents = agent.documents | {"SOUL": "You are calm."}
    agent.save_version(by="anna")
    assert take_in(with_documents=True) == [
        "workspace/SOUL.md: the agent default has another SOUL, which people wrote: it is left as it is"
    ]
    agent.refresh_from_db()
    assert agent.documents["SOUL"] == "You are calm."


def test_documents_that_are_no_such_are_reported(workspace, take_in, agent):
    (workspace / "SOUL.md").write_text("x" * 40_001)
    (workspace / "AGENTS.md").write_bytes(b"\xff sk-abcdefghijklmnop0123")
    told = take_in(with_documents=True)
    assert told == [
        "workspace/AGENTS.md:1: what is no UTF-8 in it is replaced",
        "workspace/SOUL.md: SOUL has 40001 characters; 40000 are allowed. It is left out",
    ]
    agent.refresh_from_db()
    assert "SOUL" not in agent.documents
    assert "sk-abc" not in agent.documents["AGENTS"]


def test_a_dry_run_changes_no_agent(workspace, take_in, agent):
    assert take_in(with_documents=True, dry_run=True) == []
    agent.refresh_from_db()
    assert (agent.documents, agent.version) == ({}, 1)


def test_the_command_takes_documents_in_if_an_agent_is_named(workspace, folder, owner, agent, capsys):
    with pytest.raises(CommandError, match=r"Reported above: 2\."):
        call_command("import_sessions", folder, "--owner", "owner")
    call_command("import_sessions", folder, "--owner", "owner", "--agent", "default")
    assert capsys.readouterr().out.splitlines()[-1] == "documents of the agent: 2"


# --- the commands --------------------------------------------------------------------------------------------------


def test_the_commands_tell_what_they_did(folder, owner, agent, tmp_path_factory, capsys):
    out = tmp_path_factory.mktemp("out")
    write(folder, HEADER, *WEATHER)
    (folder / "memory" / "2026-02-13.md").write_text("- tea\n")
    call_command("import_sessions", folder, "--owner", "owner", "--dry-run")
    call_command("import_sessions", folder, "--owner", "owner")
    call_command("export_sessions", out, "--owner", "owner", "--agent", "default")
    call_command("import_sessions", out, "--owner", "owner")
    assert capsys.readouterr().out.splitlines() == [
        "conversations made: 1, messages: 4, notes: 1; nothing of it was stored",
        "conversations made: 1, messages: 4, notes: 1",
        "conversations: 1, messages: 4, notes: 1",
        "conversations as they were: 1",
    ]


def test_what_is_wrong_is_told_and_makes_the_command_fail(folder, owner, agent, capsys):
    path = write(folder, HEADER, *WEATHER, b"broken")
    with pytest.raises(CommandError, match=r"^Reported above: 1\.$") as failed:
        call_command("import_sessions", folder, "--owner", "owner")
    assert failed.value.returncode == 1
    printed = capsys.readouterr()
    assert printed.err == f"{path}:6: this is no JSON: Expecting value (character 1); it is left out\n"
    assert printed.out == "conversations made: 1, messages: 4\n"


@pytest.mark.parametrize(
    ("command", "where", "options", "what"),
    [
        ("import_sessions", "", ["--owner", "nobody"], "There is no user named 'nobody'."),
        ("import_sessions", "", ["--owner", "owner", "--agent", "\0"], "There is no agent named '\\x00'."),
        ("import_sessions", "nowhere", ["--owner", "owner"], "There is no folder {folder}/nowhere."),
        ("export_sessions", "", ["--owner", "nobody"], "There is no user named 'nobody'."),
        ("export_sessions", "", ["--owner", "owner"], "There is something in {folder}; --force writes into it"),
        ("export_sessions", "file/in", ["--owner", "owner"], "{folder}/file/in: Not a directory"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(folder, owner, agent, command, where, options, what):
    (folder / "file").touch()
    with pytest.raises(CommandError) as refused:
        call_command(command, folder / where, *options)
    assert str(refused.value).startswith(what.format(folder=folder))


def test_the_page_has_the_options_of_both_commands():
    page = (ROOT / "docs" / "import.md").read_text()
    assert "(docs/import.md)" in (ROOT / "README.md").read_text()
    for name in ("import_sessions", "export_sessions"):
        everybodys = BaseCommand().create_parser("", "")._option_string_actions.keys()
        parser = load_command_class("conversations", name).create_parser("", "")
        (usage,) = re.findall(rf"^manage\.py {name} (.*)$", page, re.MULTILINE)
        assert parser._option_string_actions.keys() - everybodys == set(re.findall(r"--[a-z-]+", usage))


def test_a_folder_without_any_of_the_files_is_told(folder, take_in):
    assert take_in() == [f"{folder}: there is none of nanobot's files here"]


@pytest.mark.parametrize("place", ["", "sessions", "workspace", "workspace/sessions"])
def test_sessions_are_found_where_nanobot_has_them(folder, take_in, place):
    (folder / "sessions").rmdir()
    where = folder / "workspace"
    (where / "sessions").mkdir(parents=True)
    write(where, HEADER, *WEATHER)
    if place in ("", "sessions"):
        (where / "sessions").rename(folder / "sessions")
    assert take_in(folder=folder / place) == []
    assert Conversation.objects.exists()


@pytest.mark.parametrize("place", ["", "workspace", "workspace/memory"])
def test_memory_is_found_where_nanobot_has_it(folder, take_in, place):
    (folder / "workspace").mkdir()
    (folder / "memory").rename(folder / "workspace" / "memory")
    (folder / "workspace" / "memory" / "MEMORY.md").write_text("- tea")
    assert take_in(folder=folder / place) == []
    assert Memory.objects.get().content == "- tea"


# --- any values ----------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text() | values,
            "function": st.fixed_dictionaries({"name": st.text(), "arguments": values}) | values,
        },
        optional={"type": st.just("function")},
    )
    | values
)
times = st.datetimes(timezones=st.none() | st.just(UTC)).map(datetime.isoformat) | values
lines = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": st.text() | values,
        "timestamp": times,
        "tool_calls": calls | values,
        "tool_call_id": st.text() | values,
        "name": st.text() | values,
        "nanohost": values | st.fixed_dictionaries({"kind": st.sampled_from(["rolling", "daily", "command", ""])}),
        "reasoning_content": values,
    },
)
headers = st.fixed_dictionaries(
    {"_type": st.just("metadata"), "key": st.text(min_size=1, max_size=255).filter(lambda key: "\0" not in key)},
    optional={
        "created_at": st.datetimes(datetime(2, 2, 1), datetime(9998, 11, 30)).map(datetime.isoformat),
        "metadata": values | st.dictionaries(st.sampled_from(["nanobot", "mine"]), values),
        "last_consolidated": st.integers(0, 9),
        "version": values,
    },
)
as_they_come = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_the_columns(message: Message) -> None:
    """What readers of a transcript rely on."""
    assert isinstance(message.content, str)
    assert max(len(message.tool_call_id), len(message.tool_name)) <= 128
    for call in message.tool_calls or ():
        assert call.keys() == {"id", "type", "function"}
        assert call["id"]
        assert len(call["id"]) <= 128
        assert isinstance(call["function"]["name"], str)
        assert isinstance(call["function"]["arguments"], str)


@shapeless
@given(lines)
def test_whatever_a_line_says_the_message_says_too(line):
    record = record_in(json.dumps(line).encode())
    message = message_of(record, before=datetime.now(UTC), zone=UTC)
    in_the_columns(message)
    assert record_of(message, zone=UTC).items() >= record.items()
    assert record_in(as_line(record).encode()) == record


@shapeless
def test_a_line_is_written_in_one_order_whatever_the_databases_is():
    record = {"timestamp": "t", "nested": [{"b": 1, "a": 2}], "content": "x", "role": "user"}
    assert as_line(record) == '{"role": "user", "content": "x", "nested": [{"a": 2, "b": 1}], "timestamp": "t"}\n'


@shapeless
@given(headers)
def test_whatever_a_metadata_record_says_the_conversation_says_too(line):
    record = record_in(json.dumps(line).encode())
    header = header_in(record, line=1, stem="", zone=UTC)
    at = header.created_at or datetime.now(UTC)
    conversation = Conversation(key=header.key, metadata=header.kept(), created_at=at, updated_at=at)
    conversation.consolidated_through = header.consolidated
    assert header_of(conversation, zone=UTC).items() >= record.items()


@as_they_come
@given(headers, st.lists(lines, max_size=8))
@example(HEADER, [say("user", -0.0, extra=[1e16, 1e308, 5e-324, 0.1, 10**30, True, 1.0])])
def test_whatever_a_session_says_goes_in_once_and_comes_out(owner, agent, header, said):
    told: list[str] = []
    options = {"owner_id": owner.pk, "agent": agent, "dry_run": False, "report": told.append}
    with tempfile.TemporaryDirectory() as name, transaction.atomic():
        first, second, third = (Path(name) / each for each in ("1", "2", "3"))
        (first / "sessions").mkdir(parents=True)
        write(first, header, *said)
        sessions.import_folder(first, **options)
        rows = everything()
        sessions.export_folder(second, owner_id=owner.pk, agent=agent, force=False)
        for folder in (first, second):
            sessions.import_folder(folder, **options)
            assert everything() == rows
        Conversation.objects.all().delete()
        sessions.import_folder(second, **options)
        sessions.export_folder(third, owner_id=owner.pk, agent=agent, force=False)
        assert files(third) == files(second)
        written = [record_in(line) for line in b"".join(files(third).values()).split(b"\n") if line]
        transaction.set_rollback(True)
    for line, out in zip(said, written[1:], strict=True):
        assert out.items() >= record_in(json.dumps(line).encode()).items()


spellings = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(", ", ": "), (",", ":"), (" ,", " : ")]),
        "sort_keys": st.booleans(),
    }
)


@as_they_come
@given(headers, st.lists(lines, max_size=6), spellings, st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans())
def test_whatever_a_session_says_goes_out_as_it_came(owner, agent, header, said, how, end, is_ended):
    text = end.join(json.dumps(each, **how) for each in (header, *said)) + (end if is_ended else "")
    raw = text.encode(errors="replace")
    options = {"owner_id": owner.pk, "agent": agent, "dry_run": False, "report": lambda line: None}
    with tempfile.TemporaryDirectory() as name, transaction.atomic():
        folder = Path(name)
        (folder / "sessions").mkdir()
        (folder / "sessions" / "a.jsonl").write_bytes(raw)
        sessions.import_folder(folder, **options)
        written = export(folder, owner, agent)
        transaction.set_rollback(True)
    assert list(written.values()) == [raw]


@shapeless
@given(st.lists(st.text(max_size=300) | st.text("ab_:/.%~", max_size=8), max_size=8, unique=True))
@example(
    ["a:b_c", "a_b:c", "a:b:c", "a_b_c", "a:b%5Fc", "..", ".", "/etc/passwd", "../x", "x" * 255, "é" * 255, "é" * 254]
)
def test_each_key_has_a_file_of_its_own_within_the_folder(keys):
    keys = [key.encode(errors="replace").decode() for key in keys]
    names = {file_name(key) for key in keys}
    assert len(names) == len(set(keys))
    for name in names:
        assert "/" not in name
        assert "\0" not in name
        assert len(name.encode()) < 255
        assert (Path("sessions") / name).parent == Path("sessions")


@shapeless
@pytest.mark.parametrize(
    ("key", "name"),
    [("telegram:12345", "telegram_12345"), ("slack:C1_9.5", "slack_C1_9.5"), ("slack:C1:9.5", "slack_C1%3A9.5")],
)
def test_a_usual_key_has_nanobots_name(key, name):
    assert file_name(key) == f"{name}.jsonl"


texts = (
    st.text()
    | st.text("[]a \n\r\t")
    | st.lists(st.sampled_from(["", " ", "[2026-03-10 14:30] x", " [2026-03-10 14:30]", "words", "\r"])).map("\n".join)
)


@shapeless
@given(st.lists(texts, max_size=5))
def test_whatever_an_entry_says_it_comes_back(contents):
    contents = [content for content in map(plain, contents) if content]
    written = "".join(entry_as_text("2026-03-10 14:30", content) for content in contents)
    found = [(stamp, text) for _, stamp, text in entries_in(written.split("\n"))]
    assert found == [("2026-03-10 14:30", content) for content in contents]


@shapeless
@given(texts)
def test_a_note_is_one_line(content):
    line = as_one_line(content)
    assert "\n" not in line
    assert as_one_line(line) == line


@shapeless
@given(
    st.datetimes(min_value=datetime(2, 2, 1), max_value=datetime(9998, 11, 30)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
@example(datetime(2026, 10, 25, 1, 30), "Europe/Berlin")
@example(datetime(2026, 10, 25, 0, 30), "Europe/Berlin")
def test_a_time_that_is_written_is_the_same_when_it_is_read(at, zone):
    at, zone = at.replace(tzinfo=UTC), ZoneInfo(zone)
    assert time_in(time_as_text(at, zone), zone) == at
    minute = time_in(time_as_text(at, zone, sep=" ", timespec="minutes"), zone)
    assert timedelta() <= at - minute < timedelta(minutes=1)


@shapeless
@pytest.mark.parametrize(
    "text", ["", "noon", "2026-02-30", "0001-01-01T00:00:00", "9999-12-31T23:59:59", None, 7, True]
)
def test_what_is_no_time(text):
    assert time_in(text, timezone(timedelta(hours=14))) is None
