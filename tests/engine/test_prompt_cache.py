"""How much of a prompt a provider can have cached: what it has in common, from its beginning, with the one before."""

import itertools
import json
from typing import Any

import pytest

from agent.llm.anthropic import body_of
from agent.llm.base import ModelRequest
from agent.tokens import estimated
from tests.engine.test_long_conversations import chat, chats, prompts  # noqa: F401 -- fixtures

pytestmark = pytest.mark.django_db(transaction=True)

QUESTION = "What can you tell me about the roses of that year, and what became of them afterwards? " * 3

# The share of a prompt's tokens that is a byte-equal beginning, compactions included; in percent.
WANTED = 90


def as_sent_to_openai(request: ModelRequest) -> str:
    return json.dumps([request.tools, request.messages])


def as_sent_to_anthropic(request: ModelRequest) -> str:
    """As its cache sees it: where the marks stand is no part of it."""
    body = body_of(request)
    return json.dumps([_unmarked(body.get(name)) for name in ("tools", "system", "messages")])


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name != "cache_control"}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


def share(sent: list[str]) -> float:
    """Percent of the tokens of all prompts but the first."""
    common = total = 0
    for before, after in itertools.pairwise(sent):
        equal = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))))
        common += estimated(after[:equal])
        total += estimated(after)
    return 100 * common / total


def test_most_of_each_prompt_is_the_beginning_of_the_one_before(chat, prompts, agent, tool_settings):  # noqa: F811
    """Over 60 turns, of which some call a tool, with compactions between them."""
    tool_settings("time")
    agent.documents = {"AGENTS": "Be patient. " * 400}
    agent.save()
    compacted = [chat(f"{n}. {'What time is it?' if n % 7 == 3 else QUESTION}") for n in range(60)]
    assert sum(compacted) >= 2
    asked = chats(prompts)
    assert share([as_sent_to_openai(request) for request in asked]) >= WANTED
    assert share([as_sent_to_anthropic(request) for request in asked]) >= WANTED
