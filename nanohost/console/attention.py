"""What needs somebody now: each condition in one sentence, with since when, how many are hit, and what mends it.

The overview begins with this list, ``/health/status`` tells it as JSON, and docs/monitoring/alerts.yml has an alarm for
each condition, by its name. What is asked here is asked every few seconds, and by index.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST, require_safe

from agent import outages
from agent.models import ProviderOutage
from agent.spending import budgets
from conversations import events
from conversations.engine import announcements, intake, turn_control
from conversations.kinds import TOOLS, TURNS
from conversations.models import Delivery, DeliveryStatus, Turn, Worker
from conversations.statuses import FINAL, TurnStatus, WaitingFor
from nanohost.console import broker, diagnosis, figures, monitors, queue_page
from nanohost.console.links import list_of
from nanohost.console.models import Dismissal, Hour, Total
from nanohost.lib import clock
from nanohost.lib.outages import refused_lately
from nanohost.lib.redaction import redact_known
from nanohost.lib.text import clip, duration
from scheduler import system_jobs
from scheduler.models import LATE, Schedule
from tools.custom.models import CustomTool
from tools.mcp.models import MANY_FAILURES, McpServer, McpTool
from tools.models import Approval, ApprovalState, CallStatus, ToolCall

# Of what there may be thousands of, so many are counted, and so many are mended by one button.
MOST = 1000

# How long ago something that is over still needs somebody.
LATELY = timedelta(hours=24)

# More than so many failed turns, and more than this share of those that ended, within the last two hours.
MANY_FAILED, FAILED_SHARE = 5, 0.2


@dataclass(frozen=True, kw_only=True)
class Mend:
    """A button: what it says, the permission that it needs, and what it does; ``do`` returns what it has done."""

    label: str
    permission: str
    do: Callable[[HttpRequest], str]


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that needs somebody.

    ``name``: the condition's, as alarms have it. ``is_urgent``: people wait for answers because of it. ``hits``: how
    many are hit, of what ``words`` say. ``link``: the page where it is seen, called ``look``.
    """

    name: str
    is_urgent: bool
    words: str
    since: datetime | None
    hits: int
    link: str
    look: str
    mend: Mend | None = None


