"""Further models of an agent, asked when its own fails; and providers that are left alone while they fail for all."""

import json
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agent import llm
from agent.llm.breaker import FAILURES, breaker
from agent.models import ProviderOutage
from agent.spending import book
from conversations.engine import inbox, turn_control
from conversations.engine.compacting.compaction import MAX_FAILURES
from conversations.events import answers
from conversations.models import Compaction, Message, Turn
from conversations.statuses import TurnStatus
from memory.models import MemoryVersion
from nanohost.console import attention
from tests.support.compacting import compact, run, saves
from tests.support.dialects import Dialects, message, refused, text
from tests.support.openai_server import Reply, call, completion
from tests.support.retrying import let_pass
from tests.support.working import advance, settle

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def server(settings) -> Any:
    running = Dialects(key=KEY).start()
    settings.LLM_PROVIDER, settings.LLM_MODEL_DEFAULT = "auto", "groq/large"
    settings.LLM_BASE_URLS = {name: running.url_of(name) for name in ("groq", "anthropic", "deepseek")}
    settings.GROQ_API_KEY = settings.ANTHROPIC_API_KEY = settings.DEEPSEEK_API_KEY = KEY
    yield running
    running.stop()
    llm.forget_clients()


@pytest.fixture
def fallbacks(agent, conversation) -> Any:
    def set_to(*models: str) -> None:
        agent.fallback_models = list(models)
        agent.full_clean(exclude=["retention"])
        agent.save()
        conversation.agent.refresh_from_db()

    return set_to


def asked(server: Dialects) -> list[str]:
    return [f"{request.path.split('/')[1]}/{request.body['model']}" for request in server.requests]


DOWN = refused("groq", 503)


def test_a_failure_that_outlasts_its_retries_goes_to_the_next_model(server, say, fallbacks, settings):
    fallbacks("claude-opus-4-5", "deepseek/deepseek-chat")
    server.down = {"groq"}
    server.answer(message(text("Here I am.")))
    turn, began, waited = say("Hello"), time.monotonic(), 0.0
    while (ended := advance(turn)).status == TurnStatus.WAITING:
        waited += let_pass(turn)
    assert waited + time.monotonic() - began >= settings.LLM_FALLBACK_SECONDS
    assert (ended.status, ended.model, ended.fallback_model) == (TurnStatus.SUCCEEDED, "groq/large", "claude-opus-4-5")
    assert ended.fallback_reason == "groq/large has failed: llm_unavailable (HTTP 503)"
    assert asked(server)[-3:] == ["groq/large", "groq/large", "anthropic/claude-opus-4-5"]
    assert (ended.retries, ended.retry_code) == (0, "")


def test_which_one_has_answered_and_why_is_told(server, say, fallbacks, admin_client):
    fallbacks("claude-opus-4-5")
    server.answer(refused("groq", 413), message(text("Here I am.")))
    (turn,) = settle([say("Hello")])
    answer = Message.objects.get(turn=turn, role="assistant")
    assert (answer.usage["model"], answer.usage["provider"]) == ("claude-opus-4-5", "anthropic")
    reason = "groq/large has failed: llm_context_too_long (HTTP 413)"
    (told,) = answers.turns_as_json([turn])
    assert (told["model"], told["fallback"]) == ("groq/large", {"model": "claude-opus-4-5", "reason": reason})
    html = admin_client.get(f"/admin/conversations/conversation/{turn.conversation_id}/transcript/").content.decode()
    assert reason in html
    assert reason in admin_client.get(f"/admin/conversations/turn/{turn.pk}/change/").content.decode()


def test_a_prompt_too_long_goes_to_the_next_at_once_and_the_turn_stays_there(server, say, fallbacks, tool_settings):
    tool_settings("time")
    fallbacks("deepseek/deepseek-chat", "claude-opus-4-5")
    server.answer(refused("groq", 413), completion(None, tool_calls=[call("time")]), completion("Noon."))
    (turn,) = settle([say("What time is it?")])
    assert turn.status == TurnStatus.SUCCEEDED
    assert asked(server) == ["groq/large", "deepseek/deepseek-chat", "deepseek/deepseek-chat"]


def test_the_next_turn_begins_with_its_own_model(server, say, fallbacks):
    fallbacks("deepseek/deepseek-chat")
    server.answer(refused("groq", 413), completion("One."), completion("Two."))
    settle([say("Hello")])
    (turn,) = settle([say("And now?")])
    assert (turn.fallback_model, asked(server)[-1]) == ("", "groq/large")


