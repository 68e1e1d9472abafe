"""How much of its prompts a provider could serve from its cache: what two prompts in a row have in common at the start.

Providers cache prompts by their beginning, the tools' descriptions first.
"""

import itertools
import json
import operator
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2

from tests.bench import hosts
from tests.support.hosts import KEY
from tests.support.openai_server import OpenAIServer

QUESTION = "What can you tell me about the roses of that year, and what became of them afterwards? " * 3


def cached_share(directory: Path, *, turns: int, documents: int) -> float:
    """Percent of the characters of a conversation's prompts, those after its compactions included; as shares go, that
    is as good as tokens. The answers repeat the questions; the agent has so many characters of ``documents``."""
    server = OpenAIServer().start()
    try:
        with (
            hosts.embedded(directory, **hosts.asks(server.url.removesuffix("/v1"))) as host,
            httpx2.Client(
                base_url=f"{host.address}/api/v1", headers={"Authorization": f"Bearer {KEY}"}, timeout=30
            ) as api,
        ):
            with closing(sqlite3.connect(directory / "data" / "nanohost.sqlite3")) as database:
                written = json.dumps({"AGENTS": "Be patient. " * (documents // 12)})
                database.execute("UPDATE agent_agent SET documents = ?", [written])
                database.commit()
            conversation = api.post("/conversations", json={}).json()["conversationId"]
            for number in range(turns):
                api.post(f"/conversations/{conversation}/chat", json={"message": f"{number}. {QUESTION}"})
        prompts = [
            json.dumps([request.body.get("tools"), request.body["messages"]])
            for request in server.requests
            if "tool_choice" not in request.body
        ]
    finally:
        server.stop()
    return 100 * sum(map(_in_common, prompts, prompts[1:])) / sum(map(len, prompts[1:]))


def _in_common(before: str, after: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in itertools.takewhile(bool, map(operator.eq, before, after)))
