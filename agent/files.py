"""The files of an agent's workspaces, in the admin: seen, taken, put there, removed, and what was done to them undone.

They are what the agent keeps for an owner, as its memory is: who may see the one may see the other, and so for changes.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST, require_safe

from agent.models import Agent
from nanohost.lib import downloads
from nanohost.lib.admin import excerpt, shown
from nanohost.lib.errors import InvalidRequest, NotFound, Problem
from tools.workspace import people
from tools.workspace.store import Entry

READERS = ["agent.view_agent", "memory.view_memory"]
CHANGE = "memory.change_memory"

# Of owners and of a folder's names, so many are listed.
MAX_LISTED = 500

# In the place of an owner where all have one workspace.
SHARED = 0


def urls() -> list[Any]:
    """The pages' addresses, beneath those of agents."""
    views: list[tuple[str, str, Callable[..., HttpResponse]]] = [
        ("", "files", require_safe(_owners)),
        ("<int:owner_id>/", "folder", require_safe(_folder)),
        ("<int:owner_id>/take/", "file_take", require_safe(_take)),
        ("<int:owner_id>/put/", "file_put", require_POST(_put)),
        ("<int:owner_id>/remove/", "file_remove", require_POST(_remove)),
        ("<int:owner_id>/undo/", "file_undo", require_POST(_undo)),
    ]
    return [
        path(f"<int:pk>/files/{rest}", admin.site.admin_view(view), name=f"agent_agent_{name}")
        for rest, name, view in views
    ]


def _owners(request: HttpRequest, pk: int) -> HttpResponse:
    """Whom the agent has a workspace for."""
    agent = _agent(request, pk)
    if people.is_shared():
        return redirect("admin:agent_agent_folder", pk, SHARED)
    ids = people.owners(agent.name)
    users: Any = get_user_model()._default_manager
    found = users.filter(pk__in=ids[:MAX_LISTED]).order_by("pk")
    rows = [{"pk": owner.pk, "name": shown(owner.get_username())} for owner in found]
    told = {"agent": agent, "owners": rows, "title": f"Files of {excerpt(agent.called)}", "most": MAX_LISTED}
    return _page(request, "admin/agent/files.html", told | {"cut": len(ids) > MAX_LISTED})


def _folder(request: HttpRequest, pk: int, owner_id: int) -> HttpResponse:
    """What is in a folder of a workspace, with what can be done to it."""
    agent, place = _agent(request, pk), request.GET.get("path", "")
    told: dict[str, Any] = {"agent": agent, "owner_id": owner_id, "owner": _owner(owner_id)}
    told |= {"place": place, "above": _above(place), "may_change": request.user.has_perm(CHANGE)}
    told |= {"title": f"Files of {excerpt(agent.called)}", "most_bytes": people.max_file_bytes()}
    try:
        entries = people.list_folder(agent=agent.name, owner_id=owner_id, path=place)
    except Problem as problem:
        return _page(request, "admin/agent/folder.html", told | {"problem": problem.detail}, status=problem.status)
    rows = [_row(entry, pk, owner_id) for entry in entries[:MAX_LISTED]]
    cut = f"{MAX_LISTED} of {len(entries)}" if len(entries) > MAX_LISTED else ""
    return _page(request, "admin/agent/folder.html", told | {"entries": rows, "cut": cut})


def _take(request: HttpRequest, pk: int, owner_id: int) -> HttpResponse:
    """A file, as a download that no browser shows or runs."""
    agent, place = _agent(request, pk), request.GET.get("path", "")
    _owner(owner_id)
    try:
        content = people.take(agent=agent.name, owner_id=owner_id, path=place)
    except Problem as problem:
        messages.error(request, problem.detail)
        return _back(pk, owner_id, _above(place))
    return downloads.download(content, place.rpartition("/")[2])


