"""Having the time pass until a turn is tried again: rows are moved in time."""

from datetime import timedelta

from django.db.models import DateTimeField, ExpressionWrapper, F

from conversations.models import Turn
from nanohost.lib import clock

TIMES = ("created_at", "started_at", "stepped_at", "retrying_since", "deadline", "run_after", "notified_at")


def let_pass(turn: Turn) -> float:
    """Have the time pass until a turn is tried again; returns how many seconds that is."""
    turn.refresh_from_db()
    seconds = (turn.run_after - clock.read()).total_seconds() + 0.01
    back = timedelta(seconds=seconds)
    Turn.objects.filter(pk=turn.pk).update(
        **{name: ExpressionWrapper(F(name) - back, output_field=DateTimeField()) for name in TIMES}
    )
    return seconds
