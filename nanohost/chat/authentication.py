"""Whoever is signed in with a browser calls the API with a key of their own, which no text opens."""

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, CSRFCheck
from rest_framework.request import Request

from nanohost.accounts import audit, rates
from nanohost.accounts.errors import AddressNotAllowed
from nanohost.accounts.models import ACTIVE, EVERY_AGENT, ApiKey, Scope
from nanohost.lib.errors import NotAuthenticated
from nanohost.lib.locality import address_of

# The pages that call it are served from here; a key that a page of another origin could use is none of a browser's.
API = "/api/v1/"


class BrowserAuthentication(BaseAuthentication):
    """A session's cookie, and for what changes something Django's token against forged requests in ``X-CSRFToken``."""

    def authenticate(self, request: Request) -> tuple[object, ApiKey] | None:
        """None where there is no session; raises for a request that may be forged, and for a key that opens nothing."""
        asked: Any = request._request
        cookie = asked.COOKIES.get(settings.SESSION_COOKIE_NAME)
        if not cookie or "Authorization" in asked.headers or not asked.path_info.startswith(API):
            return None
        asked.session = SessionStore(cookie)
        user: Any = get_user(asked)
        if not user.is_authenticated or not user.is_active:
            return None
        _refuse_forged(asked)
        key = ApiKey.objects.filter(owner=user, is_of_browser=True).first()
        if key is None or key.state != ACTIVE:
            raise NotAuthenticated("The chat is not open to you: open its page first, or ask an admin of this host.")
        if key.networks and not key.opens_at(address := address_of(asked)):
            raise AddressNotAllowed(f"The chat may not be used from {address}.")
        rates.count(key)
        key.note_use()
        audit.acts(f"user {user.get_username()}")
        return user, with_what_the_user_may(key, user)


def with_what_the_user_may(key: ApiKey, user: Any) -> ApiKey:
    """The key, which also opens what the console lets its owner do: decide approvals, and see every agent. Not stored:
    it ends with the role."""
    if user.is_staff:
        if user.has_perm("tools.decide_approval"):
            key.scopes = [*key.scopes, str(Scope.APPROVE)]
        if not key.agent_names and user.has_perm("agent.view_agent"):
            key.agent_names = [EVERY_AGENT]
    return key


def _refuse_forged(asked: Any) -> None:
    check: Any = CSRFCheck(lambda _: None)  # type: ignore[arg-type]  # it answers nothing
    check.process_request(asked)
    if check.process_view(asked, None, (), {}):
        raise NotAuthenticated("The request did not come from a page of this host: load the page again.")


class BrowserScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = BrowserAuthentication
    name = "browser"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
