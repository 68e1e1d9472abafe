"""What pages of the console have and the API has not: sessions, users, messages, a policy for browsers.

Each is another's, kept to the console's addresses: the API pays for none of it (docs/decisions/console-policy.md).
"""

from typing import Any

from csp.middleware import CSPMiddleware
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest

CONSOLE = "/admin/"
DOCS = "/api/docs"


class _OfConsole:
    """Before a middleware, it keeps it to the console's addresses."""

    get_response: Any
    pages: tuple[str, ...] = (CONSOLE,)

    def __call__(self, request: HttpRequest) -> Any:
        if not request.path_info.startswith(self.pages):
            return self.get_response(request)
        return super().__call__(request)  # type: ignore[misc]  # the middleware it stands before


class Sessions(_OfConsole, SessionMiddleware):
    """Django's."""


class Users(_OfConsole, AuthenticationMiddleware):
    """Django's."""


class Messages(_OfConsole, MessageMiddleware):
    """Django's. To be prepared for what the next page is told took a sixteenth of a web node's time."""


class Policy(_OfConsole, CSPMiddleware):
    """``CONTENT_SECURITY_POLICY``, for the API's documentation as well."""

    pages = (CONSOLE, DOCS)
