"""What PostgreSQL does for the statements that code of ours runs: each is explained, with what it really reads, where
and when it is run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

WATCHED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "(")


@dataclass(frozen=True)
class ExplainedStatement:
    """A statement and its plan, as ``EXPLAIN (ANALYZE, BUFFERS)`` gives it."""

    sql: str
    plan: dict[str, Any]

    @property
    def blocks(self) -> int:
        """Blocks of 8 kB it touched, in memory or not."""
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])

    def steps(self) -> Iterator[dict[str, Any]]:
        """Every step of the plan."""
        todo = [self.plan]
        while todo:
            step = todo.pop()
            yield step
            todo += step.get("Plans", [])

    def scanned(self) -> set[str]:
        """The tables it reads from one end to the other, or as far as it likes."""
        return {step["Relation Name"] for step in self.steps() if step["Node Type"] == "Seq Scan"}

    def rows(self) -> int:
        """The most rows that one step took up, those included that it dropped."""
        return max(round(_taken_up(step) * step["Actual Loops"]) for step in self.steps())

    def __str__(self) -> str:
        return f"{self.sql}\n{self.rows()} rows, {self.blocks} blocks\n" + "\n".join(_lines(self.plan))


def _taken_up(step: dict[str, Any]) -> float:
    dropped = sum(float(value) for name, value in step.items() if name.startswith("Rows Removed by"))
    return float(step["Actual Rows"]) + dropped


def _lines(step: dict[str, Any], depth: int = 0) -> Iterator[str]:
    shown = ("Relation Name", "Index Name", "Index Cond", "Filter", "Sort Key", "Join Filter", "Recheck Cond")
    about = " ".join(f"{name}={step[name]}" for name in shown if name in step)
    figures = f"rows={step['Actual Rows']} loops={step['Actual Loops']} taken={_taken_up(step)}"
    yield f"{'  ' * depth}{step['Node Type']} {about} {figures}"
    for below in step.get("Plans", []):
        yield from _lines(below, depth + 1)


@contextmanager
def explained() -> Iterator[list[ExplainedStatement]]:
    """Collects what is run inside. Each statement is run once for its plan, undone, and then run."""
    statements: list[ExplainedStatement] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(WATCHED) and not many:
            assert connection.connection is not None
            with transaction.atomic():
                # Past the wrapper.
                with connection.wrap_database_errors, connection.connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", params)
                    (plan,) = cursor.fetchone()
                    plan = json.loads(plan) if isinstance(plan, str) else plan
                    statements.append(ExplainedStatement(sql=sql, plan=plan[0]["Plan"]))
                transaction.set_rollback(True)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield statements
