"""Pages of other people's apps, in the console's looks: users and groups, the house's jobs, failed sign-ins."""

from typing import Any

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from nanohost.console import agents  # noqa: F401 -- which registers pages as well
from nanohost.lib.admin import TOGGLE, BoundedPaginator, ModelAdmin

admin.site.unregister([User, Group, PeriodicTask, ClockedSchedule, CrontabSchedule, IntervalSchedule, SolarSchedule])


# Untyped, as all of django_celery_beat.
_JobsAdmin: Any = beat.PeriodicTaskAdmin


@admin.register(User)
class UserAdmin(PlainUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """People: staff, who sign in here, and owners of conversations."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, ModelAdmin):
    """The roles (docs/console.md), and groups of your own."""


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(_JobsAdmin, ModelAdmin):  # type: ignore[misc]
    """The house's jobs: when each runs, and whether it does."""

    # Without a script of its own in the page, which the console's policy forbids.
    change_form_template = None
    date_hierarchy = None
    actions = ("enable_tasks", "disable_tasks", "run_tasks")

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
