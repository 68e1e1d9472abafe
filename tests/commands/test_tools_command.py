"""``manage.py tools``: seeing and changing which tools may run, and beginning new ones."""

import os
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command

from tests.support.hosts import ROOT
from tests.support.tool_calls import ask
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


# --- a new one ---------------------------------------------------------------------------------------------------


def everything_in(folder):
    """Each file below a folder, and its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def new(folder, name="rain", app="garden"):
    call_command("tools", "new", name, "--app", app, "--directory", str(folder))


def test_a_new_tool_is_a_function_and_its_test_in_an_app_of_its_own(tmp_path, capsys):
    new(tmp_path)
    assert set(everything_in(tmp_path)) == {
        *("garden/__init__.py", "garden/agent_tools.py"),
        *("garden/tests/__init__.py", "garden/tests/test_rain.py"),
    }
    told = capsys.readouterr().out
    for step in ("NANOHOST_EXTRA_APPS=tests.toolbox,garden", f"PYTHONPATH={tmp_path}", "tools allow rain", "pytest"):
        assert step in told
    # tests/contracts/test_docs_tools.py runs them.


def test_another_is_added_to_what_there_is(tmp_path):
    new(tmp_path)
    first = everything_in(tmp_path)
    new(tmp_path, "sun")
    second = everything_in(tmp_path)
    module = second.pop("garden/agent_tools.py")
    assert module.startswith(first.pop("garden/agent_tools.py") + b"\n\n@tool(")
    assert module.count(b"from tools.registry import tool") == 1
    assert second.pop("garden/tests/test_sun.py")
    assert second == first


def test_a_module_keeps_its_lines_its_line_ends_and_its_mode(tmp_path):
    module = tmp_path / "garden" / "agent_tools.py"
    module.parent.mkdir()
    (tmp_path / "garden" / "__init__.py").touch()
    head = b'"""Mine."""\r\n\r\nfrom math import (\r\n    pi,\r\n)\r\n'
    tail = b"\r\nTAU = 2 * pi  # \xc3\xbc"
    module.write_bytes(head + tail)
    module.chmod(0o640)
    new(tmp_path)
    imported, added = b"from tools.registry import tool\r\n", b"\r\n\r\n\r\n@tool("
    assert module.read_bytes().startswith(head + imported + tail + added)
    assert b"\n" not in module.read_bytes().replace(b"\r\n", b"")
    assert module.stat().st_mode & 0o777 == 0o640


def test_an_app_with_a_module_of_tests_gets_the_new_one_beside_it(tmp_path):
    (tmp_path / "garden").mkdir()
    for name in ("__init__.py", "tests.py"):
        (tmp_path / "garden" / name).touch()
    new(tmp_path)
    assert "garden/test_rain.py" in everything_in(tmp_path)
    assert not (tmp_path / "garden" / "tests").exists()


def test_an_app_within_a_package_is_made_with_the_package(tmp_path):
    new(tmp_path, app="town.garden")
    assert {"town/__init__.py", "town/garden/__init__.py"} < set(everything_in(tmp_path))


def test_without_an_app_it_is_yours_or_my_tools(tmp_path, settings):
    settings.BASE_DIR = tmp_path
    for extra, app in [([], "my_tools"), (["garden"], "garden"), (["a", "b"], "my_tools")]:
        settings.NANOHOST_EXTRA_APPS = extra
        call_command("tools", "new", f"rain_{len(extra)}")
        assert f"{app}/tests/test_rain_{len(extra)}.py" in everything_in(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("two words", "is that of a Python function"),
        ("a-b", "is that of a Python function"),
        ("class", "is that of a Python function"),
        ("größe", "is that of a Python function"),
        ("x" * 65, "64 characters"),
        ("test_rain", "pytest would take it for a test"),
        ("tool", "use that name for something else"),
        ("echo", "There is a tool named 'echo' already, in tests.toolbox.agent_tools."),
    ],
)
def test_a_name_that_cannot_be_a_tools_is_refused(tmp_path, name, reason):
    with pytest.raises(CommandError, match=reason):
        new(tmp_path, name)
    assert everything_in(tmp_path) == {}


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("my-garden", "a dotted name of Python packages"),
        ("garden..x", "a dotted name of Python packages"),
        ("../garden", "a dotted name of Python packages"),
        ("tools", "tools is part of nanohost"),
        ("nanohost.garden", "nanohost is part of nanohost"),
        ("json", "json is part of nanohost, of Python"),
        ("django.garden", "django is part of nanohost, of Python or of a library"),
        ("pytest", "a library is named pytest"),
        ("garden.agent", "agent has its label"),
        ("tests.toolbox", "stands in .*, and not in"),
        ("folder", "is there, and is no Python package"),
    ],
)
def test_an_app_that_cannot_be_yours_is_refused(tmp_path, app, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").touch()
    with pytest.raises(CommandError, match=reason):
        new(tmp_path, app=app)
    assert set(everything_in(tmp_path)) == {"folder/notes"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def rain():\n    pass\n", "something named 'rain' already, in line 1"),
        ("import rain\n", "something named 'rain' already, in line 1"),
        ("@tool(name='rain')\ndef other() -> str:\n    'x'\n", "something named 'rain' already, in line 1"),
        ("tool = None\n", "something of its own by the name tool, in line 1"),
        ("def broken(:\n", "is no Python that could be added to"),
        ("x = '\xfc'\n", "is no Python that could be added to"),
    ],
)
def test_a_module_that_cannot_take_it_stays_as_it_is(tmp_path, source, reason):
    (tmp_path / "garden").mkdir()
    (tmp_path / "garden" / "__init__.py").touch()
    (tmp_path / "garden" / "agent_tools.py").write_text(source, encoding="latin-1")
    before = everything_in(tmp_path)
    with pytest.raises(CommandError, match=reason):
        new(tmp_path)
    assert everything_in(tmp_path) == before


def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path):
    new(tmp_path)
    (tmp_path / "garden" / "tests").rename(tmp_path / "elsewhere")
    (tmp_path / "garden" / "tests").touch()  # a file: no test can be put there
    before = everything_in(tmp_path)
    with pytest.raises(CommandError, match=r"tests.*: .*; nothing was written\."):
        new(tmp_path, "sun")
    assert everything_in(tmp_path) == before
    assert not list(tmp_path.rglob("*.new"))


def test_a_new_tool_needs_no_database(tmp_path):
    environment = {
        "PATH": os.environ["PATH"],
        "DATA_DIR": str(tmp_path / "nowhere"),
        "DATABASE_URL": "postgresql://127.0.0.1:1/nowhere",
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    command = [sys.executable, "manage.py", "tools", "new", "rain", "--app", "garden", "--directory", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "nowhere").exists()


def test_consent_is_set_from_the_shell(capsys):
    said = tools(capsys, "allow", "time", "--approval", "always")
    assert said == "time is allowed; each call waits for consent.\n"
    assert ToolSetting.objects.get(name="time").approval == "always"
    assert "waits for consent" in tools(capsys, "allow", "time")  # what is not named stays
    assert tools(capsys, "allow", "time", "--approval", "never") == "time is allowed.\n"
