"""Cursor pages."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination

from nanohost.lib.errors import InvalidRequest


class Pages(CursorPagination):
    """``{next, previous, results}``; ``limit`` asks for a page's size, 200 at most."""

    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
    cursor_query_param = "cursor"

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """What OpenAPI is told of the query."""
        limit = {"type": "integer", "minimum": 1, "default": self.page_size}
        about_limit = f"How many at most; more than {self.max_page_size} are never given."
        return [
            _query("cursor", "From the next or previous link of a page; opaque.", {"type": "string"}),
            _query("limit", about_limit, limit),
        ]

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        try:
            limit = request.query_params.get(self.page_size_query_param, "1")
            if not (limit.isascii() and limit.isdigit() and int(limit[:9]) >= 1):
                raise InvalidRequest("limit is a whole number of at least 1.")
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValueError, TypeError, OverflowError, ValidationError, DataError):
            raise InvalidRequest("This cursor is not one of ours; follow the next and previous links.") from None


def _query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def parameter_of(described: dict[str, Any]) -> OpenApiParameter:
    """The same, for a view that asks for its pages itself."""
    return OpenApiParameter(described["name"], described["schema"], description=described["description"])


class NewestFirst(Pages):
    ordering = ("-created_at", "-id")


class NewestTurnsFirst(Pages):
    ordering = "-number"


class InSeqOrder(Pages):
    ordering = "seq"
