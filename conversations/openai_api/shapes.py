"""Shapes that the OpenAPI document has in several places."""

from typing import Any

from rest_framework import serializers


class ErrorView(serializers.Serializer[Any]):
    """What is wrong."""

    message = serializers.CharField(help_text="For people.")
    type = serializers.CharField(help_text="The kind of error, by which OpenAI's packages tell little apart.")
    param = serializers.CharField(allow_null=True, help_text="What in the body it is about.")
    code = serializers.CharField(help_text="Stable; programs decide by it. docs/openai.md and docs/api.md list them.")


class ErrorBody(serializers.Serializer[Any]):
    """An error as OpenAI's API tells it."""

    error = ErrorView()


def errors(*statuses: int) -> dict[int, type[ErrorBody]]:
    """For OpenAPI: the errors a route answers with, beside those that any request may meet."""
    everywhere = (400, 401, 403, 405, 408, 413, 415, 429, 431, 500, 503)
    return dict.fromkeys(sorted({*everywhere, *statuses}), ErrorBody)
