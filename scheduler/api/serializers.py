"""The shapes of the bodies of schedules: what comes in is held against them, what goes out is documented by them."""

from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from nanohost.lib.api import NullIfEmpty, Strict, Text
from scheduler.models import Kind, Missed, RunState, Schedule, ScheduleRun
from scheduler.series import MAX_MADE_UP_FOR, MAX_RUNS
from scheduler.times import LONGEST, LONGEST_EXPRESSION, SHORTEST

# In the style of the specification's names.
# ruff: noqa: N815


class Whole(serializers.IntegerField):
    """A JSON integer: DRF's own field makes one of a text."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        value: int = super().to_internal_value(data)
        return value


class TimesIn(Strict):
    """Body of POST /schedules/preview."""

    at = Text(
        required=False,
        max_length=64,
        allow_null=True,
        help_text="Once: ISO 8601, in the zone unless it names an offset.",
    )
    everySeconds = Whole(
        required=False,
        min_value=SHORTEST,
        max_value=LONGEST,
        allow_null=True,
        source="every_seconds",
        help_text="Again after so long.",
    )
    cron = Text(
        required=False,
        allow_null=True,
        max_length=LONGEST_EXPRESSION,
        help_text="Five fields: minute, hour, day of the month, month, day of the week.",
    )
    zone = Text(required=False, max_length=64, help_text="Whose clock is meant; the host's TIME_ZONE if missing.")
    endsAt = Text(
        required=False, max_length=64, allow_null=True, source="ends_at", help_text="It does not run after that."
    )
    maxRuns = Whole(
        required=False,
        min_value=1,
        max_value=MAX_RUNS,
        allow_null=True,
        source="max_runs",
        help_text="It ends after this many runs.",
    )


class DeliverTo(Strict):
    """Where answers go as well."""

    destination = Text(
        required=False, allow_blank=True, max_length=32, help_text="One of the agent's, by its name; empty: nowhere."
    )


class ScheduleChanges(TimesIn):
    """Body of PATCH /schedules/{id}: what is not named stays."""

    description = Text(required=False, allow_blank=True, max_length=200, help_text="A description for people.")
    prompt = Text(
        required=False,
        validators=[RegexValidator(r"\S", "This field may not be blank.")],
        help_text="The message to the agent.",
    )
    missed = serializers.ChoiceField(
        choices=Missed.values, required=False, help_text="The rule for missed times; once if missing."
    )
    missedMost = Whole(
        required=False,
        min_value=1,
        max_value=MAX_MADE_UP_FOR,
        source="missed_most",
        help_text="The most missed runs to catch up on.",
    )
    deliverTo = DeliverTo(required=False, source="deliver_to", help_text="Where its answers go as well; {}: nowhere.")


class NewSchedule(ScheduleChanges):
    """Body of POST /schedules. One of at, everySeconds and cron makes its times."""

    prompt = Text(
        validators=[RegexValidator(r"\S", "This field may not be blank.")], help_text="The message to the agent."
    )
    agent = Text(required=False, min_length=1, max_length=64, help_text="Who is spoken to; the default one if missing.")
    conversationId = serializers.UUIDField(
        required=False,
        allow_null=True,
        source="conversation_id",
        help_text="Where it speaks; in a new conversation each time if missing.",
    )


class ScheduleView(serializers.ModelSerializer[Schedule]):
    scheduleId = serializers.UUIDField(source="pk")
    agent = serializers.CharField(source="agent.name")
    conversationId = serializers.UUIDField(source="conversation_id", allow_null=True)
    deliverTo = serializers.DictField(source="deliver_to")
    kind = serializers.ChoiceField(choices=Kind.values)
    everySeconds = serializers.IntegerField(source="every_seconds", allow_null=True)
    cron = NullIfEmpty(source="expression", allow_null=True)
    missed = serializers.ChoiceField(choices=Missed.values)
    missedMost = serializers.IntegerField(source="missed_most")
    endsAt = serializers.DateTimeField(source="ends_at", allow_null=True)
    maxRuns = serializers.IntegerField(source="max_runs", allow_null=True)
    state = serializers.ChoiceField(choices=["active", "paused", "ended"])
    pausedBecause = NullIfEmpty(source="paused_because", allow_null=True)
    nextAt = serializers.DateTimeField(source="comes_at", allow_null=True)
    runs = serializers.IntegerField(help_text="Number of runs, not counting manual ones.")
    failures = serializers.IntegerField(help_text="Runs in a row that failed.")
    createdAt = serializers.DateTimeField(source="created_at")
    updatedAt = serializers.DateTimeField(source="updated_at")

    class Meta:
        model = Schedule
        fields = [
            *("scheduleId", "description", "prompt", "agent", "conversationId", "kind", "at", "everySeconds", "cron"),
            *("zone", "missed", "missedMost", "endsAt", "maxRuns", "deliverTo", "state", "pausedBecause", "nextAt"),
            *("runs", "failures", "createdAt", "updatedAt"),
        ]


class RunView(serializers.ModelSerializer[ScheduleRun]):
    runId = serializers.UUIDField(source="pk")
    scheduleId = serializers.UUIDField(source="schedule_id")
    state = serializers.ChoiceField(choices=RunState.values)
    byHand = serializers.BooleanField(source="by_hand", help_text="It was started by hand.")
    conversationId = serializers.UUIDField(source="conversation_id", allow_null=True)
    turnId = serializers.UUIDField(source="turn_id", allow_null=True)
    lagMs = serializers.IntegerField(source="lag_ms", allow_null=True)
    error = NullIfEmpty(allow_null=True)
    retryAt = serializers.DateTimeField(source="retry_at", allow_null=True)
    endedAt = serializers.DateTimeField(source="ended_at", allow_null=True)

    class Meta:
        model = ScheduleRun
        fields = [
            *("runId", "scheduleId", "slot", "state", "byHand", "conversationId", "turnId", "lagMs", "attempts"),
            *("error", "retryAt", "endedAt"),
        ]


class UpcomingView(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    local = serializers.CharField(help_text="What the zone's clock shows then, with its offset.")
    note = NullIfEmpty(allow_null=True, help_text="What a change of the clock makes of it.")


class PreviewView(serializers.Serializer[Any]):
    zone = serializers.CharField()
    times = UpcomingView(many=True, help_text="The next ten.")
