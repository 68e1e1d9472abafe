"""Schedules in the admin: when agents are spoken to by the clock, and the ledger of what became of each time."""

import zoneinfo
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django_celery_beat.models import PeriodicTask
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from nanohost.lib.admin import (
    CANCEL,
    PAUSE,
    BoundedPaginator,
    GrowingAdmin,
    KnownValues,
    ModelAdmin,
    link_to,
    link_to_list,
)
from nanohost.lib.errors import Problem
from nanohost.lib.moments import when
from scheduler import series
from scheduler.models import CheckIn, JobRun, RunState, Schedule, ScheduleRun
from scheduler.times import BadTiming, zone_of

# What the form calls otherwise than series does.
_WISHES = {"expression": "cron"}

# What can be done to one, by its state; the last is for good.
_RUN, _CANCEL = {"run_now": "Run now"}, {"cancel": "Cancel it for good"}
_ACTS: dict[str, dict[str, str]] = {
    "active": _RUN | {"pause": "Pause"} | _CANCEL,
    "paused": _RUN | {"resume": "Resume"} | _CANCEL,
    "ended": _RUN | _CANCEL,
    "cancelled": {},
}


def _zones() -> list[tuple[str, str]]:
    names = sorted(zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"})
    return [("", f"the host's own: {settings.TIME_ZONE}"), *((name, name) for name in names)]


# A date and a time as browsers offer them, to the second.
_moment = UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"})


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """What people write, as :mod:`scheduler.series` takes it."""

    at = forms.CharField(
        required=False, max_length=64, widget=_moment, help_text="Once: by the clock of the zone below."
    )
    ends_at = forms.CharField(
        required=False, max_length=64, widget=_moment, help_text="It does not run after that, by the same clock."
    )
    zone = forms.ChoiceField(
        required=False,
        widget=UnfoldAdminSelectWidget,
        choices=_zones,
        error_messages={"invalid_choice": "There is no zone named %(value)s."},
        help_text="Whose clock is meant.",
    )
    deliver_to = forms.CharField(
        required=False,
        max_length=32,
        widget=UnfoldAdminTextInputWidget,
        help_text="A destination of the agent, by name, that also receives its answers. Empty: none.",
    )

    class Meta:
        model = Schedule
        fields = ["description", "prompt", "owner", "agent", "conversation_id", "deliver_to"]
        fields += ["expression", "every_seconds", "zone", "missed", "missed_most", "max_runs"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "zone" in self.fields:  # it is not in the form of whoever may only look
            zone = self.fields["zone"]
            assert isinstance(zone, forms.ChoiceField)
            if (former := self.instance.zone) and (former, former) not in _zones():
                zone.choices = [*_zones(), (former, f"{former} (this zone no longer exists)")]
            self.initial["zone"] = former
        self.initial["deliver_to"] = self.instance.destination
        for name, moment in (("at", self.instance.at), ("ends_at", self.instance.ends_at)):
            if moment:
                self.initial[name] = _in_zone(moment, self.instance).replace(tzinfo=None).isoformat()

    def clean_deliver_to(self) -> Any:
        name = self.cleaned_data["deliver_to"]
        return {"destination": name} if name else {}

    def clean(self) -> Any:
        """What series refuses is told here: it is done once, and undone."""
        super().clean()
        if not self.errors:
            try:
                with transaction.atomic():
                    self.carry_out()
                    transaction.set_rollback(True)
            except Problem as problem:
                raise forms.ValidationError(problem.detail) from None
        return self.cleaned_data

    def carry_out(self) -> Schedule:
        """Make the schedule, or change what was changed of it."""
        given = self.cleaned_data
        wishes: Any = {_WISHES.get(name, name): given[name] for name in self.changed_data if name in given}
        if not self.instance._state.adding:
            return series.update(self.instance, **wishes)
        whose = {"owner_id": wishes.pop("owner").pk, "agent": wishes.pop("agent").name}
        return series.create(**whose, **wishes)


@admin.register(Schedule)
class ScheduleAdmin(ModelAdmin):
    """What an agent is told by the clock, when next, and what became of it last."""

    form = ScheduleForm
    list_display = ["__str__", "owner", "agent", "timing", "state", "active", "next", "last", "lag", "failures"]
    list_filter = ["active", "kind", "owner", "agent"]
    list_select_related = ["owner", "agent"]
    list_per_page = 50
    ordering = ["-pk"]  # the newest first: ids sort by time
    paginator = BoundedPaginator
    show_full_result_count = False
    search_fields = ["id", "owner__username"]
    search_fields_of_editors = ["description"]
    labels: ClassVar = {
        "missed_most": "max catch-up runs",
        "expression": "cron expression",
        "every_seconds": "every (seconds)",
    }
    nothing_yet = "A schedule asks an agent at set times. Add one, or let an agent make one with its tool schedule."
    more_lookups = ["next_at__lt"]  # of those that are late
    actions = ["resume", "pause", "run_now", "cancel"]
    change_form_outer_before_template = "admin/scheduler/acts.html"
    readonly_fields = ["id", "state", "paused_because", "next", "upcoming", "ledger", "runs", "failures", "phase"]
    readonly_fields += ["created_at", "updated_at", "cancelled_at"]
    fieldsets = [
        (None, {"fields": ["description", "prompt", "owner", "agent", "conversation_id", "deliver_to"]}),
        ("Timing (choose one)", {"fields": ["expression", "every_seconds", "at"]}),
        ("Options", {"fields": ["zone", "missed", "missed_most", "ends_at", "max_runs"]}),
        ("Status", {"fields": ["id", "state", "paused_because", "next", "upcoming"]}),
        ("Runs", {"fields": ["ledger", "runs", "failures"]}),
        ("Time", {"fields": ["phase", "created_at", "updated_at", "cancelled_at"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        last = ScheduleRun.objects.filter(schedule=OuterRef("pk")).order_by("-slot")
        each = {f"last_{name}": Subquery(last.values(name)[:1]) for name in ("slot", "state", "lag_ms")}
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**each)
        return rows

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """One that is not made yet stands nowhere, and did nothing. (Without a row, lists ask for all there is.)"""
        every = super().get_fieldsets(request, obj)
        return every[:3] if request.path == reverse("admin:scheduler_schedule_add") else every

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Where it speaks does not change."""
        return [*self.readonly_fields, *(("owner", "agent", "conversation_id") if obj else ())]

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """With those actions of the list that can be done to it, and that this user may do."""
        schedule = self.get_object(request, unquote(object_id)) if object_id else None
        fit, may = _ACTS[schedule.state] if schedule else {}, self.get_actions(request)
        acts = [{"name": name, "label": label} for name, label in fit.items() if name in may]
        return super().changeform_view(request, object_id, form_url, {"acts": acts, **(extra_context or {})})

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and not (obj and obj.cancelled_at)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False  # it is cancelled, and its ledger is kept for a while

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        obj.pk = form.carry_out().pk
        obj.refresh_from_db()

    @admin.display(description="next run")
    def next(self, schedule: Schedule) -> str:
        return _local(schedule.comes_at, schedule) if schedule.comes_at else "–"

    @admin.display(description="timing")
    def timing(self, schedule: Schedule) -> str:
        return _local(schedule.at, schedule) if schedule.at else schedule.told_times

    @admin.display(description="last run")
    def last(self, schedule: Any) -> str:
        if not schedule.last_slot:
            return "–"
        state = RunState(schedule.last_state)
        shown = format_html("{}: {}", _local(schedule.last_slot, schedule), state)
        return link_to_list("scheduler_schedulerun", shown, schedule=schedule.pk)

    @admin.display(description="lag")
    def lag(self, schedule: Any) -> str:
        return "–" if schedule.last_lag_ms is None else f"{schedule.last_lag_ms} ms"

    @admin.display(description="next runs")
    def upcoming(self, schedule: Schedule) -> str:
        schedule = Schedule.objects.get(pk=schedule.pk)  # beside a form that is refused, what is stored
        try:
            shown = [(_local(each.at, schedule), each.note) for each in series.upcoming(schedule)]
        except BadTiming as error:
            return str(error)
        return format_html_join("", "{} {}<br>", shown) or "none: it has ended"

    @admin.display(description="run history")
    def ledger(self, schedule: Schedule) -> str:
        return link_to_list("scheduler_schedulerun", "View run history", schedule=schedule.pk)

    @admin.action(description="Resume the selected schedules", permissions=[PAUSE])
    def resume(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._each(request, chosen, series.resume, "resumed")

    @admin.action(description="Pause the selected schedules", permissions=[PAUSE])
    def pause(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._each(request, chosen, partial(series.pause, because=series.BY_OPERATOR), "paused")

    @admin.action(description="Run the selected schedules now", permissions=[PAUSE])
    def run_now(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._each(request, chosen, series.run_now, "run")

    @admin.action(description="Cancel the selected schedules, for good", permissions=[CANCEL])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._each(request, chosen, series.cancel, "cancelled")

    def _each(
        self, request: HttpRequest, chosen: QuerySet[Schedule], do: Callable[[Schedule], object], done: str
    ) -> None:
        count = 0
        for schedule in chosen:
            try:
                do(schedule)
            except Problem as problem:
                self.message_user(request, f"{schedule}: {problem.detail}", messages.ERROR)
                continue
            self.log_change(request, schedule, done.capitalize() + ".")
            count += 1
        self.message_user(request, f"{count} schedules are {done}.", messages.SUCCESS)


def _in_zone(moment: datetime, schedule: Schedule) -> datetime:
    """As the schedule's own clock shows it; if its zone is gone, in UTC."""
    try:
        return moment.astimezone(zone_of(schedule.zone))
    except BadTiming:
        return moment


def _local(moment: datetime, schedule: Schedule) -> str:
    return when(moment, _in_zone(moment, schedule).tzinfo)


@admin.register(ScheduleRun)
class ScheduleRunAdmin(GrowingAdmin):
    """What became of each time that has come."""

    nothing_yet = "Each time that a schedule is due, its run appears here."
    list_display = ["slot", "schedule", "state", "lag", "attempts", "by_hand", "error", "its_turn"]
    list_filter = ["state"]
    list_prefetch_related = ["schedule"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id", "schedule__id"]
    search_help_text = "An id (or its beginning) of a run or a schedule; a turn's request id names its run."
    readonly_fields = ["its_schedule", "its_turn", "its_conversation", "lag"]
    fields = ["id", "its_schedule", "slot", "state", "error", "lag", "by_hand", "attempts", "retry_at"]
    fields += ["its_turn", "its_conversation", "created_at", "ended_at"]

    @admin.display(description="lag")
    def lag(self, run: ScheduleRun) -> str:
        return "–" if run.lag_ms is None else f"{run.lag_ms} ms"

    @admin.display(description="schedule")
    def its_schedule(self, run: ScheduleRun) -> str:
        return link_to("scheduler_schedule", run.schedule_id, str(run.schedule))

    @admin.display(description="turn")
    def its_turn(self, run: ScheduleRun) -> str:
        return link_to("conversations_turn", run.turn_id, str(run.turn_id)) if run.turn_id else "–"

    @admin.display(description="conversation")
    def its_conversation(self, run: ScheduleRun) -> str:
        shown = run.conversation_id
        return link_to("conversations_conversation", shown, str(shown)) if shown else "–"


class JobFilter(KnownValues):
    """By a job's name."""

    title, parameter_name = "job", "job"

    def values(self) -> list[str]:
        return list(PeriodicTask.objects.order_by("name").values_list("name", flat=True))


@admin.register(JobRun)
class JobRunAdmin(GrowingAdmin):
    """When each job of the house ran, how long, how it ended and what it did."""

    nothing_yet = "Jobs of the host itself run every minute, hour or day; each run appears here."
    list_display = ["started_at", "job", "state", "took", "did", "error", "times"]
    list_filter = [JobFilter, "state"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id"]
    readonly_fields = ["took"]
    fields = ["id", "job", "state", "did", "error", "times", "took", "started_at", "ended_at"]

    @admin.display(description="took")
    def took(self, run: JobRun) -> str:
        return "–" if run.duration_ms is None else f"{run.duration_ms} ms"


@admin.register(CheckIn)
class CheckInAdmin(GrowingAdmin):
    """When agents were looked after, what came of it, and what it cost."""

    nothing_yet = "An agent with a HEARTBEAT document and an owner checks in by itself; each check-in appears here."
    list_display = ["slot", "agent", "state", "tokens", "of_the_day", "error", "its_turn"]
    list_filter = ["state", "agent"]
    list_prefetch_related = ["agent"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id"]
    readonly_fields = ["of_the_day", "its_turn", "its_conversation"]
    fields = ["id", "agent", "owner", "slot", "state", "error", "tokens", "day", "of_the_day"]
    fields += ["its_turn", "its_conversation", "created_at", "ended_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        of_day = CheckIn.objects.filter(agent=OuterRef("agent"), day=OuterRef("day")).order_by()
        used = of_day.values("agent").annotate(used=Sum("tokens")).values("used")
        rows: QuerySet[Any] = super().get_queryset(request).annotate(used_on_day=Subquery(used))
        return rows

    @admin.display(description="tokens of that day")
    def of_the_day(self, check_in: Any) -> str:
        return f"{check_in.used_on_day} of {settings.HEARTBEAT_TOKENS_A_DAY}"

    @admin.display(description="turn")
    def its_turn(self, check_in: CheckIn) -> str:
        turn = check_in.turn_id
        return link_to("conversations_turn", turn, str(turn)) if turn else "–"

    @admin.display(description="conversation")
    def its_conversation(self, check_in: CheckIn) -> str:
        shown = check_in.conversation_id
        return link_to("conversations_conversation", shown, str(shown)) if shown else "–"
