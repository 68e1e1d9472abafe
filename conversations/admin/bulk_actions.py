"""What people do to turns in the console, such as to cancel them. Each is confirmed, has its reason, and is logged."""

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.http import url_has_allowed_host_and_scheme

from conversations.engine import inbox, turn_control
from conversations.models import MAX_REASON, Turn
from conversations.statuses import OPEN, TurnStatus
from nanohost.lib.admin import CANCEL, FAIL, REQUEUE, reason_in
from nanohost.lib.errors import Problem
from nanohost.lib.ids import request_id
from nanohost.lib.redaction import redact_head

# So many at a time: each is a transaction or two of its own, and somebody waits for the page.
MAX_AT_ONCE = 200


@dataclass(frozen=True, kw_only=True)
class Among:
    """Which turns an act is for; what is said if none of those that were chosen is, and of one that is not any more."""

    statuses: tuple[TurnStatus, ...]
    none: str
    missed: str


OF_OPEN = Among(statuses=OPEN, none="all of them have ended already", missed="had ended already")
OF_FAILED = Among(
    statuses=(TurnStatus.FAILED,), none="none of them has failed", missed="had already been asked again, or cannot be"
)


@dataclass(frozen=True, kw_only=True)
class Act:
    """``permission``: the one it asks for. ``means``: what becomes of the turns, for whoever is to confirm it.
    ``among``: those it is for. ``do`` returns False for a turn that it is not for any more."""

    name: str
    permission: str
    label: str
    means: str
    reason_label: str
    done: str
    do: Callable[[Turn, str], bool]
    among: Among = OF_OPEN


def _ask_again(turn: Turn, reason: str) -> bool:
    if not inbox.may_be_asked_again(turn, inbox.asked_again([turn])):
        return False
    try:
        inbox.ask_again(turn, request_id=request_id(None))
    except Problem:
        return False
    return True


ACTS = {
    act.name: act
    for act in (
        Act(
            name="requeue_turns",
            permission=REQUEUE,
            label="Requeue",
            means="A worker continues them at once; those behind another turn of their conversation, or held while the"
            " intake is paused, keep waiting. They go on from their last stored step, with all of a turn's time"
            " before them. A worker that still holds one loses it: nothing that it does afterwards is stored, and the"
            " model is called again. A tool call that may have had an effect is never run twice: if its worker is gone,"
            " it becomes UNKNOWN, and the model is informed.",
            reason_label="Why (kept in the log)",
            done="Requeued",
            do=lambda turn, _: turn_control.requeue_turn(turn),
        ),
        Act(
            name="cancel_turns",
            permission=CANCEL,
            label="Cancel",
            means="Waiting turns end at once; running ones, within seconds. Their clients are informed that the turn"
            " was cancelled. Tool calls that have begun and may have had an effect become UNKNOWN.",
            reason_label="Why (kept in the log)",
            done="Cancelled",
            do=lambda turn, _: turn_control.cancel_turn(turn),
        ),
        Act(
            name="fail_turns",
            permission=FAIL,
            label="Fail",
            means="They end at once as failed, whatever their state. A failed run of a schedule is retried:"
            " cancel it instead to stop it. Tool calls that have begun and may have had an effect become UNKNOWN.",
            reason_label="Why (shown to the client, and kept in the log)",
            done="Failed",
            do=lambda turn, reason: turn_control.fail_turn(turn, reason=reason),
        ),
        Act(
            name="ask_again",
            permission=REQUEUE,
            label="Ask again",
            means="Each question is asked once more, with the same model, in a new turn at the end of its conversation."
            " The failed turns are not changed. A turn that was already asked again is skipped: ask the"
            " new turn again instead. While the intake is paused, the new turns are held.",
            reason_label="Why (kept in the log)",
            done="Asked again",
            do=_ask_again,
            among=OF_FAILED,
        ),
    )
}


def steer(request: HttpRequest, act: Act, turns: QuerySet[Turn], *, page: str, confirm_at: str = "") -> HttpResponse:
    """Ask whether it is meant, and why; or do it, once that is answered. Whoever calls has seen to the permission.

    ``page``: the address to go back to, unless the form names another. ``confirm_at``: where the answer goes, if that
    is not the page that asked.
    """
    # In the order in which they were asked: so they are asked again.
    among = turns.filter(status__in=act.among.statuses).select_related("conversation__agent")
    chosen = list(among.order_by("pk")[: MAX_AT_ONCE + 1])
    back = _back(request) or page
    if not chosen:
        messages.warning(request, f"Nothing was done: {act.among.none}.")
        return HttpResponseRedirect(back)
    if len(chosen) > MAX_AT_ONCE:
        messages.error(request, f"Nothing was done: choose {MAX_AT_ONCE} turns at most at a time.")
        return HttpResponseRedirect(back)
    reason = reason_in(request)
    if request.POST.get("confirmed") != "yes" or not reason:
        return _ask(request, act, chosen, back, confirm_at, is_missing="confirmed" in request.POST)
    # Of what is cut in two, no secret would be known.
    reason = redact_head(reason, MAX_REASON)
    done = [turn for turn in chosen if act.do(turn, reason)]
    if done:
        assert request.user.pk is not None
        for turn in done:  # one by one, so that the audit log hears of each
            LogEntry.objects.log_actions(request.user.pk, [turn], CHANGE, f"{act.done}: {reason}")
        messages.success(request, f"{act.done}: {_turns(len(done))}.")
    if missed := len(chosen) - len(done):
        messages.warning(request, f"{_turns(missed)} {act.among.missed}.")
    return HttpResponseRedirect(back)


def _ask(
    request: HttpRequest, act: Act, chosen: list[Turn], back: str, confirm_at: str, *, is_missing: bool
) -> HttpResponse:
    context = {
        **admin.site.each_context(request),
        "title": f"{act.label} {_turns(len(chosen))}?",
        "act": act,
        "turns": chosen,
        "back": back,
        "confirm_at": confirm_at,
        "is_missing": is_missing,
        "checkbox": ACTION_CHECKBOX_NAME,
        "most_reason": MAX_REASON,
    }
    return TemplateResponse(request, "admin/conversations/steer.html", context, status=400 if is_missing else 200)


def _back(request: HttpRequest) -> str:
    """Where whoever asked came from, as the form says; "" if that is none of the console's pages."""
    back = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return back if is_ours and back.startswith("/admin/") else ""


def _turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"
