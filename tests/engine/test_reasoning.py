"""What a model thinks: kept apart from what it says, sent back within its turn to who wants it, and in no summary."""

from typing import Any

import pytest

from agent import llm
from conversations.engine.model_request import build_again, calls_of
from conversations.models import Message
from conversations.statuses import TurnStatus
from nanohost.lib import redaction
from tests.support import dialects
from tests.support.compacting import compact
from tests.support.dialects import Dialects
from tests.support.openai_server import call, completion
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

THOUGHT = "The user wants to know the time."
DETAILS = [{"type": "reasoning.text", "text": THOUGHT, "index": 0}]


@pytest.fixture
def server(settings) -> Any:
    running = Dialects(key="sk-test-0123456789abcdef").start()
    settings.LLM_PROVIDER = "auto"
    settings.LLM_BASE_URLS = {name: running.url_of(name) for name in ("deepseek", "groq", "anthropic")}
    settings.DEEPSEEK_API_KEY = settings.GROQ_API_KEY = settings.ANTHROPIC_API_KEY = running.key
    yield running
    running.stop()
    llm.forget_clients()


@pytest.fixture(autouse=True)
def time_is_allowed(tool_settings) -> None:
    tool_settings("time")


def ask_with_a_tool(server, say, settings, provider: str, *, thought: str = THOUGHT) -> Any:
    """A turn that calls a tool, having thought before; and the next one."""
    settings.LLM_MODEL_DEFAULT = f"{provider}/model-1"
    if provider == "anthropic":
        asks = dialects.message(dialects.thinking(thought), dialects.tool_use("time", {}))
        says = [dialects.message(dialects.thinking("Noon it is."), dialects.text("Noon."))] * 2
    else:
        asks = completion(None, thought=thought, tool_calls=[call("time")])
        says = [completion("Noon.", thought="Noon it is.")] * 2
    server.answer(asks, *says)
    (turn,) = settle([say("What time is it?")])
    assert turn.status == TurnStatus.SUCCEEDED, turn.error_detail
    settle([say("And now?")])
    return turn


def said_by_it(turn) -> list[Message]:
    return list(Message.objects.filter(turn=turn, role="assistant").order_by("seq"))


@pytest.mark.parametrize("provider", ["deepseek", "groq", "anthropic"])
def test_it_is_stored_apart_from_the_answer(server, say, settings, provider):
    asks, answers = said_by_it(ask_with_a_tool(server, say, settings, provider))
    assert (asks.content, asks.reasoning) == ("", THOUGHT)
    assert (answers.content, answers.reasoning) == ("Noon.", "Noon it is.")
    assert (asks.thoughts is None, answers.thoughts) == (provider == "groq", None)


@pytest.mark.parametrize("provider", ["deepseek", "groq", "anthropic"])
def test_it_goes_back_within_its_turn_to_who_wants_it_and_no_later(server, say, settings, provider):
    ask_with_a_tool(server, say, settings, provider)
    first, second, later = (str(request.body) for request in server.requests)
    assert THOUGHT not in first + later
    assert (THOUGHT in second) == (provider != "groq")
    assert "Noon it is" not in later
    assert not [request.broken for request in server.requests if request.broken]


@pytest.mark.parametrize("provider", ["deepseek", "anthropic"])
def test_what_was_sent_is_built_again_with_it(server, say, settings, provider):
    turn = ask_with_a_tool(server, say, settings, provider)
    for made in calls_of(turn):
        again = build_again(turn.conversation, turn.model, made.record)
        assert again.doubts == []
    assert THOUGHT in str(again.request.messages)


def test_it_is_in_no_summary_and_not_asked_to_be_in_one(server, say, settings, conversation, fill):
    ask_with_a_tool(server, say, settings, "deepseek")
    fill(60)
    arguments = '{"summary": "Time was told.", "memory_update": "- x", "history_entry": "Time was told."}'
    server.answer(completion(None, tool_calls=[call("save_memory", arguments)], thought="What a talk."))
    compact(conversation)
    assert "What time is it?" in str(server.requests[-1].body)
    assert THOUGHT not in str(server.requests[-1].body)
    summary = Message.objects.get(conversation=conversation, type="SUMMARY")
    assert (summary.content, summary.reasoning) == ("Time was told.", "")


def test_a_secret_in_it_is_masked_and_it_is_not_sent_back(server, say, settings, own_secrets):
    redaction.remember("A_TOOL_S", "a-secret-that-nobody-may-see")
    turn = ask_with_a_tool(server, say, settings, "anthropic", thought="It is a-secret-that-nobody-may-see.")
    asks, _ = said_by_it(turn)
    assert (asks.reasoning, asks.thoughts) == ("It is [redacted].", None)
    assert "thinking" not in str(server.requests[1].body)


def test_the_console_shows_it_folded(server, say, settings, admin_client, conversation):
    ask_with_a_tool(server, say, settings, "deepseek", thought="<script>alert(1)</script>")
    html = admin_client.get(f"/admin/conversations/conversation/{conversation.pk}/transcript/").content.decode()
    assert '<details class="call" id="thought-2">' in html
    assert "&lt;script&gt;alert(1)" in html
    assert "of deepseek (the model&#x27;s name begins with deepseek/)" in html


def test_thoughts_that_no_database_takes_are_left_out(server, say, settings):
    settings.LLM_MODEL_DEFAULT = "anthropic/model-1"
    odd = dialects.thinking("Hm \ud800 \x00.")
    server.answer(
        dialects.message(odd, dialects.tool_use("time", {})),
        dialects.message(dialects.text("Noon.")),
    )
    (turn,) = settle([say("What time is it?")])
    assert turn.status == TurnStatus.SUCCEEDED
    assert said_by_it(turn)[0].thoughts is None
