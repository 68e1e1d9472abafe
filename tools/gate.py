"""The gate: the only way to a tool.

A call runs only if the tool is registered, inside the settings' ceiling, enabled in the admin, allowed to this agent,
granted every permission it declares, its input fits the size and the schema, it writes to no destination that the agent
was not given and changes no document that the agent may not, no untrusted text in the conversation stands against it,
and its rate limits have a place left. The first rule that says no names itself in the outcome. The gate decides when a
call is asked for and again when it starts, since what was allowed may have been taken back in between.
"""

import difflib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, OperationalError, transaction

from nanohost.lib import traces
from nanohost.lib.database import Tries, borrowed_connection, store_again
from nanohost.lib.ids import new_id
from nanohost.lib.logs import about
from nanohost.lib.redaction import redact
from nanohost.lib.statements import Given, Rows
from nanohost.lib.text import clip, storable
from tools import approvals, calls, limits, registry, taint
from tools.arguments import InvalidArguments, read_arguments
from tools.calls import Outcome
from tools.consent import Consent, mode_of
from tools.errors import CallLost, Interrupted, UnknownTool
from tools.limits import Limit
from tools.models import Approval, CallStatus, ToolCall, ToolSetting
from tools.permissions import grantable
from tools.registry import ORIGIN, RegisteredTool
from tools.requirements import why_missing
from tools.runners import KINDS, AdmittedCall
from tools.taint import Policy
from tools.workspace import documents

T = TypeVar("T")

# For people who look at all tools: no agent works there.
ANY_WORKSPACE = "*"

logger = logging.getLogger(__name__)
audit = logging.getLogger("TOOL_AUDIT")

# Whether this process stops to run tools.
_stopping = threading.Event()


@dataclass(frozen=True, kw_only=True)
class AgentTools:
    """Which tools an agent may use, as a value: the gate does not know agents. ``names`` None: every enabled one.

    ``approvals``: which of its calls wait for consent, see :mod:`tools.consent`. ``tainted_by``: from where untrusted
    text has entered the conversation that asks; empty: none has. ``taint``: what the agent says of calls with effects
    or egress once some has. ``destinations``: where it may write from the conversation that asks, by name; asked only
    for a tool that writes somewhere. ``documents``: those of its own, by their paths in a workspace, that it may change
    for the owner of that conversation. ``workspace``: the one that it works in there, whose own tools it may use.
    """

    names: frozenset[str] | None
    approvals: Mapping[str, str] = field(default_factory=dict)
    taint: Policy = "off"
    tainted_by: str = ""
    destinations: Callable[[], Collection[str]] = lambda: (ORIGIN,)
    documents: frozenset[str] = frozenset()
    workspace: str = ""

    def include(self, name: str) -> bool:
        return self.names is None or name in self.names

    def know(self, tool: RegisteredTool) -> bool:
        """Whether there is such a tool for it: those of other workspaces there are not."""
        return not tool.workspace or self.workspace in (tool.workspace, ANY_WORKSPACE)


