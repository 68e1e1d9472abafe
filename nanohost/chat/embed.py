"""A chat in a page of somebody else's: in an iframe, with an agent of an API key's.

The page names the key by its prefix, which is public and opens nothing by itself. A key that lists origins may be
embedded by pages of these, and by no others: browsers hold to that (``frame-ancestors``). Each visitor is given a
conversation, and a signed token that opens this conversation alone, with the key's agents, networks, rates and budgets.
What visitors write is untrusted: it taints the conversation.
"""

import re
from typing import Any
from uuid import UUID

from django.core import signing
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from agent import access
from agent.models import DEFAULT_AGENT, Agent
from conversations.engine import inbox
from conversations.models import Turn
from nanohost.accounts import audit, rates
from nanohost.accounts.errors import AddressNotAllowed, MissingScope
from nanohost.accounts.models import EVERY_AGENT, ApiKey, Scope
from nanohost.lib.errors import NotAuthenticated, Problem
from nanohost.lib.locality import address_of

HEADER = "X-Embed-Token"
SALT = "nanohost.chat.embed"
# Then the visitor begins anew.
VALID_SECONDS = 24 * 3600

_CONVERSATION = re.compile(r"/api/v1/conversations/([0-9a-f-]{36})/(?:messages|turns)")
_TURN = re.compile(r"/api/v1/turns/([0-9a-f-]{36})(?:/events|/cancel)?")


def _key(prefix: str) -> ApiKey | None:
    """The key, if pages may embed a chat with it."""
    keys = ApiKey.objects.active().select_related("owner").filter(prefix=prefix[:16], owner__is_active=True)
    key: ApiKey | None = keys.first() if prefix.isalnum() else None
    return key if key and key.allowed_origins and Scope.CHAT in key.scopes else None


def _agent(key: ApiKey) -> Agent | None:
    """The first agent that it names, or else the default one."""
    named = next((name for name in key.agent_names if name != EVERY_AGENT), DEFAULT_AGENT)
    return access.agent_of_key(key, named)


@require_safe
@xframe_options_exempt
def show(request: HttpRequest, prefix: str) -> HttpResponse:
    """The page in the iframe. It is the same for all, and knows nobody."""
    key = _key(prefix)
    agent = _agent(key) if key else None
    if key is None or agent is None:
        raise Http404
    answer = render(request, "chat/embed.html", {"prefix": key.prefix, "agent": agent.called})
    answer._csp_replace = {"frame-ancestors": key.allowed_origins}  # type: ignore[attr-defined]  # django-csp's
    answer["Cache-Control"] = "no-store"
    return answer


@csrf_exempt
@require_POST
def begin(request: HttpRequest, prefix: str) -> HttpResponse:
    """A conversation for a visitor, with the token that opens it. No cookie is asked for, so nothing can be forged; but
    a page of another origin shall not have its visitors' browsers use up what the key may do."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise PermissionDenied("Only the page of the chat itself can start a chat.")
    key = _key(prefix)
    agent = _agent(key) if key else None
    if key is None or agent is None:
        raise Http404
    try:
        _count(key, request)
    except Problem as problem:
        return JsonResponse({"detail": str(problem), "code": problem.code}, status=problem.status)
    made = inbox.start_conversation(owner_id=key.owner_id, agent=agent.name, metadata={inbox.EMBEDDED: key.prefix})
    token = signing.dumps({"key": key.prefix, "conversation": str(made.pk)}, salt=SALT)
    return JsonResponse({"conversationId": str(made.pk), "token": token}, headers={"Cache-Control": "no-store"})


def _count(key: ApiKey, request: Any) -> None:
    if key.networks and not key.opens_at(address := address_of(request)):
        raise AddressNotAllowed(f"This chat may not be used from {address}.")
    rates.count(key)
    key.note_use()


class EmbedAuthentication(BaseAuthentication):
    """A visitor's token, which opens one conversation: what it says, and the turns that answer."""

    def authenticate(self, request: Request) -> tuple[object, ApiKey] | None:
        """None without a token; raises for one that opens nothing, or not this."""
        asked: Any = request._request
        token = asked.headers.get(HEADER)
        if not token or "Authorization" in asked.headers:
            return None
        try:
            said = signing.loads(token, salt=SALT, max_age=VALID_SECONDS)
        except signing.BadSignature:
            raise NotAuthenticated("This chat has expired: begin a new one.") from None
        key = _key(said["key"])
        if key is None:
            raise NotAuthenticated("This chat is closed.")
        _count(key, asked)
        if not _is_of(asked.path_info, UUID(said["conversation"])):
            raise MissingScope("An embedded chat opens its own conversation, and nothing else.")
        # What else the key may do is none of a visitor's.
        key.scopes = [str(Scope.CHAT), str(Scope.READ)]
        audit.acts(f"a visitor with key {key}")
        return key.owner, key


def _is_of(path: str, conversation: UUID) -> bool:
    if found := _CONVERSATION.fullmatch(path):
        return found[1] == str(conversation)
    found = _TURN.fullmatch(path)
    return bool(found and Turn.objects.filter(pk=found[1], conversation=conversation).exists())


class EmbedScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI nothing of it: it is our own page's, of four addresses, and nobody else is given such a token."""

    target_class = EmbedAuthentication
    name = []

    def get_security_definition(self, auto_schema: object) -> list[dict[str, str]]:
        return []

    def get_security_requirement(self, auto_schema: object) -> list[dict[str, list[Any]]]:
        return []
