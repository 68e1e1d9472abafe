"""The page *Daily summary*: one switch, one time, and the latest summaries."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_http_methods

from conversations.models import Compaction, CompactionKind, Message
from nanohost.lib.admin import excerpt
from scheduler import summaries

VIEW = ("django_celery_beat.view_periodictask", "conversations.view_compaction", "conversations.view_message")
SWITCH = "django_celery_beat.toggle_periodictask"

# Of the latest pieces of this work, those that are of days are shown, so many at most.
LATEST, MOST = 500, 20


class SummaryForm(forms.Form):
    """One switch, one time."""

    is_on = forms.BooleanField(label="Make a summary every day", required=False)
    at = forms.TimeField(
        label="At",
        required=False,
        input_formats=["%H:%M", "%H:%M:%S"],
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def show(request: HttpRequest) -> HttpResponse:
    """The page, and its form."""
    if not request.user.has_perms(VIEW):
        raise PermissionDenied
    now = summaries.current()
    if now is None:
        raise Http404("The job daily_summary is missing: `manage.py prepare` makes it.")
    if request.method == "POST" and not request.user.has_perm(SWITCH):
        raise PermissionDenied
    form = SummaryForm(request.POST if request.method == "POST" else None, initial={"is_on": now.is_on, "at": now.at})
    is_wrong = request.method == "POST" and not form.is_valid()
    if request.method == "POST" and not is_wrong:
        said = form.cleaned_data
        summaries.change(is_on=said["is_on"], at=said["at"])
        at = f", at {said['at']:%H:%M}" if said["at"] else ""
        messages.success(request, f"The daily summary is {f'on{at}' if said['is_on'] else 'off'}.")
        return HttpResponseRedirect(reverse("daily_summary"))
    context = {
        "title": "Daily summary",
        "form": form,
        "now": now,
        "zone": settings.TIME_ZONE,
        "covers": settings.SCHEDULER_DAILY_SUMMARY_COVERS,
        "may_switch": request.user.has_perm(SWITCH),
        "latest": list(_latest()),
    }
    context = admin.site.each_context(request) | context
    return TemplateResponse(request, "console/summary.html", context, status=400 if is_wrong else 200)


def _latest() -> list[dict[str, Any]]:
    """The latest summaries of days, each with its first words."""
    newest = list(Compaction.objects.order_by("-created_at").defer("made_so_far")[:LATEST])
    rows = [row for row in newest if row.kind == CompactionKind.DAILY][:MOST]
    places = Q(pk__in=())
    for row in rows:
        if row.summary_seq is not None:
            places |= Q(conversation_id=row.conversation_id, seq=row.summary_seq)
    said = {(each.conversation_id, each.seq): each.content for each in Message.objects.filter(places)} if rows else {}
    return [{"row": row, "text": excerpt(said.get((row.conversation_id, row.summary_seq), ""), 300)} for row in rows]


urlpatterns = [path("", admin.site.admin_view(show), name="daily_summary")]
