"""The pages of the chat. All else that it does is asked of the API."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from agent import access
from agent.models import DEFAULT_AGENT, Agent
from nanohost.accounts import keys
from nanohost.accounts.models import ACTIVE, Scope
from nanohost.chat import embed, join, shared
from nanohost.chat.authentication import with_what_the_user_may

SIGN_IN = "/chat/sign-in/"

# What the page's script asks for, told to the browser at once: else it would learn of each from the one before.
MODULES = [
    *(f"chat/{name}.js" for name in ("api", "composer", "dom", "markdown", "outbox", "schedules", "sending")),
    *(f"chat/{name}.js" for name in ("sidebar", "talk")),
    *(f"chat/vendor/{name}.mjs" for name in ("markdown-it", "purify")),
]


@require_safe
@login_required(login_url=SIGN_IN)
@ensure_csrf_cookie
def show(request: HttpRequest, conversation_id: UUID | None = None) -> HttpResponse:
    """The page, for whichever conversation. It is told which agents may be chosen, and whether approvals may be
    decided."""
    user: Any = request.user
    key = with_what_the_user_may(keys.of_browser(user), user)
    agents = [(each.name, each.called) for each in Agent.objects.order_by("name") if access.admits(key, each)]
    context = {
        "agents": sorted(agents, key=lambda each: (each[0] != DEFAULT_AGENT, each[1].casefold())),
        "may_decide": Scope.APPROVE in key.scopes,
        "is_open": key.state == ACTIVE,
        "max_files": settings.ATTACHMENTS_MAX,
        "max_bytes": settings.ATTACHMENTS_MAX_BYTES,
        "modules": MODULES,
    }
    return render(request, "chat/page.html", context)


_sign_in = LoginView.as_view(
    template_name="chat/sign_in.html",
    next_page="/chat/",
    extra_context={"single_sign_on": settings.OIDC_ISSUER and settings.OIDC_NAME},
)

urlpatterns = [
    path("", show, name="chat"),
    path("<uuid:conversation_id>/", show, name="chat_conversation"),
    path("shared/<str:token>/", shared.show, name="chat_shared"),
    path("join/<str:token>/", join.show, name="chat_join"),
    path("embed/<str:prefix>/", embed.show, name="chat_embed"),
    path("embed/<str:prefix>/begin/", embed.begin),
    path("sign-in/", _sign_in, name="chat_sign_in"),
    path("sign-out/", LogoutView.as_view(next_page=SIGN_IN), name="chat_sign_out"),
]
