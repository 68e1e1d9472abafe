"""The simulator: for every rule, what it says of a call is what a real call gets; and it does nothing else."""

import json
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agent.models import Agent
from agent.simulator import QUESTIONS, question
from conversations.engine import inbox
from nanohost.lib.ids import new_id
from tests.support.factories import OwnerFactory
from tests.support.prohibitions import PROHIBITIONS
from tests.support.tool_calls import EVERY_TOOL, ask
from tools import gate, registry, requirements
from tools.admin import RuleFilter
from tools.gate import AgentTools
from tools.mcp.models import McpServer, McpTool
from tools.models import CallStatus, SettingChange, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = new_id()


@pytest.fixture
def allowed(tool_settings):
    """``append_line`` may run."""
    tool_settings("append_line", grants=["FS_WRITE"])


def simulate(name="append_line", raw='{"path": "x", "line": "one"}', *, agent_tools=EVERY_TOOL, **whose):
    return gate.simulate(name, raw, agent_tools=agent_tools, **({"owner_id": 1, "conversation_id": CHAT} | whose))


def real(name="append_line", raw='{"path": "x", "line": "one"}', *, agent_tools=EVERY_TOOL, **whose):
    return ask(name, raw=raw, agent_tools=agent_tools, **({"owner_id": 1, "conversation_id": CHAT} | whose))


def assert_same(*arguments, **options):
    """The simulator and the gate agree; returns the rule. The simulator first: a real call takes places."""
    verdict, call = simulate(*arguments, **options), real(*arguments, **options)
    if verdict.refusal is None:
        assert call.status == CallStatus.QUEUED
        return ""
    assert (call.status, call.rule) == (CallStatus.REJECTED, verdict.refusal.rule)
    told = re.compile(r"In \d+ s,")  # of a rate limit: seconds go by
    assert told.sub("", json.loads(call.result)["message"]) == told.sub("", str(verdict.refusal))
    return verdict.refusal.rule


# --- the same verdict --------------------------------------------------------------------------------------------


def only_time(settings):
    return {"agent_tools": AgentTools(names=frozenset({"time"}))}


def tainted(settings):
    return {"agent_tools": AgentTools(names=None, taint="refuse", tainted_by="the tool http_get")}


def one_a_minute(of):
    def prohibit(settings):
        ToolSetting.objects.filter(name="append_line").update(**{f"calls_per_minute_{of}": 1})
        real()
        return {"conversation_id": new_id()} if of == "owner" else {"owner_id": 2}

    return prohibit


def shell(settings):
    settings.PERMISSIONS_GRANTED = ["SHELL"]
    ToolSetting.objects.filter(name="shell").update(enabled=True, grants=["SHELL"])
    return {"name": "shell", "raw": '{"command": "id"}'}


def command_that_is_denied(settings):
    settings.SHELL_GRANTABLE, settings.PERMISSIONS_GRANTED = True, ["SHELL", "FS_READ", "FS_WRITE"]
    ToolSetting.objects.filter(name="exec").update(enabled=True, grants=["SHELL", "FS_READ", "FS_WRITE"])
    return {"name": "exec", "raw": '{"command": "reboot"}'}


def to_nobody_it_knows(settings):
    ToolSetting.objects.update_or_create(name="tell_somebody", defaults={"enabled": True})
    return {"name": "tell_somebody", "raw": '{"text": "Hello", "to": "boss"}'}


def writing_a_document(**agent_tools):
    def prohibit(settings):
        ToolSetting.objects.filter(name="write_file").update(enabled=True, grants=["FS_WRITE"])
        told = AgentTools(names=None, **agent_tools)
        return {"name": "write_file", "raw": '{"path": "USER.md", "content": "x"}', "agent_tools": told}

    return prohibit


RULES = [
    *PROHIBITIONS,
    (lambda settings: {"name": "append_lines"}, "not_registered"),
    (only_time, "not_for_agent"),
    (shell, "permission_ceiling:SHELL"),
    (lambda settings: {"raw": "no json"}, "arguments"),
    (lambda settings: {"raw": '{"path": "x", "line": "one", "more": 1}'}, "arguments"),
    (command_that_is_denied, "denied"),
    (to_nobody_it_knows, "destination"),
    (writing_a_document(), "document"),
    (writing_a_document(documents=frozenset(["USER.md"]), tainted_by="a page"), "document:tainted"),
    (tainted, "tainted"),
    (one_a_minute("conversation"), "rate:conversation"),
    (one_a_minute("owner"), "rate:owner"),
]