class Refused(Exception):
    """A rule refused the call."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule

    def outcome(self) -> Outcome:
        """The refusal as a structured result, which the model can read as well as a person."""
        result = json.dumps({"status": "REJECTED", "rule": self.rule, "message": str(self)}, ensure_ascii=False)
        # What a model wrote is quoted in it.
        return Outcome(status=CallStatus.REJECTED, result=storable(result), rule=self.rule)


_settings = Rows(lambda: ToolSetting.objects.order_by())
_enabled = Rows(lambda: ToolSetting.objects.filter(enabled=True).order_by())
_setting = Rows(lambda: ToolSetting.objects.filter(name=Given("name")))


def admit(
    name: str,
    *,
    agent_tools: AgentTools,
    decided: Mapping[str, ToolSetting] | None = None,
    tool: RegisteredTool | None = None,
) -> tuple[RegisteredTool, ToolSetting]:
    """The tool, if this agent may use it now, and its setting; raises :class:`Refused` by the first rule that says no.

    ``decided``: what the admin has decided, by tool, where the caller has read it for many tools at once; and ``tool``,
    where it has that as well.
    """
    return _passed(_admitting(name, agent_tools, decided, tool))


def _passed(rules: Generator[str, None, T]) -> T:
    """What is behind all of these rules; raises :class:`Refused` by the first that says no."""
    while True:
        try:
            next(rules)
        except StopIteration as end:
            result: T = end.value
            return result


def _admitting(
    name: str,
    agent_tools: AgentTools,
    decided: Mapping[str, ToolSetting] | None = None,
    tool: RegisteredTool | None = None,
) -> Generator[str, None, tuple[RegisteredTool, ToolSetting]]:
    """The rules of who may use what, in their order: each one passed is yielded, the first that is not is raised."""
    try:
        tool = tool or registry.get(name)
        if not agent_tools.know(tool):
            raise UnknownTool(name)
    except UnknownTool:
        # Whoever has read what is decided looks at many tools, and not for a model that misspelt one.
        names = [] if decided is not None else [each.name for each in offered(agent_tools=agent_tools)]
        near = difflib.get_close_matches(clip(name, 64), names, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise Refused("not_registered", f"There is no tool named {clip(name, 100)!r}.{hint}") from None
    yield "not_registered"
    if settings.TOOLS_ALLOWED and name not in settings.TOOLS_ALLOWED:
        raise Refused("not_in_ceiling", f"The tool {name} is outside TOOLS_ALLOWED, the settings' ceiling.")
    yield "not_in_ceiling"
    for needed in tool.requires:
        if reason := why_missing(needed):
            raise Refused(f"requires:{needed}", f"The tool {name} does not run on this machine: {reason}.")
        yield f"requires:{needed}"
    setting = decided.get(name) if decided is not None else next(iter(_setting(name=name)), None)
    if setting is None or not setting.enabled:
        raise Refused("not_enabled", f"The tool {name} is not enabled. An administrator can enable it.")
    yield "not_enabled"
    if tool.withheld:
        raise Refused("withheld", tool.withheld)
    if tool.withheld is not None:
        yield "withheld"
    if not agent_tools.include(name):
        raise Refused("not_for_agent", f"The tool {name} is not allowed to this agent.")
    yield "not_for_agent"
    for permission in tool.permissions:
        if permission not in grantable() or permission not in settings.PERMISSIONS_GRANTED:
            raise Refused(
                f"permission_ceiling:{permission}",
                f"The tool {name} needs {permission}, which is outside PERMISSIONS_GRANTED, the settings' ceiling.",
            )
        yield f"permission_ceiling:{permission}"
        if permission not in setting.grants:
            raise Refused(f"permission:{permission}", f"The tool {name} needs {permission}, which it was not granted.")
        yield f"permission:{permission}"
    return tool, setting


def consent_rule(tool: RegisteredTool, setting: ToolSetting, agent_tools: AgentTools) -> str:
    """The rule for which a call of a tool needs consent now; empty if it needs none."""
    mode = mode_of(tool.name, of_tool=setting.approval, of_agent=agent_tools.approvals)
    if mode == Consent.ALWAYS:
        return "consent:always"
    by_mode = mode == Consent.TAINTED and agent_tools.tainted_by
    return "consent:tainted" if by_mode or taint.decide(tool, agent_tools) == "approve" else ""


def check_arguments(tool: RegisteredTool, setting: ToolSetting, raw: str) -> dict[str, Any]:
    """The arguments, parsed; raises :class:`Refused` if they are too large, not JSON, or not what the schema says."""
    return _passed(_fitting(tool, setting, raw))


def _fitting(tool: RegisteredTool, setting: ToolSetting, raw: str) -> Generator[str, None, dict[str, Any]]:
    size = len(raw.encode("utf-8"))
    if size > (most := setting.input_bytes()):
        raise Refused("input_size", f"The arguments have {size} bytes; {most} are allowed.")
    yield "input_size"
    try:
        arguments = read_arguments(tool.schema, raw)
    except InvalidArguments as invalid:
        raise Refused("arguments", str(invalid)) from None
    yield "arguments"
    if (reason := tool.runner.denial(arguments)) is not None:
        if reason:
            raise Refused("denied", reason)
        yield "denied"
    return arguments


def check_targets(tool: RegisteredTool, agent_tools: AgentTools, arguments: Mapping[str, Any]) -> None:
    """Raises :class:`Refused` if a call would write to somewhere that the agent was not given, or change a document of
    the agent's own that it may not, or not in a conversation that is tainted."""
    _passed(_leading_somewhere(tool, agent_tools, arguments))
    _passed(_changing_documents(tool, agent_tools, arguments))


