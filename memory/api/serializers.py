"""Shapes of the API of memory."""

from typing import Any

from rest_framework import serializers

from nanohost.lib.api import NullIfEmpty, Strict, Text

# The specification's names.
# ruff: noqa: N815


class MemoryIn(Strict):
    """Body of PUT /agents/{agent}/memory."""

    content = Text(allow_blank=True, help_text="The whole of it, in Markdown.")
    version = serializers.IntegerField(min_value=0, max_value=2**31 - 1, help_text="The version this was made of.")


class MemoryView(serializers.Serializer[Any]):
    agent = serializers.CharField()
    version = serializers.IntegerField(help_text="0: nothing is known yet.")
    content = serializers.CharField()
    characters = serializers.IntegerField()
    maxCharacters = serializers.IntegerField(
        help_text="Past so many, models are asked to shorten it; twice as many are the most."
    )
    notes = serializers.CharField(help_text="Today's.")
    tainted = NullIfEmpty(
        allow_null=True, help_text="What of it was learnt where untrusted text had entered, and where; null: nothing."
    )


class HistoryEntryView(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(["entry", "raw", "note"])
    content = serializers.CharField()
    conversationId = serializers.UUIDField(source="conversation_id", allow_null=True)
    fromSeq = serializers.IntegerField(source="first_seq", allow_null=True)
    throughSeq = serializers.IntegerField(source="last_seq", allow_null=True)
    tainted = NullIfEmpty(
        source="tainted_by", allow_null=True, help_text="Where it was learnt, if untrusted text had entered there."
    )
    happenedAt = serializers.DateTimeField(source="happened_at")
    happenedUntil = serializers.DateTimeField(source="happened_until", allow_null=True)


class HistoryPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = HistoryEntryView(many=True)
