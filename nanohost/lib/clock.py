"""The database's clock, as expressions: leases are compared by one clock, however many machines there are."""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import DateTimeField, ExpressionWrapper
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.db.models.sql import Query

__all__ = ["Now", "from_now", "read"]


def from_now(seconds: "float | Combinable") -> "ExpressionWrapper[Any]":
    """``Now() + seconds`` as an expression; negative for the past. Also of an expression for a duration."""
    after = seconds if isinstance(seconds, Combinable) else timedelta(seconds=seconds)
    return ExpressionWrapper(Now() + after, output_field=DateTimeField())


def read() -> datetime:
    """What it shows, in UTC; to be compared with what is stored, as expressions are. SQLite's shows milliseconds."""
    compiler = Query(None).get_compiler(connection=connection)
    now = Now()
    sql, parameters = compiler.compile(now)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", parameters)
        rows = compiler.apply_converters(cursor.fetchall(), compiler.get_converters([now]))
    shown: datetime = next(iter(rows))[0]
    return shown
