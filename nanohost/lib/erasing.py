"""Deleting much in small transactions, so that nobody waits long for what one of them has locked; and what is told of
it: counts and hashes, no content.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from django.db import models, transaction

from nanohost.lib.database import TookTooLong, time_limit

T = TypeVar("T")

# No transaction that deletes may take longer, in seconds; one that would is undone, and tried with fewer rows.
MAX_SECONDS = 0.2
# What each is to take at most, so that few come near that.
USUAL_SECONDS = 0.1
# Rows of the first, and of any.
FIRST_ROWS, MAX_ROWS = 50, 1000


class Pace:
    """How many rows the next transaction may have: fewer after one that took long, more after a quick one."""

    def __init__(self, rows: int = FIRST_ROWS) -> None:
        self.rows = rows

    def took(self, seconds: float) -> None:
        """Learn from how long a transaction held what it had locked."""
        if seconds > USUAL_SECONDS:
            self.rows = max(1, self.rows // 2)
        elif seconds < USUAL_SECONDS / 2:
            self.rows = min(MAX_ROWS, self.rows * 2)

    def transact(self, erase: Callable[[int], T]) -> T:
        """Run ``erase``, which is given how many rows it may touch, in a transaction of its own. What takes longer than
        :data:`MAX_SECONDS` is undone and run again with half as many; a single row may take as long as it needs."""
        while True:
            try:
                with transaction.atomic():
                    began = time.monotonic()
                    with time_limit(MAX_SECONDS) if self.rows > 1 else nullcontext():
                        done = erase(self.rows)
            except TookTooLong:
                self.rows = max(1, self.rows // 2)
                continue
            took = time.monotonic() - began
            self.took(took)
            # Whoever waits for what was locked gets it before the next one does.
            time.sleep(min(took, MAX_SECONDS))  # noqa: TID251 -- others have their turn
            return done


class Erased:
    """What was erased: how many rows of which table, and a hash over them by which a copy of them is known again."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._lines: list[str] = []

    def add(self, model: type[models.Model], key: object, *content: Any) -> None:
        """Count a row, and take in the hash of what it said."""
        table = table_of(model)
        self.counts[table] += 1
        self._lines.append(line_of(table, key, *content))

    @property
    def rows(self) -> int:
        """How many."""
        return self.counts.total()

    @property
    def hash(self) -> str:
        """SHA-256 over the rows' own lines, in their order by text; see :func:`line_of`."""
        return hashlib.sha256("\n".join(sorted(self._lines)).encode()).hexdigest()

    def told(self) -> dict[str, Any]:
        """What the audit log is told of it."""
        return {"rows": as_pairs(self.counts), "hash": self.hash}


def table_of(model: type[models.Model]) -> str:
    """What the database calls it."""
    return model._meta.db_table


def as_pairs(counts: Mapping[str, int]) -> list[tuple[int, str]]:
    """How many rows of which table, in the order of the tables. What stands behind a name such as accounts_apikey, the
    log would take for a secret."""
    return [(rows, table) for table, rows in sorted(counts.items())]


def from_pairs(pairs: Iterable[Sequence[Any]]) -> Counter[str]:
    """The same, as it was."""
    return Counter({table: rows for rows, table in pairs})


def line_of(table: str, key: object, *content: Any) -> str:
    """What a row adds to the hash: its table, its key, and SHA-256 of what it said, as JSON."""
    said = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    return f"{table} {key} {hashlib.sha256(said.encode(errors='replace')).hexdigest()}"
