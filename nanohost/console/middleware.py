"""What pages of the console have and the API has not: sessions, users, messages, a policy for browsers; and no known
secret, whatever rows they are made of.

Each is kept to the console's addresses: the API pays for none of it (docs/decisions/console-policy.md).
"""

from typing import Any

from csp.middleware import CSPMiddleware
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from nanohost.accounts import audit
from nanohost.lib.admin import SHOWN_ONCE
from nanohost.lib.redaction import redact_known, redact_known_html

CONSOLE = "/admin/"
CHAT = "/chat/"
DOCS = "/api/docs"

# Of a form's body, in bytes, until somebody has signed in.
MAX_OF_STRANGERS = 64 * 1024


class _OfConsole:
    """Before a middleware, it keeps it to the console's addresses."""

    get_response: Any
    pages: tuple[str, ...] = (CONSOLE, CHAT)

    def __call__(self, request: HttpRequest) -> Any:
        if not request.path_info.startswith(self.pages):
            return self.get_response(request)
        return super().__call__(request)  # type: ignore[misc]  # the middleware it stands before


class Sessions(_OfConsole, SessionMiddleware):
    """Django's."""


class LargeForms(_OfConsole):
    """Refuses large forms of whoever has not signed in: the check against forged requests would read them, whoever
    sends them, and 1 MB takes a second of the processor."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        is_large = int(request.META.get("CONTENT_LENGTH") or 0) > MAX_OF_STRANGERS
        if is_large and request.path_info.startswith(self.pages) and SESSION_KEY not in request.session:
            said = f"Sign in first: until then, a form may have {MAX_OF_STRANGERS} bytes."
            return HttpResponse(said, status=413, content_type="text/plain; charset=utf-8")
        return self.get_response(request)


class Users(_OfConsole, AuthenticationMiddleware):
    """Django's."""


class Actors:
    """What is recorded in the audit log meanwhile was done by whoever is signed in."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        if not request.path_info.startswith((CONSOLE, CHAT)):
            return self._get_response(request)
        user = request.user
        with audit.acting(f"user {user.get_username()}" if user.is_authenticated else "somebody"):
            return self._get_response(request)


class Messages(_OfConsole, MessageMiddleware):
    """Django's. To be prepared for what the next page is told took a sixteenth of a web node's time."""


class Policy(_OfConsole, CSPMiddleware):
    """``CONTENT_SECURITY_POLICY``, for the API's documentation as well."""

    pages = (CONSOLE, CHAT, DOCS)


class Redaction(_OfConsole, MiddlewareMixin):
    """Takes known secrets out of pages. The form of whoever may change a row has it as it is: what stands in a form is
    stored. So has the page that shows a new secret once. (Files are made in parts, by what takes the secrets out
    itself.)"""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        kind = response.get("Content-Type", "").partition(";")[0]
        redacted = {"text/html": redact_known_html, "application/json": redact_known}.get(kind)
        if redacted and not response.streaming and not _may_be_changed(response):
            page = response.content.decode(response.charset)
            response.content = redacted(page).encode(response.charset)
        return response


def _may_be_changed(response: HttpResponse) -> bool:
    """Whether it is the form of a row, for somebody who may change it; or shows whoever made a secret that secret."""
    context = getattr(response, "context_data", None) or {}
    if SHOWN_ONCE in context:
        return True
    if "adminform" not in context:
        return False
    return bool(context["has_change_permission" if context["change"] else "has_add_permission"])
