"""What beat rings. Each makes its domain calls and may run any number of times, also at once."""

from celery import shared_task

from conversations.worker import forget_dead_workers
from nanohost.lib import clock
from scheduler import runs
from scheduler.daily import summarise_day
from scheduler.heartbeat import beat
from scheduler.ticking import tick as fire_what_is_due


@shared_task
def tick() -> None:
    """Fire the schedules that are due."""
    fire_what_is_due()


@shared_task
def daily_summary() -> None:
    """Have the day before summarised, in each conversation in which something was said."""
    summarise_day(now=clock.read())


@shared_task
def heartbeat() -> None:
    """Look after the agents that have something to do by themselves."""
    beat(now=clock.read())


@shared_task
def retention() -> None:
    """Forget what is kept for a while only."""
    forget_dead_workers()
    runs.forget_old()
