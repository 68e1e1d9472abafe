"""The skills of this host, in the admin: which there are, what stands in them, who may use them; uploaded and removed.

Models follow what stands in a skill, so that whoever uploads one speaks in the prompts of the agents that may use it.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST, require_safe

from agent.models import Agent
from nanohost.lib.admin import excerpt, shown
from nanohost.lib.errors import InvalidRequest, Problem
from tools.skills import uploads
from tools.skills.models import SkillSetting
from tools.skills.shelf import Found, file_of, missing, shelf
from tools.workspace.text import decoded

READERS = ["tools.view_toolsetting", "agent.view_agent"]
CHANGE = "tools.change_toolsetting"


def urls() -> list[Any]:
    """The pages' addresses, beneath those of tools."""
    views: list[tuple[str, str, Callable[..., HttpResponse]]] = [
        ("", "skills", require_safe(_list)),
        ("view/", "skill", require_safe(_view)),
        ("upload/", "skill_upload", require_POST(_upload)),
        ("remove/", "skill_remove", require_POST(_remove)),
        ("allow/", "skill_allow", require_POST(_allow)),
    ]
    return [path(f"skills/{rest}", admin.site.admin_view(view), name=name) for rest, name, view in views]


def _list(request: HttpRequest) -> HttpResponse:
    """The skills there are, and what is wrong with folders that are none."""
    _check(request)
    there, settings = shelf(), _settings()
    rows = [
        {
            "name": name,
            "description": excerpt(found.skill.description),
            "state": _state(found),
            "agents": _who(settings.get(name)),
            "address": f"{reverse('admin:skill')}?{urlencode({'name': name})}",
        }
        for name, found in there.found.items()
    ]
    problems = [(shown(folder), shown(why)) for folder, why in there.problems.items()]
    told = {"title": "Skills", "rows": rows, "problems": problems, "most_bytes": uploads.MAX_ZIP_BYTES}
    return _page(request, "admin/agent/skills.html", told)


def _view(request: HttpRequest) -> HttpResponse:
    """What stands in a skill, and who may use it."""
    _check(request)
    name = request.GET.get("name", "")
    found = shelf().found.get(name)
    if found is None:
        raise Http404("There is no such skill; perhaps it was removed.")
    setting = _settings().get(name)
    agents = [
        {"name": agent, "may": setting is None or agent in setting}
        for agent in Agent.objects.order_by("name").values_list("name", flat=True)
    ]
    told = {"title": f"Skill {name}", "name": name, "agents": agents, "is_every": setting is None}
    told |= {"state": _state(found), "who": _who(setting), "is_uploaded": name in uploads.uploaded()}
    try:
        told["content"] = shown(decoded(file_of(name, "SKILL.md")[0]))
    except (OSError, ValueError) as error:
        told["content"] = shown(str(error))
    return _page(request, "admin/agent/skill.html", told)


def _upload(request: HttpRequest) -> HttpResponse:
    _check(request, to=CHANGE)
    given = request.FILES.get("file")
    try:
        if not isinstance(given, UploadedFile):
            raise InvalidRequest("No file was chosen.")
        name = uploads.upload(given.read(uploads.MAX_ZIP_BYTES + 1))
    except Problem as problem:
        messages.error(request, shown(problem.detail))
        return redirect("admin:skills")
    messages.success(request, f"The skill {name} is there. No agent may use it yet: say below which may.")
    return redirect(f"{reverse('admin:skill')}?{urlencode({'name': name})}")


def _remove(request: HttpRequest) -> HttpResponse:
    _check(request, to=CHANGE)
    name = request.POST.get("name", "")
    try:
        uploads.remove(name)
        messages.success(request, f"The skill {name} was removed.")
    except Problem as problem:
        messages.error(request, shown(problem.detail))
    return redirect("admin:skills")


def _allow(request: HttpRequest) -> HttpResponse:
    """Let the agents that are ticked use a skill, and no others; or every agent."""
    _check(request, to=CHANGE)
    name = request.POST.get("name", "")
    known = set(Agent.objects.values_list("name", flat=True))
    chosen = None if "every" in request.POST else sorted(known & set(request.POST.getlist("agents")))
    try:
        uploads.allow(name, chosen)
    except Problem as problem:
        messages.error(request, shown(problem.detail))
        return redirect("admin:skills")
    messages.success(request, f"The skill {name} may be used by {_who(chosen)}.")
    return redirect(f"{reverse('admin:skill')}?{urlencode({'name': name})}")


def _settings() -> dict[str, list[str]]:
    return dict(SkillSetting.objects.values_list("name", "agents"))


def _who(agents: list[str] | None) -> str:
    return "every agent" if agents is None else ", ".join(map(shown, agents)) or "no agent"


def _state(found: Found) -> str:
    lacks = ", ".join(missing(found.skill))
    return shown(f"not available, it needs {lacks}") if lacks else "always" if found.skill.always else "available"


def _check(request: HttpRequest, *, to: str = "") -> None:
    if not request.user.has_perms([*READERS, *([to] if to else [])]):
        raise PermissionDenied


def _page(request: HttpRequest, template: str, told: dict[str, Any]) -> HttpResponse:
    told["may_change"] = request.user.has_perm(CHANGE)
    return TemplateResponse(request, template, admin.site.each_context(request) | told)