def _leading_somewhere(
    tool: RegisteredTool, agent_tools: AgentTools, arguments: Mapping[str, Any]
) -> Generator[str, None, None]:
    if not tool.writes_to:
        return
    named, given = arguments.get(tool.writes_to), agent_tools.destinations()
    wanted = ORIGIN if named is None else str(named)
    if wanted not in given:
        there_are = ", ".join(sorted(given)) or "none"
        raise Refused(
            "destination",
            f"There is no destination named {clip(wanted, 100)!r} for this agent; there are: {there_are}.",
        )
    yield "destination"


def _changing_documents(
    tool: RegisteredTool, agent_tools: AgentTools, arguments: Mapping[str, Any]
) -> Generator[str, None, None]:
    """A document that instructs the agent: what is written there is done in all its conversations, for all owners."""
    if not tool.changes_file or not (path := documents.instructing(str(arguments.get(tool.changes_file, "")))):
        return
    if path not in agent_tools.documents:
        may = ", ".join(sorted(agent_tools.documents)) or "none"
        raise Refused(
            "document",
            f"{path} is a document of this agent, and may not be changed by its tools in this conversation; "
            f"those that may: {may}. People change it in the console.",
        )
    yield "document"
    # Whatever the agent's policy is: it says what becomes of calls, and this would be what all later ones follow.
    if agent_tools.tainted_by:
        raise Refused(
            "document:tainted",
            f"Untrusted text has entered this conversation, from {agent_tools.tainted_by}, and {path} instructs the "
            "agent in all its conversations, so it is not changed here. Tell the user what you wanted to write there.",
        )
    yield "document:tainted"


def check_taint(tool: RegisteredTool, agent_tools: AgentTools) -> None:
    """Raises :class:`Refused` if untrusted text in the conversation stands against a call."""
    _passed(_withstanding_taint(tool, agent_tools))


