"""The tools there are: typed functions with a docstring, found in each app's ``agent_tools.py``.

    from tools.registry import tool

    @tool(permissions=["NET_HTTP"], effects="read", timeout=5)
    def exchange_rate(currency: str) -> str:
        \"\"\"Return today's rate of a currency against the euro.

        Args:
            currency: ISO 4217 code, such as USD.
        \"\"\"

The decorator returns the function unchanged, so its author tests it by calling it. The registry keeps where the
function is, and the function itself only until its schema is made, at the host's start: only the gate runs tools, in
processes of their own. Those import this module without Django, and make no schemas.

A tool of nanohost itself that works on the database has a first argument ``caller: Caller``, which no model sees, and
runs *inline*: in the process of the worker, and under a time limit for its statements (:mod:`tools.inline`).
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, ParamSpec, TypeVar
from uuid import UUID

from tools.errors import ToolDefinitionError, UnknownTool
from tools.permissions import Permission
from tools.requirements import KNOWN
from tools.runners import InBox, InChild, Inline, Runner

P = ParamSpec("P")
R = TypeVar("R")
Effects = Literal["read", "write", "rows"]

# What OpenAI's API takes as a function's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Those that may be run again after a crash: nothing has happened, or it was undone.
REPEATABLE: tuple[Effects, ...] = ("read", "rows")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """On whose behalf an inline tool runs. ``call_id`` is the id of the call's row."""

    conversation_id: UUID
    turn_id: UUID
    owner_id: int
    agent: str
    call_id: UUID
    request_id: str
    # From where untrusted text has entered the conversation; empty: none has. What is written then is marked.
    tainted_by: str = ""


class Untrusted(str):
    """A result that an inline tool knows to be untrusted, such as what was remembered of a web page. ``by``: from where
    it came, in a few words."""

    __slots__ = ("by",)
    by: str

    def __new__(cls, text: str, *, by: str) -> "Untrusted":
        made = super().__new__(cls, text)
        made.by = by
        return made


class Waits(str):
    """What an inline tool of rows returns whose result is given later, by :func:`tools.gate.finish`: its call waits
    until then, and no worker holds it."""

    __slots__ = ()


# What an agent calls the place where it was spoken to: it may always write there.
ORIGIN = "origin"


@dataclass(frozen=True, kw_only=True)
class RegisteredTool:
    """A tool as the gate and the model know it.

    ``effects``: a "read" tool may be run again after a crash; a "write" tool never is. What a "rows" tool changes are
    rows of this database and nothing else, in one transaction with the outcome of its call, so that it may be run again
    as well. ``timeout``: seconds, or None for ``TOOL_TIMEOUT_SECONDS``. ``secrets``: names of the environment variables
    its process is given. ``module``: the one that registers it. ``runner``: what runs its calls, for the gate.
    ``untrusted``: what it returns may come from anybody, as a web page does. ``stays_inside``: it changes nothing but
    what the agent keeps for this owner, and marks what it writes in a conversation that is tainted. ``requires``: what
    its machine must have, by names of :mod:`tools.requirements`. ``writes_to``: the argument that names a destination,
    of a tool that writes to one, and ``changes_file`` the one that names a file of the workspace that it changes; the
    gate looks at both. ``withheld``: why nobody may use it now, whoever has
    enabled it, or "" if it may be used; None for those that are of this code. ``given_schema``: of a tool that is no
    function of ours. ``workspace``: the only one in which it may be used, of a tool that is a file there.
    """

    name: str
    module: str
    description: str
    permissions: tuple[Permission, ...]
    effects: Effects
    timeout: float | None
    secrets: tuple[str, ...]
    runner: Runner
    untrusted: bool = False
    stays_inside: bool = False
    requires: tuple[str, ...] = ()
    writes_to: str = ""
    changes_file: str = ""
    withheld: str | None = None
    workspace: str = ""
    given_schema: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def inline(self) -> bool:
        """Whether it has a :class:`Caller`, and no process of its own."""
        return isinstance(self.runner, Inline)

    @property
    def boxed(self) -> bool:
        """Whether each of its calls is a program in a box of its own, with the agent's workspace in it."""
        return isinstance(self.runner, InBox)

    @property
    def defined_in(self) -> str:
        """Where it is defined, for people."""
        return self.runner.defined_in

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of the arguments: an object, closed to unknown keys. Made once, at the start.

        Raises :class:`ToolDefinitionError` where :func:`tools.schemas.arguments_schema` does.
        """
        if self.given_schema is not None:
            return self.given_schema
        from tools.schemas import arguments_schema

        schema = arguments_schema(_awaiting_schema[self.name])
        del _awaiting_schema[self.name]
        return schema

    def as_function(self) -> dict[str, Any]:
        """The tool in OpenAI's ``tools`` format."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.schema},
        }


_tools: dict[str, RegisteredTool] = {}

# The functions whose schema is still to be made. A schema needs types that may stand below the tool in its module, and
# a tool's process needs no schema, so the decorator makes none; ToolsConfig makes them all, and this is empty.
_awaiting_schema: dict[str, Callable[..., Any]] = {}