def _put(request: HttpRequest, pk: int, owner_id: int) -> HttpResponse:
    """Put a file into a folder, under its own name or the one that was written."""
    agent, place = _agent(request, pk, to=CHANGE), request.POST.get("path", "")
    _owner(owner_id)

    def act() -> str:
        given = request.FILES.get("file")
        if not isinstance(given, UploadedFile):
            raise InvalidRequest("No file was chosen.")
        name = request.POST.get("name", "").strip() or given.name or ""
        target = f"{place}/{name}" if place else name
        replaced = people.put(agent=agent.name, owner_id=owner_id, path=target, content=given.read())
        return f"{target} was {'replaced' if replaced else 'put there'}."

    return _done(request, act, back=_back(pk, owner_id, place))


def _remove(request: HttpRequest, pk: int, owner_id: int) -> HttpResponse:
    """Remove a file, which is kept for a day."""
    agent, place = _agent(request, pk, to=CHANGE), request.POST.get("path", "")
    _owner(owner_id)

    def act() -> str:
        people.delete(agent=agent.name, owner_id=owner_id, path=place)
        return f"{place} was removed. For a day, it can be undone by its name."

    return _done(request, act, back=_back(pk, owner_id, _above(place)))


def _undo(request: HttpRequest, pk: int, owner_id: int) -> HttpResponse:
    """Undo a file's last change of the last day."""
    agent, place = _agent(request, pk, to=CHANGE), request.POST.get("path", "")
    _owner(owner_id)

    def act() -> str:
        try:
            is_there = people.undo(agent=agent.name, owner_id=owner_id, path=place)
        except NotFound:
            raise NotFound(f"No change of {place[:200]!r} is kept; it is for a day.") from None
        return f"The last change of {place} was undone{'' if is_there else ': it was new, and is gone'}."

    return _done(request, act, back=_back(pk, owner_id, _above(place)))


def _agent(request: HttpRequest, pk: int, *, to: str = "") -> Agent:
    """The agent, for those who may see its files; ``to``: and have this permission."""
    if not request.user.has_perms([*READERS, *([to] if to else [])]):
        raise PermissionDenied
    agent = Agent.objects.filter(pk=pk).first()
    if agent is None:
        raise Http404("There is no such agent; perhaps it was deleted.")
    return agent


def _owner(owner_id: int) -> str:
    """What an owner is called. Of those that are none, no workspace is made."""
    if people.is_shared():
        if owner_id == SHARED:
            return "all owners"
        raise Http404("All owners share one workspace of this agent.")
    users: Any = get_user_model()._default_manager
    owner = users.filter(pk=owner_id).first() if owner_id < 2**63 else None
    if owner is None:
        raise Http404("There is no such owner; perhaps they were deleted.")
    return shown(owner.get_username())


def _done(request: HttpRequest, act: Callable[[], str], *, back: HttpResponse) -> HttpResponse:
    """Do it, tell what was done or why not, and go back to the folder."""
    try:
        messages.success(request, shown(act()))
    except Problem as problem:
        messages.error(request, shown(problem.detail))
    return back


def _row(entry: Entry, pk: int, owner_id: int) -> dict[str, Any]:
    view = {"folder": "folder", "file": "file_take"}.get(entry.kind)
    return {
        "path": entry.path,
        "name": shown(entry.path.rpartition("/")[2]),
        "address": _address(view, pk, owner_id, entry.path) if view else "",
        "kind": entry.kind,
        "bytes": entry.size,
        "changed_at": datetime.fromtimestamp(entry.changed, UTC),
    }


def address_of(*, agent_id: int, owner_id: int) -> str:
    """Where an owner's files with an agent are seen."""
    return _address("folder", agent_id, SHARED if people.is_shared() else owner_id, "")


def _above(place: str) -> str:
    return place.rpartition("/")[0]


def _address(view: str, pk: int, owner_id: int, place: str) -> str:
    address = reverse(f"admin:agent_agent_{view}", args=[pk, owner_id])
    return f"{address}?{urlencode({'path': place})}" if place else address


def _back(pk: int, owner_id: int, place: str) -> HttpResponse:
    return redirect(_address("folder", pk, owner_id, place))


def _page(request: HttpRequest, template: str, told: dict[str, Any], *, status: int = 200) -> HttpResponse:
    context = admin.site.each_context(request) | {"opts": Agent._meta} | told
    return TemplateResponse(request, template, context, status=status)
