"""Custom tools: files of a workspace that are tools there, once somebody has seen them, and that reach nothing."""

import json
import os
import re
import threading

import pytest

from tests.support.factories import OwnerFactory
from tests.support.hosts import ROOT
from tests.support.tool_calls import ask, run
from tests.support.wait import wait_until
from tools import gate, registry
from tools.custom import catalogue, looking
from tools.custom.models import CustomTool
from tools.custom.reading import what_it_says
from tools.gate import ANY_WORKSPACE, AgentTools
from tools.models import CallStatus, SettingChange, ToolSetting
from tools.workspace import people
from tools.workspace.store import name_of, open_workspace

pytestmark = pytest.mark.django_db(transaction=True)

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def source(body="return text.upper()", *, description="Shout a text.", above="", schema=SCHEMA, how="async def"):
    """A file as nanobot has them."""
    return f"""from typing import Any
from nanobot.agent.tools.base import Tool
{above}

class ShoutTool(Tool):
    @property
    def name(self) -> str:
        return "shout"

    @property
    def description(self) -> str:
        return {description!r}

    @property
    def parameters(self) -> dict[str, Any]:
        return {schema!r}

    {how} execute(self, text: str = "", **kwargs: Any) -> str:
        {body}
"""


@pytest.fixture(autouse=True)
def allowed(settings, tmp_path):
    settings.CUSTOM_TOOLS, settings.WORKSPACES_DIR = True, tmp_path / "workspaces"


@pytest.fixture
def owner(db):
    return OwnerFactory()


def put(owner, content, *, file="shout.py", agent="default"):
    """Write a file as the agent's tool does, and have it taken in as a worker does."""
    data = content if isinstance(content, bytes) else content.encode()
    with open_workspace(agent=agent, owner_id=owner.pk) as workspace:
        workspace.write(f"tools/{file}", data, trusted=True)
    looking.look_at_all()


def tools_of(owner, agent="default"):
    return AgentTools(names=None, workspace=name_of(agent=agent, owner_id=owner.pk))


def see(name="custom_shout", *, consent="never"):
    tool = CustomTool.objects.get(full_name=name)
    assert catalogue.see(tool, expected=tool.hash, by="anna", allow=True)
    ToolSetting.objects.filter(name=name).update(approval=consent)


def call(owner, name="custom_shout", **arguments):
    allowed = tools_of(owner)
    asked = ask(name, agent_tools=allowed, owner_id=owner.pk, **arguments)
    return asked if asked.ended else run(asked, agent_tools=allowed)


def refusal(owner, name="custom_shout"):
    return ask(name, agent_tools=tools_of(owner), owner_id=owner.pk, text="x").rule


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_file_of_the_workspace_becomes_a_tool_and_its_result_is_untrusted(owner, how):
    put(owner, source(how=how))
    see()
    tool = registry.get("custom_shout")
    assert (tool.description, tool.schema, tool.permissions) == ("Shout a text.", SCHEMA, ())
    ended = call(owner, text="tea")
    assert (ended.status, ended.result, ended.tainted_by) == (CallStatus.SUCCESS, "TEA", "the tool custom_shout")
    assert refusal(owner) == ""
    assert call(owner, text=1).rule == "arguments"


def test_without_the_setting_there_is_no_such_tool(owner, settings):
    put(owner, source())
    see()
    settings.CUSTOM_TOOLS = False
    assert refusal(owner) == "not_registered"
    assert "custom_shout" not in [tool.name for tool in registry.everything()]


def test_without_the_setting_nothing_is_taken_in(owner, settings):
    settings.CUSTOM_TOOLS = False
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("tools/shout.py", source().encode(), trusted=True)
    looking.Looking().go_on()
    assert not CustomTool.objects.exists()


def test_a_tool_is_refused_until_it_was_seen_and_enabled_and_each_call_needs_consent_at_first(owner):
    put(owner, source())
    assert refusal(owner) == "not_enabled"
    ToolSetting.objects.filter(name="custom_shout").update(enabled=True)
    assert refusal(owner) == "withheld"
    tool = CustomTool.objects.get()
    assert catalogue.see(tool, expected=tool.hash, by="anna")
    asked = ask("custom_shout", agent_tools=tools_of(owner), owner_id=owner.pk, text="x")
    assert (asked.status, asked.consent) == (CallStatus.WAITING, "consent:always")


