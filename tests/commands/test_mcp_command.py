"""``manage.py mcp``, as docs/mcp.md has it."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.support.tool_calls import ask, run
from tools.mcp.models import McpTool
from tools.models import CallStatus

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_server.py")

pytestmark = pytest.mark.django_db(transaction=True)


def mcp(*arguments):
    out = StringIO()
    call_command("mcp", *arguments, stdout=out)
    return out.getvalue()


def test_a_server_is_added_looked_at_and_used():
    assert "is added, and off" in mcp("add", "ours", "--", sys.executable, "-S", SCRIPT)
    assert "mcp_ours_echo\tnew" in mcp("check", "ours")
    assert "+Return a text." in mcp("see", "mcp_ours_echo")
    mcp("enable", "ours")
    call_command("tools", "allow", "mcp_ours_echo", "--grant", "NET_HTTP", stdout=StringIO())
    assert "ours\tenabled\tno error\n" in mcp("list")
    assert "mcp_ours_echo\tseen" in mcp("list")
    assert run(ask("mcp_ours_echo", text="hello")).status == CallStatus.SUCCESS


def test_a_changed_tool_is_shown_by_its_difference_without_control_characters():
    mcp("add", "ours", "--", sys.executable, "-S", SCRIPT)
    mcp("check", "ours")
    mcp("see", "mcp_ours_echo")
    McpTool.objects.filter(full_name="mcp_ours_echo").update(description="Return \x1b[2Ja text.", hash="f" * 64)
    assert "mcp_ours_echo\tchanged since it was seen" in mcp("list")
    shown = mcp("see", "mcp_ours_echo")
    assert "-Return a text.\n+Return \\x1b[2Ja text." in shown


def test_what_makes_no_sense_is_refused_in_a_sentence():
    for wrong in (["Upper"], ["ours", "--env", "A=SECRET_KEY"], ["ours", "--env", "PATH=MCP_SECRET_A"]):
        with pytest.raises(CommandError):
            mcp("add", *wrong, "--", "true")
    with pytest.raises(CommandError, match="no MCP server named"):
        mcp("check", "ours")
    with pytest.raises(CommandError, match="No MCP server has a tool"):
        mcp("see", "time")
