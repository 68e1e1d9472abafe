"""Pages of other people's apps, in the console's looks: users and groups, system jobs, failed sign-ins."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.csrf import csrf_protect
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from nanohost.accounts import audit, holds
from nanohost.accounts.errors import UnderLegalHold
from nanohost.console import (
    agents,  # noqa: F401 -- which registers pages as well
    audit_log,  # noqa: F401 -- and so do these
    holding,
    keys,  # noqa: F401
    legal_holds,  # noqa: F401
    people,
    tasks,
)
from nanohost.lib.admin import TOGGLE, BoundedPaginator, ModelAdmin
from nanohost.lib.moments import when
from scheduler import system_jobs
from scheduler.beat import SystemScheduler
from scheduler.models import JobRun, JobState

if settings.OIDC_ISSUER:  # what allauth keeps has no pages: accounts are the users', and providers the settings'
    admin.site.unregister(
        [each for each in admin.site._registry if each._meta.app_label in ("account", "socialaccount")]
    )
admin.site.unregister([User, Group, PeriodicTask, ClockedSchedule, CrontabSchedule, IntervalSchedule, SolarSchedule])


# Untyped, as all of django_celery_beat.
_JobsAdmin: Any = beat.PeriodicTaskAdmin

# Past its time by so much, a job is late: beat stores every SystemScheduler.sync_every when it last ran.
_LATE = timedelta(seconds=60) + timedelta(seconds=SystemScheduler.sync_every)

# Where it is recorded what a system job did, run by run.
_LEDGERS = {
    "tick": ("scheduler_schedulerun", "run history"),
    "heartbeat": ("scheduler_checkin", "check-ins"),
    "daily_summary": ("conversations_compaction", "compactions, of the kind daily"),
}


# Jobs that are made again by each release, and that something would stand still without.
_SYSTEM_JOBS = {job.name for job in (*system_jobs.SYSTEM_JOBS, *tasks.SYSTEM_JOBS)}
_SWITCH_IT_OFF = "This is a job of the host itself: it can be switched off, but not deleted."


def _but_for(jobs: Iterable[PeriodicTask], deleted: Any) -> Any:
    """What Django would delete, with the house's jobs among these in its way."""
    to_delete, counts, needed, protected = deleted
    ours = [f"{job.name}: {_SWITCH_IT_OFF}" for job in jobs if job.name in _SYSTEM_JOBS]
    return to_delete, counts, set() if ours else needed, [*protected, *ours]