def test_a_file_that_was_changed_is_refused_until_it_was_seen_again(owner):
    put(owner, source())
    see()
    put(owner, source(body="return 'changed'"))
    assert refusal(owner) == "withheld"
    assert CustomTool.objects.get().state == "changed since it was seen"
    see()
    assert call(owner, text="x").result == "changed"


def test_a_file_that_is_changed_before_anybody_looks_does_not_run_either(owner):
    put(owner, source())
    see()
    asked = ask("custom_shout", agent_tools=tools_of(owner), owner_id=owner.pk, text="x")
    people.put(agent="default", owner_id=owner.pk, path="tools/shout.py", content=source("return 'evil'").encode())
    ended = run(asked, agent_tools=tools_of(owner))
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "custom_changed")
    assert "evil" not in ended.result
    # It was taken in on the way: the next call is not even admitted.
    assert refusal(owner) == "withheld"


@pytest.mark.parametrize("how", ["gone", "link", "other name", "folder"])
def test_a_file_that_something_else_stands_for_does_not_run(owner, how, tmp_path):
    put(owner, source())
    see()
    asked = ask("custom_shout", agent_tools=tools_of(owner), owner_id=owner.pk, text="x")
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        file = workspace.root / "files" / "tools" / "shout.py"
    content = file.read_bytes()
    (tmp_path / "outside.py").write_bytes(content)
    file.unlink()
    if how == "link":
        file.symlink_to(tmp_path / "outside.py")
    elif how == "other name":
        os.link(tmp_path / "outside.py", file)
    elif how == "folder":
        file.mkdir()
    ended = run(asked, agent_tools=tools_of(owner))
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "custom_changed")
    assert CustomTool.objects.get().gone


def test_what_somebody_has_not_looked_at_is_not_seen(owner):
    put(owner, source())
    looked_at = CustomTool.objects.get()
    put(owner, source(body="return 'changed'"))
    assert not catalogue.see(looked_at, expected=looked_at.hash, by="anna", allow=True)
    assert refusal(owner) == "not_enabled"


def test_a_tool_is_of_its_own_workspace_alone(owner):
    other = OwnerFactory()
    put(owner, source())
    see()
    assert refusal(other) == "not_registered"
    assert ask("custom_shout", text="x").rule == "not_registered"
    for there in (tools_of(other), tools_of(owner, "another"), AgentTools(names=None)):
        assert "custom_shout" not in [tool.name for tool, _ in gate.survey(agent_tools=there)]
        assert "custom_shout" not in [tool.name for tool in gate.offered(agent_tools=there)]
    assert "custom_shout" in [tool.name for tool in gate.offered(agent_tools=tools_of(owner))]
    assert "custom_shout" in [
        tool.name for tool, _ in gate.survey(agent_tools=AgentTools(names=None, workspace=ANY_WORKSPACE))
    ]


def test_a_call_of_another_owner_that_was_admitted_somehow_does_not_run(owner):
    other = OwnerFactory()
    put(owner, source())
    see()
    asked = ask("custom_shout", agent_tools=tools_of(owner), owner_id=other.pk, text="x")
    assert run(asked, agent_tools=tools_of(owner)).rule == "custom_changed"


def test_a_tool_of_the_same_name_in_another_workspace_is_another_tool(owner):
    other = OwnerFactory()
    put(owner, source())
    see()
    put(other, source(body="return 'theirs'"))
    theirs = CustomTool.objects.get(owner=other)
    assert theirs.full_name.startswith("custom_shout_")
    assert not theirs.is_seen
    assert call(owner, text="x").result == "X"
    see(theirs.full_name)
    assert call(other, theirs.full_name, text="x").result == "theirs"


def test_what_was_decided_of_another_tool_of_that_name_is_not_decided_of_this(owner):
    ToolSetting.objects.create(name="custom_shout", enabled=True, approval="never")
    put(owner, source())
    setting = ToolSetting.objects.get(name="custom_shout")
    assert (setting.enabled, setting.approval) == (False, "always")
    assert SettingChange.objects.get().tool_name == "custom_shout"


def test_what_goes_with_its_owner_and_with_its_agent(owner):
    put(owner, source())
    put(owner, source(), agent="another")
    catalogue.forget("another")
    assert CustomTool.objects.get().workspace == f"default/{owner.pk}"
    owner.delete()
    assert not CustomTool.objects.exists()


