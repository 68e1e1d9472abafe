"""What an open turn waits for, in plain words; above all at its model: an answer, or the next try after a failure."""

from collections import Counter
from datetime import datetime

from django.utils import timezone

from conversations.errors import PASSING
from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor, describe
from nanohost.lib.text import duration

# The latest turns of the host tell how long a model usually takes; of fewer answers than these, nothing is told.
LATEST, LEAST_ANSWERS = 500, 3

# So many times its usual time, and so many seconds, are far past it.
FAR_PAST, FAR_PAST_SECONDS = 5, 30.0


def usual_seconds() -> dict[str, float]:
    """How long each model's answers took on average, of the latest turns; models without enough answers are missing."""
    answers, milliseconds = Counter[str](), Counter[str]()
    latest = Turn.objects.order_by("-created_at").values_list("model", "model_calls", "model_ms")
    for model, calls, took in latest[:LATEST]:
        answers[model] += calls
        milliseconds[model] += took
    return {model: milliseconds[model] / 1000 / count for model, count in answers.items() if count >= LEAST_ANSWERS}


def for_model(turn: Turn, usual: dict[str, float], now: datetime) -> tuple[bool, str]:
    """Of a running turn: whether its model is far past its usual time, and for how long it has been asked."""
    if turn.stepped_at is None:
        return False, f"{describe(turn.status, turn.waiting_for).words}."
    seconds = max(0.0, (now - turn.stepped_at).total_seconds())
    words = f"Waiting for model {turn.model} for {duration(seconds)}"
    takes = usual.get(turn.model)
    if takes is None:
        is_late = seconds > FAR_PAST * FAR_PAST_SECONDS
        return is_late, f"{words}{', without an answer' if is_late else ''}."
    is_late = seconds > max(FAR_PAST * takes, FAR_PAST_SECONDS)
    return is_late, f"{words}; {'far past its usual' if is_late else 'it usually takes'} {duration(takes)}."


def for_retry(turn: Turn, now: datetime) -> str:
    """Of a turn that has failed and is tried again: with what, how often, and when."""
    met = PASSING.get(turn.retry_code, "A try failed.")
    times = "once" if turn.retries == 1 else f"{turn.retries} times in a row"
    since = f", since {_clock(turn.retrying_since)}" if turn.retrying_since and turn.retries > 1 else ""
    code = f" ({turn.retry_code}: {turn.retry_detail})" if turn.retry_code else ""
    words = f"{met} It failed {times}{since}{code}"
    if turn.run_after is None:
        return f"{words}; it is being tried again."
    if turn.run_after <= now:
        return f"{words}; it is to be tried again now."
    left = (turn.run_after - now).total_seconds()
    return f"{words}; tried again in {duration(left)}, at {_clock(turn.run_after)}."


def stands(turn: Turn, now: datetime) -> str:
    """What an open turn waits for."""
    if turn.status == TurnStatus.RUNNING:
        _, words = for_model(turn, usual_seconds(), now)
        return f"{words} {for_retry(turn, now)}" if turn.retries else words
    if turn.status == TurnStatus.WAITING and turn.waiting_for == WaitingFor.RETRY and turn.retries:
        return for_retry(turn, now)
    return f"{describe(turn.status, turn.waiting_for).words}."


def _clock(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%H:%M:%S}"
