"""What an agent keeps for one conversation, by its tool."""

import json

import pytest

from conversations import inbox
from conversations.models import Conversation
from tests import calls
from tests.work import settle
from tools.models import CallStatus

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def keep(tool_settings, conversation):
    """``keep("step", "2")``: what the tool says."""
    tool_settings("session_state")

    def use(key="", value=None, of=conversation):
        asked = {"key": key} | ({} if value is None else {"value": value})
        call = calls.ask("session_state", conversation_id=of.pk, owner_id=of.owner_id, **asked)
        return calls.run_in_thread(call)

    return use


def test_what_is_kept_is_there_later_and_can_be_forgotten(keep, conversation):
    assert keep("step", "2").result == "Kept as step."
    assert keep("step").result == "2"
    assert keep().result == '{"step": "2"}'
    assert keep("step", "").result == "Nothing is kept as step any more."
    assert (keep("step").result, keep().result) == ("Nothing is kept as step.", "Nothing is kept.")
    conversation.refresh_from_db()
    assert conversation.state == {}


def test_another_conversation_of_the_same_owner_has_its_own(keep, owner):
    keep("step", "2")
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    assert keep("step", of=other).result == "Nothing is kept as step."


def test_there_is_a_bound(keep, conversation):
    call = keep("all", "x" * 9000)
    assert (call.status, call.rule) == (CallStatus.FAILED, "raised")
    assert "Forget something first" in call.result
    Conversation.objects.update(state={str(number): "x" for number in range(50)})
    assert keep("one more", "x").status == CallStatus.FAILED
    assert keep("7", "y").result == "Kept as 7."


def test_new_keeps_it_and_clear_forgets_it(keep, conversation, say):
    keep("step", "2")
    settle([say("/new")])
    assert keep("step").result == "2"
    settle([say("/clear")])
    assert keep("step").result == "Nothing is kept as step."


def test_a_model_uses_it_in_a_turn(keep, conversation, say):
    script = [{"call": [{"name": "session_state", "arguments": {"key": "step", "value": "3"}}]}, {"say": "{results}"}]
    (turn,) = settle([say(json.dumps({"script": script}))])
    assert turn.messages.last().content == "Kept as step."
    conversation.refresh_from_db()
    assert conversation.state == {"step": "3"}
