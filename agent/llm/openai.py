"""OpenAI, and any server that speaks its Chat Completions API.

Plain dicts go through the package's low-level ``post``: it keeps the package's errors, headers and connections, but
not its request transforms, which cost 0.14 ms of CPU a message. Retrying is the turn's affair: it waits in the
database, so that a restart loses no count and a worker is not held by a sleep.
"""

from typing import Any

import openai
from django.conf import settings

from agent import errors
from agent.llm.base import Completion, ModelRequest, Usage, tool_call
from nanohost.lib.text import storable


class OpenAIClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self) -> None:
        self._client = openai.AsyncOpenAI(
            # A server of one's own may ask for no key; the package insists on some.
            api_key=settings.OPENAI_API_KEY or "none",
            base_url=settings.LLM_BASE_URL or None,
            # The turn's own timeout is total, and lies around the call; this one is per read.
            timeout=settings.LLM_TIMEOUT_SECONDS,
            max_retries=0,
        )

    async def complete(self, request: ModelRequest) -> Completion:
        body: dict[str, Any] = {"model": request.model, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        try:
            answer = await self._client.post("/chat/completions", cast_to=object, body=body)
        except openai.OpenAIError as error:
            raise _translated(error) from None
        return _completion(answer)


def _translated(error: openai.OpenAIError) -> errors.LlmError:
    """The package's error as one of ours; the provider's words stay out of it, since they may quote the prompt."""
    if isinstance(error, openai.APITimeoutError):
        return errors.LlmTimeout("no answer in time")
    if isinstance(error, openai.APIConnectionError):
        return errors.LlmUnavailable("cannot be reached")
    if not isinstance(error, openai.APIStatusError):
        return errors.LlmBadResponse(type(error).__name__)
    status, code = error.status_code, str(error.code or "")
    detail = f"HTTP {status} {code}".strip()
    if status in (401, 403):
        return errors.LlmAuthError(detail)
    if status == 429:
        # Out of quota is a bill to pay, not a wait.
        if code == "insufficient_quota":
            return errors.LlmAuthError(detail)
        return errors.LlmRateLimited(detail, retry_after=_retry_after(error))
    if code == "context_length_exceeded" or status == 413:
        return errors.LlmContextTooLong(detail)
    if code in ("content_filter", "content_policy_violation"):
        return errors.LlmContentFiltered(detail)
    if status in (408, 504):
        return errors.LlmTimeout(detail)
    if status in (409, 425) or status >= 500:
        return errors.LlmUnavailable(detail, retry_after=_retry_after(error))
    return errors.LlmRequestRefused(detail)


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Retry-After in seconds; its other form, a date, is rare enough to be answered with our own backoff."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _completion(answer: Any) -> Completion:
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        calls = tuple(
            tool_call(str(call.get("id") or ""), call["function"]["name"], call["function"].get("arguments") or "{}")
            for call in message.get("tool_calls") or ()
        )
        usage = answer.get("usage") or {}
        counted = Usage(
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
        if not isinstance(content, str):
            raise TypeError("content is not text")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise errors.LlmBadResponse(f"not a completion ({type(error).__name__})") from None
    if choice.get("finish_reason") == "content_filter":
        raise errors.LlmContentFiltered("the answer was cut by the content filter")
    return Completion(
        content=storable(content), tool_calls=calls, model=storable(str(answer.get("model") or "")), usage=counted
    )
