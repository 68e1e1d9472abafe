"""What an agent remembers by its tools: through the gate, for the owner and the agent it works for, and nobody else."""

import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from memory import documents, log
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.support import tool_calls
from tools import registry
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS = ("remember", "recall_history", "daily_note")


@pytest.fixture
def use(tool_settings, owner):
    """``use("remember", fact="…")``: the call, as it ended."""
    tool_settings(*TOOLS)

    def ask_and_run(name, **options):
        return tool_calls.run_in_thread(tool_calls.ask(name, **{"owner_id": owner.pk} | options))

    return ask_and_run


def known(owner, agent="default"):
    return documents.background(agent=agent, owner_id=owner.pk, today=timezone.localdate())


@pytest.fixture
def know(owner):
    def write(content):
        documents.rewrite(agent="default", owner_id=owner.pk, base=0, content=content, source="person", checked=False)

    return write


def test_they_run_inline_and_wait_for_permission(db, owner):
    assert [(registry.get(name).inline, registry.get(name).effects) for name in TOOLS] == [
        (True, "rows"),
        (True, "read"),
        (True, "rows"),
    ]
    assert [tool_calls.ask(name, owner_id=owner.pk).rule for name in TOOLS] == ["not_enabled"] * 3
    for name in TOOLS:
        assert "caller" not in registry.get(name).schema["properties"]


# --- remember ----------------------------------------------------------------------------------------------------


def test_a_fact_is_a_new_line_with_where_it_came_from(use, owner):
    first = use("remember", fact="Takes tea\nwithout milk. ")
    use("remember", fact="Lives in Rome.")
    assert (first.status, first.result) == (CallStatus.SUCCESS, "Remembered.")
    assert known(owner).content == "- Takes tea without milk.\n- Lives in Rome."
    version = MemoryVersion.objects.get(number=1)
    assert (version.source, version.base) == ("remember", 0)
    assert (version.turn_id, version.conversation_id) == (first.turn_id, first.conversation_id)


def test_a_fact_that_is_known_is_no_new_version(use, owner, know):
    know("- Lives in Rome.\n  * Takes tea.")
    assert use("remember", fact="Lives in Rome.").result == "This was known already."
    assert use("remember", fact="Takes tea.").result == "This was known already."
    assert known(owner).version == 1


@pytest.mark.parametrize("part", ["milk", "  MILK", "- Takes tea with milk"])
def test_a_fact_takes_the_place_of_the_line_that_is_named(use, owner, know, part):
    know("# Tastes\n- Takes tea with milk.\n- Likes jazz.")
    assert use("remember", fact="Takes tea without sugar.", replaces=part).status == CallStatus.SUCCESS
    assert known(owner).content == "# Tastes\n- Takes tea without sugar.\n- Likes jazz."


def test_a_line_that_nobody_or_several_are_meant_by_is_not_replaced(use, owner, know):
    know("- Takes tea.\n- Likes tea.\n- Likes jazz.")
    none, several = (use("remember", fact="Likes snow.", replaces=part) for part in ("coffee", "tea"))
    assert none.status == several.status == CallStatus.FAILED
    assert none.result == 'FAILED: No line of the long-term memory contains "coffee". Nothing was changed.'
    assert several.result.startswith(
        'FAILED: 2 lines of the long-term memory contain "tea", such as "- Takes tea." and'
    )
    assert known(owner).version == 1


def test_what_is_full_takes_no_more_but_lines_can_be_replaced(use, owner, know, settings):
    settings.MEMORY_MAX_CHARS = 100
    know("- " + "x" * 60 + "\n- Lives in Rome.")
    refused = use("remember", fact="y" * 40)
    assert refused.status == CallStatus.FAILED
    assert "is full: it has 79 characters, of 100. Replace a line that matters less" in refused.result
    assert use("remember", fact="y" * 40, replaces="xxx").status == CallStatus.SUCCESS
    settings.MEMORY_MAX_CHARS = 40  # lowered since
    assert use("remember", fact="y" * 39, replaces="yyy").status == CallStatus.SUCCESS
    settings.MEMORY_MAX_CHARS = 10
    refused = use("remember", fact="y" * 38, replaces="yyy")
    assert refused.result == "FAILED: It has 57 characters; 20 is the most a memory may have."


@pytest.mark.parametrize("fact", ["", "  \n"])
def test_nothing_is_not_remembered(use, owner, fact):
    assert use("remember", fact=fact).result == "FAILED: There is nothing to remember: the fact is empty."
    assert use("daily_note", text=fact).result == "FAILED: There is nothing to note: the text is empty."
    assert not Memory.objects.exists()


def test_facts_that_are_remembered_at_once_are_all_there(use, owner):
    asked = [tool_calls.ask("remember", owner_id=owner.pk, fact=f"Fact {number}.") for number in range(6)]
    ready = threading.Barrier(6)

    def race(call):
        ready.wait(20)
        tool_calls.run_in_thread(call)

    racers = [threading.Thread(target=race, args=(call,)) for call in asked]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(known(owner).content.splitlines()) == [f"- Fact {number}." for number in range(6)]
    assert known(owner).version == MemoryVersion.objects.count() == 6


def test_a_secret_is_not_remembered(use, owner):
    use("remember", fact="The key is sk-abcdefghijklmnop0123.")
    use("daily_note", text="The key is sk-abcdefghijklmnop0123.")
    assert known(owner).content == "- The key is [redacted]."
    assert known(owner).notes == "The key is [redacted]."


