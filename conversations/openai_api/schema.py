"""The OpenAPI document of these routes: one of its own, since their shapes and errors are OpenAI's."""

from typing import Any

from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator

from nanohost.lib.openai_errors import is_of_openai_api
from nanohost.lib.openapi import SchemaView

SETTINGS: dict[str, Any] = {
    "TITLE": "nanohost, as OpenAI's API",
    "DESCRIPTION": "Agents as models, for whatever speaks OpenAI's API.",
    "PREPROCESSING_HOOKS": [],
    # The same field has other choices in one shape than in the next: they stay where they are, without names.
    "POSTPROCESSING_HOOKS": [],
}


def leave_out(endpoints: list[Any]) -> list[Any]:
    """For drf-spectacular: the routes of our own API."""
    return [endpoint for endpoint in endpoints if not is_of_openai_api(endpoint[0])]


def patterns() -> list[Any]:
    return [path("v1/", include("conversations.openai_api.urls"))]


class _Generator(SchemaGenerator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"patterns": patterns()}))  # type: ignore[no-untyped-call]


class OpenAISchema(SchemaView):
    """Serves it."""

    generator_class = _Generator
    custom_settings = SETTINGS
