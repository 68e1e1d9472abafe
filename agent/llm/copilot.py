"""GitHub Copilot: Chat Completions, with a token that lasts for half an hour.

Who signs in gets a token of GitHub's (``gho_…``), which stays valid. For it, GitHub gives tokens of Copilot, which are
what its API takes. They are asked for when the first call is made, shortly before they end, and once if the API refuses
one; each process has its own, since asking for one ends none of the others. A token of another form is one of
Copilot's already, and is sent as it is.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

import httpx2
from django.conf import settings

from agent import errors
from agent.llm.answers import MALFORMED, error_of, parsed
from agent.llm.base import Completion, Delta, ModelRequest, OnDelta
from agent.llm.connections import BROKEN, broken
from agent.llm.openai import OpenAIClient
from agent.llm.providers import Access

# How GitHub's tokens begin: of apps, of people who have signed in, and the two forms that people make themselves.
_OF_GITHUB = ("gho_", "ghu_", "ghp_", "github_pat_")

# Seconds before a token's end from which it is asked for anew; and how long one is taken to last that does not say.
RENEW_BEFORE, USUAL_SECONDS = 120.0, 1200.0


class CopilotClient(OpenAIClient):
    """See the module."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._signed_in = access.key if access.key.startswith(_OF_GITHUB) else ""
        self._ends_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        await self._renew()
        used, has_said = self._access.key, False

        def said(delta: Delta) -> None:
            nonlocal has_said
            has_said = True
            assert on_delta
            on_delta(delta)

        try:
            return await super().complete(request, said if on_delta else None)
        except errors.LlmAuthError:
            # It may have been withdrawn before its time.
            if not self._signed_in or has_said:
                raise
            await self._renew(instead_of=used)
            return await super().complete(request, on_delta)

    async def list_models(self) -> list[str]:
        """See :class:`OpenAIClient`."""
        await self._renew()
        return await super().list_models()

    async def _renew(self, instead_of: str = "") -> None:
        """Ask for a token, if there is none that lasts, or if there is none but ``instead_of``."""
        if not self._signed_in:
            return
        async with self._one_at_a_time:
            if time.monotonic() < self._ends_at and self._access.key != instead_of:
                return
            token, seconds = await self._asked_for()
            self.use(replace(self._access, key=token))
            self._ends_at = time.monotonic() + seconds - RENEW_BEFORE

    async def _asked_for(self) -> tuple[str, float]:
        """A token, and for how many seconds it lasts; raises :class:`agent.errors.LlmError`."""
        headers = {
            "Authorization": f"token {self._signed_in}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "nanohost",
            **self._access.headers,
        }
        url = settings.GITHUB_COPILOT_TOKEN_URL
        request = httpx2.Request("GET", url, headers=headers, extensions={"timeout": {"connect": 10.0, "read": 10.0}})
        try:
            answer = await self._connections.transport().handle_async_request(request)
            body = await answer.aread()
        except BROKEN as error:
            raise broken(error) from None
        if answer.status_code == 404:  # GitHub's word for who has no Copilot
            raise errors.LlmAuthError("HTTP 404 where a token of Copilot was asked for")
        if answer.status_code != 200:
            raise error_of(status=answer.status_code, codes=set(), words="")
        try:
            return _token_in(parsed(body))
        except MALFORMED:
            raise errors.LlmBadResponse("no token of Copilot") from None


def _token_in(answer: Any) -> tuple[str, float]:
    token, ends_at = answer["token"], answer.get("expires_at")
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and 0 < len(token) <= 8192):
        raise ValueError(token)
    seconds = ends_at - time.time() if isinstance(ends_at, int | float) else USUAL_SECONDS
    # GitHub's clock may be another; it gives none for less than some minutes.
    return token, min(max(seconds, RENEW_BEFORE + 60), 24 * 3600)
