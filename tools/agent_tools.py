"""The tools that ship with nanohost."""

import json
import os
import time as clock
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field

from tools.outbound import bodies
from tools.outbound.client import Proxy, allowed, fetch
from tools.registry import tool

# Of the 3 s that http_get has, the client gets a little less, so that its own sentence arrives. Half a second of it is
# kept for making HTML readable, which may also take what the client did not use, up to a bound.
_SECONDS = 2.6
_READABLE_SECONDS = 0.5
_MAX_READABLE_SECONDS = 1.5

# Bytes read of a body. Half a megabyte of HTML may hold little text.
_MAX_BYTES = 256 * 1024
_MAX_HTML_BYTES = 512 * 1024

# Bytes of the text as JSON: with the rest, within TOOL_MAX_OUTPUT_BYTES unless that was lowered.
_MAX_TEXT_BYTES = 56_000


@tool(effects="read")
def time(timezone: str = "") -> str:
    """Return the current time in ISO 8601, and its timezone.

    Args:
        timezone: IANA name of a timezone, such as Europe/Berlin. Without one, the time here.
    """
    # The setting, which processes of tools are passed; they do without Django where they can.
    timezone = timezone or os.environ.get("TIME_ZONE") or "UTC"
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{timezone!r} is not the name of a timezone; use an IANA name such as Europe/Berlin."
        ) from None
    return f"{datetime.now(zone).isoformat(timespec='seconds')} {timezone}"


@tool(permissions=["NET_HTTP"], effects="read", timeout=3, untrusted=True)
def http_get(url: str, headers: dict[str, str] | None = None, readable: bool = False) -> dict[str, Any]:
    """Fetch a public web address with GET. Returns its status, contentType, url (after redirects) and text.

    Any status is a result, also 404 and 500. "cut": true means that the text goes on. Addresses in private networks are
    refused; the error names the rule.

    Args:
        url: The address, starting with http:// or https://.
        headers: Headers to send, such as {"Accept-Language": "de"}. On a redirect to another origin, all but Accept,
            Accept-Language and User-Agent are left out.
        readable: Return the text of an HTML page as a reader sees it, without its markup.
    """
    end = clock.monotonic() + _SECONDS
    policy = allowed()  # a process's first call reads the settings for it, which takes 0.2 s
    answer = fetch(
        url,
        headers=headers,
        seconds=end - clock.monotonic() - (_READABLE_SECONDS if readable else 0),
        most=_MAX_HTML_BYTES if readable else _MAX_BYTES,
        cut=True,
        policy=policy,
    )
    text, is_cut = bodies.text_of(answer.body, answer.content_type), answer.is_cut
    if text is None:
        size = f"more than {len(answer.body)}" if is_cut else f"{len(answer.body)}"
        text = f"[not text: {size} bytes of {bodies.media_type(answer.content_type) or 'an unnamed type'}]"
    elif readable and bodies.is_html(answer.content_type):
        from tools.readable import beginning  # its parser is large, and few calls need it
        from tools.readable import readable as as_readable

        is_cut = is_cut or beginning(text) != text
        made = as_readable(text, seconds=min(end - clock.monotonic(), _MAX_READABLE_SECONDS))
        text = "[this page takes too long to be made readable; fetch it with readable=false]" if made is None else made
    shown = _cut(text)
    result = {"status": answer.status, "contentType": answer.content_type[:200], "url": answer.url}
    if is_cut or len(shown) < len(text):
        result["cut"] = True
    return result | {"text": shown}


@tool(permissions=["NET_HTTP"], effects="read", timeout=12, untrusted=True, secrets=["BRAVE_API_KEY", "WEB_PROXY"])
def web_search(query: str, count: Annotated[int, Field(ge=1, le=10)] | None = None) -> str:
    """Search the web. Returns titles, addresses and snippets; web_fetch reads a page.

    Args:
        query: What to search for, in a few words.
        count: How many results; 5 if it is left out, unless the host says otherwise.
    """
    from tools.web import Engine

    most = count or int(os.environ.get("WEB_SEARCH_MAX_RESULTS") or 5)
    engine = Engine(
        policy=allowed(),
        key=os.environ.get("BRAVE_API_KEY", ""),
        searxng=os.environ.get("SEARXNG_URL", ""),
        proxy=_proxy(),
    )
    found = engine.search(query, count=most, seconds=10)
    return "\n".join(f"{number}. {each}" for number, each in enumerate(found, 1)) or "Nothing found."


@tool(permissions=["NET_HTTP"], effects="read", timeout=12, untrusted=True, secrets=["WEB_PROXY"])
def web_fetch(url: str, max_chars: Annotated[int, Field(ge=100, le=50_000)] = 50_000) -> dict[str, Any]:
    """Read a web page as text, without its markup. Returns its status, url (after redirects), contentType and text.

    "truncated": true means that the text goes on. Addresses in private networks are refused; the error names the rule.

    Args:
        url: The address, starting with http:// or https://.
        max_chars: How many characters of the text at most.
    """
    from tools.web import read_page

    page = read_page(url, max_chars=max_chars, policy=allowed(), seconds=10, proxy=_proxy())
    shown = _cut(page["text"])
    return page | {"text": shown} | ({"truncated": True} if len(shown) < len(page["text"]) else {})


def _proxy() -> Proxy | None:
    """The one that the host names for these two tools, if it names one."""
    address = os.environ.get("WEB_PROXY", "")
    return Proxy.of(address) if address else None


def _cut(text: str) -> str:
    """As much of a text as fits into a result."""
    while (size := len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))) > _MAX_TEXT_BYTES:
        text = text[: len(text) * _MAX_TEXT_BYTES // size]
    return text
