"""Runs tools that work on the database: in the worker's own process, on the connection of its thread.

Only nanohost's own are such, so no process of their own guards against them. A time limit ends their statements.
Only the gate may use this module; a test walks the code to see that nobody else does.
"""

import importlib
import logging
from typing import Any

from nanohost.lib.database import TookTooLong, time_limit
from nanohost.lib.errors import Problem
from tools.calls import Outcome
from tools.models import CallStatus
from tools.registry import Caller, RegisteredTool
from tools.results import as_text, binder, cap

logger = logging.getLogger(__name__)


def run_inline(
    tool: RegisteredTool, arguments: dict[str, Any], *, caller: Caller, seconds: float, output_bytes: int
) -> Outcome:
    """Run a tool once. In the caller's transaction if there is one, which is to be rolled back unless it ends as a
    SUCCESS; what the tool raises is part of the outcome, a ValueError and a Problem in their own words."""
    function: Any = importlib.import_module(tool.module)
    for part in tool.qualname.split("."):
        function = getattr(function, part)
    try:
        bound = binder(function)(caller=caller, **arguments)
    except ValueError as error:
        return _failed("arguments", str(error))
    try:
        with time_limit(seconds):
            text = as_text(function(**bound))
    except TookTooLong:
        return _failed("timeout", f"timed out after {seconds:g} s and was stopped")
    except (ValueError, Problem) as error:
        return _failed("raised", str(error))
    except Exception as error:
        logger.exception("tool %s raised", tool.name)
        return _failed("raised", type(error).__name__)
    return Outcome(status=CallStatus.SUCCESS, result=cap(text, output_bytes))


def _failed(rule: str, text: str) -> Outcome:
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {cap(text, 2000)}", rule=rule)
