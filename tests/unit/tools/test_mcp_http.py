"""MCP servers that are reached over HTTP: both transports, where they may lead, and servers that break off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tool_calls import ask, run
from tools.mcp import catalogue
from tools.mcp.errors import NotStarted
from tools.mcp.models import McpServer, McpTool
from tools.models import CallStatus

SCRIPT = Path(__file__).parents[2] / "support" / "mcp_http.py"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def started(settings, tmp_path):
    """Starts servers; the settings let them be reached."""
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
    settings.HTTP_ALLOWED_PORTS = []
    running = []

    def start(mode="good", transport="http", file=None, port=0, **fields):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), mode, str(file or tmp_path / "marks"), str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout
        port = process.stdout.readline().strip()
        settings.HTTP_ALLOWED_PORTS = [*settings.HTTP_ALLOWED_PORTS, port]
        path = "sse" if transport == "sse" else "mcp"
        server = McpServer(
            name="ours", enabled=True, transport=transport, url=f"http://127.0.0.1:{port}/{path}", **fields
        )
        server.full_clean()
        server.save()
        return server, process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def allow(*names, **seen):
    for name in names:
        tool = McpTool.objects.get(full_name=name)
        assert catalogue.see(tool, expected=tool.hash, by="anna", allow=True, **seen)


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_tool_is_called_with_headers_from_secrets(started, transport, monkeypatch):
    monkeypatch.setenv("MCP_SECRET_OURS", "Bearer of-the-server-alone-4711")
    server, _ = started("more", transport, headers={"Authorization": "MCP_SECRET_OURS"})
    catalogue.refresh(server)
    allow("mcp_ours_echo", "mcp_ours_environment")
    call = run(ask("mcp_ours_echo", text="hello"))
    assert (call.status, call.tainted_by) == (CallStatus.SUCCESS, "the tool mcp_ours_echo")
    kept = "[picture: not kept, it is no PNG, JPEG, GIF or WebP]"
    assert call.result == f'hello\n[image: image/png, 3000 bytes]\n{{"said": "hello"}}\n{kept}'
    said = run(ask("mcp_ours_environment", text="")).result
    given = json.loads(said.splitlines()[0])
    assert given["Authorization"] != "Bearer of-the-server-alone-4711"  # it is redacted in what the server says
    assert "4711" not in said
    assert given["User-Agent"] == "nanohost"
    server.refresh_from_db()
    assert "4711" not in json.dumps(server.said())


def test_resources_and_prompts_are_listed_and_read_by_tools(started):
    server, _ = started("more")
    catalogue.refresh(server)
    names = [f"mcp_ours_{name}" for name in ("list_resources", "read_resource", "list_prompts", "get_prompt")]
    allow(*names, reads=True)
    assert run(ask(names[0])).result == 'note:1 | a note | text/plain\n[more: cursor "2"]'
    read = run(ask(names[1], uri="note:1"))
    assert (read.result, read.effects, read.tainted_by) == ("what the note says", "read", f"the tool {names[1]}")
    assert run(ask(names[2])).result == "greet | who"
    assert run(ask(names[3], name="greet", arguments={"who": "anna"})).result == "user: Greet anna."
    assert ask(names[1], uri=1).rule == "arguments"


@pytest.mark.parametrize(
    ("cidrs", "url", "why"),
    [
        ([], None, "http:address: 127.0.0.1 has the address 127.0.0.1, which is not public"),
        (["127.0.0.0/8"], "http://169.254.169.254/mcp", "http:address: .* is never reached"),
        (["127.0.0.0/8"], "http://localhost:1/mcp", "http:port: port 1 is not allowed"),
    ],
)
def test_where_the_settings_do_not_allow_it_nothing_is_reached(started, settings, cidrs, url, why):
    server, _ = started()
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = cidrs
    settings.HTTP_ALLOWED_PORTS = [*settings.HTTP_ALLOWED_PORTS, "80"]
    if url:
        server.url = url
        server.save()
    with pytest.raises(NotStarted, match=why):
        catalogue.refresh(server)
    server.refresh_from_db()
    assert server.last_error


def test_no_redirect_leads_elsewhere(started, tmp_path):
    server, _ = started("redirect", file="http://169.254.169.254/latest/meta-data")
    with pytest.raises(NotStarted, match=r"not followed"):
        catalogue.refresh(server)


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_server_that_is_killed_ends_its_call_and_is_reached_again(started, tmp_path, transport):
    marks = tmp_path / "marks"
    server, _ = started("dies", transport, timeout_seconds=5)
    catalogue.refresh(server)
    allow("mcp_ours_append", "mcp_ours_echo")
    call = run(ask("mcp_ours_append", text="once"))
    assert (call.status, marks.read_text().count("once")) == (CallStatus.UNKNOWN, 1)
    # While it is away, nothing is sent, and that is what is said.
    away = run(ask("mcp_ours_append", text="never"))
    assert (away.status, away.rule) == (CallStatus.FAILED, "unavailable")
    assert marks.read_text().count("never") == 0
    server.delete()
    again, _ = started("good", transport)
    catalogue.refresh(again)
    allow("mcp_ours_echo")
    assert run(ask("mcp_ours_echo", text="a")).status == CallStatus.SUCCESS


@pytest.mark.parametrize(
    ("mode", "status", "rule"),
    [
        ("flood", CallStatus.UNKNOWN, "output"),
        ("compressed", CallStatus.UNKNOWN, "output"),
        ("gateway", CallStatus.UNKNOWN, "crashed"),
        ("silent", CallStatus.UNKNOWN, "timeout"),
        ("large", CallStatus.SUCCESS, ""),
    ],
)
def test_a_hostile_server_keeps_nobody_waiting(started, settings, mode, status, rule):
    server, _ = started(mode, timeout_seconds=1 if mode == "silent" else 30)
    catalogue.refresh(server)
    allow("mcp_ours_echo")
    call = run(ask("mcp_ours_echo", text="a"))
    assert (call.status, call.rule) == (status, rule)
    assert len(call.result) < settings.TOOL_MAX_OUTPUT_BYTES + 200


def test_a_key_that_is_not_taken_is_told(started):
    server, _ = started("wrong key")
    with pytest.raises(NotStarted, match="error response"):
        catalogue.refresh(server)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""},
        {"url": "ftp://example.org/"},
        {"url": "http://user:word@example.org/"},
        {"headers": {"Host": "MCP_SECRET_A"}},
        {"headers": {"Mcp-Session-Id": "MCP_SECRET_A"}},
        {"headers": {"Authorization": "SECRET_KEY"}},
        {"headers": ["Authorization"]},
    ],
)
def test_what_makes_no_sense_makes_no_server(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        McpServer(name="ours", transport="http", **{"url": "https://example.org/mcp", **wrong}).full_clean()
