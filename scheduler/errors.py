"""Errors of schedules."""

from nanohost.lib.errors import Problem


class BadSchedule(Problem):
    """A schedule that would never run, or not as its maker thinks; the detail is a sentence for them."""

    code, status, title = "invalid_schedule", 400, "The schedule is not valid; the detail says why."


class ScheduleEnded(Problem):
    """There is nothing to pause or to resume."""

    code, status, title = "schedule_ended", 409, "The schedule has ended; give it a time to come, or make a new one."