@pytest.mark.parametrize(("prohibit", "rule"), RULES)
def test_for_every_rule_the_simulator_says_what_a_real_call_gets(allowed, settings, prohibit, rule):
    assert assert_same() == ""
    ToolCall.objects.all().delete()
    options = prohibit(settings) or {}
    assert assert_same(**options) == rule


def on_an_old_kernel(monkeypatch):
    monkeypatch.setattr(requirements, "KNOWN", {"openat2": lambda: "the kernel is too old"})
    return {"name": "read_file", "raw": '{"path": "a"}'}


def of_a_server_that_is_off(monkeypatch):
    server = McpServer.objects.create(name="ours", command="none")
    McpTool.objects.create(server=server, name="echo", full_name="mcp_ours_echo", schema={"type": "object"})
    ToolSetting.objects.create(name="mcp_ours_echo", enabled=True)
    return {"name": "mcp_ours_echo", "raw": "{}"}


def of_a_tool_that_nobody_has_seen(monkeypatch):
    options = of_a_server_that_is_off(monkeypatch)
    McpServer.objects.update(enabled=True)
    return options


OTHER_RULES = [
    (on_an_old_kernel, "requires:openat2"),
    (of_a_server_that_is_off, "withheld"),
    (of_a_tool_that_nobody_has_seen, "withheld"),
]


@pytest.mark.parametrize(("withhold", "rule"), OTHER_RULES)
def test_the_simulator_knows_what_a_machine_and_a_server_withhold(monkeypatch, withhold, rule):
    assert assert_same(**withhold(monkeypatch)) == rule


def test_no_rule_is_left_out():
    """Those of the gate, as the filter of calls lists them; behind them stand a turn's limits, and what ends a run.
    What becomes of a call that waits for consent, people decide."""
    every = list(RuleFilter.values(None))
    of_gate = [rule for rule in every[: every.index("limit:tool_rounds")] if not rule.startswith("consent:")]
    kind = lambda rule: rule.partition(":")[0] if rule.startswith(("permission", "requires")) else rule  # noqa: E731 -- shorter than a function
    assert {kind(rule) for rule in of_gate} == {kind(rule) for _, rule in RULES + OTHER_RULES} == set(QUESTIONS)


def test_the_rules_are_passed_in_their_order(allowed):
    ToolSetting.objects.update(calls_per_minute_conversation=5, calls_per_minute_owner=5)
    verdict = simulate()
    assert verdict.passed == [
        *("not_registered", "not_in_ceiling", "not_enabled", "not_for_agent"),
        *("permission_ceiling:FS_WRITE", "permission:FS_WRITE", "input_size", "arguments"),
        *("rate:conversation", "rate:owner"),
    ]
    assert verdict.arguments == {"path": "x", "line": "one"}
    assert simulate(raw="[").passed[-1] == "input_size"


def test_every_tool_there_is_gets_the_same_verdict(tool_settings):
    tool_settings("time", "echo", "append_line")
    for name in registry.names():
        assert_same(name, "{}")


# --- and nothing else --------------------------------------------------------------------------------------------


def test_nothing_is_written_and_no_place_is_taken(allowed):
    ToolSetting.objects.update(calls_per_minute_conversation=1)
    with CaptureQueriesContext(connection) as queries:
        for _ in range(3):
            assert simulate().refusal is None
    assert {query["sql"].split()[0] for query in queries} == {"SELECT"}
    assert not any("FOR UPDATE" in query["sql"] for query in queries)
    assert not ToolCall.objects.exists()
    assert assert_same() == ""
    assert assert_same() == "rate:conversation"


# --- the page ----------------------------------------------------------------------------------------------------

ADDRESS = "admin:simulator"


def filled_in(**more):
    return {"tool": "append_line", "agent": "default", "arguments": '{"path": "x", "line": "one"}'} | more


def look(client, method="post", **given):
    answer = getattr(client, method)(reverse(ADDRESS), given)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def every_tool(agent):
    Agent.objects.filter(pk=agent.pk).update(every_tool=True)


def test_the_page_tells_step_by_step(admin_client, allowed, every_tool):
    html = look(admin_client, **filled_in())
    assert "Yes: it would run" in html
    assert html.count('<li class="passed">') == 9
    ToolSetting.objects.update(enabled=False)
    html = look(admin_client, **filled_in())
    assert "No: the rule <bdi>not_enabled</bdi> refuses it" in html
    assert (html.count('<li class="passed">'), html.count('<li class="refused">')) == (2, 1)
    assert not ToolCall.objects.exists()


