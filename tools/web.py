"""Searching the web and reading its pages, over the guarded client; for the tools web_search and web_fetch. No Django.

Two services are asked: Brave's API, which needs a key, and SearXNG, which somebody runs for themselves. What they and
pages say is bounded here, and untrusted for whoever reads it.
"""

import html
import json
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from tools.outbound import bodies
from tools.outbound.addresses import Policy, networks
from tools.outbound.client import Answer, Proxy, fetch

BRAVE = "https://api.search.brave.com/res/v1/web/search"

MAX_RESULTS = 10
MAX_QUERY = 400
MAX_PAGE_BYTES = 1 << 20
MAX_CHARS = 50_000

_MAX_ANSWER_BYTES = 512 * 1024
_MAX_TITLE, _MAX_SNIPPET, _MAX_URL = 200, 500, 1000
# Of the time of a fetch, kept for making a page readable.
_READABLE_SECONDS = 1.5
_TAG = re.compile(r"<[^<>]{0,200}>")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A result of a search."""

    title: str
    url: str
    snippet: str

    def __str__(self) -> str:
        return "\n   ".join(filter(None, [self.title or "(no title)", self.url, self.snippet]))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Who is asked: ``key`` of Brave's, or the address of a SearXNG, whose machine may then be a private one."""

    policy: Policy
    key: str = ""
    searxng: str = ""
    proxy: Proxy | None = None
    brave: str = BRAVE

    def search(self, query: str, *, count: int, seconds: float) -> list[Found]:
        """Raises ValueError, in words for a model, and :class:`tools.outbound.client.NotFetched`."""
        query = " ".join(query.split())
        if not query or len(query) > MAX_QUERY:
            raise ValueError(f"The query has {len(query)} characters; it needs 1 to {MAX_QUERY}.")
        if self.searxng:
            return _results(self._ask_searxng(query, seconds), ("results",), ("title", "url", "content"), count)
        if not self.key:
            raise ValueError("No search engine is set up: the host has neither BRAVE_API_KEY nor SEARXNG_URL.")
        answer = fetch(
            f"{self.brave}?{urlencode({'q': query, 'count': count})}",
            headers={"Accept": "application/json", "X-Subscription-Token": self.key},
            policy=self.policy,
            proxy=self.proxy,
            seconds=seconds,
            most=_MAX_ANSWER_BYTES,
        )
        return _results(_json(answer), ("web", "results"), ("title", "url", "description"), count)

    def _ask_searxng(self, query: str, seconds: float) -> Any:
        address = f"{self.searxng.rstrip('/')}/search?{urlencode({'q': query, 'format': 'json'})}"
        return _json(fetch(address, policy=_reaching(self.searxng), seconds=seconds, most=_MAX_ANSWER_BYTES))


def _reaching(address: str) -> Policy:
    """What reaches this one machine at this one port, though it may be private; the host's settings name it."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    private: list[Any] = []
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        raise ValueError("SEARXNG_URL leads nowhere: its name cannot be resolved.") from None
    for answer in found:
        with suppress(ValueError):  # a public one needs no leave
            private += networks([str(answer[4][0]).partition("%")[0]])
    return Policy(ports=frozenset({port}), private=tuple(private))


def _json(answer: Answer) -> Any:
    if answer.status != 200:
        why = {401: "its key is not accepted", 403: "it is not allowed", 429: "its limit is reached; try again later"}
        raise ValueError(f"The search engine answered {answer.status}: {why.get(answer.status, 'it has no results')}.")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ValueError("The search engine's answer is not JSON.") from None


def _results(said: Any, path: tuple[str, ...], names: tuple[str, str, str], count: int) -> list[Found]:
    for step in path:
        said = said.get(step) if isinstance(said, Mapping) else None
    found: list[Found] = []
    for each in said if isinstance(said, list) else ():
        if not isinstance(each, Mapping) or len(found) >= count:
            continue
        title, url, snippet = (each.get(name) for name in names)
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            found.append(
                Found(title=_plain(title, _MAX_TITLE), url=url[:_MAX_URL], snippet=_plain(snippet, _MAX_SNIPPET))
            )
    return found


def _plain(text: Any, most: int) -> str:
    """A text without markup, in one line."""
    if not isinstance(text, str):
        return ""
    plain = " ".join(html.unescape(_TAG.sub("", text[: 4 * most])).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def read_page(
    url: str, *, max_chars: int, policy: Policy, seconds: float, proxy: Proxy | None = None
) -> dict[str, Any]:
    """A page as a reader sees it: ``status``, ``url`` after redirects, ``contentType``, ``text`` and, if there is more
    of it, ``truncated``. Raises :class:`tools.outbound.client.NotFetched`."""
    end = time.monotonic() + seconds
    headers = {"Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5"}
    answer = fetch(
        url,
        headers=headers,
        policy=policy,
        proxy=proxy,
        seconds=seconds - _READABLE_SECONDS,
        most=MAX_PAGE_BYTES,
        cut=True,
    )
    text, is_cut = bodies.text_of(answer.body, answer.content_type), answer.is_cut
    if text is None:
        text = f"[not text: {len(answer.body)} bytes of {bodies.media_type(answer.content_type) or 'an unnamed type'}]"
    elif bodies.is_html(answer.content_type):
        from tools.readable import beginning, readable  # its parser is large

        is_cut = is_cut or beginning(text) != text
        made = readable(text, seconds=min(end - time.monotonic(), _READABLE_SECONDS))
        text = "[this page takes too long to be made readable]" if made is None else made
    result = {"status": answer.status, "url": answer.url, "contentType": answer.content_type[:200]}
    if is_cut or len(text) > max_chars:
        result["truncated"] = True
    return result | {"text": text[:max_chars]}
