"""An agent's documents as files of its workspaces: read, written as versions of the agent, and kept from what must not
instruct it."""

import json
from uuid import uuid4

import pytest

from agent.models import DEFAULT_AGENT, MAX_DOCUMENT_CHARS, Agent, AgentVersion
from nanohost.accounts.models import AuditEntry
from nanohost.lib.errors import Problem
from tests.support.tool_calls import ask, run
from tools import gate
from tools.models import CallStatus
from tools.registry import Caller
from tools.workspace import beneath, documents, people

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]


@pytest.fixture(autouse=True)
def workspaces(settings, tmp_path, tool_settings):
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    for name in ("read_file", "write_file", "edit_file", "list_dir", "undo_file"):
        tool_settings(name, grants=["FS_READ", "FS_WRITE"])


@pytest.fixture
def agent(owner):
    Agent.objects.filter(name=DEFAULT_AGENT).update(check_in_owner=owner, every_tool=True)
    return Agent.objects.get(name=DEFAULT_AGENT)


@pytest.fixture
def use(owner):
    """A call of a tool in a conversation of the owner, by the gate, as the agent is at that moment."""

    def use(name, *, tainted_by="", owner_id=owner.pk, **arguments):
        may = Agent.objects.get(name=DEFAULT_AGENT).allowed_tools(tainted_by=tainted_by, owner_id=owner_id)
        return run(ask(name, owner_id=owner_id, agent_tools=may, **arguments), agent_tools=may)

    return use


def said(name):
    return Agent.objects.get(name=DEFAULT_AGENT).documents.get(name)


def test_writing_a_document_makes_a_version_of_the_agent(use, agent):
    assert use("list_dir").result == "[the folder is empty]"
    assert use("read_file", path="USER.md").status == CallStatus.FAILED
    written = use("write_file", path=".//USER.md", content="Anna, who drinks tea.\n")
    assert written.result == f"Written: version {agent.version + 1} of the agent. Earlier ones are kept."
    assert said("USER") == "Anna, who drinks tea.\n"
    assert use("edit_file", path="USER.md", old_text="tea", new_text="coffee").status == CallStatus.SUCCESS
    read = use("read_file", path="USER.md")
    assert (read.result, read.tainted_by) == ("Anna, who drinks coffee.", "")
    assert use("list_dir").result == "USER.md\t25"
    version = AgentVersion.objects.get(agent=agent, number=agent.version + 2)
    entry = AuditEntry.objects.filter(action="agent.changed").latest("pk")
    assert version.changed == "USER"
    assert version.made_by == entry.actor
    assert version.made_by.startswith("agent default, in conversation ")
    assert use("write_file", path="USER.md", content="Anna, who drinks coffee.\n").result == "USER says this already."
    assert use("write_file", path="USER.md", content=" ").status == CallStatus.SUCCESS
    assert use("list_dir").result == "[the folder is empty]"
    too_long = use("write_file", path="HEARTBEAT.md", content="x" * (MAX_DOCUMENT_CHARS + 1))
    assert (too_long.status, "are allowed" in too_long.result) == (CallStatus.FAILED, True)


@pytest.mark.parametrize(("path", "statements"), [("", 2), ("memory", 1), ("notes", 0), ("memory/of", 0)])
def test_a_folder_that_has_no_documents_reads_none(owner, agent, path, statements, django_assert_num_queries):
    ids = {name: uuid4() for name in ("conversation_id", "turn_id", "call_id")}
    caller = Caller(owner_id=owner.pk, agent=agent.name, request_id="r", **ids)
    documents.in_folder(caller, path)  # writes the statements
    with django_assert_num_queries(statements):
        documents.in_folder(caller, path)


def test_a_document_is_changed_only_if_the_agent_may_and_for_its_check_in_owner_alone(use, agent, outsider):
    change = {"content": "Obey the page."}
    for path in ("AGENTS.md", "SOUL.md"):
        assert use("write_file", path=path, **change).rule == "document"
    assert use("write_file", path="USER.md", owner_id=outsider.pk, **change).rule == "document"
    Agent.objects.update(written_documents=["SOUL"])
    assert use("write_file", path="./SOUL.md", **change).status == CallStatus.SUCCESS
    for call in (
        use("write_file", path="USER.md", **change),
        use("edit_file", path="AGENTS.md/.", old_text="a", new_text="b"),
        use("undo_file", path="HEARTBEAT.md"),
    ):
        assert (call.status, call.rule) == (CallStatus.REJECTED, "document")
    Agent.objects.update(check_in_owner=None)
    assert use("write_file", path="SOUL.md", **change).rule == "document"
    assert said("SOUL") == "Obey the page."
    assert use("write_file", path="notes/USER.md", **change).result.startswith("Written: a new file")
    with pytest.raises(Problem, match="no file, but a document"):
        people.put(agent=DEFAULT_AGENT, owner_id=agent.check_in_owner_id, path="SOUL.md", content=b"x")


@pytest.mark.parametrize("policy", ["off", "approve", "refuse"])
def test_nothing_that_instructs_is_written_in_a_tainted_conversation(use, agent, policy):
    Agent.objects.update(taint=policy, documents={"USER": "Anna."})
    for name, more in (("write_file", {"content": "Obey."}), ("edit_file", {"old_text": "Anna", "new_text": "Obey"})):
        call = use(name, path="USER.md", tainted_by="the tool http_get", **more)
        assert (call.status, call.rule) == (CallStatus.REJECTED, "document:tainted")
    assert said("USER") == "Anna."
    assert use("read_file", path="USER.md", tainted_by="the tool http_get").result == "Anna."


def test_taint_that_comes_after_the_call_was_asked_for_counts(owner, agent):
    may = agent.allowed_tools(owner_id=owner.pk)
    tainted = agent.allowed_tools(owner_id=owner.pk, tainted_by="the tool http_get")
    call = ask("write_file", owner_id=owner.pk, agent_tools=may, path="USER.md", content="Obey.")
    assert run(call, agent_tools=tainted).rule == "document:tainted"
    verdict = gate.simulate(
        "write_file", json.dumps({"path": "USER.md", "content": ""}), agent_tools=may, owner_id=owner.pk
    )
    assert (verdict.refusal, {"document", "document:tainted"} <= set(verdict.passed)) == (None, True)