class Look:
    """One look at the host: what several conditions ask for is read once."""

    def __init__(self) -> None:
        self.now = clock.read()

    @cached_property
    def left(self) -> intake.Left:
        """What is not done yet."""
        return intake.left()

    @cached_property
    def workers(self) -> diagnosis.Workers:
        """Those that are alive."""
        return diagnosis.workers_alive(self.left)

    @cached_property
    def urgent(self) -> list[diagnosis.Diagnosis]:
        """Open turns that somebody should have come for."""
        return [each for each in diagnosis.most_urgent(diagnosis.STATES, self.workers) if each.urgency]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to the host. ``names``: of the conditions it finds. ``permission``: who is told in the console."""

    names: tuple[str, ...]
    permission: str
    look: Callable[[Look], Iterator[Need]]


def _number(count: int, noun: str, plural: str = "") -> str:
    """Such as "1 turn", "1,234 turns", "1,000 or more turns"."""
    counted = f"{count:,} or more" if count >= MOST else f"{count:,}"
    return f"{counted} {noun if count == 1 else plural or noun + 's'}"


# --- workers, the broker, the clock ------------------------------------------------------------------------------


def _database(look: Look) -> Iterator[Need]:
    if refused_lately():
        yield Need(
            name="database_refuses_writes",
            is_urgent=True,
            words="The database refuses to write; its disk may be full. Nothing new is accepted until it has room.",
            since=None,
            hits=0,
            link=reverse("queue"),
            look="Queue",
        )


def _no_worker(look: Look) -> Iterator[Need]:
    for kind, name, what in (
        (TURNS, "no_turn_worker", "No worker that runs turns is online, so nobody gets an answer"),
        (TOOLS, "no_tool_worker", "No worker that runs tools is online, so tool calls wait"),
    ):
        if look.workers.by_kind[kind]:
            continue
        seen = Worker.objects.working_on(kind).aggregate(at=Max("heartbeat_at"))["at"]
        hits = look.left.queued if kind == TURNS else kind.rows.filter(status=kind.rows.model.QUEUED)[:MOST].count()
        yield Need(
            name=name,
            is_urgent=True,
            words=f"{what}. Start one; what waits is not lost.",
            since=seen,
            hits=hits,
            link=list_of("conversations_worker"),
            look="Workers",
        )


def _broker(look: Look) -> Iterator[Need]:
    try:
        broker.waiting_notifications()
    except broker.BrokerAway as error:
        yield Need(
            name="broker_away",
            is_urgent=True,
            words=f"Redis does not answer ({error}). Turns still run, but each step starts up to"
            f" {settings.SWEEP_SECONDS:g} s late. Start Redis; it may be empty.",
            since=None,
            hits=look.left.queued,
            link=reverse("queue"),
            look="Queue",
        )
    else:
        if events.transport().is_deaf():
            yield Need(
                name="events_not_heard",
                is_urgent=True,
                words="This web server receives no events of turns, so answers and streams are up to 2 s late.",
                since=None,
                hits=0,
                link=reverse("queue"),
                look="Queue",
            )


def _jobs(look: Look) -> Iterator[Need]:
    late = system_jobs.late_jobs(now=look.now)
    if late:
        (name, wrong), others = next(iter(late.items())), len(late) - 1
        more = f" and {_number(others, 'other job')}" if others else ""
        yield Need(
            name="jobs_late",
            is_urgent="tick" in late,
            words=f"The job {name}{more} did not run on time ({wrong}). Check that celery beat and a worker run.",
            since=None,
            hits=len(late),
            link=list_of("django_celery_beat_periodictask"),
            look="Jobs",
        )


def _sandbox(look: Look) -> Iterator[Need]:
    rows = Worker.objects.alive().working_on(TOOLS).filter(sandbox__startswith="none")
    if names := sorted(rows.values_list("name", flat=True)):
        yield Need(
            name="sandbox_missing",
            is_urgent=False,
            words=f"Tools run without a sandbox on {_number(len(names), 'worker')}, such as {names[0]}. Install"
            " bubblewrap there, or use a kernel with Landlock.",
            since=None,
            hits=len(names),
            link=list_of("conversations_worker"),
            look="Workers",
        )


def _mcp(look: Look) -> Iterator[Need]:
    servers = McpServer.objects.order_by("last_error_at")[:MOST]  # those that people have made: few
    failing = [each for each in servers if each.enabled and each.failures >= MANY_FAILURES]
    if failing:
        first = failing[0]
        yield Need(
            name="mcp_server_failing",
            is_urgent=False,
            words=f"{_number(len(failing), 'MCP server')} {'keeps' if len(failing) == 1 else 'keep'} failing, such as"
            f" {first.name}: {clip(redact_known(first.last_error), 200)}. Its tools fail until that is fixed.",
            since=first.last_error_at,
            hits=len(failing),
            link=list_of("tools_mcpserver", enabled__exact=1, failures__gte=MANY_FAILURES),
            look="Servers",
        )
    if not servers:
        return
    told = McpTool.objects.changed().aggregate(n=Count("pk"), since=Min("changed_at"))
    if told["n"]:
        yield Need(
            name="mcp_tools_changed",
            is_urgent=False,
            words=f"{_number(told['n'], 'tool')} {'was' if told['n'] == 1 else 'were'} changed by their MCP server"
            " since they were reviewed, and are refused. See the differences, then allow them.",
            since=told["since"],
            hits=told["n"],
            link=list_of("tools_mcptool", state="changed"),
            look="See them",
        )


def _custom_tools(look: Look) -> Iterator[Need]:
    if not settings.CUSTOM_TOOLS:  # none is used, seen or not
        return
    told = CustomTool.objects.changed().aggregate(n=Count("pk"), since=Min("changed_at"), first=Min("full_name"))
    if told["n"]:
        yield Need(
            name="custom_tools_changed",
            is_urgent=False,
            words=f"{_number(told['n'], 'custom tool')} {'was' if told['n'] == 1 else 'were'} changed since"
            f" they were reviewed, such as {told['first']}, and are refused. See the differences, then allow them.",
            since=told["since"],
            hits=told["n"],
            link=list_of("tools_customtool", state="changed"),
            look="See them",
        )


# --- turns and models --------------------------------------------------------------------------------------------


def _blocked(look: Look) -> Iterator[Need]:
    if found := look.urgent:
        worst = found[0]
        yield Need(
            name="turns_blocked",
            is_urgent=True,
            words=f"{_number(len(found), 'turn')} should have moved on by now. Turn {worst.turn.number}: {worst.words}",
            since=min(each.turn.created_at for each in found),
            hits=len(found),
            link=reverse("queue"),
            look="Queue",
            mend=Mend(label="Notify workers again", permission=queue_page.MAY_NOTIFY, do=queue_page.notify_again),
        )


def _ask_providers_again(request: HttpRequest) -> str:
    names = outages.ask_again(by=request.user.get_username())
    for name in names:
        queue_page.log(request, ProviderOutage, name, "Asked again before its time")
    if not names:
        return "All providers answer by now."
    hurried = turn_control.ask_models_again()
    by_whom = f"{_number(hurried, 'turn')} that waited" if hurried else "The next turn"
    return f"{by_whom} {'ask' if hurried > 1 else 'asks'} again: {', '.join(names)}."


def _providers(look: Look) -> Iterator[Need]:
    rows = list(ProviderOutage.objects.filter(until__isnull=False))
    if not rows:
        return
    waiting = Turn.objects.filter(status=TurnStatus.WAITING, waiting_for=WaitingFor.RETRY)[:MOST].count()
    for row in rows:
        assert row.until
        left = (row.until - look.now).total_seconds()
        when = f"in {duration(left)}" if left > 0 else "with the next turn"
        yield Need(
            name="provider_failing",
            is_urgent=True,
            words=f"The model provider {row.provider} fails for everybody ({row.code}). It is tried again {when}.",
            since=row.since,
            hits=waiting,
            link=list_of("agent_provideroutage"),
            look="Outages",
            mend=Mend(label="Ask it now", permission=queue_page.MAY_NOTIFY, do=_ask_providers_again),
        )


def _failing(look: Look) -> Iterator[Need]:
    begin = figures.hour_of(look.now) - figures.HOUR
    by_model = [each.turns for each in Hour.objects.filter(hour__gte=begin)]
    every = figures.total_of(figures.total_of(by_model).values())
    ended, failed = sum(every.get(status, 0) for status in FINAL), every.get(TurnStatus.FAILED, 0)
    if failed <= MANY_FAILED or failed <= FAILED_SHARE * ended:
        return
    rows = Turn.objects.filter(status=TurnStatus.FAILED, created_at__gte=begin).order_by("-created_at")
    codes = list(rows.values_list("error_code", flat=True)[:100])
    most = max(sorted(set(codes)), key=codes.count) if codes else "unknown"
    yield Need(
        name="turns_fail",
        is_urgent=True,
        words=f"{failed:,} of {ended:,} turns asked since {begin:%H:%M} UTC failed, most with {most}.",
        since=begin,
        hits=failed,
        link=list_of("conversations_turn", status__exact=TurnStatus.FAILED, created_at__gte=begin.isoformat()),
        look="Failed turns",
    )


def _intake(look: Look) -> Iterator[Need]:
    if pause := intake.current_pause():
        yield Need(
            name="intake_paused",
            is_urgent=False,
            words=f"No new turns are accepted: {pause.paused_by or 'somebody'} paused the intake ({pause.because}).",
            since=pause.paused_at,
            hits=look.left.held,
            link=reverse("queue"),
            look="Queue",
            mend=Mend(label="Resume", permission=queue_page.PAUSE, do=queue_page.resume),
        )


UNKNOWN_CALLS = "calls_unknown"


def _unchecked(now: datetime) -> tuple[int, int]:
    """How many calls stopped half-way lately that nobody has checked; and how many ever did."""
    lately = Hour.objects.filter(hour__gte=figures.hour_of(now - LATELY))
    calls = figures.total_of(each.calls for each in lately)
    total = Total.objects.filter(pk=1).first()
    ever = total.calls.get(CallStatus.UNKNOWN, 0) if total else 0
    checked = Dismissal.objects.filter(name=UNKNOWN_CALLS).values_list("count", flat=True).first() or 0
    return min(calls.get(CallStatus.UNKNOWN, 0), ever - checked), ever


def _they_are_checked(request: HttpRequest) -> str:
    """So many as whoever presses the button was shown: one that stopped meanwhile, nobody has seen."""
    shown = request.POST.get("hits", "")
    with transaction.atomic():
        Total.objects.select_for_update().filter(pk=1).first()  # of two at once, the second finds what the first did
        left, ever = _unchecked(clock.read())
        checked = min(left, int(shown)) if shown.isascii() and shown.isdigit() and len(shown) < 10 else 0
        if not checked:
            return "Nothing was done: load the page again."
        Dismissal.objects.update_or_create(name=UNKNOWN_CALLS, defaults={"count": ever - left + checked})
        queue_page.log(request, ToolCall, "calls that stopped half-way", f"Checked {checked}")
    return f"{_number(checked, 'tool call')} {'is' if checked == 1 else 'are'} marked as checked."


def _unknown_calls(look: Look) -> Iterator[Need]:
    begin = figures.hour_of(look.now - LATELY)
    count, _ = _unchecked(look.now)
    if count > 0:
        yield Need(
            name=UNKNOWN_CALLS,
            is_urgent=False,
            words=f"{_number(count, 'tool call')} with side effects stopped half-way since yesterday; check how far"
            " they got. They are not repeated by themselves.",
            since=begin,
            hits=count,
            link=list_of("tools_toolcall", status__exact=CallStatus.UNKNOWN, created_at__gte=begin.isoformat()),
            look="Tool calls",
            mend=Mend(label="I have checked them", permission=queue_page.MAY_NOTIFY, do=_they_are_checked),
        )


# --- people's decisions ------------------------------------------------------------------------------------------


def _approvals(look: Look) -> Iterator[Need]:
    rows = Approval.objects.filter(state=ApprovalState.PENDING)
    told = rows.aggregate(n=Count("pk"), since=Min("requested_at"))
    if told["n"]:
        yield Need(
            name="approvals_wait",
            is_urgent=False,
            words=f"{_number(told['n'], 'tool call')} {'waits' if told['n'] == 1 else 'wait'} for somebody's approval.",
            since=told["since"],
            hits=told["n"],
            link=list_of("tools_approval", state__exact=ApprovalState.PENDING),
            look="Decide",
        )


def _budgets(look: Look) -> Iterator[Need]:
    for budget, share in budgets.mostly_used(look.now):
        yield Need(
            name="budget_nearly_used",
            is_urgent=share >= 100,
            words=f"{share} % of this {budget.every}'s budget {budget.name} is used"
            + ("; what it limits is refused." if share >= 100 else "."),
            since=None,
            hits=1,
            link=reverse("admin:agent_budget_change", args=[budget.pk]),
            look="Budget",
        )


def _schedules(look: Look) -> Iterator[Need]:
    late = Schedule.objects.late(now=look.now)
    told = late.aggregate(n=Count("pk"), since=Min("next_at"))
    if told["n"]:
        yield Need(
            name="schedules_late",
            is_urgent=True,
            words=f"{_number(told['n'], 'schedule')} should have run by now. Check that celery beat and a worker run.",
            since=told["since"],
            hits=told["n"],
            link=list_of("scheduler_schedule", active__exact=1, next_at__lt=(look.now - LATE).isoformat()),
            look="Schedules",
        )
    paused = Schedule.objects.paused_by_failures()
    if count := paused[:MOST].count():
        yield Need(
            name="schedules_paused",
            is_urgent=False,
            words=f"{_number(count, 'schedule')} {'was' if count == 1 else 'were'} paused after"
            f" {settings.SCHEDULE_MAX_FAILURES} failures in a row. Find out why, then resume.",
            since=None,
            hits=count,
            link=list_of("scheduler_schedule", active__exact=0, failures__gte=settings.SCHEDULE_MAX_FAILURES),
            look="Schedules",
        )


def _undelivered(look: Look) -> Any:
    rows = Delivery.objects.filter(status=DeliveryStatus.FAILED, created_at__gte=look.now - LATELY)
    return rows.order_by("-created_at")


def _send_again(request: HttpRequest) -> str:
    sent = sum(announcements.send_again(each) for each in _undelivered(Look())[:MOST])
    return f"{_number(sent, 'event')} will be sent again."


def _deliveries(look: Look) -> Iterator[Need]:
    if count := _undelivered(look)[:MOST].count():
        yield Need(
            name="deliveries_failed",
            is_urgent=False,
            words=f"{_number(count, 'event')} could not be delivered to webhooks or by e-mail since yesterday.",
            since=list(_undelivered(look).values_list("created_at", flat=True)[:MOST])[-1],
            hits=count,
            link=list_of(
                "conversations_delivery",
                status__exact=DeliveryStatus.FAILED,
                created_at__gte=(look.now - LATELY).isoformat(),
            ),
            look="Deliveries",
            mend=Mend(label="Send again", permission="conversations.requeue_delivery", do=_send_again),
        )


_OPERATIONS, _TURNS = "conversations.view_worker", "conversations.view_turn"

# In the order in which they are told, the urgent ones first.
QUESTIONS = (
    Question(names=("database_refuses_writes",), permission=_OPERATIONS, look=_database),
    Question(names=("no_turn_worker", "no_tool_worker"), permission=_OPERATIONS, look=_no_worker),
    Question(names=("broker_away", "events_not_heard"), permission=_OPERATIONS, look=_broker),
    Question(names=("provider_failing",), permission="agent.view_provideroutage", look=_providers),
    Question(names=("turns_blocked",), permission=_TURNS, look=_blocked),
    Question(names=("turns_fail",), permission=_TURNS, look=_failing),
    Question(names=("jobs_late",), permission="django_celery_beat.view_periodictask", look=_jobs),
    Question(names=("schedules_late", "schedules_paused"), permission="scheduler.view_schedule", look=_schedules),
    Question(names=("budget_nearly_used",), permission="agent.view_budget", look=_budgets),
    Question(names=("intake_paused",), permission=_TURNS, look=_intake),
    Question(names=("approvals_wait",), permission="tools.view_approval", look=_approvals),
    Question(names=("deliveries_failed",), permission="conversations.view_delivery", look=_deliveries),
    Question(names=(UNKNOWN_CALLS,), permission="tools.view_toolcall", look=_unknown_calls),
    Question(names=("sandbox_missing",), permission=_OPERATIONS, look=_sandbox),
    Question(names=("mcp_server_failing", "mcp_tools_changed"), permission="tools.view_mcpserver", look=_mcp),
    Question(names=("custom_tools_changed",), permission="tools.view_customtool", look=_custom_tools),
)

CONDITIONS = tuple(name for question in QUESTIONS for name in question.names)


def needs(allowed: Callable[[str], bool] = lambda permission: True) -> list[Need]:
    """What needs somebody now, the urgent first. ``allowed``: whether somebody who has a permission is told. Of turns
    that failed and calls that stopped it knows what was counted last (:func:`nanohost.console.figures.look`)."""
    look = Look()
    found = [need for each in QUESTIONS if allowed(each.permission) for need in each.look(look)]
    return sorted(found, key=lambda need: not need.is_urgent)


# --- pages -------------------------------------------------------------------------------------------------------


def of_request(request: HttpRequest) -> dict[str, Any]:
    """The list as a template takes it, of what whoever is signed in may see."""
    now = timezone.now()
    shown = [
        {
            "need": need,
            "since": need.since and (now - need.since).total_seconds(),
            "may_mend": bool(need.mend and request.user.has_perm(need.mend.permission)),
        }
        for need in needs(request.user.has_perm)
    ]
    return {"needs": shown, "looked_at": now}


@require_GET
def fragment(request: HttpRequest) -> HttpResponse:
    """The list alone, which the overview reads again by itself."""
    figures.look()
    return render(request, "console/attention.html", of_request(request))


@require_POST
def mend(request: HttpRequest, name: str) -> HttpResponse:
    """Press the button of a condition; one that is over meanwhile has none."""
    for need in needs(request.user.has_perm):
        if need.name == name and need.mend:
            if not request.user.has_perm(need.mend.permission):
                raise PermissionDenied
            messages.success(request, need.mend.do(request))
            break
    else:
        messages.info(request, "Nothing was done: this is over already.")
    return HttpResponseRedirect(reverse("admin:index"))


@csrf_exempt
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """``/health/status``: the same list as JSON, for whoever may read the metrics."""
    if refusal := monitors.refusal(request):
        return refusal
    figures.look()
    found = [
        {
            "condition": need.name,
            "urgent": need.is_urgent,
            "message": need.words,
            "since": need.since and need.since.isoformat(),
            "hits": need.hits,
            "page": need.link,
        }
        for need in needs()
    ]
    return JsonResponse({"status": "attention" if found else "ok", "conditions": found})


urlpatterns = [
    path("", admin.site.admin_view(fragment), name="attention"),
    path("<slug:name>/", admin.site.admin_view(mend), name="attention_mend"),
]
