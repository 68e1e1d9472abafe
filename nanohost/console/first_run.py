"""The page *Getting started*: a model, an agent, its tools, a first word with it, and the lines for programs.

It does nothing of its own: agents, tools, turns and keys come about by the functions behind their pages. Where one has
come to stands in the page's address, so that it can be left and come back to.
"""

import asyncio
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST, require_safe

from agent import llm
from agent.errors import NoProvider
from agent.llm import checking
from agent.llm.providers import MOCK, PROVIDERS
from agent.models import Agent
from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.errors import TurnProblem
from conversations.models import Conversation, Turn
from conversations.statuses import FINAL, TurnStatus
from nanohost.accounts import audit, keys
from nanohost.accounts.models import NEW_SCOPES
from nanohost.console import known_models
from nanohost.console.agent_templates import TEMPLATES, Template
from nanohost.console.models import Dismissal
from nanohost.lib.admin import SHOWN_ONCE
from nanohost.lib.database import borrowed_connection
from nanohost.lib.errors import Problem
from nanohost.lib.ids import request_id
from tools import registry
from tools.admin import lacking
from tools.changes import changing
from tools.models import ToolSetting

# Whoever may do all of its steps.
NEEDED = ("agent.add_agent", "tools.change_toolsetting", "accounts.add_apikey")

DISMISSED = "first_run"

# Somebody waits for the page that long.
CHECK_SECONDS = 20

HELLO = "Hello! Who are you, and what can you do?"


def is_due(user: Any) -> bool:
    """Whether nobody has set anything up here, and this is somebody who might."""
    if not (user.is_active and user.is_superuser) or Dismissal.objects.filter(name=DISMISSED).exists():
        return False
    # By the index: of a table that has grown, nothing more is read.
    return not Conversation.objects.order_by("pk").values_list("pk", flat=True)[:1]


def sign_in(request: HttpRequest) -> HttpResponse:
    """The console's sign-in; it leads here while nothing is set up."""
    answer = admin.site.login(request, {"single_sign_on": settings.OIDC_ISSUER and settings.OIDC_NAME})
    if answer.status_code == 302 and answer["Location"] == reverse("admin:index") and is_due(request.user):
        return HttpResponseRedirect(reverse("first_run"))
    return answer


@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """The page."""
    _refuse_others(request)
    return _page(request)


def _refuse_others(request: HttpRequest) -> None:
    if not request.user.has_perms(NEEDED):
        raise PermissionDenied


def _page(request: HttpRequest, *, status: int = 200, **told: Any) -> HttpResponse:
    agent = Agent.objects.filter(name=_asked(request, "agent")).first()
    template = TEMPLATES.get(_asked(request, "template"), TEMPLATES["assistant"])
    context = {
        "title": "Getting started",
        "here": _address(request),
        "model": _asked(request, "model")[:128],
        "provider": _asked(request, "provider"),
        "default_model": settings.LLM_MODEL_DEFAULT,
        "suggested": known_models.suggested(),
        "providers": [(row.name, row.key) for row in PROVIDERS.values()],
        "asked_of": sorted({who for each in known_models.askers() for who in (each.configured or (each.default,))}),
        "is_scripted": settings.LLM_PROVIDER == MOCK,
        "is_elsewhere": settings.PRODUCTION,
        "templates": TEMPLATES.values(),
        "template": template,
        "agent": agent,
        "tools": _tools(agent) if agent else [],
        "hello": _asked(request, "hello") or HELLO,
        "turn": _turn(request, _asked(request, "turn")),
        "is_dismissed": Dismissal.objects.filter(name=DISMISSED).exists(),
        "base": settings.PUBLIC_URL or request.build_absolute_uri("/").rstrip("/"),
        **told,
    }
    return TemplateResponse(
        request, "console/first_run.html", admin.site.each_context(request) | context, status=status
    )


def _asked(request: HttpRequest, name: str) -> str:
    said = request.POST.get(name, request.GET.get(name, ""))
    return said.replace("\x00", "").strip()


def _address(request: HttpRequest, **changed: str) -> str:
    """The page's, with what is chosen so far."""
    names = ("model", "provider", "template", "agent", "turn")
    chosen = {name: value for name in names if (value := changed.get(name, request.GET.get(name, "")))}
    return f"{reverse('first_run')}?{urlencode(chosen)}" if chosen else reverse("first_run")


def _tools(agent: Agent) -> list[dict[str, Any]]:
    """Those that its list has, with what each still lacks."""
    found = []
    for setting in ToolSetting.objects.filter(name__in=agent.tools).order_by("name"):
        if setting.name in registry.names():
            tool = registry.get(setting.name)
            about = tool.description.splitlines()[0]
            found.append({"setting": setting, "about": about, "lacks": lacking(setting), "needs": tool.permissions})
    return found


def _turn(request: HttpRequest, said: str) -> dict[str, Any] | None:
    """How one's own turn stands, as the page tells it."""
    try:
        turn = Turn.objects.filter(pk=UUID(said), owner_id=request.user.pk).first()
    except ValueError:
        return None
    if turn is None:
        return None
    answer = turn.messages.filter(role="assistant").exclude(content="").order_by("-seq").first()
    return {
        "row": turn,
        "is_open": turn.status not in FINAL,
        "has_answered": turn.status == TurnStatus.SUCCEEDED,
        "answer": answer.content if answer else "",
        "problem": TurnProblem(turn.error_code).title if turn.status == TurnStatus.FAILED else "",
    }


