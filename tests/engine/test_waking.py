"""Who is heard in groups and what wakes an agent there; and strangers who ask to be let in."""

import time

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from conversations.channel_models import Channel, ChannelEvent, Sender, SenderState
from conversations.channels import accounts
from conversations.engine.channels import from_channels
from conversations.engine.channels.waking import fits
from conversations.models import DeferredMessage, Message, Turn
from tests.support.platforms import WebhookProgram
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(settings, owner):
    running = WebhookProgram(settings)
    running.channel(owner)
    yield running
    running.close()


def have(**settings) -> None:
    channel = Channel.objects.get()
    accounts.change(channel, settings=channel.settings | settings)


def wakes(program, text: str, event_id: str, **more) -> bool:
    before = Turn.objects.count()
    assert program.tell(text, event_id=event_id, mentioned=False, **more).status_code == 202
    return Turn.objects.count() > before


def test_what_is_not_for_the_agent_wakes_it_as_the_channel_says(program):
    assert not wakes(program, "Nice weather", "e-1")
    assert (Turn.objects.exists(), ChannelEvent.objects.exists(), Sender.objects.exists()) == (False, False, False)
    program.tell("Hello", event_id="e-2")
    assert not wakes(program, "Nice weather", "e-3")
    assert not DeferredMessage.objects.exists()
    # As context: what those say who may, in their order, the latest.
    have(ignored="context")
    for number in range(53):
        assert not wakes(program, f"Word {number}", f"c-{number}")
    assert not wakes(program, "Word 52", "c-52")
    assert not wakes(program, "Word of a stranger", "c-99", sender={"id": "otto"})
    notes = [each.content for each in DeferredMessage.objects.order_by("pk")]
    assert notes == [f"Anna said, not to you: Word {number}" for number in range(3, 53)]
    program.tell("And what do you say?", event_id="e-4")
    settle(Turn.objects.open())
    assert any("Word 52" in each for each in Message.objects.filter(role="user").values_list("content", flat=True))
    assert not Sender.objects.exists()
    have(groups="pattern", pattern="shop*|*price*")
    assert [wakes(program, text, f"p-{text}") for text in ("Shop, hey", "What PRICE is it?", "a shop")] == [1, 1, 0]
    have(groups="all")
    assert wakes(program, "Anything", "e-5")
    have(groups="sticky")
    assert wakes(program, "And that", "e-6")
    Turn.objects.update(created_at="2020-01-01T00:00Z")
    assert not wakes(program, "Too late", "e-7")
    assert program.tell("x", event_id="e-8", mentioned="no").status_code == 400


def test_a_pattern_is_read_in_linear_time():
    cases = {("a*b", "axxb"): True, ("a*b", "ab"): True, ("a*a", "a"): False, ("*", ""): True, ("", ""): False}
    cases |= {("ab", "AB "): True, ("*b*", "abc"): True, ("a*b*c", "a c b"): False, ("*x*y", "xy"): True}
    assert {case: fits(*case) for case in cases} == cases
    began = time.process_time()
    fits("*a" * 100 + "b", "a" * 1_000_000)
    assert time.process_time() - began < 20


def test_a_stranger_who_asks_is_answered_once_let_in(program):
    Channel.objects.update(unknown="request")
    otto = {"sender": {"id": "otto", "name": "Otto"}}
    for number, text in enumerate(("May I ask something?", "Hello?")):
        program.tell(text, event_id=f"otto-{number}", **otto)
    row = Sender.objects.get()
    assert (row.state, row.refusals, row.held["text"]) == (SenderState.REFUSED, 2, "May I ask something?")
    assert not Turn.objects.exists()
    assert not from_channels.take_held(row)
    boss = get_user_model().objects.create_superuser("boss")
    client = Client()
    client.force_login(boss)
    shown = client.get("/admin/conversations/sender/", secure=True)
    assert b"May I ask something?" in shown.content
    chosen = {"action": "allow", "_selected_action": [row.pk]}
    for _ in range(2):
        client.post("/admin/conversations/sender/", chosen, secure=True)
    (turn,) = settle(Turn.objects.all())
    (said,) = Message.objects.filter(turn=turn, role="user")
    assert (said.content, said.tainted_by or "") == ("May I ask something?", "")
    row.refresh_from_db()
    assert (row.state, row.held) == (SenderState.ALLOWED, None)
    program.tell("May I ask something?", event_id="otto-0", **otto)
    assert Turn.objects.count() == 1
