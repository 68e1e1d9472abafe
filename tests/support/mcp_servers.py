"""MCP servers of ours, as rows, and their tools seen and allowed."""

import sys
from pathlib import Path

from tools.mcp import catalogue
from tools.mcp.models import McpServer, McpTool
from tools.models import ToolSetting

SCRIPT = str(Path(__file__).parent / "mcp_server.py")


def server(mode="good", file=None, **fields):
    """A server of ours, whose tools were taken in."""
    arguments = ["-S", SCRIPT, mode, *([str(file)] if file else [])]
    made = McpServer(name="ours", enabled=True, command=sys.executable, arguments=arguments, **fields)
    made.full_clean()
    made.save()
    return made


def allow(*names, **seen):
    for name in names:
        tool = McpTool.objects.get(full_name=name)
        assert catalogue.see(tool, expected=tool.hash, by="anna", **seen)
        ToolSetting.objects.filter(name=name).update(enabled=True, grants=["NET_HTTP"])
