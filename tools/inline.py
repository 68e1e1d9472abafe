"""Runs tools that work on the database or on an agent's files: in the worker's own process, on its thread's connection.

Only nanohost's own are such, so no process of their own guards against them. A time limit ends their statements.
Only the gate may have a call run here; a test walks the code to see that nobody else does.
"""

import importlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import DatabaseError, OperationalError, transaction

from nanohost.lib.database import TookTooLong, time_limit
from nanohost.lib.errors import Problem
from nanohost.lib.text import clip
from tools import calls, taint
from tools.calls import Outcome
from tools.errors import Interrupted
from tools.models import CallStatus
from tools.registry import Caller, Untrusted, Waits
from tools.results import as_text, binder, cap
from tools.runners import AdmittedCall, InBox, Inline

logger = logging.getLogger(__name__)


def run_inline(runner: Inline, admitted: AdmittedCall) -> Outcome:
    """Run a call once. The rows that it changes are committed together with its outcome, or not at all. One that writes
    something else has no transaction: it would keep others waiting, and would undo nothing of that."""
    function = function_of(runner)
    if admitted.tool.effects != "rows":
        return _run_function(function, admitted)
    began = time.perf_counter()
    try:
        with transaction.atomic():
            outcome = _run_function(function, admitted)
            if outcome.status == CallStatus.WAITING:
                calls.suspend(admitted.call)
                return replace(outcome, stored=True)
            if outcome.status != CallStatus.SUCCESS:
                transaction.set_rollback(True)
                return outcome
            # Last: whoever ended the call in between has the row, and then nothing of this is kept.
            calls.end(admitted.call, outcome, duration_ms=round((time.perf_counter() - began) * 1000))
    except OperationalError as error:  # whether or not it was committed, the fence lets it happen once
        logger.warning(
            "tool %s could not be run (%s); its call goes back into the queue", admitted.call.tool_name, error
        )
        raise Interrupted from None
    except DatabaseError as error:  # what only a commit notices: a row it refers to has gone
        logger.exception("what the tool %s has changed could not be committed", admitted.call.tool_name)
        return Outcome(status=CallStatus.FAILED, result=f"FAILED: {type(error).__name__}", rule="raised")
    return replace(outcome, stored=True)


def function_of(runner: Inline | InBox) -> Callable[..., Any]:
    """A tool's function, in the module that autodiscovery has imported."""
    function: Any = importlib.import_module(runner.module)
    for part in runner.qualname.split("."):
        function = getattr(function, part)
    found: Callable[..., Any] = function
    return found


def _run_function(function: Callable[..., Any], admitted: AdmittedCall) -> Outcome:
    """In the caller's transaction if there is one, which is to be rolled back unless this ends as a SUCCESS. What the
    tool raises is part of the outcome, a ValueError and a Problem in their own words."""
    # Nobody renews its lease meanwhile: on SQLite, its transaction keeps everybody else from writing.
    seconds = min(admitted.timeout, settings.TURN_LEASE_SECONDS / 2)
    try:
        bound = binder(function)(caller=_caller_of(admitted), **admitted.arguments)
    except ValueError as error:
        return _failed("arguments", str(error))
    try:
        with time_limit(seconds):
            result = function(**bound)
            if isinstance(result, Waits):
                return Outcome(status=CallStatus.WAITING, result="")
            text = as_text(result)
    except TookTooLong:
        return _failed("timeout", f"timed out after {seconds:g} s and was stopped")
    except (ValueError, Problem) as error:
        return _failed("raised", str(error))
    except Exception as error:
        logger.exception("tool %s raised", admitted.call.tool_name)
        return _failed("raised", type(error).__name__)
    source = clip(result.by, taint.MAX_SOURCE) if isinstance(result, Untrusted) else ""
    ended = Outcome(status=CallStatus.SUCCESS, result=cap(text, admitted.output_bytes), tainted_by=source)
    return taint.marked(ended, admitted.tool)


def _caller_of(admitted: AdmittedCall) -> Caller:
    call = admitted.call
    assert call.owner_id is not None  # of the version that brought these tools, or a later one
    return Caller(
        conversation_id=call.conversation_id,
        turn_id=call.turn_id,
        owner_id=call.owner_id,
        agent=call.agent,
        call_id=call.pk,
        request_id=call.request_id,
        tainted_by=admitted.tainted_by,
    )


def _failed(rule: str, text: str) -> Outcome:
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {cap(text, 2000)}", rule=rule)
