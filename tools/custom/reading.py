"""Having a custom tool's file read, or run, in a child process of its own; nobody else's code was in it before."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.mcp.definitions import Definition, Unfit, checked
from tools.sandbox.children import Answer, Place, Task, pool

_CODE = "tools.custom.code"
PLACE = Place(app=_CODE, permissions=frozenset())

_READ_SECONDS, _READ_BYTES = 5.0, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a file says of its tool. ``unfit``: why it is none."""

    description: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    flagged: list[str] = field(default_factory=list)
    unfit: str = ""


def what_it_says(source: str) -> Said:
    """What a file says of its tool, without running it. Raises :class:`tools.errors.Interrupted` at a shutdown, and
    :class:`OSError` if no process can read it now."""
    answer = _run("read", {"source": source}, _READ_SECONDS, _READ_BYTES, lambda: True, "")
    if answer.rule == "unavailable":
        raise OSError(answer.text)
    if not answer.ok:
        return Said(unfit=f"it could not be read: {answer.text}"[:500])
    try:
        told = json.loads(answer.text)
        if "unfit" in told:
            return Said(unfit=str(told["unfit"])[:500])
        # What is told to models is bounded as what MCP servers say is.
        made = checked(Definition(name="custom", description=told["description"], schema=told["schema"]))
        return Said(description=made.description, schema=made.schema, flagged=[str(each) for each in told["flagged"]])
    except Unfit as why:
        return Said(unfit=str(why)[:500])
    except (ValueError, LookupError, TypeError, AttributeError):
        return Said(unfit="it could not be read")


def run(
    source: str,
    *,
    file: str,
    arguments: dict[str, Any],
    seconds: float,
    output_bytes: int,
    still_wanted: Callable[[], bool],
    traceparent: str,
) -> Answer:
    """Run a tool once; raises :class:`tools.errors.Interrupted` at a shutdown."""
    given = {"source": source, "file": file, "arguments": arguments}
    return _run("run", given, seconds, output_bytes, still_wanted, traceparent)


def _run(
    function: str,
    arguments: dict[str, Any],
    seconds: float,
    output_bytes: int,
    still_wanted: Callable[[], bool],
    traceparent: str,
) -> Answer:
    task = Task(
        module=_CODE,
        qualname=function,
        arguments=arguments,
        timeout=seconds,
        output_bytes=output_bytes,
        secrets=(),
        # It has neither files nor network: nothing of it is left.
        repeatable=True,
        traceparent=traceparent,
        alone=PLACE,
    )
    return pool().run(task, still_wanted=still_wanted)
