"""What the views of every app's API share: checked bodies, pages, problems for OpenAPI, whose request it is."""

import re
from functools import cache
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction, OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from nanohost.lib.errors import InvalidRequest
from nanohost.lib.rest import PROBLEM_TYPE

# The specification's names.
# ruff: noqa: N815


class Text(serializers.CharField):
    """A JSON string, taken as it is: DRF's own field makes one of a number, and trims it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        value: str = super().to_internal_value(data)
        return value


class Flag(serializers.BooleanField):
    """A JSON boolean: DRF's own field takes "yes", "f" and 1 as well."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError(["Must be true or false."])
        return data


class Strict(serializers.Serializer[Any]):
    """Refuses keys it does not know: a misspelt option is an error, not a default."""

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if data is None:  # of which DRF tells by another way than of what else is no object
            raise serializers.ValidationError({"non_field_errors": ["No data provided"]})
        return super().run_validation(data)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError({name: ["There is no such field."] for name in unknown})
        return super().to_internal_value(data)


class StrictInOpenApi(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = Strict
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        shape = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)  # type: ignore[no-untyped-call]
        return {**shape, "type": "object", "additionalProperties": False}


class Nothing(Strict):
    """Body of a request that has none; an empty object is as good."""


class NullIfEmpty(serializers.CharField):
    """Stored as an empty text where there is none."""

    def to_representation(self, value: str) -> str | None:  # type: ignore[override]
        return value or None


class ProblemView(serializers.Serializer[Any]):
    """RFC 9457, with a stable code and the request's id."""

    type = serializers.CharField()
    title = serializers.CharField(help_text="What the code means.")
    status = serializers.IntegerField(help_text="The HTTP status.")
    code = serializers.CharField(help_text="Stable; programs decide by it.")
    detail = serializers.CharField(help_text="What is wrong with this request, in words.")
    requestId = serializers.CharField(help_text="As in X-Request-ID, and in the logs.")
    errors = serializers.DictField(  # type: ignore[assignment]  # a field, which is taken off the class
        required=False, help_text="For a body that is not valid: what is wrong, by field."
    )
    turnId = serializers.UUIDField(required=False, help_text="Of a turn that has no answer.")
    conversationId = serializers.UUIDField(required=False)


def problems(*statuses: int) -> dict[tuple[int, str], type[ProblemView]]:
    """For OpenAPI: the problems a route answers with, beside those that any request may meet."""
    everywhere = (400, 401, 403, 405, 408, 413, 415, 429, 431, 500, 503)
    return {(status, PROBLEM_TYPE): ProblemView for status in sorted({*everywhere, *statuses})}


def owner_of(request: Request) -> int:
    owner_id = request.user.pk
    assert owner_id is not None  # the permission class let nobody else in
    return owner_id


IDEMPOTENCY_KEY = r"[!-~]{1,255}"


def idempotency_key(request: Request) -> str | None:
    """The request's own, if it has one; raises :class:`InvalidRequest` for one that makes no sense."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not re.fullmatch(IDEMPOTENCY_KEY, key):
        raise InvalidRequest("Idempotency-Key is 1 to 255 printable ASCII characters, without spaces.")
    return key


def request_id(request: Request) -> str:
    """As the gateway has given it, or passed it on."""
    return str(request.META.get("HTTP_X_REQUEST_ID", ""))


@cache
def _kept(shape: type[Strict]) -> Strict:
    """Made once: a serializer copies its fields anew, half of what it takes to check a body. Checking changes nothing
    in it, so threads may share it."""
    return shape()


def checked(shape: type[Strict], request: Request) -> dict[str, Any]:
    given: dict[str, Any] = _kept(shape).run_validation(request.data)
    return given


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
