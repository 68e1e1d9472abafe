"""How many functions are called to ask a model: with a prompt of 90 messages about as many as with one of 10."""

from collections.abc import Callable
from typing import Any

import pytest

from agent.fixed import as_json
from agent.llm.base import Completion
from conversations.engine import steps
from conversations.engine.model_request import Asking
from conversations.engine.turns import claim_and_load
from conversations.models import Conversation, Message
from tests.support.counting import calls

pytestmark = pytest.mark.django_db(transaction=True)


def one_turn(say: Callable[..., Any], conversation: Conversation) -> dict[str, int]:
    """What a turn's first step calls: to be claimed and read, to have its prompt built, and that as JSON."""
    turn = say("Hello", conversation=conversation)
    taken: list[Any] = []
    asked: list[Asking] = []
    counted = {
        "claim and read": calls(lambda: taken.append(claim_and_load(turn.pk, worker="worker"))),
        "build": calls(lambda: asked.append(Asking(taken[0][1], None))),
        "as JSON": calls(lambda: as_json(asked[0].request.messages)),
    }
    steps.finish(taken[0][0], Completion(content="Hi"), reply="Hi", has_called=False)
    return counted


def behind(say: Callable[..., Any], conversation: Conversation, messages: int) -> dict[str, int]:
    """The same in a conversation of so many messages, of which a process has read all but the latest."""
    Message.objects.bulk_create(
        Message(conversation=conversation, seq=1 + number, role=role, content=f"words {number}")
        for number, role in enumerate(("user", "assistant") * (messages // 2))
    )
    Conversation.objects.filter(pk=conversation.pk).update(next_seq=1 + messages)
    for _ in range(3):
        counted = one_turn(say, conversation)
    return counted


def test_a_prompt_of_90_messages_costs_about_what_one_of_10_costs(say, owner, conversation, settings):
    from conversations.engine import inbox

    settings.MEMORY_WINDOW, settings.MEMORY_COMPACT_AFTER = 200, 400
    short = behind(say, conversation, 10)
    long = behind(say, inbox.start_conversation(owner_id=owner.pk, metadata={}), 90)
    # What is left for each message is to be looked at: whether it fits, and what it says. One that is read and made
    # ready anew takes three times that.
    assert sum(long.values()) - sum(short.values()) <= 12 * (90 - 10), (short, long)
