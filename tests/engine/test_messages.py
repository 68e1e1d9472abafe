"""The tool ``message``: what an agent says in mid-turn is stored with its call, told to readers, and sent once."""

import json
import re

import pytest

from conversations.channel_models import Chat, Destination
from conversations.engine import outgoing
from conversations.engine import tool_calls as running
from conversations.events import tool_events
from conversations.events.answers import turns_as_json
from conversations.events.kinds import EventKind
from conversations.models import Conversation, Delivery, Message, Turn
from tests.support import tool_calls
from tests.support.hosts import ROOT
from tests.support.platforms import PLATFORMS
from tests.support.scripts import script
from tests.support.working import settle
from tools import registry, taint
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def channel(owner, settings):
    platform = PLATFORMS[0](settings)
    yield platform.channel(owner), platform
    platform.close()


@pytest.fixture
def message(tool_settings, owner, conversation):
    """``message(content="Hello")``: the call, as it ended, of the owner's default agent in the conversation."""
    tool_settings("message")

    def ask_and_run(**arguments):
        asked = tool_calls.ask("message", owner_id=owner.pk, conversation_id=conversation.pk, **arguments)
        return tool_calls.run_in_thread(asked)

    return ask_and_run


def calling(**arguments):
    """What has the scripted model call the tool, and then answer."""
    return script({"call": [{"name": "message", "arguments": arguments}]}, {"say": "Done."})


def test_it_waits_for_permission_and_declares_what_it_does(owner):
    registered = registry.get("message")
    assert (registered.inline, registered.effects, registered.writes_to) == (True, "rows", "destination")
    assert taint.reaches_out(registered)
    assert tool_calls.ask("message", owner_id=owner.pk, content="Hello").rule == "not_enabled"


def test_the_pages_example_is_what_happens(message):
    page = (ROOT / "docs" / "tools.md").read_text().split("\n## Messages\n")[1].split("\n## ")[0]
    ((arguments, result),) = re.findall(r"^\| `message (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    call = message(**json.loads(arguments))
    assert (call.status, call.result) == (CallStatus.SUCCESS, result)


def test_what_it_says_is_in_the_transcript_in_the_turn_and_in_its_events(tool_settings, say):
    tool_settings("message")
    (turn,) = settle([say(calling(content="I have begun."))])
    asked = Message.objects.get(turn=turn, tool_calls__isnull=False).tool_calls[0]["function"]
    assert json.loads(asked["arguments"]) == {"content": "I have begun."}
    (shown,) = turns_as_json([turn])
    assert (shown["assistantMessage"], shown["toolCalls"][0]["toolName"]) == ("Done.", "message")
    told = tool_events(ToolCall.objects.get())
    assert [kind for kind, _ in told] == [EventKind.TOOL_STARTED, EventKind.TOOL_FINISHED, EventKind.MESSAGE_SAID]
    assert (told[-1][1]["destination"], told[-1][1]["text"]) == ("origin", "I have begun.")
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        ({"content": " "}, CallStatus.FAILED, "Give a content"),
        ({}, CallStatus.REJECTED, "content"),
        ({"content": "Hi", "destination": "boss"}, CallStatus.REJECTED, "no destination named 'boss'"),
        ({"content": "Hi", "destination": ""}, CallStatus.REJECTED, "no destination named ''"),
    ],
)
def test_what_makes_no_sense_is_told_and_says_nothing(message, arguments, status, why):
    call = message(**arguments)
    assert (call.status, why in call.result) == (status, True), call.result
    assert EventKind.MESSAGE_SAID not in [kind for kind, _ in tool_events(call)]


def test_in_a_chat_it_is_sent_before_the_answer(channel, tool_settings):
    _, platform = channel
    tool_settings("message")
    platform.tell(calling(content="I have begun."))
    (turn,) = settle(Turn.objects.all())
    sent = list(Delivery.objects.order_by("number"))
    assert [each.data["text"] for each in sent] == ["I have begun.", "Done."]
    assert {each.turn_id for each in sent} == {turn.pk}
    assert "it is being sent to origin" in ToolCall.objects.get().result


def test_it_writes_to_a_destination_that_the_agent_was_given(channel, tool_settings, owner):
    row, platform = channel
    tool_settings("message")
    platform.tell("Hello")
    settle(Turn.objects.all())
    Delivery.objects.all().delete()
    Destination.objects.create(agent=row.agent, name="boss", chat=Chat.objects.get())
    there = Conversation.objects.create(owner=owner, agent=row.agent, key="elsewhere", cost=0)
    allowed = row.agent.allowed_tools(destinations=lambda: outgoing.names(row.agent))
    asked = tool_calls.ask(
        "message", owner_id=owner.pk, conversation_id=there.pk, content="Hi", destination="boss", agent_tools=allowed
    )
    call = tool_calls.run_in_thread(asked, agent_tools=allowed)
    assert (call.status, call.result) == (CallStatus.SUCCESS, "Said; it is being sent to boss as message 2.")
    assert Delivery.objects.get().data["text"] == "Hi"
    assert dict(tool_events(call))[EventKind.MESSAGE_SAID]["destination"] == "boss"


def test_a_call_that_is_notified_twice_sends_once(channel, tool_settings, owner):
    _, platform = channel
    tool_settings("message")
    platform.tell("Hello")
    settle(Turn.objects.all())
    Delivery.objects.all().delete()
    conversation = Conversation.objects.get()
    asked = tool_calls.ask("message", owner_id=owner.pk, conversation_id=conversation.pk, content="Hi")
    for worker in ("worker-1", "worker-2"):
        running.run_call(asked.pk, worker=worker)
    assert ToolCall.objects.get(pk=asked.pk).status == CallStatus.SUCCESS
    assert Delivery.objects.count() == 1


def test_a_secret_in_it_is_not_sent(channel, tool_settings, owner, own_secrets):
    _, platform = channel
    tool_settings("message")
    own_secrets.add("LLM_API_KEY", "hunter2-hunter2")
    platform.tell("Hello")
    settle(Turn.objects.all())
    Delivery.objects.all().delete()
    asked = tool_calls.ask(
        "message", owner_id=owner.pk, conversation_id=Conversation.objects.get().pk, content="It is hunter2-hunter2."
    )
    assert tool_calls.run_in_thread(asked).status == CallStatus.SUCCESS
    assert "hunter2" not in json.dumps([*Delivery.objects.values_list("data", flat=True)])
