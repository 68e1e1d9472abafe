"""The navigation of the console: ten entries at the side, in the order of people's work, and the pages of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.apps import apps
from django.http import HttpRequest
from django.urls import get_script_prefix, reverse
from django.utils.text import capfirst

from conversations.admin import approval
from nanohost.console import (
    colleagues,
    first_run,
    queue_page,
    retention_page,
    summary_page,
    turn_search_page,
    usage_page,
)
from nanohost.console.site import model_pages


@cache
def _address(name: str, below: str) -> str:
    """The address of this name, where the host's begin with ``below``. Each page of the console asks for all of them,
    three times over, and to find one takes Django a quarter of a millisecond."""
    return reverse(name)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page behind a door. ``name``: ``app.model``, or the name of an address. ``about``: what *Settings* says of it.
    ``permissions``: who may open it, if it is no model's."""

    name: str
    title: str
    about: str = ""
    permissions: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        name = self.name if "." not in self.name else f"admin:{self.name.replace('.', '_')}_changelist"
        return _address(name, get_script_prefix())

    def may_open(self, request: HttpRequest) -> bool:
        if "." not in self.name:
            return request.user.has_perms(self.permissions)
        own = model_pages().get(apps.get_model(self.name))
        return own is not None and own.has_view_or_change_permission(request) and own.has_module_permission(request)


@dataclass(frozen=True, kw_only=True)
class Door:
    """What stands at the side. ``icon``: a name of Material Symbols, whose font the theme brings."""

    title: str
    icon: str
    pages: tuple[Page, ...]
    badge: Callable[[], int] | None = None


OVERVIEW, SETTINGS = "Overview", "Settings"

# Those that belong to each other on the page of settings, besides what has no other place.
_PEOPLE = (
    Page(name="auth.user", title="People", about="People who may sign in, and owners of conversations and keys."),
    Page(
        name="colleague",
        title="Add a colleague",
        about="A person, their role and a key in one form, and the link they come in by.",
        permissions=colleagues.NEEDED,
    ),
    Page(name="auth.group", title="Roles", about="What staff may do in this console."),
    Page(name="accounts.apikey", title="API keys", about="What programs use this host with: make, limit, revoke."),
    Page(
        name="first_run",
        title="Getting started",
        about="A model, an agent, its tools and a first answer, step by step.",
        permissions=first_run.NEEDED,
    ),
)
_CHANNELS = (
    Page(
        name="conversations.channel",
        title="Channels",
        about="How people elsewhere talk to agents, and whether it works.",
    ),
    Page(
        name="conversations.sender",
        title="Senders",
        about="People who may write through channels, and those who were refused.",
    ),
    Page(name="conversations.chat", title="Chats", about="Where conversations are held elsewhere."),
    Page(
        name="conversations.destination",
        title="Destinations",
        about="Chats and agents to which an agent may write, with their names.",
    ),
)
_EVENTS = (
    Page(name="conversations.webhookendpoint", title="Webhooks", about="Addresses that are notified of events."),
    Page(name="conversations.delivery", title="Deliveries", about="What was sent to webhooks, by e-mail and to chats."),
)
_KEPT = (
    Page(
        name="retention",
        title="Retention",
        about="How long each agent keeps what, and what would be deleted now.",
        permissions=retention_page.VIEW,
    ),
    Page(name="accounts.legalhold", title="Legal holds", about="Data that must not be deleted for now."),
)

DOORS = (
    Door(title=OVERVIEW, icon="dashboard", pages=(Page(name="admin:index", title=OVERVIEW),)),
    Door(
        title="Queue",
        icon="pending_actions",
        pages=(
            Page(name="queue", title="Queue", permissions=queue_page.VIEW),
            Page(name="conversations.worker", title="Workers"),
            Page(name="agent.provideroutage", title="Provider outages"),
        ),
    ),
    Door(
        title="Conversations",
        icon="forum",
        pages=(
            Page(name="conversations.conversation", title="Conversations"),
            Page(name="conversations.turn", title="Turns"),
            Page(name="turn_search", title="Search turns", permissions=turn_search_page.VIEW),
            Page(name="conversations.message", title="Messages"),
            Page(name="conversations.deferredmessage", title="Deferred messages"),
            Page(name="conversations.question", title="Questions"),
            Page(name="conversations.compaction", title="Summaries"),
            Page(name="conversations.feedback", title="Feedback"),
            Page(name="conversations.replay", title="Replays"),
            Page(name="conversations.replayset", title="Sets of cases"),
            Page(name="conversations.replayrun", title="Evaluations"),
        ),
    ),
    Door(
        title="Approvals",
        icon="approval",
        pages=(Page(name="tools.approval", title="Approvals"),),
        badge=approval.waiting,
    ),
    Door(
        title="Agents",
        icon="smart_toy",
        pages=(
            Page(name="agent.agent", title="Agents"),
            Page(name="agent.agentversion", title="Versions"),
            Page(name="memory.memory", title="Memory"),
            Page(name="memory.memoryversion", title="Memory versions"),
            Page(name="memory.historyentry", title="History log"),
        ),
    ),
    Door(
        title="Tools",
        icon="construction",
        pages=(
            Page(name="tools.toolsetting", title="Tools"),
            Page(name="tools.toolcall", title="Calls"),
            Page(name="tools.settingchange", title="Changes"),
            Page(name="tools.mcpserver", title="MCP servers"),
            Page(name="tools.mcptool", title="Tools of MCP servers"),
            Page(name="tools.customtool", title="Custom tools"),
            Page(name="admin:skills", title="Skills", permissions=("tools.view_toolsetting", "agent.view_agent")),
            Page(
                name="admin:simulator",
                title="Simulator",
                permissions=("tools.view_toolsetting", "agent.view_agent"),
            ),
        ),
    ),
    Door(
        title="Schedules",
        icon="event",
        pages=(
            Page(name="scheduler.schedule", title="Schedules"),
            Page(name="scheduler.schedulerun", title="Run history"),
            Page(name="scheduler.checkin", title="Check-ins"),
            Page(name="daily_summary", title="Daily summary", permissions=summary_page.VIEW),
            Page(name="django_celery_beat.periodictask", title="System jobs"),
            Page(name="scheduler.jobrun", title="Job runs"),
        ),
    ),
    Door(
        title="Usage",
        icon="payments",
        pages=(
            Page(name="usage", title="Usage", permissions=usage_page.VIEW),
            Page(name="agent.budget", title="Budgets"),
            Page(name="agent.modelprice", title="Model prices"),
        ),
    ),
    Door(
        title="Audit",
        icon="policy",
        pages=(
            Page(name="accounts.auditentry", title="Audit log"),
            Page(name="axes.accessattempt", title="Failed sign-ins"),
        ),
    ),
    Door(title=SETTINGS, icon="settings", pages=(*_PEOPLE, *_CHANNELS, *_EVENTS, *_KEPT)),
)


