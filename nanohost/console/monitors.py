"""Who may read how the host is, such as Prometheus: this machine, and whoever knows METRICS_TOKEN."""

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from nanohost.lib.locality import is_of_this_machine


def refusal(request: HttpRequest) -> HttpResponse | None:
    """The answer to who may not read how the host is; None to this machine, and to whoever knows the token."""
    if _knows_the_token(request) or is_of_this_machine(request):
        return None
    return HttpResponse(_why_refused(), status=403, content_type="text/plain")


def _why_refused() -> str:
    others = "clients that send METRICS_TOKEN as a bearer token"
    if not settings.METRICS_TOKEN:
        others += "; none is set: set one, and restart"
    if settings.PRODUCTION or settings.TRUSTED_PROXIES:
        return f"In production, and behind proxies, the metrics are for {others}.\n"
    return f"The metrics are for this machine, with no proxy between, and for {others}.\n"


def _knows_the_token(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    expected = settings.METRICS_TOKEN.encode()
    return bool(expected) and scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), expected)
