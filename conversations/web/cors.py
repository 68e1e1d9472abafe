"""CORS, for pages of other origins that call OpenAI's API from a browser: off unless CORS_ALLOWED_ORIGINS names some.

Nothing but ``/v1`` is opened, and no cookie is ever let through: a page needs a key of its own.
"""

import re
from collections.abc import Mapping, Sequence

from nanohost.lib.openai_errors import is_of_openai_api

EVERY_ORIGIN = "*"

Headers = list[tuple[bytes, bytes]]

_METHODS = b"GET, POST, DELETE"
# What a page may read of an answer.
_EXPOSED = b"x-request-id, x-conversation-id, x-should-retry, retry-after"
# As browsers write it: lower case, names of headers, commas. The packages add headers of theirs, x-stainless-…, whose
# list grows, so those are allowed that are asked for; * would not stand for Authorization.
_NAMES = re.compile(rb"[a-z0-9-]{1,64}(?:, ?[a-z0-9-]{1,64}){0,63}")
_PREFLIGHT_SECONDS = b"600"


def origin_headers(path: str, headers: Mapping[bytes, bytes], origins: Sequence[str]) -> Headers:
    """What an answer says to the page that asked."""
    if not origins or not is_of_openai_api(path):
        return []
    origin = headers.get(b"origin", b"")
    if EVERY_ORIGIN in origins:
        allowed = b"*"
    elif origin.decode("latin-1") in origins:
        allowed = origin
    else:
        return [(b"vary", b"Origin")]
    return [
        (b"access-control-allow-origin", allowed),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"Origin"),
    ]


def preflight_headers(method: str, headers: Mapping[bytes, bytes], opened: Headers) -> Headers | None:
    """What a browser is answered that asks, without a key, whether a page may; None if it does not ask that, or the
    page may not. ``opened``: of :func:`origin_headers`."""
    if method != "OPTIONS" or b"access-control-request-method" not in headers:
        return None
    if not any(name == b"access-control-allow-origin" for name, _ in opened):
        return None
    wanted = headers.get(b"access-control-request-headers", b"").lower()
    allowed = [(b"access-control-allow-headers", wanted)] if _NAMES.fullmatch(wanted) else []
    return [(b"access-control-allow-methods", _METHODS), *allowed, (b"access-control-max-age", _PREFLIGHT_SECONDS)]
