"""``@modelcontextprotocol/server-everything``, which others wrote: called through the gate over each transport."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.servers import free_port
from tests.support.sources import ROOT
from tests.support.tool_calls import ask, run
from tests.support.wait import wait_until
from tools.mcp import catalogue
from tools.mcp.errors import NotStarted
from tools.mcp.models import McpServer, McpTool
from tools.models import CallStatus
from tools.sandbox import modes
from tools.sandbox.box import BUBBLEWRAP, NONE

NODE = shutil.which("node")
PACKAGES = Path(os.environ.get("TEST_NODE_MODULES") or ROOT / ".venv" / "node" / "node_modules")
PROGRAM = PACKAGES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not (NODE and PROGRAM.exists()), reason="`make .venv/node-installed` installs it, where there is npm"
    ),
]


@pytest.fixture(params=["stdio", "http", "sse"])
def server(request, settings):
    if request.param == "stdio":
        # The sandbox shows a program the host's own packages, and these are others.
        settings.MCP_FOLDERS = [str(PACKAGES), str(Path(NODE).resolve().parents[1])]
        if modes.in_force().mode != BUBBLEWRAP:
            settings.TOOL_SANDBOX = NONE
        yield McpServer(name="all", enabled=True, command=NODE, arguments=[str(PROGRAM), "stdio"])
        return
    port = free_port()
    settings.HTTP_ALLOWED_PRIVATE_CIDRS, settings.HTTP_ALLOWED_PORTS = ["127.0.0.0/8"], [str(port)]
    name, path = ("streamableHttp", "mcp") if request.param == "http" else ("sse", "sse")
    process = subprocess.Popen(
        [NODE, str(PROGRAM), name],
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield McpServer(name="all", enabled=True, transport=request.param, url=f"http://127.0.0.1:{port}/{path}")
    process.kill()
    process.wait()


def is_there(server):
    try:
        catalogue.refresh(server)
    except NotStarted:
        return False
    return True


def test_its_tools_are_called_through_the_gate(server):
    server.full_clean()
    server.save()
    wait_until(lambda: is_there(server), seconds=60)
    for name in ("mcp_all_echo", "mcp_all_get-sum"):
        tool = McpTool.objects.get(full_name=name)
        assert catalogue.see(tool, expected=tool.hash, by="anna", allow=True)
    call = run(ask("mcp_all_echo", message="Grüße"))
    assert (call.status, call.result) == (CallStatus.SUCCESS, "Echo: Grüße")
    assert call.tainted_by == "the tool mcp_all_echo"
    assert "42" in run(ask("mcp_all_get-sum", a=40, b=2)).result
    assert ask("mcp_all_get-sum", a="forty").rule == "arguments"