@cache
def others() -> tuple[Page, ...]:
    """Pages of models that no door names: of other people's apps, and of apps of the user's own."""
    named = {page.name for door in DOORS for page in door.pages}
    found = [own for own in model_pages().values() if own.opts.label_lower not in named]
    return tuple(
        Page(name=own.opts.label_lower, title=str(capfirst(own.opts.verbose_name_plural)), about=own.__doc__ or "")
        for own in sorted(found, key=lambda own: own.opts.label_lower)
    )


def settings_of(request: HttpRequest) -> list[dict[str, Any]]:
    """What the page of settings shows, part by part, to whoever may see it."""
    parts = (
        ("People and keys", _PEOPLE),
        ("Channels", _CHANNELS),
        ("Events", _EVENTS),
        ("What is kept", _KEPT),
        ("More", others()),
    )
    shown = [(title, [page for page in pages if page.may_open(request)]) for title, pages in parts]
    return [{"title": title, "pages": pages} for title, pages in shown if pages]


def _opened(request: HttpRequest) -> Iterator[tuple[Door, list[Page]]]:
    """The doors with those of their pages that whoever asks may open."""
    for door in DOORS:
        if pages := [page for page in door.pages if page.may_open(request)]:
            yield door, pages
        elif door.title == SETTINGS and any(page.may_open(request) for page in others()):
            yield door, []


def here(request: HttpRequest) -> tuple[Door, Page] | None:
    """The page that an address belongs to, with its door: the one whose own address is its longest beginning."""
    found: tuple[int, Door, Page] | None = None
    for door in DOORS:
        for page in (*door.pages, *(others() if door.title == SETTINGS else ())):
            address = page.address
            begins = request.path == address if page.name == "admin:index" else request.path.startswith(address)
            if begins and (found is None or len(address) > found[0]):
                found = (len(address), door, page)
    return found[1:] if found else None


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """The side, as the theme takes it."""
    current = here(request)
    in_settings = request.path == reverse("settings")
    items = []
    for door, pages in _opened(request):
        item: dict[str, Any] = {
            "title": door.title,
            "icon": door.icon,
            "link": reverse("settings") if door.title == SETTINGS else pages[0].address,
            "active": current[0] is door if current else in_settings and door.title == SETTINGS,
        }
        if door.badge and (count := door.badge()):
            item["badge"] = count
        items.append(item)
    return [{"items": items}]


def tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """The pages behind the door that stands open, to go from one to the other; none if there is one alone."""
    current = here(request)
    if current is None or current[0].title == SETTINGS:
        return []
    door, page = current
    pages = [each for each in door.pages if each.may_open(request)]
    shown = [{"title": each.title, "link": each.address, "is_here": each is page} for each in pages]
    return shown if len(shown) > 1 else []


def trail(request: HttpRequest, *, title: str, name: str) -> list[dict[str, Any]]:
    """Where a page stands, from the door to it. ``name``: of the object that it is about, if it is about one."""
    current = here(request)
    if current is None:
        return [{"title": title, "link": ""}]
    door, page = current
    link = reverse("settings") if door.title == SETTINGS else door.pages[0].address
    parts = [{"title": door.title, "link": link}]
    if page.title != door.title:
        parts.append({"title": page.title, "link": page.address})
    if name:
        parts.append({"title": name, "link": ""})
    elif request.path != page.address and title:
        parts.append({"title": title, "link": ""})
    parts[-1]["link"] = ""
    return parts
