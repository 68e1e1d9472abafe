"""``manage.py tools``: seeing and changing which tools may run."""

import pytest
from django.core.management import CommandError, call_command

from tests.calls import ask
from tools.models import ToolSetting

pytestmark = pytest.mark.django_db


def tools(capsys, *arguments):
    """Run the command; returns what it prints."""
    call_command("tools", *arguments)
    return capsys.readouterr().out


def listed(capsys):
    """The listing's columns, by tool."""
    return {line.split("\t")[0]: line.split("\t")[1:] for line in tools(capsys, "list").splitlines()}


def test_time_alone_is_allowed_at_first(capsys):
    states = {name: columns[0] for name, columns in listed(capsys).items()}
    assert [name for name, state in states.items() if state == "allowed"] == ["time"]
    assert states["append_line"] == "forbidden by not_enabled"


def test_the_list_tells_what_each_tool_needs(capsys):
    columns = listed(capsys)
    assert columns["time"] == ["allowed", "needs no permission", "reads"]
    assert columns["append_line"][1:] == ["needs FS_WRITE", "writes"]


def test_a_tool_that_needs_nothing_is_allowed_by_its_name(capsys):
    assert tools(capsys, "allow", "echo") == "echo is allowed.\n"
    assert ask("echo", value=1).rule == ""


def test_a_tool_that_needs_a_permission_says_which(capsys):
    told = tools(capsys, "allow", "append_line")
    assert told == "append_line is enabled, but needs FS_WRITE: add --grant FS_WRITE.\n"
    assert ask("append_line", path="/nowhere", line="one").rule == "permission:FS_WRITE"
    assert tools(capsys, "allow", "append_line", "--grant", "FS_WRITE") == "append_line is allowed.\n"
    assert ask("append_line", path="/nowhere", line="one").rule == ""


def test_a_grant_is_added_to_those_there_are(capsys):
    tools(capsys, "allow", "append_line", "--grant", "FS_WRITE")
    tools(capsys, "allow", "append_line", "--grant", "FS_READ", "--grant", "NET_HTTP")
    assert ToolSetting.objects.get(name="append_line").grants == ["FS_READ", "FS_WRITE", "NET_HTTP"]


def test_what_the_settings_forbid_stays_forbidden_and_is_told(capsys, settings):
    settings.TOOLS_ALLOWED = ["time"]
    assert tools(capsys, "allow", "echo") == "echo is enabled, but still forbidden by not_in_ceiling.\n"
    assert ask("echo", value=1).rule == "not_in_ceiling"


def test_a_tool_that_needs_shell_stays_forbidden(capsys):
    assert "still forbidden by permission_ceiling:SHELL" in tools(capsys, "allow", "shell")


def test_a_denied_tool_loses_its_grants(capsys):
    tools(capsys, "allow", "append_line", "--grant", "FS_WRITE")
    assert tools(capsys, "deny", "append_line") == "append_line is denied.\n"
    assert ask("append_line", path="/nowhere", line="one").rule == "not_enabled"
    tools(capsys, "allow", "append_line")
    assert ask("append_line", path="/nowhere", line="one").rule == "permission:FS_WRITE"


@pytest.mark.parametrize("action", ["allow", "deny"])
def test_an_unknown_name_is_told_with_the_known_ones(action):
    with pytest.raises(CommandError, match=r"There is no tool named 'tiem'; there are: .*time"):
        call_command("tools", action, "tiem")


@pytest.mark.parametrize("grant", ["SHELL", "NET_FTP"])
def test_a_permission_that_cannot_be_granted_is_refused(grant):
    with pytest.raises(CommandError, match=r"choose from '?NET_HTTP'?, '?FS_READ'?, '?FS_WRITE'?"):
        call_command("tools", "allow", "time", "--grant", grant)


@pytest.mark.parametrize("arguments", [[], ["forbid", "time"], ["allow"]])
def test_a_command_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(CommandError):
        call_command("tools", *arguments)
