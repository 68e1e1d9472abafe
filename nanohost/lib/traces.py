"""Traces: the context of one that goes from row to row, and spans, each collected as one tuple when it ends.

What a span costs is paid on the way of a turn, so little happens here: no context manager, no variable of the task, no
dictionary. Names and attributes are made when a batch is exported, in a thread of its own, by
:mod:`nanohost.lib.telemetry`, which is not even imported while telemetry is off. docs/decisions/tracing.md has the
figures.

A context is what W3C's header ``traceparent`` holds; the empty text while telemetry is off.
"""

import random
import re
import time
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

# Set by :func:`configure`; while False, none of what is below is called but :func:`current`.
is_on = False

# The trace, the span and its parent, in hexadecimal digits, and when it began: nanoseconds since 1970.
Span = tuple[str, str, str, int]
# A span, when it ended, what it is, what its name ends with, the type of its error, and the values of its attributes.
Ended = tuple[Span, int, "Kind", str, str, tuple[Any, ...]]

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5  # as OTLP numbers them

SAMPLERS = (
    *("always_on", "always_off", "traceidratio"),
    *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
)

_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.{0,200})?")
_NOBODY = "0" * 16


@dataclass(frozen=True, eq=False)
class Kind:
    """What spans have in common. ``keys``: names of their attributes, in the order of the values."""

    name: str
    role: int
    keys: tuple[str, ...]
    operation: str = ""


REQUEST = Kind("", SERVER, ("http.request.method", "url.path", "http.response.status_code", "nanohost.request.id"))
RECEIVE = Kind("receive", PRODUCER, ("nanohost.turn.id",))
CLAIM = Kind("claim", INTERNAL, ("nanohost.turn.id", "nanohost.turn.fence"))
RUN = Kind(
    "invoke_agent",
    CONSUMER,
    ("gen_ai.agent.name", "gen_ai.conversation.id", "nanohost.turn.id", "nanohost.turn.fence"),
    "invoke_agent",
)
REPLAY = Kind("replay", CONSUMER, ("nanohost.replay.id", "nanohost.turn.id"))
CHAT = Kind(
    "chat",
    CLIENT,
    (
        *("gen_ai.request.model", "gen_ai.provider.name", "gen_ai.conversation.id", "gen_ai.usage.input_tokens"),
        *("gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.response.finish_reasons"),
        *("nanohost.cost.millionths", "gen_ai.input.messages", "gen_ai.output.messages"),
    ),
    "chat",
)
TOOL = Kind(
    "execute_tool",
    INTERNAL,
    (
        *("gen_ai.tool.name", "gen_ai.tool.call.id", "nanohost.turn.id", "nanohost.tool.status", "nanohost.tool.rule"),
        "nanohost.tool.runner",
    ),
    "execute_tool",
)
CHILD = Kind("child", INTERNAL, ("code.function.name",))
APPROVAL = Kind("approval", INTERNAL, ("nanohost.approval.id", "gen_ai.tool.name", "nanohost.approval.state"))
DELIVERY = Kind(
    "deliver",
    PRODUCER,
    (
        *("nanohost.delivery.id", "nanohost.delivery.kind", "nanohost.delivery.attempt", "http.response.status_code"),
        "nanohost.turn.id",
    ),
)

# Those that wait to be exported: whoever comes when it is full is counted, and dropped.
ended: deque[Ended] = deque()
lines: deque[tuple[int, int, str, str]] = deque()
dropped = 0
_most = 0

# The context of the request that is answered.
_current: ContextVar[str] = ContextVar("traceparent", default="")

_sampler, _share = "parentbased_always_on", 1.0


def configure(*, on: bool, sampler: str, share: float, most: int) -> None:
    """Switch traces on or off. ``sampler`` and ``share``: OTEL_TRACES_SAMPLER and its argument; ``most``: how many
    spans may wait to be exported."""
    global is_on, _sampler, _share, _most
    is_on, _sampler, _share, _most = on, sampler, share, most


def current() -> str:
    """The context of the request that is answered, or of the work that is done, here."""
    return _current.get()


def enter(context: str) -> None:
    """Make this the context of what is done in this task and the threads that it hands its work to."""
    _current.set(context)


def accepted(header: str) -> str:
    """The context of a request: its caller's, if the header makes sense, or a new one; sampled or not as
    OTEL_TRACES_SAMPLER says."""
    found = _HEADER.fullmatch(header[:300]) if header else None
    trace, parent = (found[1], found[2]) if found else (f"{_bits(128):032x}", _NOBODY)
    if found and _sampler.startswith("parentbased_"):
        is_sampled = int(found[3], 16) & 1 == 1
    elif _sampler.endswith("traceidratio"):
        is_sampled = int(trace[16:], 16) < _share * 2**64
    else:
        is_sampled = _sampler.endswith("always_on")
    if parent == _NOBODY and not is_sampled:
        parent = f"{_bits(64):016x}"
    return f"00-{trace}-{parent}-0{int(is_sampled)}"


def received(turn_id: object) -> str:
    """The context that a turn is stored with: the request's that brings it, or a new one's."""
    if context := _current.get():
        return context
    span = begin(context := accepted(""))
    if span:
        end(span, RECEIVE, turn_id)
    return of(span, context)


def begin(context: str, *, at: int = 0) -> Span | None:
    """A span under this context, begun now or ``at`` nanoseconds since 1970; None if nobody wants it: telemetry is off,
    or the trace is not sampled."""
    if not is_on or context[-1:] != "1":
        return None
    return context[3:35], f"{_bits(64):016x}", context[36:52], at or time.time_ns()


def of(span: Span | None, context: str) -> str:
    """What is told to those who go on below a span; without one, the context that it would have been under."""
    return f"00-{span[0]}-{span[1]}-01" if span else context


def end(span: Span, kind: Kind, *values: Any, about: str = "", error: str = "", at: int = 0) -> None:
    """A span is over. ``about``: what its name ends with; ``error``: the type of its error, a stable code."""
    global dropped
    if len(ended) >= _most:
        dropped += 1
        return
    ended.append((span, at or time.time_ns(), kind, about, error, values))


def log(at: int, level: int, line: str, trace: str) -> None:
    """Have a line that was logged exported as well; ``line``: as it was written, without secrets. ``trace``: what it is
    about, if that is in one."""
    global dropped
    if len(lines) >= _most:
        dropped += 1
        return
    lines.append((at, level, line, trace))


def trace_id(context: str) -> str:
    """Of the trace; empty if there is none or it is not sampled."""
    return context[3:35] if context[-1:] == "1" else ""


def _bits(many: int) -> int:
    return random.getrandbits(many) or 1