def test_the_example_of_the_docs_works(owner):
    page = (ROOT / "docs" / "tools.md").read_text().split("\n## Custom tools\n")[1].split("\n## ")[0]
    put(owner, page.split("```text\n")[1].split("```")[0], file="dice.py")
    ((name, arguments, result),) = re.findall(r"^\| `(\w+) (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    see(name)
    ended = call(owner, name, **json.loads(arguments))
    assert (ended.status, ended.result) == (CallStatus.SUCCESS, result)
    assert CustomTool.objects.get().flagged == []


# --- what they reach ---------------------------------------------------------------------------------------------

REACHES = {
    "a file of the host": "return open('{file}').read()",
    "a file of its workspace": "return open('{workspace}/files/tools/shout.py').read()",
    "a file to write": "open('{workspace}/files/out', 'w').write('x'); return 'written'",
    "the environment of the host": "import os; return os.environ['HANDS_SECRET']",
    "the network": "import socket; socket.create_connection(('127.0.0.1', {port}), 2); return 'connected'",
    "another process": "import os; os.kill({pid}, 0); return 'there'",
    "the database": "from tools.models import ToolCall; return str(ToolCall.objects.count())",
}


@pytest.mark.parametrize("what", REACHES)
def test_it_reaches_nothing(owner, what, tmp_path, monkeypatch, unused_tcp_listener):
    monkeypatch.setenv("HANDS_SECRET", "of-the-host-4711")
    (tmp_path / "secret").write_text("of-the-host-4711")
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        root = workspace.root
    told = {"file": tmp_path / "secret", "workspace": root, "port": unused_tcp_listener, "pid": os.getpid()}
    put(owner, source(body=REACHES[what].format(**told)))
    see()
    ToolSetting.objects.filter(name="custom_shout").update(timeout_seconds=60)  # some import much before they fail
    ended = call(owner, text="x")
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "raised"), ended.result
    assert "4711" not in ended.result
    assert not (root / "files" / "out").exists()


