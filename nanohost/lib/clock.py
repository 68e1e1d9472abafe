"""The database's clock, as expressions: leases are compared by one clock, however many machines there are."""

from datetime import timedelta
from typing import Any

from django.db.models import DateTimeField, ExpressionWrapper
from django.db.models.functions import Now

__all__ = ["Now", "from_now"]


def from_now(seconds: float) -> "ExpressionWrapper[Any]":
    """``Now() + seconds`` as an expression; negative for the past."""
    return ExpressionWrapper(Now() + timedelta(seconds=seconds), output_field=DateTimeField())
