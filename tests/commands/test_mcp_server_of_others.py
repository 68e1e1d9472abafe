"""The example of docs/mcp.md, command for command, with a server that others wrote: mcp-server-time."""

import re
import shlex
import sys
from io import StringIO

import pytest
from django.core.management import call_command

from tests.support.sources import ROOT
from tests.support.tool_calls import ask, run
from tools.models import CallStatus
from tools.sandbox import modes
from tools.sandbox.box import BUBBLEWRAP, NONE

PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not PYTHON.exists(), reason="`make .venv/clients-installed` installs it"),
]


def test_the_example_of_the_documentation_does_what_it_says(settings):
    # The sandbox shows a program the host's own packages, and these are others.
    settings.MCP_FOLDERS = [str(PYTHON.parents[1]), sys.base_prefix]
    if modes.in_force().mode != BUBBLEWRAP:
        settings.TOOL_SANDBOX = NONE
    (example, *_) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "mcp.md").read_text(), re.DOTALL)
    lines = [shlex.split(line) for line in example.splitlines()]
    assert [line[:2] for line in lines] == [["python", "manage.py"]] * 5
    out = StringIO()
    for _, _, name, *arguments in lines:
        call_command(name, *(str(PYTHON) if each == "python" else each for each in arguments), stdout=out)
    assert "mcp_clock_get_current_time was seen" in out.getvalue()
    call = run(ask("mcp_clock_get_current_time", timezone="UTC"))
    assert (call.status, call.tainted_by) == (CallStatus.SUCCESS, "the tool mcp_clock_get_current_time")
    assert '"timezone": "UTC"' in call.result
    wrong = run(ask("mcp_clock_get_current_time", timezone="No/Where"))
    assert (wrong.status, wrong.rule) == (CallStatus.FAILED, "raised")
