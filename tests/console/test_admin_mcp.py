"""MCP servers in the console: added, switched and checked; their tools seen, and allowed as they were shown."""

import sys
from pathlib import Path

import pytest

from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import client_of, page
from tests.support.tool_calls import ask, run
from tools.mcp import checks
from tools.mcp.models import McpServer, McpTool
from tools.models import CallStatus, SettingChange, ToolSetting

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_server.py")

pytestmark = pytest.mark.django_db(transaction=True)

FORM = {
    "name": "ours",
    "transport": "stdio",
    "command": sys.executable,
    "arguments": f'["-S", "{SCRIPT}"]',
    "environment": "{}",
    "timeout_seconds": "30",
}


def act(client, action, *rows):
    chosen = [row.pk for row in rows]
    return client.post(page("tools_mcpserver"), {"action": action, "_selected_action": chosen}, follow=True)


def see(client, tool, **form):
    return client.post(page("tools_mcptool", "see", tool.pk), {"hash": tool.hash} | form, follow=True)


def deeds():
    return list(AuditEntry.objects.filter(action__startswith="mcp_").order_by("pk").values_list("action", flat=True))


def test_a_server_is_added_checked_seen_allowed_and_used(admin_client):
    assert admin_client.post(page("tools_mcpserver", "add"), FORM).status_code == 302
    server = McpServer.objects.get()
    assert (server.enabled, server.said()["command"]) == (False, sys.executable)
    act(admin_client, "check_now", server)
    server.refresh_from_db()
    assert server.check_asked_at
    checks.check(server.pk)  # as the worker that is told does
    checks.check(server.pk)  # and one that is told again finds nothing to do
    tool = McpTool.objects.get(full_name="mcp_ours_echo")
    shown = admin_client.get(page("tools_mcpserver", "change", server.pk)).content.decode()
    assert page("tools_mcptool", "change", tool.pk) in shown
    assert tool.hash[:12] in shown

    assert "Return a text." in admin_client.get(page("tools_mcptool", "change", tool.pk)).content.decode()
    assert "was seen and is enabled" in see(admin_client, tool, decision="allow").content.decode()
    act(admin_client, "enable", server)
    assert run(ask("mcp_ours_echo", text="hello")).status == CallStatus.SUCCESS
    assert [each for each in deeds() if each != "mcp_tool.found"] == [
        "mcp_server.added",
        "mcp_tool.seen",
        "mcp_server.changed",
    ]
    assert SettingChange.objects.get(tool_name="mcp_ours_echo").changed_by == "admin"


@pytest.mark.parametrize("empty", ["", "null", '""', "[]", "{}"])
def test_fields_that_are_left_empty_are_stored_as_empty_ones(admin_client, empty):
    """By whatever a person takes for empty, and when a server is changed as well."""
    form = FORM | {"transport": "http", "command": "", "url": "https://example.org/mcp"}
    form |= dict.fromkeys(("arguments", "environment", "headers"), empty)

    def stored():
        server = McpServer.objects.get()
        return server.arguments, server.environment, server.headers

    assert admin_client.post(page("tools_mcpserver", "add"), form).status_code == 302
    assert stored() == ([], {}, {})
    server = McpServer.objects.get()
    McpServer.objects.update(arguments=["-m"], environment={"A": "MCP_SECRET_A"}, headers={"A": "MCP_SECRET_A"})
    form |= {"initial-arguments": '["-m"]', "initial-environment": '{"A": "MCP_SECRET_A"}'}
    assert admin_client.post(page("tools_mcpserver", "change", server.pk), form).status_code == 302
    assert stored() == ([], {}, {})


def a_tool(**fields):
    server = McpServer.objects.create(name="ours", command="x")
    ToolSetting.objects.get_or_create(name="mcp_ours_a")
    return McpTool.objects.create(server=server, name="a", full_name="mcp_ours_a", hash="1" * 64, **fields)


def test_the_difference_is_shown_and_only_what_was_shown_is_seen(admin_client):
    tool = a_tool(description="Be kind.\nBe <b>bold</b>\u202e.", seen_description="Be kind.", seen_hash="2" * 64)
    shown = admin_client.get(page("tools_mcptool", "change", tool.pk)).content.decode()
    assert '<ins>+Be &lt;b&gt;bold&lt;/b&gt;<span class="unseen">U+202E</span>.</ins>' in shown
    for stale in ("2" * 64, "", "x" * 10_000):
        assert "Nothing was done" in see(admin_client, tool, hash=stale, decision="allow").content.decode()
    tool.refresh_from_db()
    assert (tool.is_seen, ToolSetting.objects.get(name="mcp_ours_a").enabled) == (False, False)
    see(admin_client, tool, decision="seen")
    tool.refresh_from_db()
    assert (tool.is_seen, tool.seen_by, ToolSetting.objects.get(name="mcp_ours_a").enabled) == (True, "admin", False)


def test_what_may_not_be_granted_is_not_granted_by_being_seen(admin_client, settings):
    settings.PERMISSIONS_GRANTED = []
    see(admin_client, a_tool(), decision="allow")
    assert ToolSetting.objects.get(name="mcp_ours_a").grants == []


@pytest.mark.parametrize(("role", "sees", "switches"), [(VIEWER, 0, 0), (OPERATOR, 0, 1), (ADMIN, 1, 1)])
def test_who_may_what(role, sees, switches):
    tool = a_tool()
    sync_roles()
    client = client_of(role)
    address = page("tools_mcptool", "see", tool.pk)
    shown = client.get(page("tools_mcptool", "change", tool.pk)).content.decode()
    assert (f'action="{address}"' in shown) is bool(sees)
    assert client.post(address, {"hash": tool.hash}).status_code == (302 if sees else 403)
    assert client.get(address).status_code == 405
    act(client, "enable", tool.server)
    act(client, "check_now", tool.server)
    server = McpServer.objects.get()
    assert (server.enabled, bool(server.check_asked_at)) == (bool(switches), bool(switches))


def test_what_makes_no_sense_makes_no_server(admin_client):
    for wrong in (
        {"name": "Upper"},
        {"command": ""},
        {"arguments": '{"a": 1}'},
        {"environment": '{"A": "SECRET_KEY"}'},
        {"environment": '{"LD_PRELOAD": "MCP_SECRET_A"}'},
        {"timeout_seconds": "0"},
    ):
        assert admin_client.post(page("tools_mcpserver", "add"), FORM | wrong).status_code == 200, wrong
    assert not McpServer.objects.exists()


def test_a_changed_server_and_a_deleted_one_stand_in_the_audit_log(admin_client):
    server = a_tool().server
    change = page("tools_mcpserver", "change", server.pk)
    assert admin_client.post(change, FORM | {"command": "y", "name": "other"}).status_code == 302
    server.refresh_from_db()
    assert (server.command, server.name) == ("y", "ours")
    admin_client.post(page("tools_mcpserver", "delete", server.pk), {"post": "yes"})
    assert not McpServer.objects.exists()
    assert deeds() == ["mcp_server.changed", "mcp_server.deleted"]


def test_a_check_that_fails_says_why(admin_client):
    server = McpServer.objects.create(name="ours", command=sys.executable, arguments=["-S", SCRIPT, "exits"])
    checks.ask_for(server)
    checks.check(server.pk)
    assert "I cannot work here: no key" in admin_client.get(page("tools_mcpserver")).content.decode()
