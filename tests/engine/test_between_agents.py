"""Agents that write to each other: what comes back, and that it ends."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from agent.models import Agent
from conversations.channel_models import Destination
from conversations.engine import between_agents, deferred, outgoing, turn_control
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def helper(tool_settings):
    """Another agent; each may write to the other."""
    tool_settings("message")
    first = Agent.objects.get(name="default")
    other = Agent.objects.create(name="helper", model=first.model, every_tool=True)
    Destination.objects.create(agent=first, name="helper", to_agent=other)
    Destination.objects.create(agent=other, name="boss", to_agent=first)
    return other


def writes(destination: str, content: str) -> dict:
    return {"call": [{"name": "message", "arguments": {"destination": destination, "content": content}}]}


def work() -> None:
    """Until nothing is open, and nothing is to come."""
    for _ in range(40):
        settle(Turn.objects.open())
        deferred.fire_due()
        if not Turn.objects.open().exists():
            return
    raise AssertionError("agents write to each other without end")


def test_an_agent_is_written_to_and_its_answer_comes_back(say, helper, owner):
    asked = say(script(writes("helper", "What is 2 + 2?"), {"say": "I have asked."}))
    work()
    child = Conversation.objects.get(agent=helper)
    assert (child.owner, child.spawned_in, child.name) == (owner, asked.conversation_id, "default → helper")
    assert Message.objects.get(conversation=child, role="user").content == "What is 2 + 2?"
    heard = Message.objects.filter(conversation=asked.conversation_id, role="user").order_by("seq").last()
    assert heard.content == f"[the agent helper, {child.pk}] It has answered:\n\nYou said: What is 2 + 2?"
    # Once more: the same conversation of the two, which goes on.
    say(script(writes("helper", "And 3 + 3?"), {"say": "I have asked."}))
    work()
    assert Conversation.objects.get(agent=helper).pk == child.pk
    assert child.turns.count() == 2
    assert Message.objects.filter(conversation=asked.conversation_id, content__contains="You said: And 3 + 3?").exists()
    # What makes no sense, and names that are none.
    for wrong in (writes("helper", " "), writes("helper", "/new"), writes("nobody", "x"), writes("boss", "x")):
        ToolCall.objects.all().delete()
        say(script(wrong, {"say": "Done."}))
        work()
        assert ToolCall.objects.get().status in (CallStatus.FAILED, CallStatus.REJECTED), wrong
    assert child.turns.count() == 2


def test_two_that_answer_each_other_come_to_an_end(say, helper, monkeypatch):
    monkeypatch.setattr(between_agents, "MAX_HOPS", 2)
    again = "x"
    for destination in ("helper", "boss", "helper"):
        again = script(writes(destination, again), {"say": "…"})
    say(again)
    work()
    refused = ToolCall.objects.filter(status=CallStatus.FAILED)
    assert refused.exists()
    assert all("which is as often as they may" in each.result for each in refused)
    begun = Turn.objects.filter(idempotency_key__startswith="agent ")
    assert {between_agents.hops_of(turn) for turn in begun} == set(range(1, between_agents.MAX_HOPS + 1))


def test_as_many_a_minute_and_none_of_what_was_cancelled(say, helper, monkeypatch):
    monkeypatch.setattr(between_agents, "MAX_PER_MINUTE", 1)
    for _ in range(2):
        say(script(writes("helper", "Hello"), {"say": "Done."}))
        settle(Turn.objects.open().filter(conversation__agent__name="default"))
    results = list(ToolCall.objects.order_by("created_at").values_list("status", flat=True))
    assert results == [CallStatus.SUCCESS, CallStatus.FAILED]
    (begun,) = Turn.objects.filter(conversation__agent=helper)
    asker = Turn.objects.order_by("created_at").first()
    assert asker.status == TurnStatus.SUCCEEDED
    assert turn_control.cancel_turn(begun)
    work()
    assert not Message.objects.filter(content__contains="It has answered").exists()


def test_a_destination_s_tokens_are_an_end_to_what_it_is_asked(say, helper, owner, outsider):
    given = Destination.objects.filter(name="helper")
    given.update(tokens_a_day=1)

    def asks() -> str:
        ToolCall.objects.all().delete()
        say(script(writes("helper", "Hello"), {"say": "Done."}))
        work()
        return ToolCall.objects.get().result

    assert asks().startswith("Said to the agent helper")
    used = sum(each.prompt_tokens + each.completion_tokens for each in Turn.objects.filter(conversation__agent=helper))
    assert used > 1
    assert "has used up the 1 tokens" in asks()
    given.update(tokens_a_day=used + 1)
    assert asks().startswith("Said to the agent helper")
    # What was used a day ago, or for somebody else, does not count.
    given.update(tokens_a_day=1)
    theirs = Turn.objects.filter(conversation__agent=helper)
    theirs.update(created_at=timezone.now() - timedelta(hours=25))
    assert asks().startswith("Said to the agent helper")
    Conversation.objects.filter(agent=helper).update(owner=outsider)
    assert asks().startswith("Said to the agent helper")


def test_a_destination_is_a_chat_or_an_agent(helper):
    for wrong in (Destination(agent=helper, name="none"),):
        with pytest.raises(ValidationError, match="a chat or an agent"):
            wrong.full_clean()
    assert outgoing.names(helper) == ["origin", "boss"]
    assert outgoing.names_of_chats(helper) == ["origin"]