def test_when_the_last_one_has_no_room_the_turn_fails(server, say, fallbacks):
    fallbacks("deepseek/deepseek-chat", "groq/large", "claude-opus-4-5")
    server.answer(refused("groq", 413), refused("deepseek", 413), refused("anthropic", 413))
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "llm_context_too_long")
    assert asked(server) == ["groq/large", "deepseek/deepseek-chat", "anthropic/claude-opus-4-5"]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_is_no_outage_fails_as_before(server, say, fallbacks, status):
    fallbacks("claude-opus-4-5")
    server.answer(refused("groq", status))
    (turn,) = settle([say("Hello")])
    assert (turn.status, asked(server)) == (TurnStatus.FAILED, ["groq/large"])


def test_a_longer_wait_than_that_goes_to_the_next_at_once(server, say, fallbacks):
    fallbacks("claude-opus-4-5")
    server.answer(refused("groq", 429, headers={"Retry-After": "300"}), message(text("Here I am.")))
    (turn,) = settle([say("Hello")])
    assert turn.fallback_reason == "groq/large has failed: llm_rate_limited (HTTP 429 rate_limit_exceeded)"


# --- compactions -------------------------------------------------------------------------------------------------


SAVED = saves()


def test_a_compaction_asks_the_next_model_where_a_turn_would(server, fallbacks, fill, conversation):
    fallbacks("deepseek/deepseek-chat")
    fill(44)
    server.answer(refused("groq", 413), SAVED)
    row = compact(conversation)
    assert (row.status, row.model, row.fallback_model) == ("done", *["deepseek/deepseek-chat"] * 2)
    assert row.fallback_reason == "groq/large has failed: llm_context_too_long (HTTP 413)"
    assert asked(server) == ["groq/large", "deepseek/deepseek-chat"]
    assert MemoryVersion.objects.get().model == "deepseek/deepseek-chat"


def test_an_outage_is_waited_for_first_and_then_another_model_is_asked(server, fallbacks, fill, conversation, settings):
    fallbacks("deepseek/deepseek-chat")
    fill(44)
    server.answer(DOWN, DOWN)
    row = compact(conversation, times=2)
    assert (row.status, row.retries, row.failures, row.fallback_model) == ("queued", 2, 0, "")
    since = row.retrying_since - timedelta(seconds=settings.LLM_FALLBACK_SECONDS)
    Compaction.objects.filter(pk=row.pk).update(retrying_since=since, run_after=None)
    server.answer(DOWN, SAVED)
    run(row)
    row.refresh_from_db()
    assert (row.status, row.model, row.retries) == ("done", "deepseek/deepseek-chat", 0)
    assert asked(server) == ["groq/large"] * 3 + ["deepseek/deepseek-chat"]


def test_what_would_end_in_a_stub_goes_to_the_next_model_before(server, fallbacks, fill, conversation):
    fallbacks("deepseek/deepseek-chat")
    fill(44)
    nonsense = Reply(body=b"<html>", headers={"Content-Type": "text/html"})
    server.answer(*[nonsense] * MAX_FAILURES, SAVED)
    row = compact(conversation, times=MAX_FAILURES)
    assert (row.status, row.is_stub, row.model) == ("done", False, "deepseek/deepseek-chat")


def test_what_the_first_model_has_made_is_kept_and_the_last_is_named(server, fallbacks, fill, conversation, agent):
    """A part that takes several calls: the next model goes on where the first one has ended."""
    fallbacks("deepseek/deepseek-chat")
    agent.context_window, agent.output_reserve = 4096, 512
    agent.save()
    conversation.agent.refresh_from_db()
    fill(60, "Remember these words, of which there are many, and each is to be kept: " * 5)
    server.answer(SAVED, refused("groq", 413), *[SAVED] * 9)
    row = compact(conversation)
    assert (row.status, row.model) == ("done", "deepseek/deepseek-chat")
    _, second, third, *_ = (json.dumps(request.body) for request in server.requests)
    assert "They spoke." in second
    assert "They spoke." in third
    assert asked(server)[:3] == ["groq/large", "groq/large", "deepseek/deepseek-chat"]


