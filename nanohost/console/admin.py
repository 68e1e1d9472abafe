"""Pages of other people's apps, in the console's looks: users and groups, the house's jobs, failed sign-ins."""

from datetime import timedelta
from typing import Any

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from nanohost.console import agents  # noqa: F401 -- which registers pages as well
from nanohost.lib.admin import TOGGLE, BoundedPaginator, ModelAdmin
from nanohost.lib.text import duration
from scheduler import house
from scheduler.beat import HouseScheduler

admin.site.unregister([User, Group, PeriodicTask, ClockedSchedule, CrontabSchedule, IntervalSchedule, SolarSchedule])


# Untyped, as all of django_celery_beat.
_JobsAdmin: Any = beat.PeriodicTaskAdmin

# Past its time by so much, a job is late: beat stores every HouseScheduler.sync_every when it last ran.
_LATE = timedelta(seconds=60) + timedelta(seconds=HouseScheduler.sync_every)

# Where it is written what a house job did, time by time.
_LEDGERS = {
    "tick": ("scheduler_schedulerun", "the ledger of schedules"),
    "heartbeat": ("scheduler_heartbeat", "heartbeats"),
    "daily_summary": ("conversations_compaction", "compactions, of the kind daily"),
}


class _Chosen(ModelAdmin):
    """Choices of many are boxes to tick: the two lists of Django's own page need a wide screen and a mouse."""

    filter_horizontal = ()

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        options.setdefault("widget", UnfoldAdminCheckboxSelectMultipleWidget())
        field = super().formfield_for_manytomany(db_field, request, **options)
        if field:
            field.help_text = ""
        return field


@admin.register(User)
class UserAdmin(PlainUserAdmin, _Chosen):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """People: staff, who sign in here, and owners of conversations. What staff may do is by group alone."""

    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Who it is", {"fields": ("first_name", "last_name", "email")}),
        ("What they may do", {"fields": ("is_active", "is_staff", "is_superuser", "groups")}),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, _Chosen):
    """The roles (docs/console.md), and groups of your own."""

    filter_horizontal = ()


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(_JobsAdmin, ModelAdmin):  # type: ignore[misc]  # beat's are untyped
    """The house's jobs: when each runs, and whether it does."""

    # Without a script of its own in the page, which the console's policy forbids.
    change_form_template = None
    date_hierarchy = None
    actions = ("enable_tasks", "disable_tasks", "run_tasks")
    list_display = ("name", "enabled", "scheduler", "last_run_at", "next_run", "what_it_did")

    @admin.display(description="next run")
    def next_run(self, job: PeriodicTask) -> str:
        due = house.next_run(job)
        if due is None:
            return "–"
        shown, late = f"{timezone.localtime(due):%Y-%m-%d %H:%M:%S %z}", timezone.now() - due
        return f"{shown}, late by {duration(late.total_seconds())}" if late > _LATE else shown

    @admin.display(description="what it did")
    def what_it_did(self, job: PeriodicTask) -> str:
        page, told = _LEDGERS.get(job.name, ("", ""))
        return format_html('<a href="{}">{}</a>', reverse(f"admin:{page}_changelist"), told) if page else "–"

    @admin.action(description="Enable the selected jobs", permissions=[TOGGLE])
    def enable_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        super().enable_tasks(request, queryset)

    @admin.action(description="Disable the selected jobs", permissions=[TOGGLE])
    def disable_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        super().disable_tasks(request, queryset)

    @admin.action(description="Run the selected jobs now", permissions=[TOGGLE])
    def run_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        super().run_tasks(request, queryset)


class _Times(ModelAdmin):
    """When jobs run. Which jobs do is told by their own page."""


@admin.register(ClockedSchedule)
class ClockedAdmin(_Times):
    list_display = ["clocked_time"]
    fields = ["clocked_time"]


@admin.register(CrontabSchedule)
class CrontabAdmin(_Times):
    list_display = ["__str__", "human_readable"]
    fields = ["human_readable", "minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone"]
    readonly_fields = ["human_readable"]


admin.site.register([IntervalSchedule, SolarSchedule], _Times)


@admin.register(AccessAttempt)
class FailedSignInAdmin(ModelAdmin):
    """Who failed to sign in, and from where. To delete the rows of an address lets it try again at once."""

    list_display = ["attempt_time", "ip_address", "username", "failures_since_start", "user_agent"]
    list_filter = ["attempt_time"]
    search_fields = ["ip_address", "username"]
    paginator = BoundedPaginator
    show_full_result_count = False
    fields = ["attempt_time", "ip_address", "username", "failures_since_start", "user_agent", "path_info"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
