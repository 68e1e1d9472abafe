"""How long a search of a long history log takes. ``python -m tests.bench.recall ENTRIES``, in a host's environment,
fills the log of one owner and prints milliseconds."""

import json
import subprocess
import sys
from collections.abc import Mapping

from tests.support.hosts import ROOT

QUERIES = ("needle", "everywhere", "nowhere", "w123 w45", "everywhere needle", "nowhere at all", "w12 w99 everywhere")


def milliseconds(environment: Mapping[str, str], entries: int) -> float:
    """What the slowest of several kinds of questions takes, of each the median of 20."""
    command = [sys.executable, "-m", "tests.bench.recall", str(entries)]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=600)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return max(json.loads(ran.stdout).values())


def main(entries: int) -> None:
    import statistics
    import time
    from datetime import UTC, date, datetime, timedelta

    import django

    django.setup()
    from django.contrib.auth.models import User

    from memory import index, log
    from memory.models import HistoryEntry

    owner = User.objects.create_user("of a long history").pk
    began = datetime(2024, 1, 1, tzinfo=UTC)

    def entry(number: int) -> HistoryEntry:
        words = [f"w{(number * k * 7919 + k * k) % 5000}" for k in range(20)]
        content = " ".join([*words, "everywhere", *(["needle"] if number % 20_000 == 77 else [])])
        return HistoryEntry(
            agent="default",
            owner_id=owner,
            content=content,
            words=index.indexed(content, agent="default", owner_id=owner),
            happened_at=began + timedelta(minutes=number),
        )

    for first in range(0, entries, 5000):
        HistoryEntry.objects.bulk_create(map(entry, range(first, min(first + 5000, entries))), batch_size=500)

    def took(query: str) -> float:
        before = time.perf_counter()
        log.recall(agent="default", owner_id=owner, query=query, today=date(2026, 3, 10))
        return 1000 * (time.perf_counter() - before)

    print(json.dumps({query: statistics.median(took(query) for _ in range(20)) for query in QUERIES}))  # noqa: T201 -- its answer to who started it


if __name__ == "__main__":
    main(int(sys.argv[1]))
