"""Turns of requests that bring their whole history: what their model is told, and what is left of them."""

from datetime import timedelta

import pytest

from agent.prompt import SENT_NOTICE
from conversations.engine import inbox, retention
from conversations.engine.compacting import daily
from conversations.engine.incoming import Incoming
from conversations.engine.model_request import build_again, calls_of
from conversations.models import Compaction, Conversation, Message
from conversations.options import Options
from nanohost.lib import clock
from tests.support.working import advance, settle

pytestmark = pytest.mark.django_db(transaction=True)

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.fixture
def ask(owner, agent):
    """A turn behind a history."""

    def ask(*history, follows=(), content="And now?", **options):
        return inbox.receive(
            Incoming(content, history=history, follows=follows, options=Options(**options)),
            conversation=inbox.transient_conversation(owner_id=owner.pk, agent=agent, metadata={}),
            request_id="r",
        )

    return ask


def said(role, content):
    return {"role": role, "content": content}


def sent(turn):
    """What its last model call was sent; as the record tells it, without a doubt."""
    call = calls_of(turn)[-1]
    again = build_again(turn.conversation, turn.model, call.record, turn=turn)
    assert again.doubts == []
    return again.request.messages


def test_the_model_is_told_the_history_as_it_came(ask):
    turn = advance(ask(said("user", "One."), said("assistant", "Two."), instructions="Be brief."))
    system, *history = sent(turn)
    assert history == [said("user", "One."), said("assistant", "Two."), said("user", "And now?")]
    assert system["content"].endswith("## Instructions for this request\n\nBe brief.")
    assert SENT_NOTICE not in system["content"]
    assert "Channel:" not in system["content"], "prompts of one client begin alike"


def test_prompts_of_requests_begin_alike(ask):
    first, second = (advance(ask(content=words)) for words in ("One", "Two"))
    assert sent(first)[0] == sent(second)[0]


def test_what_was_called_before_is_gone_on_from(ask):
    asks = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    gave = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    turn = advance(ask(follows=[asks, gave], brought=1))
    assert Message.objects.latest("seq").content == "The tool says: rain"
    assert [each["role"] for each in sent(turn)] == ["system", "user", "assistant", "tool"]


def test_however_long_it_is_it_is_not_summed_up(ask, settings):
    settings.MEMORY_COMPACT_AFTER = 4
    history = [said(role, "words " * 50) for _ in range(20) for role in ("user", "assistant")]
    settle([ask(*history)])
    assert not Compaction.objects.exists()
    now = clock.read()
    asked = daily.request(day=now.date(), since=now - timedelta(hours=1), until=now + timedelta(hours=1))
    assert asked == 0


def test_what_tells_no_more_than_it_may_is_cut_and_not_taken_for_a_failure(ask):
    turn = advance(
        ask(content='{"script": [{"think": "one two three four", "say": "x"}]}', parameters={"max_tokens": 2})
    )
    assert (turn.status, Message.objects.latest("seq").usage["cut"]) == ("succeeded", True)


def test_a_run_forgets_some_of_each_kind_however_little_time_it_has(ask, settings):
    for _ in range(2):
        settle([ask()])
    _, second = Conversation.objects.order_by("pk")
    Conversation.objects.update(created_at=clock.from_now(-86_400 * (settings.TRANSIENT_DAYS + 1)))
    Conversation.objects.filter(pk=second.pk).update(is_transient=False, is_dropped=True)
    assert retention.forget_transient(seconds=0) == 2
    assert not Conversation.objects.exists()
