"""When an agent's further models are asked: of turns and of compactions alike."""

from django.conf import settings

from agent.errors import OUTAGES, LlmContextTooLong, LlmError, ModelCannotSee
from agent.llm.breaker import ProviderRests


def is_worth_another(error: LlmError, *, retries: int, retrying_for: float) -> bool:
    """Whether an error is one that another model may be spared: its context is too short, it cannot see, it fails and
    has been tried again for LLM_FALLBACK_SECONDS, it asks for a longer wait than that, or its provider is left alone.

    ``retries``: how often it has failed before, in a row. ``retrying_for``: seconds since the first of those.
    """
    if isinstance(error, LlmContextTooLong | ModelCannotSee | ProviderRests):
        return True
    if not error.transient:
        return False
    left = settings.LLM_FALLBACK_SECONDS - (retrying_for if retries else 0.0)
    if error.code not in OUTAGES:
        return retries >= settings.TURN_MAX_ATTEMPTS or left <= 0
    return left <= 0 or (error.retry_after or 0.0) > left
