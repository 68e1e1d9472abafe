"""``python -m tests.bench.schedules``: 100,000 schedules, of which 1,000 are due in one minute, and then 1,000 at once.

PostgreSQL and Redis of its own, one worker, one beat, the scripted model. How late their turns were stored, by the
ledger; and what that cost. It takes three minutes, and writes nothing.
"""

import statistics
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from tests.bench import hosts, results
from tests.support.hosts import CELERY

MINUTE = timedelta(minutes=1)


def main() -> None:
    """Measure, and show a table."""
    with tempfile.TemporaryDirectory(prefix="nanohost-bench-") as place, ExitStack() as keep:
        directory = Path(place)
        directory.chmod(0o755)  # PostgreSQL runs as somebody else
        production = hosts.Production(directory, keep)
        rows = [_fired(production, spread) for spread in (MINUTE, timedelta())]
    head = [
        "due",
        "fired",
        "lag ms p50",
        "p95",
        "most",
        "until all are stored, s",
        "worker CPU, s",
        "PostgreSQL CPU, s",
    ]
    print(results.table(head, rows), flush=True)  # noqa: T201 -- a command


def _fired(production: hosts.Production, spread: timedelta) -> list[str]:
    from django.contrib.auth import get_user_model
    from django.db import connection, transaction

    from agent.models import Agent
    from scheduler.models import ScheduleRun
    from tests.support.many_schedules import DUE, fill

    with connection.cursor() as cursor:  # Django would name each row
        cursor.execute("TRUNCATE scheduler_schedule CASCADE")
    with production.running(web=False) as processes:
        processes.start("beat", *CELERY, "beat", "--pidfile=", f"--schedule={production.log.parent / 'beat'}")
        with transaction.atomic():
            owner = get_user_model().objects.get(username="admin")
            begin = timedelta(seconds=20)
            fill(owner_id=owner.pk, agent_id=Agent.objects.get(name="default").pk, begin=begin, spread=spread)
        before = _spent(production, processes)
        fired = ScheduleRun.objects.filter(state="fired", lag_ms__isnull=False)
        hosts.until(lambda: fired.count() >= DUE, "they were not fired", production.log)
        spent = [after - was for after, was in zip(_spent(production, processes), before, strict=True)]
    runs = list(fired.order_by("slot").values_list("slot", "lag_ms"))
    lags = sorted(lag for _, lag in runs)
    last = max(slot + timedelta(milliseconds=lag) for slot, lag in runs) - runs[0][0]
    named = "in a minute" if spread else "at once"
    figures = (statistics.median(lags), statistics.quantiles(lags, n=20)[-1], lags[-1])
    return [
        f"{DUE} {named}",
        str(len(runs)),
        *(f"{each:.0f}" for each in figures),
        *(f"{each:.1f}" for each in (last.total_seconds(), *spent)),
    ]


def _spent(production: hosts.Production, processes: hosts.Processes) -> tuple[float, float]:
    return processes.cpu()["worker"], production.servers_cpu()["PostgreSQL"]


if __name__ == "__main__":
    main()