def tool(
    *,
    permissions: Sequence[str] = (),
    effects: Effects = "write",
    timeout: float | None = None,
    name: str | None = None,
    secrets: Sequence[str] = (),
    untrusted: bool | None = None,
    stays_inside: bool = False,
    requires: Sequence[str] = (),
    boxed: bool = False,
    writes_to: str = "",
    changes_file: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a typed function as a tool; raises :class:`ToolDefinitionError` for one that cannot be one.

    A tool that says nothing of its effects is taken to have some: it is then never run twice for one call. One that
    reaches other hosts and does not say whether its output is untrusted is taken to return what others wrote.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        tool_name = name or function.__name__
        if not _NAME.fullmatch(tool_name):
            raise ToolDefinitionError(f"{tool_name!r}: a tool's name is 1 to 64 of A-Z, a-z, 0-9, _ and -.")
        description = inspect.getdoc(function)
        if not description:
            raise ToolDefinitionError(f"{tool_name}: a tool needs a docstring; the model reads it.")
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ToolDefinitionError(f"{tool_name}: {parameter} cannot be an argument of a tool; name each one.")
            if parameter.annotation is parameter.empty:
                raise ToolDefinitionError(f"{tool_name}: the argument {parameter.name} needs a type.")
        if "<locals>" in function.__qualname__:
            raise ToolDefinitionError(f"{tool_name}: a tool must be defined at the top of its module.")
        if tool_name.startswith(("mcp_", "custom_")):
            raise ToolDefinitionError(f"{tool_name}: no name of code begins with mcp_ or custom_.")
        inline = _is_inline(tool_name, function)
        if effects not in (known_effects := ("read", "write", "rows") if inline else ("read", "write")):
            allowed = " or ".join(f'"{each}"' for each in known_effects)
            raise ToolDefinitionError(f"{tool_name}: effects is {allowed}, not {effects!r}.")
        if stays_inside and not (inline and effects != "read"):
            raise ToolDefinitionError(f"{tool_name}: only an inline tool that has effects stays inside.")
        if unknown := set(requires) - set(KNOWN):
            raise ToolDefinitionError(f"{tool_name}: requires is of {', '.join(KNOWN)}; not {', '.join(unknown)}.")
        for fact, named in (("writes_to", writes_to), ("changes_file", changes_file)):
            if named and named not in inspect.signature(function).parameters:
                raise ToolDefinitionError(f"{tool_name}: {fact} names one of its arguments, not {named!r}.")
        if inline and (secrets or inspect.iscoroutinefunction(function)):
            raise ToolDefinitionError(f"{tool_name}: a tool with a caller has no secrets, and is no coroutine.")
        if timeout is not None and not 0 < timeout < 86_400:
            raise ToolDefinitionError(f"{tool_name}: timeout is a number of seconds above 0, a day at most.")
        try:
            needed = tuple(Permission(permission) for permission in permissions)
        except ValueError as error:
            raise ToolDefinitionError(f"{tool_name}: {error}; permissions are {', '.join(Permission)}.") from None
        if boxed and (inline or secrets or effects != "write" or Permission.SHELL not in needed):
            raise ToolDefinitionError(f"{tool_name}: a boxed tool needs SHELL and writes; it has no secrets.")
        kind: type[Inline | InChild | InBox] = Inline if inline else InBox if boxed else InChild
        runner = kind(module=function.__module__, qualname=function.__qualname__)
        known = _tools.get(tool_name)
        if known and known.defined_in != runner.defined_in:
            raise ToolDefinitionError(f"{tool_name}: {known.module} already registers a tool of that name.")
        _tools[tool_name] = RegisteredTool(
            name=tool_name,
            module=function.__module__,
            description=description.split("\nArgs:")[0].strip(),
            permissions=needed,
            effects=effects,
            timeout=timeout,
            secrets=tuple(secrets),
            runner=runner,
            untrusted=Permission.NET_HTTP in needed if untrusted is None else untrusted,
            stays_inside=stays_inside,
            requires=tuple(requires),
            writes_to=writes_to,
            changes_file=changes_file,
        )
        _awaiting_schema[tool_name] = function
        return function

    return register


def is_caller(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is the caller's, and not a model's to give."""
    return parameter.annotation in (Caller, Caller.__name__)


def _is_inline(tool_name: str, function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    callers = [parameter for parameter in parameters if is_caller(parameter)]
    if callers and (callers != parameters[:1] or parameters[0].name != "caller"):
        raise ToolDefinitionError(f"{tool_name}: `caller: Caller` is the first argument of a tool that has it.")
    return bool(callers)


# Finds the tools of this host that no code registers, but rows: those of these names, or all for None.
Source = Callable[[Collection[str] | None], list[RegisteredTool]]
_sources: list[Source] = []


def add_source(source: Source) -> None:
    """Have the tools of rows known; where only those of code are meant, they are not asked for, and no row is read."""
    if source not in _sources:
        _sources.append(source)


def get(name: str) -> RegisteredTool:
    """The tool of that name; raises :class:`UnknownTool`."""
    if found := having([name]):
        return found[0]
    raise UnknownTool(name)


def having(names: Collection[str]) -> list[RegisteredTool]:
    """Those of these names that there are, by name."""
    found = {name: _tools[name] for name in names if name in _tools}
    if others := [name for name in names if name not in found]:
        found |= {tool.name: tool for source in _sources for tool in source(others)}
    return [found[name] for name in sorted(found)]


def everything() -> list[RegisteredTool]:
    """All tools by name, those of rows as well."""
    found = {tool.name: tool for source in _sources for tool in source(None)} | _tools
    return [found[name] for name in sorted(found)]


def names() -> list[str]:
    """The names of all tools that are registered by code, sorted."""
    return sorted(_tools)


def registered() -> Iterator[RegisteredTool]:
    """All tools that are registered by code, by name."""
    return (_tools[name] for name in names())


def modules() -> list[str]:
    """The modules of the tools that run in processes: what one imports before its first call."""
    return sorted({each.module for each in _tools.values() if isinstance(each.runner, InChild)})