@require_POST
def test_model(request: HttpRequest) -> HttpResponse:
    """Ask the model that was named, with the key that this host has."""
    _refuse_others(request)
    model, named = _asked(request, "model")[:128] or settings.LLM_MODEL_DEFAULT, _asked(request, "provider")
    if named and named not in PROVIDERS:
        named = ""
    try:
        choice = llm.choose(model, named)
    except NoProvider as error:
        return _page(request, status=400, tested={"works": False, "told": f"No provider is used: {error.detail}."})
    if choice.provider.name == MOCK:
        told = "The scripted model answers: no provider is set up here."
        return _page(request, tested={"works": True, "told": told})
    with borrowed_connection():
        pass  # none is kept while the provider is asked
    checked = asyncio.run(checking.check(choice.provider.name, choice.model, asks=True, seconds=CHECK_SECONDS))
    audit.record("provider.checked", kind="agent.provider", key=checked.provider, after={"works": checked.works})
    tested = {"works": checked.works, "told": f"{checked.provider}: {checked.told}. {choice.why}."}
    return _page(request, tested=tested)


@require_POST
def make_agent(request: HttpRequest) -> HttpResponse:
    """An agent of the template that was chosen."""
    _refuse_others(request)
    template: Template | None = TEMPLATES.get(_asked(request, "template"))
    if template is None:
        return _page(request, status=400, wrong="Choose one of the templates.")
    name, model, provider = _asked(request, "name"), _asked(request, "model"), _asked(request, "provider")
    agent = template.agent(name=name, model=model, provider=provider)
    try:
        agent.full_clean()
    except ValidationError as error:
        return _page(request, status=400, wrong=" ".join(error.messages))
    try:
        agent.save_version(by=request.user.get_username())
    except IntegrityError:  # another admin was faster, or another click
        return _page(request, status=400, wrong=f"There is an agent named {agent.name} by now; choose another name.")
    messages.success(request, f"The agent {agent.name} is made.")
    return HttpResponseRedirect(f"{_address(request, agent=agent.name, template=template.name)}#tools")


@require_POST
def allow_tools(request: HttpRequest) -> HttpResponse:
    """Enable the tools that were ticked, and grant each what it needs, as far as the settings' ceiling goes."""
    _refuse_others(request)
    agent = _its_agent(request)
    for name in sorted(set(request.POST.getlist("tools")) & set(agent.tools) & set(registry.names())):
        with changing(name, by=request.user.get_username()) as setting:
            setting.enabled, setting.grants = True, [*setting.grants, *lacking(setting)]
    return HttpResponseRedirect(f"{_address(request)}#hello")


def _its_agent(request: HttpRequest) -> Agent:
    agent = Agent.objects.filter(name=_asked(request, "agent")).first()
    if agent is None:
        raise Http404("There is no such agent; perhaps it was deleted. Make one first.")
    return agent


@require_POST
def say_hello(request: HttpRequest) -> HttpResponse:
    """A turn like any other, of whoever asks."""
    _refuse_others(request)
    agent = _its_agent(request)
    words = _asked(request, "hello")[:2000] or HELLO
    try:
        talk = inbox.start_conversation(owner_id=request.user.pk or 0, agent=agent.name, metadata={})
        turn = inbox.receive(Incoming(words), conversation=talk, request_id=request_id(None), while_paused="refuse")
    except Problem as problem:
        return _page(request, status=problem.status, refused=problem.detail)
    return HttpResponseRedirect(f"{_address(request, turn=str(turn.pk))}#hello")


@require_safe
def hello(request: HttpRequest, turn_id: UUID) -> HttpResponse:
    """How the turn stands: what the page reads again by itself until it has ended."""
    _refuse_others(request)
    turn = _turn(request, str(turn_id))
    if turn is None:
        raise Http404("There is no such turn of yours.")
    return render(request, "console/first_run_turn.html", {"turn": turn})


@require_POST
def make_key(request: HttpRequest) -> HttpResponse:
    """A key for the agent, in the lines that use it; shown by this answer alone."""
    _refuse_others(request)
    agent = _its_agent(request)
    user: Any = request.user
    _, text = keys.make(owner=user, name=f"Getting started: {agent.name}", scopes=NEW_SCOPES, agent_names=[agent.name])
    told: dict[str, Any] = {SHOWN_ONCE: text, "key": text}
    return _page(request, **told)


@require_POST
def dismiss(request: HttpRequest) -> HttpResponse:
    """Show it to nobody after signing in any more; its link stays among the settings."""
    _refuse_others(request)
    if Dismissal.objects.get_or_create(name=DISMISSED)[1]:
        audit.record("first_run.dismissed", kind="console.dismissal", key=DISMISSED, name="Getting started")
    messages.info(request, "Getting started is closed. It stays among the settings.")
    return HttpResponseRedirect(reverse("admin:index"))


urlpatterns = [
    path("", admin.site.admin_view(show), name="first_run"),
    path("model/", admin.site.admin_view(test_model), name="first_run_model"),
    path("agent/", admin.site.admin_view(make_agent), name="first_run_agent"),
    path("tools/", admin.site.admin_view(allow_tools), name="first_run_tools"),
    path("hello/", admin.site.admin_view(say_hello), name="first_run_hello"),
    path("hello/<uuid:turn_id>/", admin.site.admin_view(hello), name="first_run_turn"),
    path("key/", admin.site.admin_view(make_key), name="first_run_key"),
    path("dismiss/", admin.site.admin_view(dismiss), name="first_run_dismiss"),
]
