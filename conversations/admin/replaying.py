"""Replaying turns and sets of them from the console: what is to be other in them, and that it is meant."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction
from django.db.models import Model, QuerySet
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
from conversations.engine.replaying import replay_sets, replays
from conversations.engine.replaying.frozen import Changes
from conversations.errors import CannotReplay
from conversations.models import ReplaySet, Turn
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
    tools = forms.CharField(
        required=False,
        max_length=4_000,
        widget=UnfoldAdminTextInputWidget,
        help_text="Names of the tools that are offered, separated by commas. Empty: as it was.",
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
            tools=Changes.names_in(given["tools"]) or None,
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
    title = f"Replay {len(chosen)} turn{'' if len(chosen) == 1 else 's'}?"
    return _page(request, form, chosen, title=title, action="replay_turns", verb="Replay", back=back)


def _page(
    request: HttpRequest, form: forms.Form, chosen: Sequence[Model], *, title: str, action: str, verb: str, back: str
) -> HttpResponse:
    told: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": title,
        "form": form,
        "chosen": [
            (reverse(f"admin:{each._meta.app_label}_{each._meta.model_name}_change", args=[each.pk]), each)
            for each in chosen
        ],
        "kind": chosen[0]._meta.verbose_name if len(chosen) == 1 else chosen[0]._meta.verbose_name_plural,
        "action": action,
        "verb": verb,
        "back": back,
        "checkbox": ACTION_CHECKBOX_NAME,
    }
    return TemplateResponse(
        request, "admin/conversations/replay.html", told, status=400 if form.is_bound and form.errors else 200
    )


class SetForm(forms.Form):
    """Which set turns are put into."""

    name = forms.CharField(
        label="set",
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text="Its name. If there is no set with that name, it is created.",
    )


def ask_or_collect(request: HttpRequest, turns: QuerySet[Turn], *, page: str) -> HttpResponse:
    """Ask which set turns are to be put into; or put them there, once that is answered."""
    chosen = list(turns.filter(status__in=FINAL).order_by("pk")[: MAX_AT_ONCE + 1])
    if not chosen or len(chosen) > MAX_AT_ONCE:
        messages.error(request, f"Nothing was done: choose 1 to {MAX_AT_ONCE} turns that have ended.")
        return HttpResponseRedirect(page)
    is_meant = "confirmed" in request.POST
    form = SetForm(request.POST if is_meant else None)
    if is_meant and form.is_valid():
        try:
            of_set = replay_sets.collect(form.cleaned_data["name"], [(turn, None) for turn in chosen])
        except CannotReplay as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, f"The set has {of_set.cases.count()} cases now.")
            return HttpResponseRedirect(reverse("admin:conversations_replayset_change", args=[of_set.pk]))
    return _page(request, form, chosen, title="Put into a set", action="collect_turns", verb="Put", back=page)


def ask_or_start(request: HttpRequest, sets: QuerySet[ReplaySet], *, page: str) -> HttpResponse:
    """Ask what is to be other than in the turns of a set; or have its cases replayed, once that is answered."""
    chosen = list(sets.order_by("pk")[:2])
    if len(chosen) != 1:
        messages.error(request, "Nothing was done: choose one set at a time.")
        return HttpResponseRedirect(page)
    is_meant = "confirmed" in request.POST
    form = ChangesForm(request.POST if is_meant else None)
    if is_meant and form.is_valid():
        try:
            run = replay_sets.start(chosen[0], form.changes(), by=request.user.get_username())
        except CannotReplay as error:
            form.add_error(None, str(error))
        else:
            return HttpResponseRedirect(reverse("admin:conversations_replayrun_change", args=[run.pk]))
    title = f"Replay the set {chosen[0].name}?"
    return _page(request, form, chosen, title=title, action="replay_sets", verb="Replay", back=page)
