"""The shapes of keys in the API."""

from typing import Any

from rest_framework import serializers

from nanohost.accounts.models import MAX_AT_ONCE, MAX_PER_MINUTE, STATES, Scope
from nanohost.lib.api import Flag, Strict, Text

# The specification's names.
# ruff: noqa: N815


class _Texts(serializers.ListField):
    child = Text(max_length=128)
    max_length = 100


class _Limits(Strict):
    name = Text(required=False, allow_blank=True, max_length=100, help_text="A description for people.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices), required=False, min_length=1, help_text="What it may do."
    )
    agents = _Texts(
        required=False,
        source="agent_names",
        help_text="The agents that it may name. Empty: those that are public; * is every one.",
    )
    models = _Texts(
        required=False,
        source="model_names",
        help_text="The models it may ask for, besides an agent's own. Empty: those in LLM_MODELS.",
    )
    networks = _Texts(required=False, help_text="From where it may be used. Empty: from anywhere.")
    allowedOrigins = _Texts(
        required=False,
        source="allowed_origins",
        help_text="Origins of web pages that may embed a chat with its agent. Empty: none.",
    )
    requestsPerMinute = serializers.IntegerField(
        required=False, allow_null=True, source="requests_per_minute", min_value=1, max_value=MAX_PER_MINUTE
    )
    turnsAtOnce = serializers.IntegerField(
        required=False, allow_null=True, source="turns_at_once", min_value=1, max_value=MAX_AT_ONCE
    )
    cancelOnDisconnect = Flag(
        required=False,
        source="cancel_on_disconnect",
        help_text="Whether a client of /v1 that goes away cancels its turn. A new key: no.",
    )
    expiresAt = serializers.DateTimeField(required=False, allow_null=True, source="expires_at")


class NewKey(_Limits):
    """A key to be made."""

    owner = Text(required=False, max_length=150, help_text="A user's name; whose conversations it opens. Default: you.")


class KeyChanges(_Limits):
    """What is to be otherwise; the rest stays."""


class KeyView(serializers.Serializer[Any]):
    """A key, without its text."""

    prefix = serializers.CharField()
    owner = serializers.CharField(source="owner.username")
    name = serializers.CharField()
    state = serializers.ChoiceField(STATES)
    scopes = serializers.ListField(child=serializers.CharField())
    agents = serializers.ListField(child=serializers.CharField(), source="agent_names")
    models = serializers.ListField(child=serializers.CharField(), source="model_names")
    networks = serializers.ListField(child=serializers.CharField())
    allowedOrigins = serializers.ListField(child=serializers.CharField(), source="allowed_origins")
    requestsPerMinute = serializers.IntegerField(source="requests_per_minute", allow_null=True)
    turnsAtOnce = serializers.IntegerField(source="turns_at_once", allow_null=True)
    cancelOnDisconnect = serializers.BooleanField(source="cancel_on_disconnect")
    createdAt = serializers.DateTimeField(source="created_at")
    expiresAt = serializers.DateTimeField(source="expires_at", allow_null=True)
    revokedAt = serializers.DateTimeField(source="revoked_at", allow_null=True)
    lastUsedAt = serializers.DateTimeField(source="last_used_at", allow_null=True)


class KeyMade(KeyView):
    """The one answer that has its text."""

    key = serializers.CharField(help_text="It is shown this once.")
