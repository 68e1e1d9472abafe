"""The page *Queue*: the open turns, why they are blocked, who works on them, and the switch of the intake."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

import nanohost
from conversations.admin import bulk_actions
from conversations.engine import inbox, intake, sweeper
from conversations.errors import TurnProblem
from conversations.kinds import KINDS, TURNS, Kind
from conversations.models import (
    MAX_REASON,
    IntakePause,
    Turn,
    Worker,
)
from conversations.statuses import OPEN, TurnStatus
from nanohost.console import broker, diagnosis
from nanohost.lib import clock
from nanohost.lib.admin import reason_in
from nanohost.lib.redaction import redact_head

# So many rows a table; its list has the others.
MAX_TURNS, MAX_FAILED, MAX_WORKERS, MAX_ENTRIES = 100, 20, 50, 10

VIEW = ("conversations.view_turn", "conversations.view_worker")
PAUSE = "conversations.pause_intakepause"
MAY_NOTIFY = "conversations.requeue_turn"

# What may be chosen to be seen.
CHOICES = {"all": diagnosis.STATES, **{state: (state,) for state in diagnosis.STATES}}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A queue as the broker and the database have it; ``notifications`` is None where nobody can say."""

    kind: Kind
    notifications: int | None
    rows: int
    workers: int
    overlooked: int


# --- what is shown -----------------------------------------------------------------------------------------------


@require_GET
def show(request: HttpRequest) -> HttpResponse:
    """The page."""
    if not request.user.has_perms(VIEW):
        raise PermissionDenied
    chosen = request.GET.get("state", "all")
    states = CHOICES.get(chosen, diagnosis.STATES)
    now, left = clock.read(), intake.left()
    workers, counts = diagnosis.workers_alive(left), left.by_state
    found = diagnosis.most_urgent(states, workers)
    context = {
        **admin.site.each_context(request),
        "title": "Queue",
        "now": now,
        "here": request.get_full_path(),
        "pause": intake.current_pause(),
        "left": left,
        "may_pause": request.user.has_perm(PAUSE),
        "may_notify": request.user.has_perm(MAY_NOTIFY),
        **_broker(left.queued, workers),
        "choices": [{"name": name, "count": sum(counts[each] for each in CHOICES[name])} for name in CHOICES],
        "chosen": chosen if chosen in CHOICES else "all",
        "found": found[:MAX_TURNS],
        "urgent": {each: sum(every.urgency == each for every in found) for each in (diagnosis.STUCK, diagnosis.LATE)},
        "hidden": max(0, sum(counts[each] for each in states) - min(len(found), MAX_TURNS)),
        "turns_link": f"{reverse('admin:conversations_turn_changelist')}?{urlencode({'status__in': ','.join(OPEN)})}",
        "acts": [act for act in bulk_actions.ACTS.values() if act.among is bulk_actions.OF_OPEN and _may(request, act)],
        "may_ask": _may(request, bulk_actions.ACTS["ask_again"]),
        "failed_link": f"{reverse('admin:conversations_turn_changelist')}?status__exact={TurnStatus.FAILED}",
        "checkbox": ACTION_CHECKBOX_NAME,
        "failed": _failed(now),
        "workers": _workers(now, left),
        "version": nanohost.__version__,
        "entries": _entries(),
    }
    return TemplateResponse(request, "console/queue.html", context)


def _broker(queued: int, workers: diagnosis.Workers) -> dict[str, Any]:
    waiting, away = None, ""
    try:
        waiting = broker.waiting_notifications()
    except broker.BrokerAway as error:
        away = str(error)
    late = sweeper.overlooked()
    lines = [
        Line(
            kind=kind,
            notifications=waiting[kind.queue] if waiting else None,
            rows=queued if kind == TURNS else kind.rows.filter(status=kind.rows.model.QUEUED).count(),
            workers=workers.by_kind[kind],
            overlooked=len(late[kind]),
        )
        for kind in KINDS
    ]
    return {
        "has_broker": bool(settings.REDIS_URL),
        "broker_away": away,
        "lines": lines,
        "differences": list(_differences(lines, away, workers)),
        "overlooked": sum(line.overlooked for line in lines),
    }


def _differences(lines: list[Line], away: str, workers: diagnosis.Workers) -> Iterator[str]:
    """Where the two differ, in plain words."""
    if away:
        yield (
            f"The broker does not answer ({away}): workers are not notified. Work still continues, since each"
            f" worker looks for due work every {settings.SWEEP_SECONDS:g} s. Start Redis; it may be empty."
        )
    for line in lines:
        if line.overlooked:
            number = f"{line.overlooked} or more" if line.overlooked == sweeper.MAX_FOUND else str(line.overlooked)
            thing = line.kind.noun if line.overlooked == 1 else line.kind.nouns or f"{line.kind.noun}s"
            words = (
                f"Workers were notified of {number} {thing} more than"
                f" {diagnosis.LATE_SECONDS:.0f} s ago, and none has come."
            )
            if line.kind == TURNS:
                words += workers.why_nobody_comes
            elif not line.workers:
                words += f" No worker for {line.kind.queue} is online: start one."
            yield words
        elif line.notifications and not line.workers:
            waiting = "1 notification waits" if line.notifications == 1 else f"{line.notifications} notifications wait"
            yield f"{waiting} for {line.kind.queue}, and no worker listens: start one."
        elif line.notifications and line.notifications > 2 * line.rows + 100:
            yield (
                f"Many more notifications than rows wait for {line.kind.queue}: its workers are slow to listen. Those"
                " for finished work do no harm."
            )


