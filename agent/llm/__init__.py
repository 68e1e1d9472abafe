"""Model clients. Providers are rows of :mod:`agent.llm.providers`; how one is spoken to is a dialect, which has a line
in CLIENTS and a module beside this one."""

import asyncio
import contextvars
import json
import logging
import time
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

from agent.errors import LlmError, LlmTimeout
from agent.llm import providers
from agent.llm.base import Completion, LlmClient, ModelRequest, OnDelta
from agent.llm.breaker import breaker, counts
from agent.llm.providers import Access, Choice, Dialect
from nanohost.lib.redaction import LARGE

model_log = logging.getLogger("nanohost.model")

CLIENTS = {
    Dialect.CHAT: "agent.llm.openai.OpenAIClient",
    Dialect.AZURE: "agent.llm.openai.OpenAIClient",
    Dialect.ANTHROPIC: "agent.llm.anthropic.AnthropicClient",
    Dialect.RESPONSES: "agent.llm.responses.ResponsesClient",
    Dialect.COPILOT: "agent.llm.copilot.CopilotClient",
    Dialect.SCRIPTED: "agent.llm.scripted.ScriptedClient",
}


@cache
def accesses() -> dict[str, Access]:
    """The providers that the settings set up, by name."""
    return providers.accesses(lambda name: getattr(settings, name))


@receiver(setting_changed)
def _settings_have_changed(**_: Any) -> None:
    """As they do in tests alone."""
    accesses.cache_clear()


def choose(model: str, named: str = "") -> Choice:
    """Who is asked for a model here, and why. ``named``: the provider that its agent names, if it names one. Raises
    :class:`agent.errors.NoProvider`."""
    default = settings.LLM_PROVIDER
    configured = () if default == providers.MOCK else tuple(accesses())
    return providers.choose(model, named=named, default=default, configured=configured)


def client(name: str) -> LlmClient:
    """The process's one client of a provider; clients are slow to make and keep connections."""
    if name not in _clients:
        _clients[name] = new_client(name)
    return _clients[name]


def new_client(name: str) -> LlmClient:
    """One of the caller's own, who closes it."""
    row = providers.PROVIDERS.get(name, providers.SCRIPTED)
    module, _, made = CLIENTS[row.dialect].rpartition(".")
    access = accesses().get(name) or Access(provider=row, base_url=row.base_url, key="")
    made_of: LlmClient = getattr(import_module(module), made)(access)
    return made_of


_clients: dict[str, LlmClient] = {}


def warm() -> None:
    """Make the clients that there may be need of: to import a provider's package takes a third of a second."""
    for name in [providers.MOCK] if settings.LLM_PROVIDER == providers.MOCK else accesses():
        client(name)


def forget_clients() -> None:
    """Make them anew when they are needed next: they belong to one event loop, and to the settings of their time. The
    scripted one belongs to neither, and remembers."""
    for name in set(_clients) - {providers.MOCK}:
        del _clients[name]


async def close_clients() -> None:
    """Close their connections, and forget them."""
    made = list(_clients.values())
    forget_clients()
    for each in made:
        await each.close()


async def ask(
    request: ModelRequest, *, seconds: float, on_delta: OnDelta | None = None, work: object = None
) -> Completion:
    """Ask the model, within ``seconds``; raises :class:`LlmError`. The call is logged, however it ends. ``work``: what
    it is asked for, a turn or a compaction: a provider that fails for several of them is left alone for a while."""
    choice = choose(request.model, request.provider)
    if choice.provider is not providers.SCRIPTED:
        breaker.check(choice.provider.name)
    began = time.perf_counter()
    error = "interrupted"
    completion = Completion()
    try:
        async with asyncio.timeout(seconds):
            asked = request if choice.model == request.model else replace(request, model=choice.model)
            completion = await client(choice.provider.name).complete(asked, on_delta=on_delta)
        error = ""
        breaker.answered(choice.provider.name)
    except TimeoutError:
        late = LlmTimeout("no answer in time")
        error = late.code
        _has_failed(choice, late, work)
        raise late from None
    except LlmError as failure:
        error = failure.code
        _has_failed(choice, failure, work)
        raise
    except Exception:
        error = "fault"
        raise
    finally:
        seconds = time.perf_counter() - began
        _log_aside(request, choice, completion, error, seconds)
    took_ms = max(1, round(1000 * seconds))
    return replace(completion, took_ms=took_ms, provider=choice.provider.name, why=choice.why)


def _has_failed(choice: Choice, error: LlmError, work: object) -> None:
    if choice.provider is providers.SCRIPTED:
        return
    if counts(error):
        breaker.failed(choice.provider.name, error, work=work, rest=settings.LLM_REST_SECONDS)
    else:
        breaker.answered(choice.provider.name)


def _log_aside(request: ModelRequest, choice: Choice, completion: Completion, error: str, seconds: float) -> None:
    """Log the call once whoever asked goes on; in a thread, where so much is logged that to read it for secrets would
    keep the loop."""
    told = _chars_of(request) + len(completion.content) if settings.LOG_CONTENT else 0
    log = partial(_log, request, choice, completion, error, seconds)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # it has ended, and with it whoever asked
        log()
        return
    if told <= LARGE:
        loop.call_soon(log)
    else:
        loop.run_in_executor(None, contextvars.copy_context().run, log)


def _chars_of(request: ModelRequest) -> int:
    return sum(len(str(message.get("content") or "")) for message in request.messages)


def _log(request: ModelRequest, choice: Choice, completion: Completion, error: str, seconds: float) -> None:
    fields: dict[str, object] = {
        "model": request.model,
        "provider": choice.provider.name,
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
