"""Model clients. A provider is a line in PROVIDERS and a module beside this one."""

import asyncio
import contextvars
import json
import logging
import time
from dataclasses import replace
from functools import cache
from importlib import import_module

from django.conf import settings

from agent.errors import LlmError, LlmTimeout
from agent.llm.base import Completion, LlmClient, ModelRequest, OnDelta
from nanohost.lib.redaction import LARGE

model_log = logging.getLogger("nanohost.model")

PROVIDERS = {
    "mock": "agent.llm.scripted.ScriptedClient",
    "openai": "agent.llm.openai.OpenAIClient",
}


@cache
def client() -> LlmClient:
    """The process's one client of the provider the settings choose; clients are slow to make and keep connections."""
    module, _, name = PROVIDERS[settings.LLM_PROVIDER].rpartition(".")
    made: LlmClient = getattr(import_module(module), name)()
    return made


async def ask(request: ModelRequest, *, seconds: float, on_delta: OnDelta | None = None) -> Completion:
    """Ask the model, within ``seconds``; raises :class:`LlmError`. The call is logged, however it ends."""
    began = time.perf_counter()
    error = "interrupted"
    completion = Completion()
    try:
        async with asyncio.timeout(seconds):
            completion = await client().complete(request, on_delta=on_delta)
        error = ""
    except TimeoutError:
        error = LlmTimeout.code
        raise LlmTimeout("no answer in time") from None
    except LlmError as failure:
        error = failure.code
        raise
    except Exception:
        error = "fault"
        raise
    finally:
        seconds = time.perf_counter() - began
        _log_aside(request, completion, error, seconds)
    return replace(completion, took_ms=max(1, round(1000 * seconds)))


def _log_aside(request: ModelRequest, completion: Completion, error: str, seconds: float) -> None:
    """Log the call; in a thread, where so much is logged that to read it for secrets would keep the loop."""
    told = _chars_of(request) + len(completion.content) if settings.LOG_CONTENT else 0
    if told <= LARGE:
        _log(request, completion, error, seconds)
        return
    within = contextvars.copy_context()
    asyncio.get_running_loop().run_in_executor(None, within.run, _log, request, completion, error, seconds)


def _chars_of(request: ModelRequest) -> int:
    return sum(len(str(message.get("content") or "")) for message in request.messages)


def _log(request: ModelRequest, completion: Completion, error: str, seconds: float) -> None:
    fields: dict[str, object] = {
        "model": request.model,
        "provider": settings.LLM_PROVIDER,
        "messages": len(request.messages),
        "tools": len(request.tools),
        "promptChars": _chars_of(request),
        "answerChars": len(completion.content),
        "toolCalls": len(completion.tool_calls),
        "latencyMs": round(seconds * 1000, 1),
        "promptTokens": completion.usage.prompt_tokens,
        "completionTokens": completion.usage.completion_tokens,
        "error": error,
    }
    if settings.LOG_CONTENT:
        fields["prompt"] = json.dumps(request.messages, ensure_ascii=False)
        fields["answer"] = json.dumps(completion.as_message(), ensure_ascii=False)
    model_log.info("model call", extra=fields)
