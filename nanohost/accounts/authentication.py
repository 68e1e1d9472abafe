"""Recognising who calls the API, and whether their key may do what they ask for."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from nanohost.accounts import audit, rates
from nanohost.accounts.errors import AddressNotAllowed, MissingScope
from nanohost.accounts.models import ApiKey
from nanohost.lib.errors import NotAuthenticated
from nanohost.lib.locality import address_of


class ApiKeyAuthentication(BaseAuthentication):
    """``Authorization: Bearer nh_<prefix>_<secret>``; ``request.auth`` becomes the key, ``request.user`` its owner."""

    def authenticate(self, request: Request) -> tuple[object, ApiKey] | None:
        """None without a bearer token, so that open routes stay open; raises for one that is not known, that is used
        from where it may not be, or too often."""
        scheme, _, token = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = ApiKey.objects.recognise(token.strip())
        if key is None:
            raise NotAuthenticated("This API key is not known, has expired or was revoked.")
        if key.networks and not key.opens_at(address := address_of(request)):
            raise AddressNotAllowed(f"This API key may not be used from {address}.")
        rates.count(key)
        key.note_use()
        audit.acts(f"key {key} of {key.owner}")
        return key.owner, key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasScope(BasePermission):
    """A key, with one of the scopes that the view names for the request's method. What names none is for nobody."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.auth, ApiKey):
            raise NotAuthenticated
        if request.method == "OPTIONS" or request.method not in view.allowed_methods:
            return True  # which is answered with 405
        wanted = scopes_of(view, str(request.method))
        if not set(wanted) & set(request.auth.scopes):
            raise MissingScope(f"This needs a key with the scope {' or '.join(wanted) or 'that nobody has'}.")
        return True


def scopes_of(view: Any, method: str) -> tuple[str, ...]:
    """The scopes of which any lets a key use a view by a method: ``view.scopes = {"GET": (Scope.READ,)}``."""
    named: dict[str, tuple[str, ...]] = getattr(view, "scopes", {})
    return tuple(str(each) for each in named.get("GET" if method == "HEAD" else method, ()))


def key_of(request: Request) -> ApiKey:
    """The key that a request came with."""
    assert isinstance(request.auth, ApiKey)  # the permission class let nobody else in
    return request.auth


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "nh_<prefix>_<secret>"}