# Somebody waits for the page that long; what is left is erased by the next click.
ERASE_SECONDS = 15


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
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        ("Permissions", {"fields": ("is_active", "is_staff", "is_superuser", "groups")}),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    actions = ("deactivate",)
    list_display = ("username", "email", "first_name", "last_name", "roles", "is_active")
    list_before_template = "console/people_before.html"
    nothing_yet = "Everyone who may sign in or owns a key is listed here. Add a colleague with the form above."

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description="roles")
    def roles(self, user: User) -> str:
        """What they may do in the console; nothing for those who only chat, or own keys."""
        every = ["superuser"] if user.is_superuser else []
        return ", ".join(every + sorted(group.name for group in user.groups.all())) or "-"

    @admin.action(description="Deactivate the selected users", permissions=["change"])
    def deactivate(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        for user in chosen.filter(is_active=True).exclude(pk=request.user.pk or 0):
            self._deactivate(request, user)
        self.message_user(request, "They are deactivated, but for yourself.", messages.SUCCESS)

    def _deactivate(self, request: HttpRequest, user: User) -> None:
        user.is_active = False
        with transaction.atomic():
            user.save(update_fields=["is_active"])
            self.log_change(request, user, "Deactivated.")

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        """In one transaction with what the audit log is told of it."""
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Of several at once, none that has anything: what goes with each is told on its own page."""
        to_delete, counts, needed, protected = super().get_deleted_objects(objs, request)
        placed = holds.placed()
        kept = [f"{user}: {holds.told(hold)}" for user in objs for hold in holding.on_owner(user, placed)]
        kept += [
            f"{user}: deactivate, or open the user's own page and delete there" for user in objs if people.has_any(user)
        ]
        return to_delete, counts, set() if kept else needed, [*protected, *kept]

    @method_decorator(csrf_protect)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Somebody who has anything is deactivated, or erased with it."""
        user = self.get_object(request, unquote(object_id))
        if (
            user is None
            or not self.has_delete_permission(request, user)
            or not (people.has_any(user) or people.held(user))
        ):
            answer: HttpResponse = super().delete_view(request, object_id, extra_context)
            return answer
        does = request.POST.get("do", "")
        may_deactivate, is_oneself = self.has_change_permission(request, user), user.pk == request.user.pk
        if does and (is_oneself or (does == "deactivate" and not may_deactivate)):
            raise PermissionDenied("You cannot do this to your own account. Ask another admin." if is_oneself else "")
        if does == "deactivate":
            self._deactivate(request, user)
            self.message_user(request, f"{user} is deactivated.", messages.SUCCESS)
            return redirect("admin:auth_user_changelist")
        if does == "erase" and request.POST.get("name") == user.get_username():
            return self._erase(request, user)
        is_missing = request.method == "POST"
        told = {"title": "Delete a user", "opts": self.opts, "name": user.get_username(), "user_id": user.pk}
        told |= {"belongings": people.belongings(user), "has_acted": people.has_acted(user), "is_missing": is_missing}
        told["held"] = [holds.told(hold) for hold in people.held(user)]
        told |= {"may_deactivate": may_deactivate, "is_active": user.is_active, "is_oneself": is_oneself}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "console/user_delete.html", context, status=400 if is_missing else 200)

    def _erase(self, request: HttpRequest, user: User) -> HttpResponse:
        number = user.pk
        try:
            is_done = people.erase(user, seconds=ERASE_SECONDS) is not None
        except UnderLegalHold as held:
            self.message_user(request, held.detail, messages.ERROR)
            return redirect("admin:auth_user_delete", number)
        if not is_done:
            self.message_user(request, "Not everything has been erased yet. Erase again to continue.", messages.WARNING)
            return redirect("admin:auth_user_delete", number)
        assert request.user.pk is not None
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(User),
            object_id=str(number),
            object_repr=f"user {number}",
            action_flag=DELETION,
            change_message="Erased, with all that was theirs.",
        )
        self.message_user(request, "The user is erased, with all that was theirs.", messages.SUCCESS)
        return redirect("admin:auth_user_changelist")


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, _Chosen):
    """The roles (docs/console.md), and groups of your own."""

    nothing_yet = "The roles viewer, operator and admin are made at each start: manage.py prepare makes them now."

    filter_horizontal = ()


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(_JobsAdmin, ModelAdmin):  # type: ignore[misc]  # beat's are untyped
    """The house's jobs: when each runs, and whether it does."""

    # Without a script of its own in the page, which the console's policy forbids.
    change_form_template = None
    date_hierarchy = None
    actions = ("enable_tasks", "disable_tasks", "run_tasks")
    list_display = ("name", "enabled", "scheduler", "next_run", "last", "what_it_did")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        last = JobRun.objects.filter(job=OuterRef("name")).order_by("-id")
        each = {
            f"last_{name}": Subquery(last.values(name)[:1]) for name in ("started_at", "state", "duration_ms", "did")
        }
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**each)
        return rows

    def get_readonly_fields(self, request: HttpRequest, obj: PeriodicTask | None = None) -> Any:
        """One of ours under another name would be made anew by the next release, and run twice."""
        return (*super().get_readonly_fields(request, obj), *(["name"] if obj and obj.name in _SYSTEM_JOBS else ()))

    def has_delete_permission(self, request: HttpRequest, obj: PeriodicTask | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not (obj and obj.name in _SYSTEM_JOBS)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        job = self.get_object(request, unquote(object_id))
        if job and job.name in _SYSTEM_JOBS:
            raise PermissionDenied(_SWITCH_IT_OFF)
        answer: HttpResponse = super().delete_view(request, object_id, extra_context)
        return answer

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        return _but_for(objs, super().get_deleted_objects(objs, request))

    @admin.display(description="next run")
    def next_run(self, job: PeriodicTask) -> str:
        due = system_jobs.next_run(job)
        if due is None:
            return "–"
        late = timezone.now() - due
        return format_html("{}, late", when(due)) if late > _LATE else when(due)

    @admin.display(description="last run")
    def last(self, job: Any) -> str:
        if job.last_started_at is None:
            return "–"
        shown = format_html("{}: {}", when(job.last_started_at), job.last_state)
        if job.last_state != JobState.RUNNING and job.last_duration_ms is not None:
            shown = format_html("{}, {} ms", shown, job.last_duration_ms)
        query = urlencode({"job": job.name})
        return format_html('<a href="{}?{}">{}</a>', reverse("admin:scheduler_jobrun_changelist"), query, shown)

    @admin.display(description="what it did")
    def what_it_did(self, job: Any) -> str:
        page, told = _LEDGERS.get(job.name, ("", ""))
        did = job.last_did or ("nothing to do" if job.last_state == JobState.OK else "–")
        if not page:
            return str(did)
        return format_html('{}; <a href="{}">{}</a>', did, reverse(f"admin:{page}_changelist"), told)

    @admin.action(description="Enable the selected jobs", permissions=[TOGGLE])
    def enable_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        self._switch(request, queryset, on=True)

    @admin.action(description="Disable the selected jobs", permissions=[TOGGLE])
    def disable_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        self._switch(request, queryset, on=False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[PeriodicTask], *, on: bool) -> None:
        """Row by row, as beat and the audit log are told of it."""
        done = "enabled" if on else "disabled"
        for job in queryset.exclude(enabled=on):
            job.enabled = on
            with transaction.atomic():
                job.save(update_fields=["enabled", "last_run_at", "date_changed"])  # type: ignore[no-untyped-call]
                self.log_change(request, job, f"{done.capitalize()}.")
        count = queryset.count()
        self.message_user(request, f"{count} {'job is' if count == 1 else 'jobs are'} {done}.", messages.SUCCESS)

    @admin.action(description="Run the selected jobs now", permissions=[TOGGLE])
    def run_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        for job in queryset:
            audit.record("job.run_by_hand", about=job)
        super().run_tasks(request, queryset)


class _Times(ModelAdmin):
    """When jobs run. Which jobs do is told by their own page."""

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        jobs = [job for times in objs for job in times.periodictask_set.all()]
        return _but_for(jobs, super().get_deleted_objects(objs, request))


@admin.register(ClockedSchedule)
class ClockedAdmin(_Times):
    """Single moments at which a system job runs."""

    list_display = ["clocked_time"]
    fields = ["clocked_time"]


@admin.register(CrontabSchedule)
class CrontabAdmin(_Times):
    """Times of system jobs, as cron writes them."""

    list_display = ["__str__", "human_readable"]
    fields = ["human_readable", "minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone"]
    readonly_fields = ["human_readable"]


admin.site.register([IntervalSchedule, SolarSchedule], _Times)


@admin.register(AccessAttempt)
class FailedSignInAdmin(ModelAdmin):
    """Who failed to sign in, and from where. To delete the rows of an address lets it try again at once."""

    nothing_yet = "There are no recent failed sign-ins. Each one is listed here, with its address."

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
