"""GitHub Copilot: tokens are asked for with GitHub's own, kept while they last, and renewed."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent import errors, llm
from agent.llm.base import Delta, ModelRequest
from tests.support.dialects import Dialects
from tests.support.openai_server import completion

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database")

GITHUBS, USER = "gho_canary0123456789", {"role": "user", "content": "What time is it?"}


class GitHub:
    """Gives the tokens ``tid=1``, ``tid=2`` and so on for the one of GitHub's, or answers what it is told."""

    def __init__(self) -> None:
        self.given = 0
        self.lasts: object = 1800.0
        self.told: tuple[int, bytes] | None = None
        github = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                status, body = github.answer(self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/copilot_internal/v2/token"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, authorization: str) -> tuple[int, bytes]:
        if self.told:
            return self.told
        if authorization != f"token {GITHUBS}":
            return 401, b"{}"
        self.given += 1
        ends_at = time.time() + self.lasts if isinstance(self.lasts, float) else self.lasts
        return 200, json.dumps({"token": f"tid={self.given};exp=9", "expires_at": ends_at}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def running() -> Iterator[Dialects]:
    server = Dialects().start()
    yield server
    server.stop()


@pytest.fixture
def server(running: Dialects, settings: Any) -> Dialects:
    running.forget()
    running.key = "tid=1;exp=9"
    settings.LLM_PROVIDER, settings.LLM_BASE_URLS = "auto", {"github_copilot": running.url_of("github_copilot")}
    return running


@pytest.fixture
def github(settings: Any) -> Iterator[GitHub]:
    made = GitHub()
    settings.GITHUB_COPILOT_TOKEN, settings.GITHUB_COPILOT_TOKEN_URL = GITHUBS, made.url
    yield made
    made.close()


def ask(times: int = 1, *, at_once: bool = False, before_last: Any = None, streamed: bool = False) -> list[str]:
    """Of one process, after or beside one another."""

    async def once() -> str:
        request = ModelRequest(model="github_copilot/gpt-4.1", messages=[USER])
        deltas: list[Delta] = []
        return (await llm.ask(request, seconds=30, on_delta=deltas.append if streamed else None)).content

    async def asking() -> list[str]:
        llm.forget_clients()
        try:
            if at_once:
                return list(await asyncio.gather(*[once() for _ in range(times)]))
            answers = []
            for number in range(times):
                if before_last and number == times - 1:
                    before_last()
                answers.append(await once())
            return answers
        finally:
            await llm.close_clients()

    return asyncio.run(asking())


@pytest.mark.parametrize("at_once", [False, True])
def test_one_token_is_asked_for_and_kept_while_it_lasts(server, github, at_once):
    server.answer(*[completion("Noon.")] * 5)
    assert ask(5, at_once=at_once) == ["Noon."] * 5
    assert github.given == 1
    assert {each.headers["authorization"] for each in server.requests} == {"Bearer tid=1;exp=9"}
    assert GITHUBS not in str([each.headers for each in server.requests])


@pytest.mark.parametrize("streamed", [False, True])
def test_it_is_renewed_before_it_ends(server, github, streamed, monkeypatch):
    server.answer(*[completion("Noon.")] * 2)
    clock, passed = time.monotonic, [0.0]
    monkeypatch.setattr("agent.llm.copilot.time.monotonic", lambda: clock() + passed[0])

    def half_an_hour() -> None:
        passed[0], server.key = 1700.0, "tid=2;exp=9"

    assert ask(2, before_last=half_an_hour, streamed=streamed) == ["Noon."] * 2
    assert (github.given, server.requests[-1].headers["authorization"]) == (2, "Bearer tid=2;exp=9")


@pytest.mark.parametrize("streamed", [False, True])
def test_one_that_was_withdrawn_is_renewed_once(server, github, streamed):
    server.key = "tid=2;exp=9"
    server.answer(completion("Noon."))
    assert ask(streamed=streamed) == ["Noon."]
    server.key = "of somebody else"
    with pytest.raises(errors.LlmAuthError):
        ask(streamed=streamed)
    assert github.given == 4


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ((401, b"{}"), errors.LlmAuthError),
        ((404, b"{}"), errors.LlmAuthError),
        ((500, b"Words"), errors.LlmUnavailable),
        ((200, b"<html>"), errors.LlmBadResponse),
        ((200, b'{"token": 7}'), errors.LlmBadResponse),
        ((200, b'{"token": "a\\r\\nX-Evil: 1"}'), errors.LlmBadResponse),
        ((200, b"[]"), errors.LlmBadResponse),
    ],
)
def test_what_goes_wrong_has_a_name_and_shows_no_token(server, github, told, error):
    github.told = told
    with pytest.raises(error) as raised:
        ask()
    assert GITHUBS not in repr(raised.value) + raised.value.detail
    assert server.requests == []


def test_github_that_is_away_has_a_name(server, github):
    github.close()
    with pytest.raises(errors.LlmUnavailable):
        ask()


@pytest.mark.parametrize("lasts", [None, "soon", 1.0, -5.0])
def test_a_time_that_is_none_is_not_trusted(server, github, lasts):
    github.lasts = lasts
    server.answer(*[completion("Noon.")] * 2)
    assert ask(2) == ["Noon."] * 2
    assert github.given == 1


def test_a_token_of_copilot_s_own_is_sent_as_it_is(server, github, settings):
    settings.GITHUB_COPILOT_TOKEN = "tid=1;exp=9"
    server.answer(completion("Noon."))
    assert (ask(), github.given) == (["Noon."], 0)
