"""The page *Search turns*: by what GET /turns finds them by; searches are saved, and what is found is exported, or put
into a set of cases."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_http_methods
from rest_framework.exceptions import ValidationError

from conversations import turn_search
from conversations.access import READERS
from conversations.api.serializers import TurnFilters, filters_of
from conversations.engine.replaying import replay_sets
from conversations.errors import CannotReplay
from conversations.events.answers import turns_as_json
from conversations.models import Turn
from conversations.saved_search_models import SavedSearch
from nanohost.accounts import audit
from nanohost.lib.errors import InvalidRequest
from nanohost.lib.redaction import redact_known
from nanohost.lib.text import UNSTORABLE

VIEW = tuple(READERS)
REPLAY = "conversations.replay_turn"

# Turns on a page, in a file, and of those that are put into a set at once; and pages that a file is made of.
MAX_SHOWN, MAX_EXPORTED, MAX_IN_A_SET, MAX_PAGES = 50, 10_000, 200, 1_000
# Stretches of turns that are looked at for a set while whoever asks waits; the command evaluate looks at all.
STRETCHES_OF_A_SET = 50

_NOT_ASKED = ("cursor", "limit")

# What people call the filters, in the order of the form.
LABELS = {
    "search": "Words",
    "status": "Status",
    "from": "Asked from",
    "to": "Asked before",
    "agent": "Agent",
    "model": "Model",
    "tool": "Tool",
    "rule": "Refused by rule",
    "error": "Error code",
    "feedback": "Feedback",
    "key": "API key",
    "tag": "Tag",
    "minCost": "Least cost",
    "minSeconds": "Least duration in seconds",
}


@require_http_methods(["GET", "POST"])
def show(request: HttpRequest) -> HttpResponseBase:
    """The page, and what its buttons do."""
    if not request.user.has_perms(VIEW):
        raise PermissionDenied
    given = {name: str(text) for name, text in request.GET.items() if text and name != "as"}
    try:
        wanted, wrong = filters_of(given), {}
    except ValidationError as error:
        wanted, wrong = {}, _wrong(error)
    except InvalidRequest as error:
        wanted, wrong = {}, {"": str(error)}
    if request.method == "POST":
        return _act(request, given, wanted, wrong)
    if request.GET.get("as") == "jsonl" and not wrong:
        asked_for = {name: text for name, text in given.items() if name not in _NOT_ASKED}
        audit.record("list.exported", kind=Turn._meta.label_lower, after=asked_for)
        return _export(wanted)
    after = wanted.pop("cursor", None)
    wanted.pop("limit", None)
    page = turn_search.Page([], None) if wrong else turn_search.find(_rows(), wanted, limit=MAX_SHOWN, after=after)
    asked = {name: text for name, text in given.items() if name not in _NOT_ASKED}
    told: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Search turns",
        "fields": _fields(given, wrong),
        "unknown": [text for name, text in wrong.items() if name not in TurnFilters().fields],
        "turns": page.turns,
        "is_asked": bool(asked),
        "following": urlencode(asked | {"cursor": str(page.after)}) if page.after else "",
        "export": urlencode(asked | {"as": "jsonl"}),
        "saved": [(each, urlencode(each.query)) for each in _saved_by(request)],
        "may_collect": request.user.has_perm(REPLAY),
    }
    return TemplateResponse(request, "console/turn_search.html", told, status=400 if wrong else 200)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # which the console has seen to
    return request.user


def _saved_by(request: HttpRequest) -> "QuerySet[SavedSearch]":
    return SavedSearch.objects.filter(user=_user(request))


def _rows() -> "QuerySet[Turn]":
    return Turn.objects.select_related("conversation__agent", "owner")


def _wrong(error: ValidationError) -> dict[str, str]:
    """What is wrong with which filter."""
    detail: Any = error.detail
    return {name: " ".join(map(str, texts)) for name, texts in detail.items()}


def _fields(given: Mapping[str, str], wrong: Mapping[str, str]) -> list[dict[str, Any]]:
    fields = TurnFilters().fields
    return [
        {
            "name": name,
            "label": label,
            "value": given.get(name, ""),
            "help": fields[name].help_text or "",
            "wrong": wrong.get(name, ""),
            "choices": list(getattr(fields[name], "choices", {}).items()),
        }
        for name, label in LABELS.items()
    ]


def _act(request: HttpRequest, given: dict[str, str], wanted: dict[str, Any], wrong: dict[str, str]) -> HttpResponse:
    """Save the search, forget one that was saved, or put what it finds into a set."""
    back = f"{reverse('turn_search')}?{urlencode(given)}"
    name, act = request.POST.get("name", "").strip()[:100], request.POST.get("act")
    mine = _saved_by(request)
    asked = {key: text for key, text in given.items() if key not in _NOT_ASKED}
    if act == "forget":
        mine.filter(name=name).delete()
    elif not name or UNSTORABLE.search(name):
        messages.error(request, "Nothing was done: give it a name.")
    elif wrong or not asked:
        messages.error(request, "Nothing was done: search for something first.")
    elif act == "save":
        if mine.exclude(name=name).count() >= SavedSearch.MAX_KEPT:
            messages.error(request, f"Nothing was done: {SavedSearch.MAX_KEPT} searches are kept; forget one.")
        else:
            SavedSearch.objects.update_or_create(name=name, user=_user(request), defaults={"query": asked})
            messages.success(request, "The search is saved.")
    elif act == "collect":
        if not request.user.has_perm(REPLAY):
            raise PermissionDenied
        return _collect(request, name, wanted, back)
    return HttpResponseRedirect(back)


def _collect(request: HttpRequest, name: str, wanted: dict[str, Any], back: str) -> HttpResponse:
    asked = {key: value for key, value in wanted.items() if key not in _NOT_ASKED}
    cases = replay_sets.found(asked, limit=MAX_IN_A_SET, stretches=STRETCHES_OF_A_SET)
    try:
        if not cases:
            latest = turn_search.STRETCH * STRETCHES_OF_A_SET
            raise CannotReplay(
                f"None of the latest {latest:,} turns matches and has ended. manage.py evaluate looks at all turns."
            )
        of_set = replay_sets.collect(name, cases)
    except CannotReplay as error:
        messages.error(request, f"Nothing was done: {error}")
        return HttpResponseRedirect(back)
    messages.success(request, f"{len(cases)} turns are in the set now, the newest that were found.")
    return HttpResponseRedirect(reverse("admin:conversations_replayset_change", args=[of_set.pk]))


def _export(wanted: dict[str, Any]) -> StreamingHttpResponse:
    asked = {key: value for key, value in wanted.items() if key not in _NOT_ASKED}
    answer = StreamingHttpResponse(_lines(asked), content_type="application/jsonl")
    answer["Content-Disposition"] = 'attachment; filename="turns.jsonl"'
    return answer


def _lines(wanted: dict[str, Any]) -> Iterator[bytes]:
    """A line a turn, as GET /turns shows it, the newest first; page by page."""
    after: UUID | None = None
    left = MAX_EXPORTED
    for _ in range(MAX_PAGES):
        page = turn_search.find(_rows(), wanted, limit=min(MAX_SHOWN, left), after=after)
        for told in turns_as_json(page.turns):
            line = json.dumps(told, cls=DjangoJSONEncoder, ensure_ascii=False)
            yield f"{redact_known(line)}\n".encode()
        left, after = left - len(page.turns), page.after
        if after is None or not left:
            return


urlpatterns = [path("", admin.site.admin_view(show), name="turn_search")]
