"""Conversations without end: what was said is in the prompt, in the summary's range or in the log, and prompts fit."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from agent import llm, tokens
from agent.images import images_in
from agent.llm import openai
from agent.llm.anthropic import body_of
from agent.llm.base import ModelRequest
from agent.llm.providers import PROVIDERS
from agent.tokens import Correction, estimated, estimated_message, estimated_tools
from conversations.attachments.parts import SentFile
from conversations.engine import model_request
from conversations.engine.turns import claim_and_load
from conversations.models import Compaction, Conversation, Message, Turn
from memory import log
from tests.support.compacting import run
from tests.support.files import picture
from tests.support.openai_server import OpenAIServer, completion
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch) -> None:
    """Of models, by tests before."""
    monkeypatch.setattr(tokens, "correction", Correction())


@pytest.fixture
def prompts(monkeypatch) -> list[ModelRequest]:
    """What the scripted model is asked, in order."""
    asked: list[ModelRequest] = []
    client = llm.client("mock")
    complete = type(client).complete

    async def recorded(self: Any, request: ModelRequest, on_delta: Any = None) -> Any:
        asked.append(request)
        return await complete(self, request, on_delta)

    monkeypatch.setattr(type(client), "complete", recorded)
    return asked


@pytest.fixture
def chat(conversation, say) -> Callable[..., bool]:
    """Say something, and do what a worker then does; returns whether the conversation was compacted."""

    def turn(content: str, *files: SentFile) -> bool:
        (ended,) = settle([say(content, files=files)])
        assert ended.status == "succeeded", ended.error_code
        due = Compaction.objects.filter(conversation=conversation, status="queued").first()
        if due:
            run(due)
            due.refresh_from_db()
            assert due.status == "done", due.error
        return bool(due)

    return turn


def chats(asked: list[ModelRequest]) -> list[ModelRequest]:
    """Without those that ask for a compaction."""
    return [request for request in asked if not request.tool_choice]


def test_between_compactions_a_prompt_begins_with_the_one_before(chat, prompts, tool_settings):
    tool_settings("time")
    compacted = [chat(f"What time is it? {number}" if number % 7 == 3 else f"Word {number}") for number in range(60)]
    assert 2 <= sum(compacted) <= 10
    after_compaction = {f"Word {n + 1}" for n, was in enumerate(compacted) if was}
    after_compaction |= {f"What time is it? {n + 1}" for n, was in enumerate(compacted) if was}
    pairs = equal = 0
    for before, after in itertools.pairwise(chats(prompts)):
        newest = [message for message in after.messages if message["role"] == "user"][-1]["content"]
        if newest.split("\n")[0] in after_compaction and after.messages[-1]["role"] == "user":
            continue  # the first after a compaction is new
        pairs += 1
        sent = json.dumps([before.tools, before.messages])
        equal += json.dumps([after.tools, after.messages]).startswith(sent[:-2])
    assert equal == pairs > 50


def test_an_estimate_comes_within_15_percent_of_what_a_provider_counts(say, model):
    """One that counts 1.6 times as many tokens as we do."""
    errors = []
    for number in range(8):
        turn = say(f"Tell me about the roses of the year {number}, at some length, please.")
        _, context = claim_and_load(turn.pk, worker="worker-0")
        asking = model_request.Asking(context, None)
        Turn.objects.filter(pk=turn.pk).update(status="queued", lease_until=None)
        counted = sum(len(str(message["content"])) for message in asking.request.messages) * 2 // 5
        model.answer(completion("Fine.", usage={"prompt_tokens": counted, "completion_tokens": 1, "total_tokens": 1}))
        errors.append(abs(asking.estimated * tokens.correction.ratio(asking.request.model) - counted) / counted)
        settle([turn])
    assert errors[0] > 0.3
    assert max(errors[5:]) <= 0.15


def test_providers_that_count_otherwise_or_not_at_all():
    correction = Correction()
    correction.learn("m", estimated=100, reported=0)
    assert correction.ratio("m") == 1
    correction.learn("m", estimated=100, reported=150)
    assert correction.ratio("m") == 1.5
    correction.learn("m", estimated=100, reported=10**9)
    assert correction.ratio("m") == 3.25
    assert correction.ratio("other") == 1


# Every so many turns, a fact.
FACT_EVERY = 9


@pytest.mark.parametrize("turns", [120, pytest.param(1000, marks=pytest.mark.faults)])
@pytest.mark.timeout(900)
def test_every_planted_fact_is_in_the_prompt_in_the_summarys_range_or_found_by_recall(
    turns, chat, prompts, conversation, agent
):
    agent.context_window = 4000
    agent.output_reserve = 1000
    agent.save()
    facts: dict[str, int] = {}
    for number in range(turns):
        planted = number % FACT_EVERY == 0
        fact = f"fact{number}zebra"
        filler = "and so on " * (number % 37)
        chat(f"The code of drawer {number} is {fact}. {filler}" if planted else f"Talk {number}. {filler}")
        if planted:
            facts[fact] = Message.objects.filter(conversation=conversation, content__contains=fact).first().seq
        request = chats(prompts)[-1]
        cost = estimated_tools(request.tools) + sum(map(estimated_message, request.messages))
        assert cost * tokens.correction.ratio(request.model) <= agent.prompt_tokens()
        if planted or number == turns - 1:
            lost = [each for each, seq in facts.items() if not is_kept(each, seq, request, conversation)]
            assert lost == []


def is_kept(fact: str, seq: int, request: ModelRequest, conversation: Conversation) -> bool:
    """In the prompt; or in the range of the summary, and found by the tool that recalls, which says where it stood."""
    if any(fact in str(message["content"]) for message in request.messages):
        return True
    through = Conversation.objects.values_list("consolidated_through", flat=True).get(pk=conversation.pk)
    found = log.recall(agent="default", owner_id=conversation.owner_id, query=fact, today=timezone.localdate())
    return seq <= through and any(fact in each.content and each.first_seq <= seq <= each.last_seq for each in found)


def test_tools_count_in_the_budget(chat, prompts, agent, tool_settings):
    tool_settings("time")
    agent.context_window, agent.output_reserve = 1400, 400
    agent.save()
    for number in range(12):
        chat(f"Word {number} " + "and so on " * 20)
    last = chats(prompts)[-1]
    assert estimated_tools(last.tools) > 50
    cost = estimated_tools(last.tools) + sum(map(estimated_message, last.messages))
    assert cost * tokens.correction.ratio(last.model) <= 1000


def test_a_server_of_ours_takes_every_prompt(chat, model):
    """It refuses what breaks the chat format's rules."""
    assert isinstance(model, OpenAIServer)
    for number in range(30):
        chat(json.dumps({"script": [{"call": [{"name": "time"}]}, {"say": f"{number}"}]}))