def _withstanding_taint(tool: RegisteredTool, agent_tools: AgentTools) -> Generator[str, None, None]:
    if taint.decide(tool, agent_tools) == "refuse":
        raise Refused(taint.RULE, taint.refusal(tool, agent_tools))
    if agent_tools.taint != "off":
        yield taint.RULE


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate would decide on a call. ``passed``: the rules it passes, in their order. ``refusal``: the one that
    says no, or None: it would run, with these ``arguments``, once somebody has approved it if there is a rule of
    ``consent``."""

    passed: Sequence[str]
    refusal: Refused | None = None
    arguments: Mapping[str, Any] | None = None
    consent: str = ""


def simulate(
    name: str, raw: str, *, agent_tools: AgentTools, owner_id: int | None, conversation_id: UUID | None = None
) -> Verdict:
    """Decide on a call as if a model asked for it now, by the rules that decide on real ones. Nothing is run or stored,
    and no place of a rate limit is taken. Without an owner or a conversation, those without any calls are meant."""
    passed: list[str] = []
    # Nobody's: whoever has none is none of those whose calls are counted.
    call = ToolCall(tool_name=name, conversation_id=conversation_id or new_id(), owner_id=owner_id or -1)
    rules = _deciding(call, raw, agent_tools)
    try:
        while True:
            passed.append(next(rules))
    except StopIteration as end:
        arguments, consent = end.value
        return Verdict(passed=passed, arguments=arguments, consent=consent)
    except Refused as refusal:
        return Verdict(passed=passed, refusal=refusal)


def _deciding(call: ToolCall, raw: str, agent_tools: AgentTools) -> Generator[str, None, tuple[dict[str, Any], str]]:
    tool, setting = yield from _admitting(call.tool_name, agent_tools)
    arguments = yield from _fitting(tool, setting, raw)
    yield from _leading_somewhere(tool, agent_tools, arguments)
    yield from _changing_documents(tool, agent_tools, arguments)
    yield from _withstanding_taint(tool, agent_tools)
    if exceeded := limits.exceeded_by(call, setting):
        raise _too_many(call, *exceeded)
    for limit in limits.limits_of(setting):
        yield limit.rule
    return arguments, consent_rule(tool, setting, agent_tools)


def survey(*, agent_tools: AgentTools) -> list[tuple[RegisteredTool, str | None]]:
    """Every tool that there is for this agent, with the rule that denies it to it, or None if it may use it now."""
    decided = {setting.name: setting for setting in _settings()}

    def forbidding_rule(tool: RegisteredTool) -> str | None:
        try:
            admit(tool.name, agent_tools=agent_tools, decided=decided, tool=tool)
        except Refused as refusal:
            return refusal.rule
        return None

    return [(tool, forbidding_rule(tool)) for tool in registry.everything() if agent_tools.know(tool)]


def offered(*, agent_tools: AgentTools) -> list[RegisteredTool]:
    """The tools that this agent may use now. Tools that are not enabled, which are most, are not even read."""
    decided = {setting.name: setting for setting in _enabled()}

    def may_be_used(tool: RegisteredTool) -> bool:
        try:
            admit(tool.name, agent_tools=agent_tools, decided=decided, tool=tool)
        except Refused:
            return False
        return True

    return [tool for tool in registry.having(decided) if may_be_used(tool)]


def request(
    *,
    conversation_id: UUID,
    turn_id: UUID,
    owner_id: int,
    agent: str,
    agent_tools: AgentTools,
    request_id: str,
    call_id: str,
    position: int,
    tool_name: str,
    arguments: str,
    refusal: Refused | None = None,
) -> ToolCall:
    """The row of a call a model asks for, not yet saved: queued, waiting for consent, or REJECTED with the rule that
    refused it.

    ``refusal`` is a rule of the caller's own that was met before the gate's, such as a turn's limit of rounds.
    """
    effects, refused, rate_limited, consent, four_eyes = "", refusal, False, "", False
    try:
        effects = registry.get(tool_name).effects
        if refused is None:
            tool, setting = admit(tool_name, agent_tools=agent_tools)
            given = check_arguments(tool, setting, arguments)
            check_targets(tool, agent_tools, given)
            check_taint(tool, agent_tools)
            rate_limited, four_eyes = setting.rate_limited, setting.four_eyes
            consent = consent_rule(tool, setting, agent_tools)
    except UnknownTool:
        refused = refused or _refusal_of(tool_name, agent_tools)
    except Refused as met:
        refused = met
    call = calls.new_call(
        conversation_id=conversation_id,
        turn_id=turn_id,
        owner_id=owner_id,
        agent=agent,
        request_id=request_id,
        call_id=call_id,
        position=position,
        tool_name=tool_name,
        arguments=arguments,
        effects=effects,
        refused=refused.outcome() if refused else None,
        rate_limited=rate_limited,
        consent=consent,
    )
    call.four_eyes = four_eyes
    return call


def store_within_limits(requested: Sequence[ToolCall]) -> list[tuple[ToolCall, Approval]]:
    """Store requested calls, in the caller's transaction; those refused are audited once it has committed.

    Those for which a rate limit has no place left are refused here, where two workers cannot both take the last one.
    Returns those that wait for consent, each with its approval.
    """
    asked = []
    with transaction.atomic(savepoint=False):
        for call, limit, free_in in limits.exceeding(requested):
            calls.refuse(call, _too_many(call, limit, free_in).outcome())
        calls.store(requested)
        for call in requested:
            if call.status == CallStatus.WAITING:
                asked.append((call, approvals.request(call, four_eyes=call.four_eyes)))
            if call.ended:
                transaction.on_commit(partial(_audit, call, _outcome_of(call), 0))
    return asked


def _too_many(call: ToolCall, limit: Limit, free_in: float) -> Refused:
    return Refused(limit.rule, limit.message(call.tool_name, free_in=free_in))


def end_open(turn_ids: Iterable[UUID], *, rule: str, reason: str) -> tuple[list[ToolCall], list[Approval]]:
    """End the open calls of turns that no longer want them; each is audited once that is committed. Returns them, and
    the approvals that nobody has to give any more."""
    ended, withdrawn = calls.end_open(turn_ids, rule=rule, reason=reason)
    for call in ended:
        transaction.on_commit(partial(_audit, call, _outcome_of(call), 0))
    return ended, withdrawn


def doubt_queued(turn_ids: Iterable[UUID]) -> None:
    """Treat the queued calls of turns as started, so that those with side effects end as UNKNOWN."""
    calls.doubt_queued(turn_ids)


def _outcome_of(call: ToolCall) -> Outcome:
    return Outcome(status=CallStatus(call.status), result=call.result, rule=call.rule)


def _refusal_of(name: str, agent_tools: AgentTools) -> Refused:
    try:
        admit(name, agent_tools=agent_tools)
    except Refused as refusal:
        return refusal
    raise AssertionError("a tool nobody registered was admitted")


def run(
    call_id: UUID,
    *,
    agent_tools: Callable[[ToolCall], AgentTools],
    worker: str,
    on_start: Callable[[ToolCall], None],
    then: Callable[[ToolCall], None],
    on_output: Callable[[ToolCall, int, str], None] = lambda call, offset, text: None,
    context_of: Callable[[ToolCall], str] = lambda call: "",
    storing: Callable[[ToolCall], AbstractContextManager[object]] = nullcontext,
    claimed: ToolCall | None = None,
) -> None:
    """Claim a call, run it once, store its outcome, and go on with ``then`` once that is committed.

    Does nothing for a call that is not claimable: ended, or running elsewhere. ``agent_tools`` tells, for the claimed
    call, what its agent may use now; ``on_start`` is told of it before it runs, and ``on_output`` of what a program
    says meanwhile: where in all of it the piece begins, and the piece. ``context_of`` tells where the call stands in a
    trace, and is asked only while telemetry is on. ``storing`` is entered for each try to store the outcome.
    ``claimed``: the call, if it was claimed as it was stored.
    """
    call = claimed or _claim(call_id, worker=worker)
    if call is None:
        return
    with about(requestId=call.request_id, turn=call.turn_id, conversation=call.conversation_id):
        if call.ended:  # claiming found that its worker had died in it
            _audit(call, _outcome_of(call), 0)
            then(call)
            return
        on_start(call)
        began = time.perf_counter()
        if traces.is_on:
            _begin_span(call, context_of)
        outcome: Outcome | None = None
        try:
            outcome = _decide_and_run(call, agent_tools, partial(on_output, call))
            duration_ms = round((time.perf_counter() - began) * 1000)
            if not outcome.stored:
                _stored("an outcome", partial(_end, call, outcome, duration_ms, storing))
        except Interrupted:
            give_back(call)
            return
        except CallLost:
            logger.warning("tool call %s was ended elsewhere while it ran; its outcome is dropped", call.pk)
            return
        finally:
            if call.span:
                _end_span(call, outcome)
        if outcome.status == CallStatus.WAITING:
            return
        _audit(call, outcome, duration_ms)
        then(call)


def give_back(call: ToolCall) -> None:
    """Have a claimed call that has not begun, or may be run again, wait for another worker."""
    _stored("a call that goes back", partial(calls.release, call))


def finish(call_id: UUID, outcome: Outcome) -> ToolCall | None:
    """End a call that waits for what people say, in the caller's transaction; None if it has ended otherwise."""
    ended = replace(outcome, result=storable(redact(outcome.result)))
    call = calls.end_waiting(call_id, ended)
    if call:
        transaction.on_commit(partial(_audit, call, ended, 0))
    return call