@pytest.fixture
def unused_tcp_listener():
    """A port of this machine that answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_where_there_is_no_sandbox_it_does_not_run(owner, settings):
    settings.TOOL_SANDBOX = "none"
    put(owner, source())
    see()
    ended = call(owner, text="x")
    assert (ended.status, ended.rule) == (CallStatus.REJECTED, "requires:sandbox")


def test_nothing_of_one_call_is_there_in_the_next(owner):
    body = "import builtins; n = getattr(builtins, 'n', 0) + 1; builtins.n = n; return str(n)"
    put(owner, source(body=body))
    see()
    assert [call(owner, text="x").result for _ in range(3)] == ["1", "1", "1"]


def test_one_that_takes_too_long_is_ended(owner):
    put(owner, source(body="while True: pass"))
    see()
    ToolSetting.objects.filter(name="custom_shout").update(timeout_seconds=0.3)
    ended = call(owner, text="x")
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "timeout")


def test_an_error_is_told_and_a_long_result_is_cut(owner):
    put(owner, source(body="raise ValueError('no tea')"))
    see()
    assert call(owner, text="x").result == "FAILED: ValueError: no tea"
    put(owner, source(body="return 'x' * 10_000_000"))
    see()
    ToolSetting.objects.filter(name="custom_shout").update(max_output_bytes=1000)
    assert len(call(owner, text="x").result) < 1200


# --- reading files -----------------------------------------------------------------------------------------------


def test_nothing_of_a_file_runs_before_it_was_seen(owner, tmp_path):
    mark = tmp_path / "mark"
    put(owner, source(above=f"open({str(mark)!r}, 'w').close()\nraise SystemExit"))
    tool = CustomTool.objects.get()
    assert (tool.unfit, tool.description) == ("", "Shout a text.")
    assert not mark.exists()


FLAGGED = {
    "import subprocess": "line 3: import subprocess",
    "import os.path": "line 3: import os.path",
    "from socket import socket as s": "line 3: from socket import socket",
    "x = open": "line 3: open",
    "x = ().__class__.__bases__[0].__subclasses__()": "line 3: .__subclasses__",
    "x = 'sub' 'process'": "line 3: 'subprocess'",
    "x = getattr(1, 'a')": "line 3: getattr",
    "class A:\n    def f(self):\n        return eval('1')": "line 5: eval",
}


@pytest.mark.parametrize("above", FLAGGED)
def test_the_scan_flags_where_to_look(above):
    said = what_it_says(source(above=above))
    assert (said.unfit, FLAGGED[above] in said.flagged) == ("", True), said


def test_the_scan_flags_nothing_in_a_harmless_file():
    assert what_it_says(source()).flagged == []


def test_a_file_with_many_flags_says_how_many():
    said = what_it_says(source(above="\n".join("x = open" for _ in range(200))))
    assert len(said.flagged) == 51
    assert said.flagged[-1] == "and 150 more"


UNFIT = {
    "x = 1": "no class that is derived from Tool",
    "def f(:": "line 1 is no Python",
    "\0": "null bytes",
    "class A(Tool):\n    description = 'd'": "no parameters",
    "class A(Tool):\n    parameters = {}": "no description",
    "class A(Tool):\n    description = 'd'\n    parameters = {'type': 'object'}": "no function execute",
    source(schema={"type": "array"}): "not that of an object",
    source(schema={"type": "object", "properties": {"a": {"$ref": "https://example.org/a"}}}): "outside of itself",
    source(description="x" * 9000): "longer than",
    source(description=""): "no text",
    source().replace("'Shout a text.'", "open('/etc/passwd').read()"): "is no literal",
    "(" * 3000: "",
    "x = " + "-" * 60_000 + "1": "",
    "x = " + "[" * 20_000: "",
}


@pytest.mark.parametrize("content", UNFIT, ids=lambda content: content[:20].strip())
def test_what_cannot_be_a_tool_says_why(content):
    said = what_it_says(content)
    assert said.unfit
    assert UNFIT[content] in said.unfit


def test_files_that_are_none_and_files_that_are_too_large(owner):
    put(owner, source(), file="_private.py")
    put(owner, source(), file="notes.txt")
    assert not CustomTool.objects.exists()
    put(owner, b"x" * 1_000_000, file="large.py")
    put(owner, b"\xff\xfe", file="latin.py")
    put(owner, "x = 1", file="none.py")
    told = dict(CustomTool.objects.values_list("full_name", "unfit"))
    assert told["custom_large"] == "it has more than 65536 bytes"
    assert told["custom_latin"] == "it is not UTF-8"
    assert "no class" in told["custom_none"]
    for name in told:
        ToolSetting.objects.filter(name=name).update(enabled=True)
        tool = CustomTool.objects.get(full_name=name)
        assert not catalogue.see(tool, expected=tool.hash, by="anna", allow=True)
        assert refusal(owner, name) == "not_registered"


@pytest.mark.parametrize("file", ["tea & sugar.py", "ä.py", "x" * 80 + ".py", "a.b.py", "time.py"])
def test_any_name_of_a_file_makes_a_name_that_models_can_say(owner, file):
    put(owner, source(), file=file)
    name = CustomTool.objects.get().full_name
    assert name.startswith("custom_")
    assert len(name) <= 64
    assert name.isascii()
    see(name)
    assert call(owner, name, text="x").result == "X"


def test_no_more_than_so_many_files_are_taken_in(owner):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        for at in range(catalogue.MAX_FILES + 5):
            workspace.write(f"tools/t{at}.py", b"x = 1", trusted=True)
    looking.look_at_all()
    assert CustomTool.objects.count() == catalogue.MAX_FILES


def test_a_worker_looks_again_when_a_file_has_changed(owner):
    looker = looking.Looking(every=0)
    put(owner, source())
    looker.go_on()
    see()
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("tools/shout.py", source(body="return 'changed'").encode(), trusted=True)
    looker.go_on()
    assert refusal(owner) == "withheld"


def test_a_worker_looks_in_a_thread_of_its_own_one_at_a_time(owner):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("tools/shout.py", source().encode(), trusted=True)
    looker = looking.Looking()
    for _ in range(3):
        looker.go_on_apart()
    wait_until(lambda: CustomTool.objects.exists() and not looker.is_busy)
    assert CustomTool.objects.count() == 1


def test_two_workers_that_look_at_once_take_in_each_file_once(owner):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("tools/shout.py", source().encode(), trusted=True)
    threads = [threading.Thread(target=_look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CustomTool.objects.count() == 1


def _look():
    from django.db import connections

    try:
        looking.Looking().go_on()
    finally:
        connections.close_all()


def test_what_is_offered_is_the_same_as_long_as_nothing_changes(owner):
    put(owner, source())
    see()
    first, second = (gate.offered(agent_tools=tools_of(owner)) for _ in range(2))
    assert json.dumps([each.as_function() for each in first]) == json.dumps([each.as_function() for each in second])
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_where_owners_share_a_workspace_each_has_its_tools(owner, settings):
    settings.WORKSPACE_SHARED = True
    put(owner, source())
    assert CustomTool.objects.get().owner is None
    see()
    other = OwnerFactory()
    assert call(other, text="x").result == "X"
