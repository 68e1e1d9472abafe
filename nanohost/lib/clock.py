"""The database's clock, as expressions: leases are compared by one clock, however many machines there are."""

from datetime import timedelta
from typing import Any

from django.db.models import DateTimeField, ExpressionWrapper
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

__all__ = ["Now", "from_now"]


def from_now(seconds: "float | Combinable") -> "ExpressionWrapper[Any]":
    """``Now() + seconds`` as an expression; negative for the past. Also of an expression for a duration."""
    after = seconds if isinstance(seconds, Combinable) else timedelta(seconds=seconds)
    return ExpressionWrapper(Now() + after, output_field=DateTimeField())