def _claim(call_id: UUID, *, worker: str) -> ToolCall | None:
    try:
        return _stored("a claim", partial(calls.claim, call_id, worker=worker), seconds=settings.TURN_LEASE_SECONDS)
    except OperationalError as error:
        logger.warning("a tool call could not be claimed (%s); a sweep finds it", type(error).__name__)
        return None


def _end(
    call: ToolCall,
    outcome: Outcome,
    duration_ms: int,
    storing: Callable[[ToolCall], AbstractContextManager[object]],
) -> None:
    with storing(call):
        calls.end(call, outcome, duration_ms=duration_ms)


def _begin_span(call: ToolCall, context_of: Callable[[ToolCall], str]) -> None:
    began = time.time_ns()
    try:
        context = context_of(call)
    except DatabaseError:  # a trace is not worth a call
        context = ""
    call.span = traces.begin(context, at=began)
    call.traceparent = traces.of(call.span, context)
    traces.enter(call.traceparent)


def _end_span(call: ToolCall, outcome: Outcome | None) -> None:
    """``outcome`` None: it was released, or somebody else has ended it."""
    assert call.span
    status = str(outcome.status) if outcome else "INTERRUPTED"
    traces.end(
        call.span,
        traces.TOOL,
        call.tool_name,
        call.call_id,
        call.turn_id,
        status,
        outcome.rule if outcome else "",
        call.ran_by,
        about=call.tool_name,
        error=""
        if status in (CallStatus.SUCCESS, CallStatus.WAITING)
        else (outcome.rule if outcome else "") or status.lower(),
    )


