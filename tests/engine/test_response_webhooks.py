"""Webhooks of responses in the background, as OpenAI's own client unwraps them."""

from typing import Any

import pytest
from openai import OpenAI

from conversations import announced
from conversations.engine import inbox, turn_control
from conversations.engine.incoming import Incoming
from conversations.models import Conversation, Delivery, StoredResponse, Turn
from conversations.options import Options
from tests.support.delivering import deliver, webhook
from tests.support.receiver import Receiver
from tests.support.scripts import script
from tests.support.working import advance

pytestmark = pytest.mark.django_db(transaction=True)

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def hook(settings):
    running = Receiver()
    yield running, webhook(running, settings, kinds=sorted(announced.RESPONSES))[1]
    running.close()


def asked(conversation: Conversation, said: str, *, is_background: bool = True, **options: Any) -> StoredResponse:
    """A response, not begun."""
    incoming = Incoming(said, options=Options(tools=[WEATHER], **options))
    turn = inbox.receive(incoming, conversation=conversation, request_id="r")
    return StoredResponse.objects.create(
        id=StoredResponse.id_of(turn.pk, 0), turn=turn, number=0, asked={}, is_background=is_background
    )


@pytest.mark.parametrize(
    ("said", "options", "kind"),
    [
        ("Hello", {}, "response.completed"),
        (script({"call": [{"name": "weather"}]}), {}, "response.completed"),
        (script({"fail": "request_refused"}), {}, "response.failed"),
        (script({"say": "one two three four five"}), {"parameters": {"max_tokens": 3}}, "response.incomplete"),
    ],
)
def test_openais_own_client_unwraps_what_a_response_has_come_to(hook, conversation, said, options, kind):
    receiver, secret = hook
    row = asked(conversation, said, **options)
    advance(row.turn_id)
    (delivery,) = Delivery.objects.all()
    deliver(delivery)
    (received,) = receiver.received
    event = OpenAI(api_key="none", webhook_secret=secret).webhooks.unwrap(received.body, received.headers)
    type(event).model_validate_json(event.model_dump_json(), strict=True)
    assert (event.type, event.data.id, event.object) == (kind, row.shown_id, "event")
    assert event.id == f"evt_{delivery.pk.hex}"


def test_a_cancelled_response_is_told_of(hook, conversation):
    row = asked(conversation, "Hello")
    turn_control.cancel_turn(Turn.objects.get(pk=row.turn_id))
    assert [(each.kind, each.data) for each in Delivery.objects.all()] == [("response.cancelled", {"id": row.shown_id})]


def test_of_a_response_that_its_client_waits_for_nobody_is_told(hook, conversation):
    advance(asked(conversation, "Hello", is_background=False).turn_id)
    assert not Delivery.objects.exists()