def _failed(now: Any) -> list[dict[str, Any]]:
    """What failed within the last hour of its asking."""
    rows = Turn.objects.filter(status=TurnStatus.FAILED, created_at__gte=now - timedelta(hours=1))
    turns = list(rows.prefetch_related("conversation").order_by("-created_at")[:MAX_FAILED])
    again = inbox.asked_again(turns)
    return [
        {
            "turn": turn,
            "age": (now - turn.created_at).total_seconds(),
            "words": TurnProblem(turn.error_code).title,
            "again": again.get(turn.pk),
        }
        for turn in turns
    ]


def _workers(now: Any, left: intake.Left) -> list[dict[str, Any]]:
    """Those that have not ended by themselves, the ones heard of last first."""
    rows: Iterable[Any] = Worker.objects.filter(ended_at=None).with_life().order_by("-heartbeat_at")[:MAX_WORKERS]
    return [
        {
            "worker": worker,
            "silent": max(0.0, (now - worker.heartbeat_at).total_seconds()),
            "age": (now - worker.started_at).total_seconds(),
            "held": held,
            "is_full": bool(worker.turns_most) and held >= worker.turns_most,
        }
        for worker in rows
        for held in [left.held_by(worker.name, is_alive=worker.is_alive)]
    ]


def _entries() -> list[LogEntry]:
    """What people have done to turns and to the intake lately."""
    kinds = ContentType.objects.get_for_models(Turn, IntakePause).values()
    return list(LogEntry.objects.filter(content_type__in=kinds).select_related("user")[:MAX_ENTRIES])


# --- what is done ------------------------------------------------------------------------------------------------


@require_POST
def steer(request: HttpRequest) -> HttpResponse:
    """Cancel, fail, requeue or ask again turns, as the list of turns does."""
    act = bulk_actions.ACTS.get(request.POST.get("action", ""))
    if act is None or not _may(request, act):
        raise PermissionDenied
    chosen = [turn_id for each in request.POST.getlist(ACTION_CHECKBOX_NAME) if (turn_id := _uuid(each))]
    if not chosen:
        messages.warning(request, "Nothing was done: choose a turn first.")
        return HttpResponseRedirect(reverse("queue"))
    return bulk_actions.steer(request, act, Turn.objects.filter(pk__in=chosen), page=reverse("queue"))


def _may(request: HttpRequest, act: bulk_actions.Act) -> bool:
    return request.user.has_perm(f"conversations.{act.permission}_turn")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@require_POST
def notify(request: HttpRequest) -> HttpResponse:
    """Notify workers again of what nobody came for."""
    if not request.user.has_perm(MAY_NOTIFY):
        raise PermissionDenied
    messages.success(request, notify_again(request))
    return HttpResponseRedirect(reverse("queue"))


def notify_again(request: HttpRequest) -> str:
    """The same, for whoever may; says what was done."""
    count = sweeper.notify_again()
    log(request, Turn, "the queue", f"Notified again of {count}")
    return f"Notified again of {count}. If they are still here in a minute, look at the workers."


@require_http_methods(["GET", "HEAD", "POST"])
def switch(request: HttpRequest) -> HttpResponse:
    """Pause the intake, after asking why; or resume it."""
    if not request.user.has_perm(PAUSE):
        raise PermissionDenied
    if request.POST.get("action") == "resume":
        messages.success(request, resume(request))
        return HttpResponseRedirect(reverse("queue"))
    reason = redact_head(reason_in(request), MAX_REASON)
    if request.method == "POST" and reason:
        if intake.pause(by=request.user.get_username(), because=reason):
            log(request, IntakePause, "intake", f"Paused: {reason}")
            messages.success(request, "The intake is paused.")
        else:
            messages.warning(request, "It is already paused; nothing was changed.")
        return HttpResponseRedirect(reverse("queue"))
    is_missing = request.method == "POST"
    context = {**admin.site.each_context(request), "title": "Pause the intake?", "is_missing": is_missing}
    context["most_reason"] = MAX_REASON
    return TemplateResponse(request, "console/pause.html", context, status=400 if is_missing else 200)


def resume(request: HttpRequest) -> str:
    """Resume the intake, for whoever may; says what was done."""
    if intake.resume(by=request.user.get_username()):
        log(request, IntakePause, "intake", "Resumed")
    return "New turns are accepted again."


def log(request: HttpRequest, model: Any, what: str, message: str) -> None:
    """Keep in the console's log what somebody has done to something without a page of its own for that."""
    assert request.user.pk is not None
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type=ContentType.objects.get_for_model(model),
        object_repr=what,
        action_flag=CHANGE,
        change_message=message,
        action_time=timezone.now(),
    )


urlpatterns = [
    path("", admin.site.admin_view(show), name="queue"),
    path("turns/", admin.site.admin_view(steer), name="queue_steer"),
    path("notify/", admin.site.admin_view(notify), name="queue_notify"),
    path("intake/", admin.site.admin_view(switch), name="queue_intake"),
]
