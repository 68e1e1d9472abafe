"""The search over everything (Ctrl-K): ids, keys, people, agents, tools, pages, and words that were said.

Each source is asked by an index and gives a few rows; whoever may not see its list is not told of any.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.http import require_GET

from agent.models import Agent
from conversations import search
from conversations.access import READERS
from conversations.models import Conversation, Message, Turn
from nanohost.accounts.models import ApiKey
from nanohost.console import navigation
from nanohost.console.site import model_pages
from nanohost.lib.admin import begins, excerpt
from tools.models import Approval, ToolCall, ToolSetting

# Of each source so many; and of what was typed.
MAX_OF_A_SOURCE, MAX_TYPED = 5, 200


@dataclass(frozen=True, kw_only=True)
class Found:
    """``kind``: what it is, in a word."""

    kind: str
    name: str
    link: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A kind of row. ``asks``: given what was typed, the condition; None if it can be none of these. ``editors_ask``:
    another one, of who may change such rows: by texts in which secrets are masked for everybody else."""

    kind: str
    model: Any
    asks: Callable[[str], Q | None]
    editors_ask: Callable[[str], Q] | None = None

    def find(self, request: HttpRequest, typed: str) -> Iterator[Found]:
        own, condition = model_pages()[self.model], self.asks(typed)
        if condition is None or not own.has_view_permission(request):
            return
        if self.editors_ask and own.has_change_permission(request):
            condition |= self.editors_ask(typed)
        for row in self.model.objects.filter(condition).order_by("-pk")[:MAX_OF_A_SOURCE]:
            page = f"admin:{own.opts.app_label}_{own.opts.model_name}_change"
            yield Found(kind=self.kind, name=excerpt(str(row)), link=reverse(page, args=[row.pk]))


def _of_id(typed: str) -> Q | None:
    return begins("id", typed) if len(typed) > 3 else None


def _of_turn(typed: str) -> Q:
    condition = Q(request_id=typed)
    return condition | found if (found := _of_id(typed)) else condition


SOURCES = (
    Source(kind="turn", model=Turn, asks=_of_turn),
    Source(kind="conversation", model=Conversation, asks=_of_id),
    Source(kind="message", model=Message, asks=_of_id),
    Source(kind="tool call", model=ToolCall, asks=_of_id),
    Source(kind="approval", model=Approval, asks=_of_id),
    Source(kind="API key", model=ApiKey, asks=lambda typed: Q(prefix__startswith=typed)),
    Source(kind="person", model=User, asks=lambda typed: Q(username__startswith=typed)),
    Source(
        kind="agent",
        model=Agent,
        asks=lambda typed: Q(name__startswith=typed),
        editors_ask=lambda typed: Q(display_name__istartswith=typed),
    ),
    Source(kind="tool", model=ToolSetting, asks=lambda typed: Q(name__startswith=typed)),
)


def find(request: HttpRequest, typed: str) -> Iterator[Found]:
    """What was meant, perhaps: pages first, then rows, then conversations in which it was said."""
    for door in navigation.DOORS:
        for page in door.pages:
            if typed.lower() in page.title.lower() and page.may_open(request):
                yield Found(kind="page", name=page.title, link=page.address)
    for source in SOURCES:
        yield from source.find(request, typed)
    if request.user.has_perms(READERS):
        ids = search.find(typed)[:MAX_OF_A_SOURCE]
        for row in Conversation.objects.with_title().filter(pk__in=ids).order_by("-created_at"):
            link = reverse("admin:conversations_conversation_transcript", args=[row.pk])
            yield Found(kind="said in", name=excerpt(getattr(row, "title", "") or row.key), link=link)


@require_GET
def show(request: HttpRequest) -> HttpResponse:
    """The list of what is found, as a part of a page."""
    if not request.user.is_staff:
        raise PermissionDenied
    typed = request.GET.get("q", "").replace("\x00", "").strip()[:MAX_TYPED]
    found = list(find(request, typed)) if typed else []
    return render(request, "console/found.html", {"found": found, "typed": typed})


urlpatterns = [path("", admin.site.admin_view(show), name="find")]