@pytest.mark.parametrize("status", [400, 401])
def test_what_is_no_outage_is_the_compaction_s_failure(server, fallbacks, fill, conversation, status):
    fallbacks("deepseek/deepseek-chat")
    fill(44)
    server.answer(*[refused("groq", status)] * 2)
    row = compact(conversation)
    assert (row.status, row.failures, row.fallback_model) == ("queued", 1, "")


# --- the circuit breaker -----------------------------------------------------------------------------------------


@pytest.fixture
def down(server, say, owner) -> list[Turn]:
    """Groq, for so many turns that it is left alone."""
    server.answer(*[DOWN] * FAILURES)
    turns = [
        say("Hello", conversation=inbox.start_conversation(owner_id=owner.pk, metadata={})) for _ in range(FAILURES)
    ]
    for turn in turns:
        advance(turn)
    book.forget()
    return turns


def test_a_provider_that_fails_for_everybody_is_left_alone(server, down, say):
    before = len(server.requests)
    turn = advance(say("Hello"))
    assert len(server.requests) == before
    assert (turn.status, turn.retry_code) == (TurnStatus.WAITING, "llm_unavailable")
    assert turn.retry_detail.startswith("groq is left alone for a while: it has failed for several turns in a row")
    outage = ProviderOutage.objects.get()
    assert (outage.provider, outage.code, outage.times, outage.ended_at) == ("groq", "llm_unavailable", 1, None)


def test_others_know_it_from_the_row(server, down, say):
    breaker.forget()  # another process
    before = len(server.requests)
    advance(say("Hello"))
    assert len(server.requests) == before


def test_with_a_further_model_nobody_waits(server, say, fallbacks, settings, request):
    settings.LLM_REST_SECONDS = settings.LLM_FALLBACK_SECONDS / 2  # for which it would wait, were it an error as others
    request.getfixturevalue("down")
    fallbacks("claude-opus-4-5")
    server.answer(message(text("Here I am.")))
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.fallback_model) == (TurnStatus.SUCCEEDED, "claude-opus-4-5")


def test_when_it_answers_again_that_is_told(server, say, settings, request):
    settings.LLM_REST_SECONDS = 0.001  # which has passed at once
    request.getfixturevalue("down")
    assert ProviderOutage.objects.get().ended_at is None
    server.answer(completion("Here I am."))
    (turn,) = settle([say("Hello")])
    assert turn.status == TurnStatus.SUCCEEDED
    outage = ProviderOutage.objects.get()
    assert (outage.until, outage.ended_at is None) == (None, False)


def test_the_console_and_the_metrics_show_it(server, down, admin_client, settings):
    settings.METRICS_TOKEN = "of-the-scraper"
    html = admin_client.get("/admin/agent/provideroutage/").content.decode()
    assert "groq" in html
    assert "paused" in html
    metrics = admin_client.get("/metrics", HTTP_AUTHORIZATION="Bearer of-the-scraper").content.decode()
    assert 'nanohost_provider_resting{provider="groq"} 1.0' in metrics


@pytest.mark.parametrize("which", ["the one that found it", "another process"])
def test_one_press_has_turns_that_wait_ask_it_at_once(which, server, down, say, admin_client, monkeypatch):
    monkeypatch.setattr(book, "FRESH_SECONDS", 3600.0)  # what was read before the press is taken for good
    if which == "another process":
        breaker.forget()
    book.read()
    turn = advance(say("Hello"))
    assert breaker.rests("groq")
    assert (turn.status, len(server.requests)) == (TurnStatus.WAITING, FAILURES)
    server.answer(*[completion("Here I am.")] * len([*down, turn]))
    pressed = admin_client.post("/admin/attention/provider_failing/", follow=True).content.decode()
    assert re.search("that waited asks? again: groq[.]", pressed)  # the first ones might by now, or not yet
    assert [each.status for each in settle([turn, *down])] == [TurnStatus.SUCCEEDED] * 6
    assert ProviderOutage.objects.get().until is None
    assert "provider_failing" not in {need.name for need in attention.needs()}


def test_only_turns_that_wait_for_their_provider_are_hurried(server, down):
    asked_to_wait, due, *others = down
    Turn.objects.update(run_after=timezone.now() + timedelta(hours=1))
    Turn.objects.filter(pk=asked_to_wait.pk).update(retry_code="llm_rate_limited")
    Turn.objects.filter(pk=due.pk).update(run_after=None)
    assert turn_control.ask_models_again() == len(others)
    assert turn_control.ask_models_again() == 0
