"""What runs a tool's calls: a child process, the worker itself, or an MCP server. Each tool has its runner, as a value.
A further kind of runner is one more class here, and a place in ``KINDS``.

A tool's process imports the registry, and this with it, without Django; so each runner imports what it runs calls with
when it runs the first. Only the gate has calls run; a test walks the code to see that nobody else does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.calls import Outcome
    from tools.models import ToolCall
    from tools.registry import RegisteredTool


@dataclass(frozen=True, kw_only=True)
class AdmittedCall:
    """A claimed call that has passed the gate. ``timeout`` in seconds. ``still_wanted`` renews its lease, and says
    whether it is still ours to run. ``tainted_by``: from where untrusted text has entered its conversation, if any
    has. ``grants``: all that the tool is granted, within the ceiling. ``on_output`` is told of what a program says
    while it runs: where in all of it a piece begins, and the piece."""

    call: ToolCall
    tool: RegisteredTool
    arguments: dict[str, Any]
    timeout: float
    output_bytes: int
    still_wanted: Callable[[], bool]
    tainted_by: str = ""
    grants: frozenset[str] = frozenset()
    on_output: Callable[[int, str], None] = lambda offset, text: None


class Runner(ABC):
    """Runs the calls of one tool. Its class gets ready for all tools of its kind, if there is anything to do."""

    @property
    @abstractmethod
    def defined_in(self) -> str:
        """Where the tool is defined, for people."""

    @abstractmethod
    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        """Run a call once. What the tool raises is part of the outcome.

        Raises :class:`tools.errors.Interrupted` for a call that may be run again, and :class:`tools.errors.CallLost`
        for one that somebody else has ended or taken over meanwhile.
        """

    def denial(self, arguments: dict[str, Any]) -> str | None:
        """Why a call with these arguments is refused, whoever approves it; "" if it is not, and None of tools whose
        calls are not looked at for it."""
        return None

    @classmethod
    def start(cls, tools: Sequence[RegisteredTool]) -> None:
        """Get ready for those of the enabled tools that are of this kind, so that their first calls do not wait."""
        return

    @classmethod
    def stop(cls) -> None:
        """At a shutdown: begin no more calls, interrupt what can be run again, and give the rest a few seconds."""
        return

    @classmethod
    def close(cls) -> None:
        """Let go of all that was started; whoever starts again has it new."""
        return


@dataclass(frozen=True, kw_only=True)
class InChild(Runner):
    """The function of that name runs in a child process."""

    module: str
    qualname: str

    @property
    def defined_in(self) -> str:
        return f"{self.module}.{self.qualname}"

    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        from tools.sandbox.children import run_in_child

        return run_in_child(self, admitted)

    @classmethod
    def start(cls, tools: Sequence[RegisteredTool]) -> None:
        """Raises :class:`tools.sandbox.modes.SandboxMissing` if they cannot have the sandbox that is demanded."""
        from tools.sandbox.children import place_of, pool
        from tools.sandbox.modes import in_force

        in_force()
        pool().start({place_of(tool) for tool in tools if isinstance(tool.runner, cls)})

    @classmethod
    def stop(cls) -> None:
        from tools.sandbox.children import pool

        pool().stop()

    @classmethod
    def close(cls) -> None:
        from tools.sandbox.children import pool

        pool().close()
        pool.cache_clear()


@dataclass(frozen=True, kw_only=True)
class Inline(Runner):
    """The function of that name, which has a :class:`tools.registry.Caller`, runs in the worker's own process."""

    module: str
    qualname: str

    @property
    def defined_in(self) -> str:
        return f"{self.module}.{self.qualname}"

    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        from tools.inline import run_inline

        return run_inline(self, admitted)


@dataclass(frozen=True, kw_only=True)
class InBox(Runner):
    """The function of that name says which program to run, and that runs in a box of its own, in the workspace."""

    module: str
    qualname: str

    @property
    def defined_in(self) -> str:
        return f"{self.module}.{self.qualname}"

    def denial(self, arguments: dict[str, Any]) -> str:
        from tools.denied import why_denied

        return next(filter(None, (why_denied(each) for each in arguments.values() if isinstance(each, str))), "")

    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        from tools.sandbox.commands import run_in_box

        return run_in_box(self, admitted)

    @classmethod
    def start(cls, tools: Sequence[RegisteredTool]) -> None:
        from tools.sandbox.commands import stopping

        stopping.over()

    @classmethod
    def stop(cls) -> None:
        from tools.sandbox.commands import stopping

        stopping.begin()

    @classmethod
    def close(cls) -> None:
        from tools.sandbox.commands import stopping

        stopping.over()


@dataclass(frozen=True, kw_only=True)
class OnMcpServer(Runner):
    """The tool of that name of an MCP server, as long as its description has this hash."""

    server_id: int
    name: str
    hash: str

    @property
    def defined_in(self) -> str:
        return f"an MCP server, as {self.name}"

    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        from tools.mcp.calling import run_on_server

        return run_on_server(self, admitted)

    @classmethod
    def start(cls, tools: Sequence[RegisteredTool]) -> None:
        from tools.mcp.keeping import keeper

        keeper().start()

    @classmethod
    def stop(cls) -> None:
        from tools.mcp.keeping import keeper

        keeper().stop()

    @classmethod
    def close(cls) -> None:
        from tools.mcp.keeping import keeper

        keeper().close()
        keeper.cache_clear()


@dataclass(frozen=True, kw_only=True)
class InWorkspace(Runner):
    """The file of that row, in a workspace, runs in a child process of its own, as long as it has this hash."""

    row_id: int
    file: str
    hash: str

    @property
    def defined_in(self) -> str:
        return f"a workspace, as {self.file}"

    def run_admitted(self, admitted: AdmittedCall) -> Outcome:
        from tools.custom.running import run_custom

        return run_custom(self, admitted)


KINDS: tuple[type[Runner], ...] = (InChild, Inline, InBox, OnMcpServer, InWorkspace)
