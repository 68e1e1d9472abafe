"""MCP servers that MCP_SERVERS names: rows that follow it, and no more than that."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from nanohost.accounts.models import AuditEntry
from nanohost.lib import env
from nanohost.preparation import refuse_bad_tools
from tools.mcp import configured
from tools.mcp.models import McpServer, McpTool

pytestmark = pytest.mark.django_db(transaction=True)

CLOCK = {"command": "python3", "args": ["-m", "mcp_server_time"], "env": {"KEY": "MCP_SECRET_CLOCK"}, "toolTimeout": 5}
FAR = {"url": "https://example.org/mcp", "headers": {"Authorization": "MCP_SECRET_FAR"}}


def follow(settings, **servers):
    settings.MCP_SERVERS = servers
    refuse_bad_tools()
    configured.follow_setting()


def test_servers_are_added_and_enabled_and_their_tools_are_not(settings):
    older = FAR | {"url": "https://example.org/sse"}
    follow(settings, clock=CLOCK, far=FAR, old=FAR | {"type": "sse", "network": True}, older=older)
    clock, far, old, by_address = McpServer.objects.order_by("name")
    assert by_address.transport == "sse"
    assert (clock.enabled, clock.by_setting, clock.transport, clock.timeout_seconds) == (True, True, "stdio", 5)
    assert (clock.command, clock.arguments, clock.environment) == (CLOCK["command"], CLOCK["args"], CLOCK["env"])
    assert (far.transport, far.url, far.headers, far.timeout_seconds) == ("http", FAR["url"], FAR["headers"], 30)
    assert (old.transport, old.network) == ("sse", True)
    assert not McpTool.objects.exists(), "they come with a check, and are to be seen first"
    added = AuditEntry.objects.filter(action="mcp_server.added")
    assert {(each.object_name, each.reason) for each in added} == {
        (name, configured.BY_SETTING) for name in ("clock", "far", "old", "older")
    }


def test_a_second_start_changes_nothing_and_a_changed_setting_what_it_says(settings):
    follow(settings, clock=CLOCK)
    entries = AuditEntry.objects.count()
    follow(settings, clock=CLOCK)
    assert AuditEntry.objects.count() == entries
    McpServer.objects.update(enabled=False)  # as an admin would
    follow(settings, clock=CLOCK | {"args": ["-m", "other"]})
    server = McpServer.objects.get()
    assert (server.arguments, server.enabled) == (["-m", "other"], False)


def test_what_is_named_no_longer_is_disabled_and_what_a_person_has_added_is_left_alone(settings, caplog):
    McpServer.objects.create(name="far", url="https://example.com/mine", transport="http")
    follow(settings, clock=CLOCK, far=FAR)
    assert McpServer.objects.get(name="far").url == "https://example.com/mine"
    assert "MCP_SERVERS names far, which somebody else has added" in caplog.text
    follow(settings)
    assert [(each.name, each.enabled) for each in McpServer.objects.all()] == [("clock", False), ("far", False)]
    assert "MCP_SERVERS names it no longer" in caplog.text


@pytest.mark.parametrize(
    ("name", "server", "says"),
    [
        ("Clock", CLOCK, "Up to 20 of a-z"),
        ("clock", {}, "needs a command, or a url"),
        ("clock", CLOCK | FAR, "needs a command, or a url"),
        ("far", FAR | {"type": "websocket"}, "its type is one of stdio, sse, streamableHttp"),
        ("far", FAR | {"type": ["sse"]}, "its type is one of stdio"),
        ("clock", CLOCK | {"env": {"KEY": "the-very-secret"}}, "name the secret that has its value"),
        ("clock", CLOCK | {"env": {"PATH": "MCP_SECRET_A"}}, "no variable that a server may be given"),
        ("clock", CLOCK | {"args": "-m x"}, "a list of texts"),
        ("clock", CLOCK | {"toolTimeout": "soon"}, "timeout_seconds"),
        ("clock", CLOCK | {"cwd": "/"}, "there is no 'cwd'"),
        ("far", FAR | {"url": "ftp://example.org"}, "url"),
    ],
)
def test_what_can_be_no_server_is_refused_at_the_start_in_a_sentence(settings, name, server, says):
    settings.MCP_SERVERS = {name: server}
    with pytest.raises(CommandError, match=says) as refused:
        refuse_bad_tools()
    assert "the-very-secret" not in str(refused.value)
    assert not McpServer.objects.exists()


@pytest.mark.parametrize(
    "raw", ["[]", "{", '{"clock": "the-very-secret"}', "[" * 100_000, '{"a": {"toolTimeout": NaN}}']
)
def test_what_is_no_such_json_is_refused_without_being_shown(monkeypatch, raw):
    monkeypatch.setenv("MCP_SERVERS", raw)
    with pytest.raises(ImproperlyConfigured, match="MCP_SERVERS is not valid: expected JSON such as") as refused:
        env.objects("MCP_SERVERS", "{}")
    assert "the-very-secret" not in str(refused.value)
