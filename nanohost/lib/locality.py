"""Where a request comes from; and whether by somebody at this machine, who is shown what nobody else may see."""

import ipaddress
from typing import Any

from django.conf import settings
from django.http import HttpRequest

# What clients send of themselves. Proxies add others, and there is no complete list of those (X-Forwarded-For,
# Forwarded, Via, X-Real-IP, CF-Connecting-IP, True-Client-IP, …): whatever is not named here may be one's.
_OF_CLIENTS = frozenset(
    {
        *("accept", "accept-charset", "accept-encoding", "accept-language", "authorization", "cache-control"),
        *(
            "connection",
            "content-length",
            "content-type",
            "cookie",
            "dnt",
            "host",
            "if-modified-since",
            "if-none-match",
        ),
        *("idempotency-key", "last-event-id", "prefer", "range", "x-api-key"),
        *("origin", "pragma", "priority", "referer", "te", "upgrade-insecure-requests", "user-agent", "x-csrftoken"),
        *("x-prometheus-scrape-timeout-seconds", "x-request-id", "x-requested-with"),
    }
)
_HERE = ("localhost", "127.0.0.1", "[::1]")


def is_of_this_machine(request: HttpRequest) -> bool:
    """Whether it was asked from here and, as far as that can be told, not passed on by a proxy that stands here. Never
    in production or with proxies: there, all that the world asks may come from the proxy's address."""
    if settings.PRODUCTION or settings.TRUSTED_PROXIES:
        return False
    # The one trace that some proxies leave, nginx among them as it long was by default: no client of today speaks it.
    if request.META.get("SERVER_PROTOCOL") != "HTTP/1.1":
        return False
    if not all(name in _OF_CLIENTS or name.startswith("sec-") for name in map(str.lower, request.headers)):
        return False
    if _without_port(request.headers.get("Host", "")) not in _HERE:  # proxies pass on the name they were called by
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


def address_of(request: Any) -> str:
    """The address a request comes from: the connection's, or what the outermost proxy of ours has seen.

    Each proxy appends whom it has seen to X-Forwarded-For; what stands further to the left was sent by the client.
    """
    seen = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if settings.TRUSTED_PROXIES else []
    connected: str = request.META.get("REMOTE_ADDR", "")
    found: str = [*seen, connected][-1 - min(settings.TRUSTED_PROXIES, len(seen))].strip()
    return found


def _without_port(host: str) -> str:
    name, separator, port = host.lower().rpartition(":")
    return name if separator and port.isdigit() else host.lower()
