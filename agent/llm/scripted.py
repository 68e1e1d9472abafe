"""A model that does as it is told: the embedded default, and the tests' model. Deterministic, offline, without a key.

It answers the newest user message. A message that is a JSON object with a ``script`` is followed step by step, one
step a call; the step is found by counting what the model has answered since, so the client keeps no state and goes on
after a crash:

    {"script": [
        {"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]},    one assistant message with tool calls
        {"sleep": 2, "say": "Done."},                                      an answer, after 2 s
        {"fail": "rate_limited", "times": 2, "retryAfter": 1, "say": "…"}  fails twice, then answers
    ]}

``fail`` is one of auth, rate_limited, timeout, context_too_long, content_filter, unavailable, bad_response. How often
a step has failed is the one thing it remembers, in memory. A ``say`` may hold ``{results}``: the tool results so far.
Without a script: a question for the time calls ``time`` if it is offered; everything else is echoed.
"""

import asyncio
import json
import re
from collections import Counter
from typing import Any

from agent import errors
from agent.llm.base import Completion, ModelRequest, Usage, tool_call
from agent.loop import ChatMessage

_FAILURES: dict[str, type[errors.LlmError]] = {
    "auth": errors.LlmAuthError,
    "rate_limited": errors.LlmRateLimited,
    "timeout": errors.LlmTimeout,
    "context_too_long": errors.LlmContextTooLong,
    "content_filter": errors.LlmContentFiltered,
    "unavailable": errors.LlmUnavailable,
    "bad_response": errors.LlmBadResponse,
}


class ScriptedClient:
    """See the module."""

    def __init__(self) -> None:
        self._failures: Counter[tuple[str, int]] = Counter()

    async def complete(self, request: ModelRequest) -> Completion:
        """Do the script's next step, or answer in the way of the module's last paragraph."""
        asked = max(index for index, message in enumerate(request.messages) if message["role"] == "user")
        question, since = str(request.messages[asked]["content"]), request.messages[asked + 1 :]
        script = _script(question)
        step_number = sum(1 for message in since if message["role"] == "assistant")
        if script is None:
            step = _improvise(question, since, request.tools)
        elif step_number < len(script):
            step = script[step_number]
        else:
            step = {"say": "The script has ended."}
        if delay := step.get("sleep"):
            await asyncio.sleep(delay)
        if failure := step.get("fail"):
            self._failures[question, step_number] += 1
            if self._failures[question, step_number] <= step.get("times", 10**9):
                raise _FAILURES[failure]("as scripted", retry_after=step.get("retryAfter"))
        return self._answer(step, step_number, request, since)

    def _answer(
        self, step: dict[str, Any], step_number: int, request: ModelRequest, since: list[ChatMessage]
    ) -> Completion:
        results = "; ".join(str(message["content"]) for message in since if message["role"] == "tool")
        content = str(step.get("say", "")).replace("{results}", results)
        # A last system message asks for the best answer without tools; a model that does as it is told gives one.
        calls = step.get("call", ()) if request.messages[-1]["role"] != "system" else ()
        if not content and not calls:
            content = "I would need tools for that."
        return Completion(
            content=content,
            tool_calls=tuple(
                tool_call(f"call_{step_number}_{index}", call["name"], _json(call.get("arguments", {})))
                for index, call in enumerate(calls)
            ),
            model=request.model,
            usage=Usage(
                prompt_tokens=sum(len(str(message.get("content") or "")) for message in request.messages) // 4 + 1,
                completion_tokens=len(content) // 4 + 1,
            ),
        )


def _script(question: str) -> list[dict[str, Any]] | None:
    try:
        script = json.loads(question)["script"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    well_formed = isinstance(script, list) and all(isinstance(step, dict) for step in script)
    return script if well_formed else None


def _improvise(question: str, since: list[ChatMessage], tools: list[dict[str, Any]]) -> dict[str, Any]:
    offered = {tool["function"]["name"] for tool in tools}
    if since and since[-1]["role"] == "tool":
        return {"say": "The tool says: {results}"}
    if "time" in offered and re.search(r"\btime\b", question, re.IGNORECASE):
        return {"call": [{"name": "time"}]}
    return {"say": f"You said: {question}"}


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
