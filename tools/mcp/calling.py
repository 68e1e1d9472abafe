"""Runs calls of MCP servers' tools. Only the gate may have a call run here; a test walks the code to see that."""

from django.db import close_old_connections

from nanohost.lib.redaction import redact
from nanohost.lib.text import storable
from tools import calls
from tools.calls import Outcome
from tools.errors import CallLost
from tools.mcp import catalogue, keeping, pictures
from tools.mcp.errors import NotStarted
from tools.models import CallStatus
from tools.results import cap
from tools.runners import AdmittedCall, OnMcpServer

# After these, a server may have done what it was asked.
_IN_DOUBT = ("timeout", "crashed", "interrupted", "output")


def run_on_server(runner: OnMcpServer, admitted: AdmittedCall) -> Outcome:
    """Run a call once. One with side effects that was sent and not answered is UNKNOWN.

    Raises :class:`tools.errors.Interrupted` if a shutdown stopped it, and :class:`CallLost` if it was no longer wanted.
    """
    server = catalogue.server_of(runner.server_id)
    if server is None:
        return _failed("unavailable", "its server no longer exists; it was not run")
    try:
        spec = keeping.spec_of(server)
        close_old_connections()  # none is kept while it runs
        answer = keeping.keeper().ask(
            {
                "ask": "call",
                "server": spec,
                "tool": runner.name,
                "hash": runner.hash,
                "arguments": admitted.arguments,
                "seconds": admitted.timeout,
                "traceparent": admitted.call.traceparent,
            },
            seconds=admitted.timeout,
            still_wanted=admitted.still_wanted,
            repeatable=admitted.tool.effects == "read",
            on_progress=_Told(admitted),
        )
    except NotStarted as why:
        server.note_error(str(why))
        return _failed("unavailable", f"{why}; it was not run")
    if answer is None:
        raise CallLost(admitted.call.pk)
    text = storable(str(answer.get("text", "")))
    if answer.get("ok"):
        server.note_success()
        text += pictures.keep(answer.get("pictures") or (), server=server.name, call=admitted.call)
        return Outcome(status=CallStatus.SUCCESS, result=cap(text, admitted.output_bytes))
    rule = str(answer.get("rule", "output"))
    if rule == "changed":
        catalogue.take_in(server, answer)
        return _failed("mcp_changed", f"{text}; it was not run. An administrator has to review it first")
    if rule == "unavailable":
        server.note_error(text)
        return _failed(rule, f"{text}; it was not run")
    if rule in _IN_DOUBT:
        server.note_error(text)
        if admitted.tool.effects == "write":
            return Outcome(status=CallStatus.UNKNOWN, result=f"{calls.UNKNOWN_RESULT} ({text})", rule=rule)
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {cap(text, admitted.output_bytes)}", rule=rule)


class _Told:
    """Tells what a server says while it works, as the output of a program is told."""

    def __init__(self, admitted: AdmittedCall) -> None:
        self._tell, self._at = admitted.on_output, 0

    def __call__(self, line: str) -> None:
        text = redact(storable(line))
        self._tell(self._at, text)
        self._at += len(text)


def _failed(rule: str, text: str) -> Outcome:
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {cap(text, 2000)}", rule=rule)
