"""Tools as they are defined: schemas read off signatures and docstrings, and what cannot be a tool."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tests.support.hosts import ROOT
from tools import registry
from tools.errors import ToolDefinitionError, UnknownTool
from tools.permissions import Permission
from tools.registry import Caller, tool
from tools.runners import InBox, InChild, Inline
from tools.schemas import arguments_schema

pytestmark = pytest.mark.shapeless(reason="tools are registered before there is a database")


@dataclass
class Place:
    """Where."""

    city: str
    zip_code: str = ""


def forecast(
    place: Place,
    day: date,
    unit: Literal["celsius", "kelvin"] = "celsius",
    hours: Annotated[int, Field(ge=1, le=24)] = 6,
    tags: list[str] | None = None,
) -> str:
    """Return the forecast.

    It may be wrong.

    Args:
        place: Where it is asked for.
        day: The day,
            in ISO 8601.
        hours: How many.
    """
    return ""


def nothing() -> str:
    """Take nothing."""
    return ""


# --- schemas -----------------------------------------------------------------------------------------------------


def test_types_become_a_closed_schema():
    schema = arguments_schema(forecast)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["required"] == ["place", "day"]
    properties = schema["properties"]
    assert (properties["day"]["type"], properties["day"]["format"]) == ("string", "date")
    assert properties["unit"]["enum"] == ["celsius", "kelvin"]
    assert (properties["hours"]["minimum"], properties["hours"]["maximum"]) == (1, 24)
    assert schema["$defs"]["Place"]["required"] == ["city"]


def test_defaults_make_arguments_optional_and_are_told():
    properties = arguments_schema(forecast)["properties"]
    assert [properties[name]["default"] for name in ("unit", "hours", "tags")] == ["celsius", 6, None]
    assert properties["tags"]["anyOf"] == [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]


def test_descriptions_come_from_the_docstring():
    properties = arguments_schema(forecast)["properties"]
    assert properties["day"]["description"] == "The day,\nin ISO 8601."
    assert properties["hours"]["description"] == "How many."
    assert "description" not in properties["unit"]


def test_no_arguments_are_an_empty_closed_object():
    assert arguments_schema(nothing) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_titles_that_repeat_the_names_are_left_out():
    schema = arguments_schema(forecast)
    assert "title" not in schema
    assert "title" not in str(schema["properties"])


def test_a_tool_in_openais_format():
    function = registry.get("time").as_function()
    assert function["type"] == "function"
    assert function["function"]["name"] == "time"
    assert function["function"]["description"] == "Return the current time in ISO 8601, and its timezone."
    assert function["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "timezone": {
                "type": "string",
                "default": "",
                "description": "IANA name of a timezone, such as Europe/Berlin. Without one, the time here.",
            }
        },
        "additionalProperties": False,
    }


# --- registering -------------------------------------------------------------------------------------------------


@pytest.fixture
def own_registry(monkeypatch):
    """What the test registers is forgotten."""
    monkeypatch.setattr(registry, "_tools", dict(registry._tools))
    monkeypatch.setattr(registry, "_awaiting_schema", dict(registry._awaiting_schema))


def test_the_decorator_returns_the_function_itself(own_registry):
    assert tool(effects="read")(nothing) is nothing
    assert registry.get("nothing").module == __name__


def test_a_tool_that_says_nothing_of_its_effects_is_taken_to_have_some(own_registry):
    tool()(nothing)
    known = registry.get("nothing")
    assert (known.effects, known.permissions, known.timeout, known.secrets) == ("write", (), None, ())


def test_a_tool_may_have_another_name(own_registry):
    tool(name="do-nothing")(nothing)
    assert "do-nothing" in registry.names()


def test_registering_the_same_function_again_is_no_error(own_registry):
    tool()(nothing)
    tool(timeout=5)(nothing)
    assert registry.get("nothing").timeout == 5


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownTool):
        registry.get("no_such_tool")


def test_the_modules_of_the_tools_are_known():
    assert registry.modules() == ["tests.toolbox.agent_tools", "tools.agent_tools"]


# --- what the registry keeps -------------------------------------------------------------------------------------

PLAIN_DATA = {dict, list, tuple, str, int, float, bool, type(None)}


def reachable(*roots: object) -> Iterator[object]:
    """All that the roots hold, however deep; of a class, only the name."""
    seen, ahead = set(), list(roots)
    while ahead:
        each = ahead.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen.add(id(each))
            yield each
            ahead += gc.get_referents(each)


def test_a_started_host_keeps_no_tools_function():
    kept = {type(each) for each in reachable(registry._tools, registry._awaiting_schema)}
    assert registry.RegisteredTool in kept
    assert kept <= PLAIN_DATA | {registry.RegisteredTool, InBox, InChild, Inline, Permission}


def test_a_function_is_let_go_of_when_its_schema_is_made(own_registry):
    tool()(nothing)
    assert nothing in reachable(registry._awaiting_schema)
    known = registry.get("nothing")
    assert known.schema == arguments_schema(nothing)
    assert nothing not in reachable(known, registry._tools, registry._awaiting_schema)


def test_a_process_that_only_imports_tools_makes_no_schema():
    imported = python("import sys, tools.agent_tools; assert 'tools.schemas' not in sys.modules")
    assert imported.returncode == 0, imported.stderr


# --- what cannot be a tool ---------------------------------------------------------------------------------------


def without_docstring() -> str:
    return ""


def without_type(place, day: date) -> str:
    """Take something."""
    return ""


def any_number(*places: str) -> str:
    """Take any number."""
    return ""


def any_names(**places: str) -> str:
    """Take any names."""
    return ""


def by_position(place: str, /) -> str:
    """Take by position."""
    return ""


def with_caller(caller: Caller, text: str) -> str:
    """Work on the database.

    Args:
        text: What it says.
    """
    return text


async def later_with_caller(caller: Caller) -> str:
    """Work on it later."""
    return ""


def with_caller_behind(text: str, caller: Caller) -> str:
    """Have the caller behind."""
    return text


def with_other_name(who: Caller) -> str:
    """Have the caller by another name."""
    return ""


def with_two_callers(caller: Caller, other: Caller) -> str:
    """Have two."""
    return ""


@pytest.mark.parametrize(
    ("function", "options", "sentence"),
    [
        (without_docstring, {}, "without_docstring: a tool needs a docstring; the model reads it."),
        (without_type, {}, "without_type: the argument place needs a type."),
        (any_number, {}, r"any_number: \*places: str cannot be an argument of a tool; name each one."),
        (any_names, {}, r"any_names: \*\*places: str cannot be an argument of a tool; name each one."),
        (by_position, {}, "by_position: place: str cannot be an argument of a tool; name each one."),
        (nothing, {"permissions": ["NET_FTP"]}, "permissions are NET_HTTP, FS_READ, FS_WRITE, SHELL"),
        (nothing, {"effects": "some"}, """effects is "read" or "write", not 'some'"""),
        (nothing, {"effects": "rows"}, """effects is "read" or "write", not 'rows'"""),
        (with_caller, {"effects": "some"}, """effects is "read" or "write" or "rows", not 'some'"""),
        (nothing, {"requires": ["openat2", "wings"]}, "requires is of openat2; not wings"),
        (with_caller, {"effects": "rows", "secrets": ["KEY"]}, "with_caller: a tool with a caller has no secrets"),
        (later_with_caller, {"effects": "rows"}, "and is no coroutine"),
        (with_caller_behind, {"effects": "rows"}, "`caller: Caller` is the first argument of a tool that has it"),
        (with_other_name, {"effects": "rows"}, "`caller: Caller` is the first argument of a tool that has it"),
        (with_two_callers, {"effects": "rows"}, "`caller: Caller` is the first argument of a tool that has it"),
        (nothing, {"timeout": 0}, "timeout is a number of seconds above 0"),
        (nothing, {"timeout": float("nan")}, "timeout is a number of seconds above 0"),
        (nothing, {"name": "do nothing"}, "a tool's name is 1 to 64 of A-Z, a-z, 0-9, _ and -"),
        (nothing, {"name": "x" * 65}, "a tool's name is 1 to 64"),
        (nothing, {"name": "time"}, "time: tools.agent_tools already registers a tool of that name."),
    ],
)
def test_a_bad_definition_is_refused_where_it_stands(own_registry, function, options, sentence):
    known = registry.names()
    with pytest.raises(ToolDefinitionError, match=sentence):
        tool(**options)(function)
    assert registry.names() == known


def with_a_callers_name(caller: str) -> str:
    """Return who called, by telephone."""
    return caller


def test_an_argument_of_that_name_is_a_models_unless_it_is_a_caller(own_registry):
    tool(effects="read")(with_a_callers_name)
    tool(effects="rows")(with_caller)
    assert registry.get("with_a_callers_name").runner == InChild(module=__name__, qualname="with_a_callers_name")
    assert list(registry.get("with_a_callers_name").schema["properties"]) == ["caller"]
    assert registry.get("with_caller").runner == Inline(module=__name__, qualname="with_caller")
    assert list(registry.get("with_caller").schema["properties"]) == ["text"]
    assert registry.get("with_caller").schema["required"] == ["text"]


def test_no_tools_process_imports_an_inline_tool(own_registry):
    known = registry.modules()
    tool(effects="rows")(with_caller)
    assert registry.modules() == known


def test_an_inline_tool_of_somebody_elses_breaks_the_start(tmp_path):
    app = tmp_path / "greedy"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "agent_tools.py").write_text(
        "from __future__ import annotations\n"
        "from tools.registry import Caller, tool\n"
        "@tool(effects='read')\n"
        "def peek(caller: Caller) -> str:\n"
        '    """Look at everything there is."""\n'
    )
    started = python("import django; django.setup()", PYTHONPATH=f".:{tmp_path}", NANOHOST_EXTRA_APPS="greedy")
    assert started.returncode != 0
    assert "ToolDefinitionError: peek: a tool of greedy.agent_tools cannot have `caller: Caller`." in started.stderr


def test_a_local_function_cannot_be_a_tool(own_registry):
    def local() -> str:
        """Be found by no other process."""
        return ""

    with pytest.raises(ToolDefinitionError, match="local: a tool must be defined at the top of its module"):
        tool()(local)


def of_no_json_type(place: subprocess.Popen) -> str:
    """Take what JSON cannot carry."""
    return ""


def of_no_known_type(place: "Nowhere") -> str:  # noqa: F821 -- the name that is missing is the test
    """Take what nobody knows."""
    return ""


@pytest.mark.parametrize("function", [of_no_json_type, of_no_known_type])
def test_a_type_that_makes_no_schema_is_refused(function):
    with pytest.raises(ToolDefinitionError, match=f"^{function.__name__}: .+"):
        arguments_schema(function)


def test_a_tool_without_a_schema_breaks_the_start_and_not_the_first_turn(tmp_path):
    app = tmp_path / "broken_tools"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "agent_tools.py").write_text(
        "import subprocess\n"
        "from tools.registry import tool\n"
        "@tool()\n"
        "def broken(process: subprocess.Popen) -> str:\n"
        '    """Take what JSON cannot carry."""\n'
    )
    started = python("import django; django.setup()", PYTHONPATH=f".:{tmp_path}", NANOHOST_EXTRA_APPS="broken_tools")
    assert started.returncode != 0
    assert "ToolDefinitionError: broken: " in started.stderr


# --- what imports without Django ---------------------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": ".", "DJANGO_SETTINGS_MODULE": "nanohost.settings", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "module",
    ["tools.registry", "tools.sandbox.child", "tools.agent_tools", "agent.loop", "agent.history", "agent.prompt"],
)
def test_pure_modules_import_without_django(module):
    code = f"import sys, {module}; assert not [name for name in sys.modules if name.split('.')[0] == 'django']"
    imported = python(code, DJANGO_SETTINGS_MODULE="no.such.settings")
    assert imported.returncode == 0, imported.stderr


def any_value(value: Any) -> str:
    """Take anything."""
    return ""


def test_anything_is_a_schema_too():
    assert arguments_schema(any_value)["required"] == ["value"]
