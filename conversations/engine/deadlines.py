"""A turn's time: until when the model is asked with tools, and what ends when it is up."""

from datetime import timedelta

from django.conf import settings
from django.db.models import DurationField

from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import from_now
from nanohost.lib.statements import Given, Rows
from tools import gate

# Turns whose calls are ended at a time.
MAX_OVERDUE = 200


def time_for_last_answer() -> float:
    """Seconds before a turn's deadline from which on the model is asked for its best answer without tools."""
    return min(settings.LLM_TIMEOUT_SECONDS, settings.TURN_TIMEOUT_SECONDS / 4)


_without_time_for_tools = Rows(
    lambda: Turn.objects.filter(
        status=TurnStatus.WAITING,
        waiting_for=WaitingFor.TOOLS,
        deadline__lt=from_now(Given("time", DurationField())),
    ).values_list("pk", flat=True)[:MAX_OVERDUE]
)


def end_overdue_calls() -> None:
    """End the open calls of turns whose time for tools is up: the model is then asked for its best answer without."""
    for turn_id in _without_time_for_tools(time=timedelta(seconds=time_for_last_answer())):
        gate.end_open([turn_id], rule="turn_time", reason="the turn's time was up")
