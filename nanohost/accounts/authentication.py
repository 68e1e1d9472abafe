"""Recognising who calls the API."""

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from nanohost.accounts.models import ApiKey
from nanohost.lib.errors import NotAuthenticated


class ApiKeyAuthentication(BaseAuthentication):
    """``Authorization: Bearer nh_<prefix>_<secret>``; ``request.user`` becomes the key's owner."""

    def authenticate(self, request: Request) -> tuple[object, ApiKey] | None:
        """None without a bearer token, so that open routes stay open; raises for one that is not known."""
        scheme, _, token = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = ApiKey.objects.recognise(token.strip())
        if key is None:
            raise NotAuthenticated("This API key is not known, has expired or was revoked.")
        key.note_use()
        return key.owner, key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "nh_<prefix>_<secret>"}
