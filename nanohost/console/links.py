"""Addresses of the console's lists."""

from urllib.parse import urlencode

from django.urls import reverse


def list_of(page: str, **filters: object) -> str:
    """The list of a model, such as ``conversations_turn``, narrowed by what its address says."""
    address = reverse(f"admin:{page}_changelist")
    return f"{address}?{urlencode(filters)}" if filters else address
