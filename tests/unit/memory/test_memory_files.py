"""The memory as files of the workspace: read, listed, written as new versions, and marked as other memory is."""

import json
import re

import pytest
from django.utils import timezone

from memory import documents, log
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib.errors import Problem
from tests.support.hosts import ROOT
from tests.support.tool_calls import EVERY_TOOL, ask, run
from tools.gate import AgentTools
from tools.models import CallStatus
from tools.workspace import beneath, people

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]

MEMORY = "memory/MEMORY.md"
TAINTED = AgentTools(names=None, tainted_by="the tool http_get", taint="refuse")


@pytest.fixture(autouse=True)
def workspaces(settings, tmp_path, tool_settings):
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    for name in ("read_file", "write_file", "edit_file", "list_dir", "undo_file"):
        tool_settings(name, grants=["FS_READ", "FS_WRITE"])


@pytest.fixture
def use(owner):
    def use(name, *, agent_tools=EVERY_TOOL, owner_id=owner.pk, **arguments):
        return run(ask(name, owner_id=owner_id, agent_tools=agent_tools, **arguments), agent_tools=agent_tools)

    return use


@pytest.fixture
def known(owner):
    return lambda: documents.background(agent="default", owner_id=owner.pk, today=timezone.localdate())


def notes():
    return f"memory/{timezone.localdate()}.md"


def test_the_memory_is_written_read_edited_and_listed_and_each_change_is_a_version(use, known):
    assert use("list_dir").result == "[the folder is empty]"
    assert use("read_file", path=MEMORY).status == CallStatus.FAILED
    call = use("write_file", path="memory//./MEMORY.md", content="- Takes tea.\n- Has a dog.\n")
    assert call.result.startswith("Written: version 1 of the long-term memory.")
    assert use("read_file", path=MEMORY).result == "- Takes tea.\n- Has a dog."
    assert use("edit_file", path=MEMORY, old_text="tea", new_text="coffee").result.startswith("Written: version 2")
    assert known().content == "- Takes coffee.\n- Has a dog."
    assert use("list_dir").result == "memory/"
    assert use("list_dir", path="memory").result == "MEMORY.md\t29"
    versions = MemoryVersion.objects.order_by("number")
    call = versions[1]
    assert [(each.number, each.source) for each in versions] == [(1, "remember"), (2, "remember")]
    assert (call.turn_id is not None, call.conversation_id is not None, call.tainted_by) == (True, True, "")


def test_files_of_the_folder_stand_beside_the_memory(use):
    use("write_file", path="memory/other.txt", content="x")
    use("write_file", path=MEMORY, content="- A fact.")
    assert use("list_dir", path="memory").result == "MEMORY.md\t10\nother.txt\t1"


def test_what_is_written_in_a_tainted_conversation_is_marked_and_taints_who_reads_it(use, known):
    call = use("write_file", path=MEMORY, content="- Said by a page.", agent_tools=TAINTED)
    assert call.status == CallStatus.SUCCESS
    assert MemoryVersion.objects.get().tainted_by == f"conversation {call.conversation_id}"
    assert known().tainted_by
    assert use("read_file", path=MEMORY).tainted_by.startswith("memory, learnt in conversation")
    # What was there may still be in what is written: the mark stays, as with other ways to write it.
    use("edit_file", path=MEMORY, old_text="page", new_text="book")
    assert Memory.objects.get().tainted_by == f"conversation {call.conversation_id}"


def test_notes_of_the_day_are_added_to_and_nothing_else(use, known):
    assert use("write_file", path=notes(), content="It rains.\n").result == "Noted for today: 1 lines."
    assert use("edit_file", path=notes(), old_text="rains.\n", new_text="rains.\n\nIt stops.\n").status == "SUCCESS"
    assert known().notes == "It rains.\nIt stops."
    assert use("read_file", path=notes()).result == "It rains.\nIt stops."
    assert HistoryEntry.objects.filter(kind=log.Kind.NOTE).count() == 2
    for change in ({"old_text": "It rains.", "new_text": "It shone."}, {"old_text": "It stops.\n", "new_text": ""}):
        call = use("edit_file", path=notes(), **change)
        assert (call.status, "only added to" in call.result) == (CallStatus.FAILED, True)
    assert known().notes == "It rains.\nIt stops."
    assert "for today alone" in use("write_file", path="memory/2020-01-01.md", content="Long ago.").result


def test_notes_of_a_tainted_conversation_are_marked(use):
    call = use("write_file", path=notes(), content="A page says so.", agent_tools=TAINTED)
    assert Memory.objects.get().notes_tainted_by == f"conversation {call.conversation_id}"
    assert use("read_file", path=notes()).tainted_by.startswith("memory, learnt in")


def test_a_rewrite_that_loses_much_is_kept_aside_and_one_that_is_too_long_is_refused(use, known, settings):
    facts = "\n".join(f"- Fact {number}: {'abcdefghij'[number] * 8}." for number in range(10))
    use("write_file", path=MEMORY, content=facts)
    assert use("write_file", path=MEMORY, content="- Nothing.").result.startswith("It was kept aside")
    assert known().content == facts
    settings.MEMORY_MAX_CHARS = len(facts)
    call = use("write_file", path=MEMORY, content=f"{facts}\n- One more.")
    assert (call.status, "Shorten" in call.result) == (CallStatus.FAILED, True)
    assert known().content == facts


def test_owners_have_memories_of_their_own_also_where_they_share_a_workspace(use, outsider, settings):
    settings.WORKSPACE_SHARED = True
    use("write_file", path=MEMORY, content="- A secret.")
    assert "There is no" in use("read_file", path=MEMORY, owner_id=outsider.pk).result
    assert use("list_dir", owner_id=outsider.pk).result == "[the folder is empty]"


def test_no_file_is_put_where_the_memory_stands_and_protected_paths_hold(use, owner, settings):
    whose = {"agent": "default", "owner_id": owner.pk, "path": MEMORY}
    for act in (lambda: people.put(content=b"x", **whose), lambda: people.delete(**whose)):
        with pytest.raises(Problem, match="no file, but a document"):
            act()
    assert "no file, but a document" in use("undo_file", path=MEMORY).result
    settings.WORKSPACE_PROTECTED_PATHS = ["memory"]
    assert "protected" in use("write_file", path=MEMORY, content="- A fact.").result
    assert not Memory.objects.filter(version__gt=0).exists()


def test_the_pages_examples_are_what_happens(use):
    page = (ROOT / "docs" / "memory.md").read_text().split("\n## As files\n")[1].split("\n## ")[0]
    examples = re.findall(r"^\| `(\w+) (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    assert len(examples) == 3
    for name, arguments, result in examples:
        call = use(name, **json.loads(arguments))
        assert (call.status, call.result) == (CallStatus.SUCCESS, result.replace("⏎", "\n"))