# --- what a provider can have cached -----------------------------------------------------------------------------

QUESTION = "What can you tell me about the roses of that year, and what became of them afterwards? " * 3

# The share of a prompt's tokens that is a byte-equal beginning, compactions included; in percent.
WANTED = 90


def as_sent_to_openai(request: ModelRequest) -> str:
    body = json.loads(openai.body_of(request, "", "max_tokens", PROVIDERS["openai"]))
    return json.dumps([body.get("tools"), body["messages"]])


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


def sent_with(number: int, pictures: int) -> list[SentFile]:
    """Files of a turn: pictures of its own, or one with every third question, and a text with every tenth."""
    made = [picture(colour=(number, each, 9)) for each in range(pictures if number % 3 == 0 or pictures > 1 else 0)]
    sent = [SentFile(name=f"{number}.png", data=each) for each in made]
    return sent + ([SentFile(name="a.txt", data=f"What they said in {number}.".encode())] if number % 10 == 0 else [])


@pytest.mark.parametrize(
    ("pictures", "wanted"),
    [(1, WANTED), (2, 80)],  # some at a time have to be left out then; one at a time, it were 56
    ids=["some pictures", "more pictures than a request may have"],
)
def test_most_of_each_prompt_is_the_beginning_of_the_one_before(chat, prompts, agent, tool_settings, pictures, wanted):
    """Over 60 turns, of which some call a tool and some bring files, with compactions between them."""
    tool_settings("time")
    agent.documents = {"AGENTS": "Be patient. " * 400}
    agent.save()
    asks = ("What time is it?" if number % 7 == 3 else QUESTION for number in range(60))
    compacted = [chat(f"{number}. {each}", *sent_with(number, pictures)) for number, each in enumerate(asks)]
    assert sum(compacted) >= 2
    asked = chats(prompts)
    assert (max(len(list(images_in(request.messages))) for request in asked) >= 20) is (pictures > 1)
    assert share([as_sent_to_openai(request) for request in asked]) >= wanted
    assert share([as_sent_to_anthropic(request) for request in asked]) >= wanted