# --- recall_history and daily_note -------------------------------------------------------------------------------


def test_what_is_found_says_when_and_where(use, owner, settings):
    at, conversation = datetime(2026, 3, 10, 12, tzinfo=UTC), new_id()
    where = {"conversation_id": conversation, "first_seq": 3, "last_seq": 9}
    until = at + timedelta(minutes=5)
    told = {"agent": "default", "owner_id": owner.pk}
    log.append(content="It rained in Rome.", happened_at=at, happened_until=until, **where, **told)
    log.append(content="Rain " + "x" * 5000, happened_at=at - timedelta(days=1), **told)
    first, second = use("recall_history", query="rain").result.split("\n\n")
    assert (
        first
        == f"[2026-03-10 12:00 to 2026-03-10 12:05, conversation {conversation}, messages 3 to 9]\nIt rained in Rome."
    )
    assert second == "[2026-03-09 12:00]\nRain " + "x" * 2995 + "…"
    assert use("recall_history", query="rain", limit=1).result == first


@pytest.mark.parametrize("query", ["snow", "", "' OR 1=1 --"])
def test_what_is_not_there_is_not_found(use, owner, query):
    assert (call := use("recall_history", query=query)).status == CallStatus.SUCCESS
    assert call.result == "Nothing found."


def test_a_note_is_before_the_agent_today_and_can_be_found(use, owner):
    call = use("daily_note", text="Call Bert at five.")
    assert (call.status, call.result) == (CallStatus.SUCCESS, "Noted for today.")
    assert known(owner).notes == "Call Bert at five."
    assert "Call Bert at five." in use("recall_history", query="bert").result
    entry = HistoryEntry.objects.get()
    assert (entry.turn_id, entry.conversation_id) == (call.turn_id, call.conversation_id)


# --- an attack ---------------------------------------------------------------------------------------------------


def test_what_is_remembered_for_one_owner_no_other_learns(use, owner, outsider):
    use("remember", fact="The safe's code is four words.")
    use("daily_note", text="The safe is open today.")
    ToolCall.objects.update(agent="default")
    for query in ("safe", "the safe's code", f"{owner.pk} safe", "default safe", HistoryEntry.objects.get().words):
        call = use("recall_history", owner_id=outsider.pk, query=query, limit=20)
        assert (call.status, call.result) == (CallStatus.SUCCESS, "Nothing found.")
    assert known(outsider) == documents.Background(version=0, content="", notes="")
    assert known(owner, agent="other") == documents.Background(version=0, content="", notes="")
    stranger = use("remember", owner_id=outsider.pk, fact="It is mine.", replaces="safe")
    assert stranger.result == 'FAILED: No line of the long-term memory contains "safe". Nothing was changed.'
    assert known(owner).content == "- The safe's code is four words."


def test_an_owner_that_is_gone_meanwhile_is_no_longer_remembered(use, owner):
    call = tool_calls.ask("remember", owner_id=owner.pk, fact="Lives in Rome.")
    owner.delete()
    ended = tool_calls.run_in_thread(call)
    assert (ended.status, ended.rule, ended.attempts) == (CallStatus.FAILED, "raised", 1)
    assert not Memory.objects.exists()
    connection.close()


# --- kill -9 -----------------------------------------------------------------------------------------------------

# The first commit is the claim's. Then a note writes its head, an entry and the notes; a fact its head twice, its
# content and a version; and both their outcome and their turn's.
POINTS = [
    *(("daily_note", {"text": "Once."}, f"inside:{nth}") for nth in range(1, 6)),
    *(("remember", {"fact": "Once."}, f"inside:{nth}") for nth in range(1, 7)),
    *(("remember", {"fact": "Once."}, moment) for moment in ("before:1", "after:1", "before:2", "after:2")),
]


@pytest.fixture(scope="module")
def victims(django_db_setup):
    """Where workers die, on this test's database."""
    arguments = [sys.executable, "-m", "tests.faults.calling", str(connection.settings_dict["NAME"])]
    running = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    running.stdin.close()
    assert running.wait(timeout=20) == 0


@pytest.mark.parametrize(("name", "arguments", "point"), POINTS, ids=lambda value: str(value))
def test_a_worker_that_is_killed_leaves_all_of_it_or_nothing(tool_settings, owner, victims, name, arguments, point):
    tool_settings(*TOOLS)
    call = tool_calls.ask(name, owner_id=owner.pk, **arguments)
    moment, nth = point.split(":")
    if moment == "inside" and connection.vendor == "sqlite":  # where the claim's only statement is inside a transaction
        nth = int(nth) + 1
    victims.stdin.write(f"{call.pk} gate.run:{moment}:{nth}\n")
    victims.stdin.flush()
    assert int(victims.stdout.readline()) == -signal.SIGKILL
    call.refresh_from_db()
    committed = point == "after:2"
    claimed = point != "before:1"
    assert call.status == (CallStatus.SUCCESS if committed else CallStatus.RUNNING if claimed else CallStatus.QUEUED)
    assert (MemoryVersion.objects.count() + HistoryEntry.objects.count()) == committed
    ToolCall.objects.filter(status="RUNNING").update(lease_until=from_now(-1))
    assert tool_calls.run(call).status == CallStatus.SUCCESS
    assert MemoryVersion.objects.count() + HistoryEntry.objects.count() == 1
    assert f"{known(owner).content}{known(owner).notes}".removeprefix("- ") == "Once."
