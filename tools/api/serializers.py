"""Shapes of the API of tools."""

from typing import Any

from rest_framework import serializers

# The specification's names.
# ruff: noqa: N815


class ToolView(serializers.Serializer[Any]):
    name = serializers.CharField()
    description = serializers.CharField()
    schema = serializers.DictField(help_text="JSON Schema of the arguments.")
    permissions = serializers.ListField(child=serializers.CharField())
    allowed = serializers.BooleanField(help_text="Whether the agent may use it now.")
    forbiddenBy = serializers.CharField(allow_null=True, help_text="The rule that forbids it.")
