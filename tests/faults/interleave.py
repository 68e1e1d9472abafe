"""What other workers may do between two statements of one: everything that lies outside of a transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections


@contextmanager
def coming_between(at: int, happens: Callable[[], object]) -> Iterator[None]:
    """Let it happen before the body's ``at``-th statement or transaction; a statement of a transaction does not count.

    On SQLite a write transaction runs alone, so these are all the places where anybody can come between.
    """
    connection = connections["default"]
    begin = connection.set_autocommit
    left = at

    def pass_by() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            happens()

    def watched_statement(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if not connection.in_atomic_block:
            pass_by()
        return execute(sql, params, many, context)

    def watched_begin(autocommit: bool, *args: Any, **options: Any) -> None:
        if not autocommit:
            pass_by()
        begin(autocommit, *args, **options)

    connection.set_autocommit = watched_begin
    try:
        with connection.execute_wrapper(watched_statement):
            yield
    finally:
        del connection.set_autocommit