def _stored(what: str, store: Callable[[], T], *, seconds: float | None = None) -> T:
    """Store something, and try again while the database is away, for as long as the turn has time."""
    patience = settings.TURN_TIMEOUT_SECONDS if seconds is None else seconds
    return store_again(Tries(what, seconds=patience), store, stopping=_stopping)


def _decide_and_run(
    call: ToolCall, agent_tools: Callable[[ToolCall], AgentTools], on_output: Callable[[int, str], None]
) -> Outcome:
    try:
        allowed = agent_tools(call)
        tool, setting = admit(call.tool_name, agent_tools=allowed)
        arguments = check_arguments(tool, setting, call.whole_arguments)
        check_targets(tool, allowed, arguments)
        check_taint(tool, allowed)
        if (call.consent or consent_rule(tool, setting, allowed)) and (rule := approvals.standing(call)):
            raise Refused(rule, _WITHOUT_CONSENT[rule].format(call.tool_name))
        if setting.rate_limited and (exceeded := limits.exceeded_at_start(call, setting)):
            raise _too_many(call, *exceeded)
    except Refused as refusal:
        return refusal.outcome()
    except DatabaseError as error:  # it has not been started: it may be again, whatever its effects
        logger.warning("the gate could not decide (%s); the call goes back into the queue", type(error).__name__)
        raise Interrupted from None
    call.ran_by = type(tool.runner).__name__
    outcome = tool.runner.run_admitted(
        AdmittedCall(
            call=call,
            tool=tool,
            arguments=arguments,
            timeout=setting.timeout(tool),
            output_bytes=setting.output_bytes(),
            still_wanted=partial(_still_wanted, call),
            tainted_by=allowed.tainted_by,
            grants=frozenset(
                each for each in grantable() if each in setting.grants and each in settings.PERMISSIONS_GRANTED
            ),
            on_output=on_output,
        )
    )
    return outcome if outcome.stored else taint.marked(outcome, tool)


_WITHOUT_CONSENT = {
    approvals.MISSING: "Calls of {} now need consent, and this one was not approved. Call it again.",
    approvals.CHANGED: "The approved call of {} differs from the one that would run.",
}


def _still_wanted(call: ToolCall) -> bool:
    try:
        with borrowed_connection():
            return calls.keep(call)
    except DatabaseError:
        # The lease outlasts many of these looks; a tool in mid effect is not killed for a busy database.
        logger.warning("the lease of tool call %s could not be renewed; it is tried again", call.pk, exc_info=True)
        return True


def _audit(call: ToolCall, outcome: Outcome, duration_ms: int) -> None:
    audit.info(
        "tool call",
        extra={
            "tool": call.tool_name,
            "status": str(outcome.status),
            "rule": outcome.rule,
            "argsHash": call.arguments_hash,
            "durationMs": duration_ms,
            "resultBytes": len(outcome.result.encode()),
            "call": str(call.pk),
            "requestId": call.request_id,
            "turn": str(call.turn_id),
            "conversation": str(call.conversation_id),
            "agent": call.agent,
        },
    )


def warm_tools() -> None:
    """Start what the enabled tools run in, so that the first calls do not wait for it. Raises
    :class:`tools.sandbox.modes.SandboxMissing` if they cannot have the sandbox that is demanded."""
    _stopping.clear()
    enabled = set(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True))
    tools = registry.having(enabled)
    for kind in KINDS:
        kind.start(tools)


def stop_tools() -> None:
    """At a shutdown: interrupt what can be run again, and give the rest a few seconds."""
    _stopping.set()
    for kind in KINDS:
        kind.stop()


def close_tools() -> None:
    """End the processes that tools run in; a new start makes new ones."""
    for kind in KINDS:
        kind.close()