def test_a_refused_call_is_looked_at_again_at_one_click(admin_client, allowed, conversation):
    call = ask("append_line", raw='{"path": 1}', conversation_id=conversation.pk, owner_id=conversation.owner_id)
    page = admin_client.get(reverse("admin:tools_toolcall_change", args=[call.pk])).content.decode()
    address = f"{reverse(ADDRESS)}?call={call.pk}"
    assert address in page
    html = admin_client.get(address).content.decode()
    assert f"No: the rule <bdi>{call.rule}</bdi> refuses it" in html
    assert conversation.owner.username in html


def test_a_tools_page_leads_to_it(admin_client, allowed):
    setting = ToolSetting.objects.get(name="append_line")
    page = admin_client.get(reverse("admin:tools_toolsetting_change", args=[setting.pk])).content.decode()
    assert f"{reverse(ADDRESS)}?tool=append_line" in page
    html = look(admin_client, "get", tool="append_line")
    assert 'value="append_line"' in html
    assert "verdict-title" not in html


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"agent": "nobody"}, "Select a valid choice"),
        ({"owner": "nobody"}, "There is no user with that name."),
        ({"conversation": "x"}, "Enter a valid UUID."),
        ({"tool": ""}, "This field is required."),
        ({"tool": "<script>alert(1)</script>"}, "not_registered"),
        ({"tool": "a\u202eb"}, "not_registered"),
        ({"tool": "a\x00b"}, "Null characters are not allowed."),
        ({"arguments": "<script>alert(1)</script>"}, "refuses it"),
        ({"arguments": '{"value": ' + "[" * 5000}, "refuses it"),
        ({"arguments": "x" * 100_000}, "input_size"),
        ({"arguments": '{"path": "\\ud800", "line": "one"}'}, "U+D800"),
    ],
)
def test_whatever_is_filled_in_is_answered(admin_client, allowed, every_tool, given, told):
    html = look(admin_client, **filled_in(**given))
    assert told in html
    assert "<script>alert" not in html


def test_a_call_that_is_gone_or_none_leaves_the_form_empty(admin_client, db):
    for call in (str(new_id()), "x", ""):
        assert "verdict-title" not in look(admin_client, "get", call=call)


def test_rate_limits_look_at_whom_the_form_names(admin_client, allowed, every_tool, owner):
    conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
    ToolSetting.objects.update(calls_per_minute_owner=1)
    real(owner_id=owner.pk, conversation_id=conversation.pk)
    assert "rate:owner</bdi> refuses it" in look(admin_client, **filled_in(owner=owner.username))
    assert "it would run" in look(admin_client, **filled_in())
    assert "it would run" in look(admin_client, **filled_in(owner=OwnerFactory().username))


def test_questions_are_plain():
    assert question("permission:NET_HTTP") == "Has an admin granted it the permission it needs, NET_HTTP?"


# --- a tool's own page -------------------------------------------------------------------------------------------


def tool_page(client, name):
    setting = ToolSetting.objects.get(name=name)
    return client.get(reverse("admin:tools_toolsetting_change", args=[setting.pk])).content.decode()


def test_a_tools_page_shows_what_it_takes_who_may_use_it_and_what_was_changed(admin_client, allowed, agent, settings):
    Agent.objects.create(name="clerk", tools=["append_line"])
    Agent.objects.create(name="porter", tools=["time"])
    SettingChange.objects.create(tool_name="append_line", changed_by="anna", before={"enabled": False}, after={})
    settings.TOOLS_ALLOWED = ["time"]
    html = tool_page(admin_client, "append_line")
    assert "<td>path</td>" in html
    assert "&quot;additionalProperties&quot;: false" in html
    assert "TOOLS_ALLOWED leaves it out" in html
    assert "PERMISSIONS_GRANTED has FS_WRITE" in html
    assert ">clerk</a>" in html
    assert ">porter</a>" not in html
    assert "<td>anna</td>" in html
    assert "enabled: false" in html


def test_a_tool_whose_code_is_gone_is_shown_as_such(admin_client, db):
    ToolSetting.objects.create(name="gone", enabled=True)
    html = tool_page(admin_client, "gone")
    assert "This tool no longer exists in the code." in html
    assert "not_registered" in html
    shown = admin_client.get(reverse("admin:tools_toolsetting_changelist")).content.decode()
    assert 'title="False"' in shown


def test_whoever_names_no_owner_is_not_the_first_one(allowed, owner):
    ToolSetting.objects.update(calls_per_minute_owner=1)
    assert real(owner_id=1).status == CallStatus.QUEUED
    assert simulate(owner_id=1).refusal.rule == "rate:owner"
    assert simulate(owner_id=None).refusal is None
