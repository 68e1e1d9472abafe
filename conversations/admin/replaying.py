"""Replaying turns from the console: what is to be other in them, and that it is meant."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from conversations.admin.bulk_actions import MAX_AT_ONCE
from conversations.engine.replaying import replays
from conversations.engine.replaying.frozen import Changes
from conversations.errors import CannotReplay
from conversations.models import Turn
from conversations.replay_models import Unrecorded
from conversations.statuses import FINAL


class ChangesForm(forms.Form):
    """What is to be other than in the turns."""

    model = forms.CharField(
        required=False, max_length=128, widget=UnfoldAdminTextInputWidget, help_text="Empty: the turn's own."
    )
    temperature = forms.FloatField(
        required=False,
        min_value=0,
        max_value=2,
        widget=UnfoldAdminDecimalFieldWidget,
        help_text="From 0 to 2. Empty: as it was.",
    )
    version = forms.IntegerField(
        label="agent version",
        required=False,
        min_value=1,
        max_value=2**31 - 1,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Its prompt, documents and limits. Empty: the one that the turn had.",
    )
    unrecorded = forms.ChoiceField(
        label="a tool call that is not on record",
        choices=Unrecorded.choices,
        widget=UnfoldAdminSelectWidget,
        help_text="It never runs.",
    )

    def changes(self) -> Changes:
        """Of a form that is valid."""
        given = self.cleaned_data
        return Changes(
            model=given["model"] or None,
            temperature=given["temperature"],
            version=given["version"],
            unrecorded=given["unrecorded"],
        )


def ask_or_replay(request: HttpRequest, turns: QuerySet[Turn], *, page: str) -> HttpResponse:
    """Ask what is to be other; or have them replayed, once that is answered. Whoever calls has seen to the permission.
    ``page``: the address to go back to."""
    among = turns.filter(status__in=FINAL).select_related("conversation__agent")
    chosen = list(among.order_by("pk")[: MAX_AT_ONCE + 1])
    if not chosen:
        messages.warning(request, "Nothing was done: none of them has ended.")
        return HttpResponseRedirect(page)
    if len(chosen) > MAX_AT_ONCE:
        messages.error(request, f"Nothing was done: choose {MAX_AT_ONCE} turns at most at a time.")
        return HttpResponseRedirect(page)
    is_meant = "confirmed" in request.POST
    form = ChangesForm(request.POST if is_meant else None)
    if not is_meant or not form.is_valid():
        return _ask(request, form, chosen, page)
    try:
        with transaction.atomic():
            rows = [replays.request(turn, form.changes(), by=request.user.get_username()) for turn in chosen]
    except CannotReplay as error:
        form.add_error(None, str(error))
        return _ask(request, form, chosen, page)
    messages.success(request, f"{len(rows)} turn{'' if len(rows) == 1 else 's'} will be replayed.")
    if len(rows) == 1:
        return HttpResponseRedirect(reverse("admin:conversations_replay_change", args=[rows[0].pk]))
    return HttpResponseRedirect(reverse("admin:conversations_replay_changelist"))


def _ask(request: HttpRequest, form: ChangesForm, chosen: list[Turn], back: str) -> HttpResponse:
    told: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": f"Replay {len(chosen)} turn{'' if len(chosen) == 1 else 's'}?",
        "form": form,
        "turns": chosen,
        "back": back,
        "checkbox": ACTION_CHECKBOX_NAME,
    }
    return TemplateResponse(
        request, "admin/conversations/replay.html", told, status=400 if form.is_bound and form.errors else 200
    )
