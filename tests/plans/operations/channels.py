"""Platforms that are asked, and what is said in chats."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from agent.models import Agent
from conversations import announced
from conversations.channel_models import Channel, ChannelEvent, Chat, Listener
from conversations.channels import accounts
from conversations.channels.base import Event, Heard
from conversations.deliveries import endpoints, outbox
from conversations.engine import announcements, feedback, outgoing, tainted_texts
from conversations.engine.channels import from_channels, listener
from conversations.engine.deliveries import typing_marks, undelivered
from conversations.models import Conversation, Delivery, StoredResponse, TaintedText, Turn, WebhookEndpoint, Worker
from conversations.statuses import TurnStatus
from nanohost.accounts import audit
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from tests.plans.operations.common import READING, a_turn, operation, the_long_one
from tests.plans.operations.deliveries import to_go_out
from tools.registry import ORIGIN


def to_be_asked() -> Listener:
    values = {"kind": "telegram", "settings": {"token": "CHANNEL_SECRET_TOKEN"}}
    agent, owner = Agent.objects.order_by("pk")[:1].get(), get_user_model().objects.order_by("pk")[:1].get()
    made, _ = accounts.make(name=f"bot-{new_id().hex[-20:]}", agent=agent, owner=owner, **values)
    return Listener.objects.get(channel=made)


def with_listener(act: Callable[[listener.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = listener.claim(to_be_asked().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


@operation("listener.claim")
def claim_listener() -> Callable[[], object]:
    row = to_be_asked()
    return lambda: listener.claim(row.pk, worker="worker")


operation("listener.renew")(with_listener(lambda hold: listener.renew([hold.id], worker="worker")))
operation("listener.still_held")(with_listener(lambda hold: listener.still_held([hold])))
operation("listener.take")(with_listener(lambda hold: listener.take(hold, Heard(events=(), cursor={}))))
operation("listener.reschedule")(with_listener(lambda hold: listener.reschedule(hold, "words", seconds=1)))
operation("listener.release")(with_listener(listener.release))


def a_chat() -> Chat:
    return Chat.objects.select_related("channel").get(key="shop:7")


def in_a_chat() -> Conversation:
    """The conversation that is held in one."""
    chat = a_chat()
    made, _ = Conversation.objects.get_or_create(
        owner_id=chat.owner_id, key=chat.key, defaults={"agent": chat.channel.agent, "cost": 0}
    )
    return made


def spoken() -> Delivery:
    (row,) = outgoing.say(in_a_chat(), "words")
    return row


def with_message(act: Callable[[outbox.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        Delivery.objects.filter(chat=a_chat(), status="queued").update(status="delivered")
        hold = outbox.claim(spoken().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


def said_in_a_chat(kind: str = "message") -> Event:
    return Event(external_id=str(new_id()), kind=kind, chat_id="7", sender_id="anna", text="words", message_id="m")


@operation("outbox.put_in_chat")
def put_in_chat() -> Callable[[], object]:
    chat = a_chat()
    return lambda: outbox.put_in_chat(chat, [outbox.Said(kind="chat", data={"text": "words"})])


@operation("outbox.claim, of a chat that was sent much")
def claim_in_a_busy_chat() -> Callable[[], object]:
    chat = Chat.objects.get(key="shop:900")
    (row,) = outbox.put_in_chat(chat, [outbox.Said(kind="chat", data={"text": "words"})])
    return lambda: outbox.claim(row.pk, worker="worker")


@operation("outbox.claim, of a chat")
def claim_in_chat() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.claim(row.pk, worker="worker")


@operation("outbox.cancel")
def cancel_delivery() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.cancel(row)


@operation("feedback.react")
def react_to_an_answer() -> Callable[[], object]:
    channel, about = a_chat().channel, Delivery.objects.get(external_id="sent 5007")
    event = replace(said_in_a_chat("reaction"), text="👍", message_id=about.external_id)
    return lambda: feedback.react(channel, event)


@operation("outbox.wake_next")
def wake_next() -> Callable[[], object]:
    row = spoken()
    return lambda: outbox.wake_next(row)


@operation("outbox.forget_said")
def forget_said() -> Callable[[], object]:
    conversation_id = Delivery.objects.filter(chat=a_chat()).values_list("conversation_id", flat=True)[0]
    return lambda: outbox.forget_said(conversation_id)


# By one worker, every four seconds: the turns that go on, which are as many as workers have places.
@operation("typing_marks.wanted", READING)
def wanted() -> Callable[[], object]:
    Worker.objects.create(name="a", queues="deliveries", turns_most=0, heartbeat_at=Now())
    turn, chat = a_turn(), a_chat()
    Turn.objects.filter(pk=turn.pk).update(status=TurnStatus.RUNNING)
    Conversation.objects.filter(owner_id=chat.owner_id, key=chat.key).delete()
    Conversation.objects.filter(pk=turn.conversation_id).update(owner=chat.owner_id, key=chat.key)
    return lambda: typing_marks.wanted("a")


@operation("outgoing.not_taken")
def say_that_it_was_not_taken() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.not_taken(a_chat(), "words", conversation_id=conversation.pk)


@operation("outgoing.say")
def say_in_chat() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.say(conversation, "words")


@operation("outgoing.pass_on")
def pass_on() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.pass_on(conversation, "words", destination=ORIGIN)


@operation("outgoing.names")
def names_of_destinations() -> Callable[[], object]:
    agent = in_a_chat().agent
    return lambda: outgoing.names(agent)


@operation("outgoing.destinations")
def destinations() -> Callable[[], object]:
    conversation = in_a_chat()
    return lambda: outgoing.destinations(conversation)


def of_a_turn() -> dict[str, Any]:
    conversation = in_a_chat()
    return {
        "key": conversation.key,
        "owner_id": conversation.owner_id,
        "conversation_id": conversation.pk,
        "turn_id": a_turn().pk,
    }


@operation("outgoing.reply")
def reply_in_chat() -> Callable[[], object]:
    whose = of_a_turn()
    return lambda: outgoing.reply(**whose, text="words")


@operation("outgoing.no_reply")
def no_reply_in_chat() -> Callable[[], object]:
    whose = of_a_turn()
    return lambda: outgoing.no_reply(**whose, status="failed", code="turn_error")


@operation("outgoing.no_reply_to")
def no_reply_to() -> Callable[[], object]:
    turn = Turn.objects.get(pk=a_turn().pk)
    return lambda: outgoing.no_reply_to(turn, "failed", code="turn_error")


@operation("outgoing.try_out")
def try_a_chat_out() -> Callable[[], object]:
    chat = a_chat()
    return lambda: outgoing.try_out(chat)


@operation("outgoing.cancel")
def cancel_message() -> Callable[[], object]:
    row = spoken()
    return lambda: outgoing.cancel(row)


operation("undelivered.settle, delivered")(with_message(lambda hold: undelivered.settle(hold, outbox.Outcome())))
operation("undelivered.settle, lost")(
    with_message(lambda hold: undelivered.settle(hold, outbox.Outcome(error="words", is_final=True)))
)
operation("undelivered.leave_in_doubt")(with_message(undelivered.leave_in_doubt))


@operation("from_channels.active")
def active_channel() -> Callable[[], object]:
    return lambda: from_channels.active("shop")


@operation("from_channels.take")
def take_from_channel() -> Callable[[], object]:
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat()], request_id="request")


@operation("from_channels.take, a reaction")
def take_reaction() -> Callable[[], object]:
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat("reaction")], request_id="request")


@operation("from_channels.take, of nobody who may")
def take_from_nobody() -> Callable[[], object]:
    Channel.objects.update(allow_from=[])
    channel = from_channels.active("shop")
    return lambda: from_channels.take(channel, [said_in_a_chat()], request_id="request")


@operation("from_channels.forget_old")
def forget_events() -> Callable[[], object]:
    rows = ChannelEvent.objects.order_by("created_at").values_list("pk", flat=True)[:20]
    ChannelEvent.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=31))
    return from_channels.forget_old


def many_tainted_texts(*, owner_id: int) -> None:
    """As many as a host has after a while."""
    made = (TaintedText(owner_id=owner_id, digest=f"{number:064}", tainted_by="web") for number in range(20_000))
    TaintedText.objects.bulk_create(made, batch_size=5_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE conversations_taintedtext")


@operation("tainted_texts.forget_old")
def forget_tainted_texts() -> Callable[[], object]:
    many_tainted_texts(owner_id=the_long_one().owner_id)
    rows = TaintedText.objects.order_by("created_at").values_list("pk", flat=True)[:20]
    TaintedText.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=400))
    return tainted_texts.forget_old


@operation("tainted_texts.recognised, of a long transcript", READING)
def recognise_texts() -> Callable[[], object]:
    owner_id = the_long_one().owner_id
    many_tainted_texts(owner_id=owner_id)
    said = [{"role": "assistant", "content": f"An answer {number}."} for number in range(2_000)]
    return lambda: tainted_texts.recognised(said, owner_id=owner_id)


@operation("tainted_texts.keep_answer", READING)
def keep_tainted_answer() -> Callable[[], object]:
    turn = the_long_one().turns.order_by("-number")[0]
    return lambda: tainted_texts.keep_answer(turn.pk, owner_id=turn.owner_id, by="web", call_ids=["call_1"])


@operation("tainted_texts.keep_calls")
def keep_tainted_calls() -> Callable[[], object]:
    turn = the_long_one().turns.order_by("-number")[0]
    return lambda: tainted_texts.keep_calls(turn.pk, owner_id=turn.owner_id, by="web")


@operation("announcements.anchor")
def anchor() -> Callable[[], object]:
    audit.record("tried")
    audit.seal()
    return announcements.anchor


@operation("announcements.turn_ended")
def turn_ended() -> Callable[[], object]:
    turn = a_turn()
    return lambda: announcements.turn_ended(turn.pk, TurnStatus.SUCCEEDED)


@operation("announcements.part_ended")
def part_ended() -> Callable[[], object]:
    turn = a_turn()
    endpoints.change(WebhookEndpoint.objects.earliest("pk"), kinds=sorted(announced.RESPONSES))
    row_id = StoredResponse.id_of(turn.pk, 0)
    StoredResponse.objects.create(id=row_id, turn=turn, number=0, asked={}, is_background=True)
    return lambda: announcements.part_ended(turn.pk, TurnStatus.SUCCEEDED)


@operation("announcements.announce")
def announce() -> Callable[[], object]:
    return lambda: announcements.announce(announced.AUDIT_HEAD, {})


@operation("announcements.try_out")
def try_out() -> Callable[[], object]:
    endpoint = WebhookEndpoint.objects.first()
    return lambda: announcements.try_out(endpoint)


@operation("announcements.send_again")
def send_again() -> Callable[[], object]:
    row = to_go_out()
    return lambda: announcements.send_again(row)
