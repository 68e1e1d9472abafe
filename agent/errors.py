"""Errors of model calls. Each class has its stable code, and says whether a retry can help."""

from typing import ClassVar


class LlmError(Exception):
    """A model call failed. ``detail`` is for people and logs; the provider's own words are never shown to a client."""

    code: ClassVar[str] = "llm_error"
    transient: ClassVar[bool] = False

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(detail or self.code)
        self.detail = detail
        self.retry_after = retry_after


class LlmAuthError(LlmError):
    """The provider refused the key."""

    code = "llm_auth"


class LlmRateLimited(LlmError):
    """The provider asks to wait."""

    code = "llm_rate_limited"
    transient = True


class LlmTimeout(LlmError):
    """The model did not answer within LLM_TIMEOUT_SECONDS."""

    code = "llm_timeout"
    transient = True


class LlmContextTooLong(LlmError):
    """The prompt does not fit the model's context."""

    code = "llm_context_too_long"


class LlmContentFiltered(LlmError):
    """The provider's content filter refused the prompt or the answer."""

    code = "llm_content_filter"


class LlmUnavailable(LlmError):
    """The provider cannot be reached, or fails."""

    code = "llm_unavailable"
    transient = True


class LlmBadResponse(LlmError):
    """The provider answered something that is no completion."""

    code = "llm_bad_response"
    transient = True


class LlmRequestRefused(LlmError):
    """The provider refused the request as it is, for example for a model it does not have."""

    code = "llm_request_refused"


class NoProvider(LlmError):
    """No provider is set up for the model: nobody was asked. The detail names what is missing."""

    code = "no_provider"


class ModelCannotSee(LlmError):
    """A picture was sent, and the model takes none: it was not asked."""

    code = "model_cannot_see"


class AttachmentUnavailable(LlmError):
    """A file cannot be had from the storage just now: the model was not asked."""

    code = "attachment_unavailable"
    transient = True


class BudgetExceeded(LlmError):
    """A budget has no room for the call: the model was not asked. The detail is for whoever asked."""

    code = "budget_exceeded"


class ModelNotPriced(LlmError):
    """A budget in money applies to the call, and what the model costs is not known: it was not asked."""

    code = "model_not_priced"


# What a provider recovers from in minutes. An answer that makes no sense is transient too, but it was paid for: it is
# asked for again a few times, and not for minutes.
OUTAGES = frozenset({LlmRateLimited.code, LlmTimeout.code, LlmUnavailable.code})
