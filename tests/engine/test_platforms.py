"""Platforms of chats, each as its protocol has it: what comes in and goes out by them, and what goes wrong."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db.models import F
from django.utils import timezone

from conversations.channel_models import Channel, ChannelEvent, Chat, Listener, ListenerStatus, Sender
from conversations.channels import accounts
from conversations.channels.base import NotTakenNow, Permanent
from conversations.deliveries import outbox
from conversations.engine import outgoing, sweeper
from conversations.engine.channels import listener
from conversations.engine.channels.listener import ListenerRunner
from conversations.feedback_models import Feedback
from conversations.kinds import LISTENERS
from conversations.models import Conversation, DeferredMessage, Delivery, DeliveryStatus, Message, Turn
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.chat_platforms import (
    PEERS,
    SECRETS,
    DingTalkServer,
    DiscordServer,
    FeishuServer,
    MailHouse,
    MatrixServer,
    QQServer,
    SlackServer,
    TelegramServer,
    WhatsAppServer,
    hear,
    hear_until,
    make_channel,
)
from tests.support.chat_platforms.qq import key_of
from tests.support.delivering import deliver
from tests.support.files import picture
from tests.support.receiver import Says
from tests.support.tables import rows_of_all_tables
from tests.support.wait import wait_until
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=PEERS, ids=lambda each: each.kind)
def peer(request, settings, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    running = request.param(settings)
    yield running
    running.close()


def only(*kinds):
    """Of these platforms alone."""
    return pytest.mark.parametrize("peer", kinds, indirect=True, ids=lambda each: each.kind)


def able(*features):
    """Of the platforms that lack none of these."""
    return only(*(each for each in PEERS if not set(features) & set(each.lacks)))


@pytest.fixture
def channel(peer, owner):
    return peer.channel(owner)


def answered() -> list[Delivery]:
    """The turns are worked off; what they say, in its order."""
    settle(Turn.objects.all())
    return list(Delivery.objects.order_by("number"))


def due_again(row: Delivery) -> None:
    past = timezone.now() - timedelta(minutes=1)
    Delivery.objects.filter(pk=row.pk).update(run_after=None, lease_until=past)
    Channel.objects.update(held_until=None)


# --- the table of cases ------------------------------------------------------------------------------------------


def test_in_and_out(peer, channel, owner):
    peer.tells("Hello <you> & all")
    message, chat = Message.objects.get(), Chat.objects.get()
    assert (message.content.strip(), message.tainted_by or "") == ("Hello <you> & all", "")
    assert Conversation.objects.get().owner == owner
    (row,) = deliver(*answered())
    assert (row.status, row.error) == (DeliveryStatus.DELIVERED, "")
    assert row.external_id or peer.kind == "telegram"
    (sent,) = peer.sent
    assert sent.chat_id == chat.chat_id
    channel.refresh_from_db()
    assert channel.last_in_at
    assert channel.last_out_at


@able("reactions")
def test_an_edit_and_a_reaction_are_notes(peer, channel):
    peer.tells("Hello")
    settle(Turn.objects.all())
    edited = peer.edits("Hello there") if "edits" not in peer.lacks else ""
    reacted = peer.reacts("👍")
    assert Turn.objects.count() == 1
    notes = list(DeferredMessage.objects.order_by("pk").values_list("content", flat=True))
    assert len(notes) == (2 if edited else 1)
    if edited:
        assert notes[0].endswith(f"changed the message {edited} to: Hello there")
    assert f"reacted to {reacted} with: " in notes[-1]


@able("reactions")
def test_a_thumb_on_an_answer_is_feedback_on_its_turn(peer, channel):
    up, other = (":+1:", ":eyes:") if peer.kind == "slack" else ("👍🏽", "👀")
    peer.tells("Hello")
    deliver(*answered())
    about = peer.reacts(other)
    Delivery.objects.update(external_id="another")
    # Of a platform that tells of a reaction by what it is, the same one is known.
    is_known = peer.kind == "discord"
    if not is_known:
        peer.reacts(up)  # to something else
    Delivery.objects.update(external_id=about)
    if peer.kind != "feishu":  # which says nothing but thumbs here
        peer.reacts(other)
    assert not Feedback.objects.exists()
    for _ in range(2):
        peer.reacts(up)
    row = Feedback.objects.get()
    assert (row.turn, row.rating) == (Turn.objects.get(), "up")
    assert row.by.startswith(f"{channel.name}:")


def test_a_file_comes_with_its_message(peer, channel):
    peer.tells_a_file("report.txt", b"The figures")
    message = Message.objects.get()
    assert message.content == ("Read this" if "captions" not in peer.lacks else "")
    assert [file["name"] for file in message.attachments] == ["report.txt"]


@able("threads")
def test_a_thread_is_a_conversation_of_its_own_and_is_answered_in_it(peer, channel):
    thread = peer.tells_in_a_thread("Hello")
    chat = Chat.objects.get()
    assert chat.thread == thread
    (row,) = deliver(*answered())
    assert row.status == DeliveryStatus.DELIVERED
    assert [each.thread for each in peer.sent] == [thread]


def test_a_platform_that_asks_for_time_is_left_alone(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    peer.answer(Says(429, headers=(("Retry-After", "90"),)))
    (row,) = deliver(row)
    assert (row.status, row.attempts) == (DeliveryStatus.QUEUED, 1)
    if peer.kind != "email":  # its servers name no time
        assert 80 < (row.run_after - timezone.now()).total_seconds() <= 91
        assert Channel.objects.get().held_until
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED


def test_a_fault_of_the_platform_is_tried_again(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    peer.answer(Says(500))
    (row,) = deliver(row)
    assert row.status == DeliveryStatus.QUEUED
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED


def test_a_refusal_is_final_and_noted(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    peer.answer(Says(400, body=b"{}"))
    (row,) = deliver(row)
    assert row.status == DeliveryStatus.FAILED
    assert DeferredMessage.objects.get().content.startswith("A message to origin could not be delivered")


def test_a_connection_that_breaks_in_the_middle(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    peer.answer(Says(resets=True))
    (row,) = deliver(row)
    assert row.status == (DeliveryStatus.QUEUED if peer.tells_duplicates else DeliveryStatus.UNKNOWN)
    if peer.tells_duplicates:
        due_again(row)
        assert deliver(row)[0].status == DeliveryStatus.DELIVERED
        assert len({each.key for each in peer.sent}) == 1


@only(DiscordServer, FeishuServer)
def test_what_a_platform_knows_again_for_a_while_is_unknown_after_it(peer, channel):
    """Whether its worker had no answer, or died; but not if the platform has said that it took nothing."""
    long_ago = F("begun_at") - timedelta(seconds=accounts.platform(channel).capabilities.remembers_for)
    for said, expected in ((429, DeliveryStatus.DELIVERED), (None, DeliveryStatus.UNKNOWN)):
        peer.tells("Hello")
        row = answered()[-1]
        peer.answer(Says(said) if said else Says(resets=True))
        (row,) = deliver(row)
        assert row.status == DeliveryStatus.QUEUED
        Delivery.objects.filter(pk=row.pk).update(begun_at=long_ago)
        due_again(row)
        sent = len(peer.sent)
        assert deliver(row)[0].status == expected
        assert len(peer.sent) == sent + (1 if said else 0)
    peer.tells("Hello")
    row = answered()[-1]
    assert outbox.claim(row.pk, worker="one that dies")
    Delivery.objects.filter(pk=row.pk).update(begun_at=long_ago)
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.UNKNOWN


def test_what_is_told_twice_is_taken_in_once(peer, channel):
    peer.tells("Hello")
    for _ in range(2):
        peer.tells_again()
    assert Turn.objects.count() == Message.objects.count() == ChannelEvent.objects.count() == 1


def test_who_is_not_known_is_refused_and_listed(peer, owner):
    peer.channel(owner, allow_from=[])
    peer.tells("Hello")
    assert not Turn.objects.exists()
    assert Sender.objects.get().refusals == 1


@able("groups")
def test_a_group_wakes_the_agent_by_a_mention_alone(peer, owner):
    channel = peer.channel(owner)
    peer.tells_in_a_group("among us", called=False)
    assert not Turn.objects.exists()
    peer.tells_in_a_group("the agent", called=True)
    assert "the agent" in Message.objects.get().content
    accounts.change(channel, settings=channel.settings | {"groups": "all"})
    settle(Turn.objects.all())
    peer.tells_in_a_group("among us all", called=False)
    assert Turn.objects.count() == 2


@able("captions")
def test_a_message_that_the_host_never_takes_is_told_of_in_the_chat(peer, channel):
    peer.tells_a_file("report.txt", b"The figures", text="/new")  # a command takes no files
    assert not Turn.objects.exists()
    assert ChannelEvent.objects.count() == 1
    peer.tells_again()
    (row,) = deliver(Delivery.objects.get())
    assert row.status == DeliveryStatus.DELIVERED
    assert [each.text for each in peer.sent] == ["This message was not accepted (invalid_request)."]


@able("late files")
def test_a_message_whose_file_is_not_available_now_is_taken_later(peer, channel):
    peer.has_files = False
    is_told = hasattr(peer, "last")
    with nullcontext() if is_told else pytest.raises(NotTakenNow):
        peer.tells_a_file("report.txt", b"The figures")
    assert not is_told or peer.last.status_code == 503
    assert not ChannelEvent.objects.exists()
    peer.has_files = True
    peer.tells_again()
    assert [file["name"] for file in Message.objects.get().attachments] == ["report.txt"]


def test_a_secret_stands_in_no_row(peer, channel):
    peer.tells("Hello")
    peer.answer(Says(500, body=f"you said {SECRETS['CHANNEL_SECRET_TOKEN']}".encode()))
    deliver(*answered())
    for table, rows in rows_of_all_tables():
        for secret in SECRETS.values():
            assert secret not in rows, table


def test_long_marked_up_answers_go_out_in_parts_that_are_whole(peer, channel):
    peer.tells("Hello")
    settle(Turn.objects.all())
    text = "\n\n".join(f"**{number}** is <{number}> & `a < b` 👩‍👩‍👧" for number in range(1000))
    outgoing.say(Conversation.objects.get(), text, turn_id=Turn.objects.get().pk)
    for row in Delivery.objects.order_by("number")[: 5 if peer.kind == "qq" else None]:  # it takes five answers
        assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    assert len(peer.sent) > (1 if peer.kind == "email" else 4)


# --- what is of one platform ---------------------------------------------------------------------------------------


@only(TelegramServer)
def test_a_text_that_telegram_cannot_read_goes_out_as_it_is(peer, channel):
    peer.tells("Hello")
    settle(Turn.objects.all())
    Delivery.objects.all().delete()
    outgoing.say(Conversation.objects.get(), "> a\n> > *quote*")
    peer.answer(Says(400, body=b'{"ok": false, "description": "Bad Request: can\'t parse entities: nested quote"}'))
    (row,) = deliver(*Delivery.objects.all())
    assert row.status == DeliveryStatus.DELIVERED
    assert [each.text for each in peer.sent][1:] == ["> a\n> > *quote*"]


@only(TelegramServer)
def test_telegram_tells_by_its_webhook_where_a_secret_is_set(peer, owner, client):
    own = peer.channel(owner, settings={"webhook_secret": "CHANNEL_SECRET_SIGNING"})
    assert not Listener.objects.exists()
    update = {"update_id": 1, "message": peer.message_of("Hello", "anna", "42")}
    for secret, status in (("wrong", 401), ("", 401), (SECRETS["CHANNEL_SECRET_SIGNING"], 202)):
        headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
        told = client.post("/channels/shop/webhook", update, content_type="application/json", headers=headers)
        assert told.status_code == status
    assert Turn.objects.count() == 1
    accounts.change(own, settings={name: value for name, value in own.settings.items() if name != "webhook_secret"})
    assert Listener.objects.count() == 1


@only(SlackServer)
def test_slack_s_signature_is_asked_for_and_is_of_now(peer, channel):
    for wrong in ({"secret": "another"}, {"at": -310}, {"at": 900}):
        peer.last = peer.post({"type": "event_callback", "event_id": "Ev9", "event": {}}, **wrong)
        assert peer.last.status_code == 401
    challenge = {"type": "url_verification", "challenge": "c-1"}
    assert peer.post(challenge, secret="another").status_code == 401
    assert peer.post(challenge).json() == {"challenge": "c-1"}
    assert not ChannelEvent.objects.exists()


@only(SlackServer)
def test_slack_s_token_goes_to_slack_alone(peer, channel):
    peer.files["x"] = b"words"
    for url in (f"http://localhost:{peer.port}/files/x", f"{peer.url}@localhost/files/x", "http://slack.com.example/x"):
        file = {"name": "x", "url_private_download": url}
        peer.tells("Read this", subtype="file_share", files=[file])
    assert not [each for each in peer.asked if each.path[0] == "files"]
    assert {"(A file could not be fetched" in message.content for message in Message.objects.all()} == {True}


@only(WhatsAppServer)
def test_whatsapp_s_signature_and_its_question_whether_somebody_is_there(peer, channel, client):
    peer.tells("Hello")
    assert peer.last.status_code == 200  # the only answer that is a yes there
    body = peer.events[-1]
    assert peer.post(body, secret="another").status_code == 401
    assert client.post("/channels/shop/webhook", body, content_type="application/json").status_code == 401
    asked = {
        "hub.mode": "subscribe",
        "hub.challenge": "1158201444",
        "hub.verify_token": SECRETS["CHANNEL_SECRET_SIGNING"],
    }
    answer = client.get("/channels/shop/webhook", asked)
    assert (answer.status_code, answer.content, answer["Content-Type"]) == (200, b"1158201444", "text/plain")
    for wrong in ({"hub.verify_token": "another"}, {"hub.mode": "unsubscribe"}):
        assert client.get("/channels/shop/webhook", asked | wrong).status_code == 401
    # A message of another number of the same app, and a replay of a time whose ids are forgotten.
    peer.tells("Hello", number="1")
    peer.tells("Hello", timestamp="1600000000")
    assert Turn.objects.count() == 1


@only(WhatsAppServer)
def test_whatsapp_s_errors_say_what_to_do(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    peer.answer(peer.refuses(131056))
    (row,) = deliver(row)
    assert (row.status, Channel.objects.get().held_until is not None) == (DeliveryStatus.QUEUED, True)
    due_again(row)
    peer.answer(peer.refuses(131047))
    (row,) = deliver(row)
    assert row.status == DeliveryStatus.FAILED
    assert "More than 24 hours" in row.error


@only(FeishuServer)
def test_feishu_s_requests_are_sealed_signed_and_of_these_hours(peer, channel, client):
    peer.tells("Hello")
    assert (peer.last.status_code, peer.last.json()) == (200, {})
    body, token = peer.events[-1], SECRETS["CHANNEL_SECRET_SIGNING"]
    other = body | {"header": body["header"] | {"token": "another"}}
    wrong = [peer.post(body, sign="another"), peer.post(body, secret="another"), peer.post(other)]
    wrong += [peer.post(body, at=-9 * 3600), peer.post(body, at=9 * 3600)]
    wrong.append(client.post("/channels/shop/webhook", body, content_type="application/json"))
    assert {each.status_code for each in wrong} == {401}
    # Another key's padding looks right now and then: what it opens to is answered as if it had not.
    words = "The request is not encrypted by this app's Encrypt Key."
    for opened in (b"{", b"\xff", b"", b"[" * 100_000):
        assert peer.post(opened, sign="another").json()["detail"] == words
        assert peer.post(opened).status_code == 400, "of what Feishu itself has signed, what is wrong with it"
    peer.files["img_1"] = picture("JPEG")
    line = [{"tag": "text", "text": "Look "}, {"tag": "img", "image_key": "img_1"}]
    peer.tells("", kind="post", content={"title": "A picture", "content": [line]})
    assert Message.objects.filter(content="A picture\nLook").exists()
    asked = {"type": "url_verification", "challenge": "c-1", "token": token}
    assert peer.post(asked, sign="of nobody").json() == {"challenge": "c-1"}
    assert peer.post(asked | {"token": "another"}).status_code == 401
    assert Turn.objects.count() == 2


@only(FeishuServer)
def test_feishu_s_token_is_asked_for_again_once_it_counts_no_more(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    peer.tokens.append("t-of-another-day")
    (row,) = outgoing.say(Conversation.objects.get(), "<AT id=all></AT> <at id=all></at>")
    (row,) = deliver(row)
    assert row.status == DeliveryStatus.QUEUED
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    assert "<at" not in peer.sent[-1].text.lower()


@only(MatrixServer)
def test_an_invitation_is_followed_if_it_is_of_somebody_who_may_write(peer, channel):
    peer.invited = {"!good": "anna", "!bad": "otto"}
    hear(channel)
    assert peer.joined == ["!good"]


@only(MailHouse)
def test_an_email_is_proven_by_the_receiving_server_alone(peer, channel):
    forged = "evil.example.org; dmarc=pass header.from=example.com"
    for told in ("", forged, "mx.example.org; dmarc=fail header.from=example.com"):
        peer.tells("Hello", **{"Authentication-Results": told})
    peer.tells("Hello", **{"Authentication-Results": "mx.example.org; dmarc=pass header.from=evil.example"})
    assert {message.tainted_by for message in Message.objects.filter(role="user")} == {"the channel shop"}
    peer.tells("Hello")
    assert Message.objects.filter(role="user", tainted_by=None).count() == 1


@only(MailHouse)
def test_programs_are_not_answered(peer, channel):
    for headers in ({"Auto-Submitted": "auto-replied"}, {"Precedence": "bulk"}, {"List-Id": "<a.b>"}, {"From": "x"}):
        peer.mail("I am away", **headers)
    peer.mail("I am you", From="agent@example.org")
    assert not ChannelEvent.objects.exists()


@only(MailHouse)
def test_an_answer_has_the_subject_and_says_that_it_is_a_program_s(peer, channel):
    peer.mail("<p>Hello <b>all</b></p>", Subject="The =?utf-8?q?caf=C3=A9?=", **{"Content-Type": "text/html"})
    assert Message.objects.get().content == "Hello all"
    deliver(*answered())
    ((_, message),) = peer.post.received
    assert (message["Subject"], message["Auto-Submitted"]) == ("Re: The café", "auto-replied")


@only(MailHouse)
def test_what_a_mail_server_has_taken_is_delivered_however_it_says_goodbye(peer, channel):
    peer.tells("Hello")
    peer.post.to_goodbye = "421 Going down"
    (row,) = deliver(*answered())
    assert (row.status, len(peer.sent)) == (DeliveryStatus.DELIVERED, 1)


@only(DiscordServer)
def test_discord_s_session_goes_on_wherever_its_connection_breaks(peer, channel):
    """Without a word, with a code, in the greeting, or as the gateway asks for it: nothing is lost, nothing told twice.
    A session that is over is begun anew."""
    gateway, told = peer.gateway, []

    def tell(text: str) -> None:
        told.append(text)
        peer.tells(text)

    tell("one")
    for broken in ([None], [4000], [None, None]):
        gateway.breaks = broken
        tell(f"after {broken}")
    assert gateway.identified == 1
    gateway.forget_session()
    tell("of a new session")
    gateway.breaks = [4009]
    tell("of a third one")
    assert gateway.identified >= 2
    assert [each.content for each in Message.objects.filter(role="user").order_by("pk")] == told
    gateway.breaks = [4014]
    with pytest.raises(Permanent, match="Message Content"):
        peer.tells("of one that may not read")


@only(DiscordServer)
def test_discord_hears_that_a_button_was_pressed_once_it_was_taken_in(peer, channel, monkeypatch):
    def acknowledged():
        return [each for each in peer.asked if "interactions" in each.path]

    def stumble(*_, **__):
        raise KeyError("a fault of ours")

    peer.tells("Hello")
    with monkeypatch.context() as broken:
        broken.setattr("conversations.engine.channels.from_channels.take", stumble)
        with pytest.raises(KeyError):
            peer.presses("q yes")
    assert not acknowledged()
    hear_until(channel, acknowledged)
    assert ChannelEvent.objects.filter(external_id="choice 8001").count() == 1


@only(DiscordServer)
def test_discord_s_listener_keeps_its_connection_alive_and_gives_it_up(peer, channel):
    """A worker that listens: its connection breaks, and it has another; its channel is changed, and it has none."""
    gateway, row = peer.gateway, Listener.objects.get()
    gateway.beat_every = 1000
    with Listening(row) as worker:
        gateway.dispatch("MESSAGE_CREATE", peer.message_of("one"))
        wait_until(lambda: Message.objects.filter(content="one").exists())
        for text, code in (("two", None), ("three", 4000), ("four", 1012)):
            gateway.drop(code)
            gateway.dispatch("MESSAGE_CREATE", peer.message_of(text))
            wait_until(lambda text=text: Message.objects.filter(content=text).exists())
        assert Listener.objects.get().failures == 0
        wait_until(lambda: len(gateway.open) == 1)
        worker.watch()
        accounts.change(channel, settings=channel.settings | {"groups": "all"})
        worker.watch()
        worker.until_it_lets_go()
        wait_until(lambda: not gateway.open)
    assert gateway.identified == 1


@only(DingTalkServer)
def test_dingtalk_tells_again_until_it_was_taken_in_and_on_whichever_connection(peer, channel, monkeypatch):
    def stumble(*_, **__):
        raise KeyError("a fault of ours")

    with monkeypatch.context() as broken:
        broken.setattr("conversations.engine.channels.from_channels.take", stumble)
        with pytest.raises(KeyError):
            peer.tells("one")
    assert (peer.stream.acknowledged, Message.objects.exists()) == ([], False)
    peer.stream.breaks = ["without a word", "", "without a word"]
    peer.tells("two")
    peer.tells("three")
    assert [each.content for each in Message.objects.order_by("pk")] == ["one", "two", "three"]
    assert peer.stream.connected >= 5
    assert set(peer.stream.echoed) == {"o-1"}
    with Listening(Listener.objects.get()):
        wait_until(lambda: peer.stream.open)
        peer.stream.drop()
        peer.stream.tell(peer.message_of("four") | {"msgId": "four"})
        wait_until(lambda: not peer.stream.frames)
    wait_until(lambda: not peer.stream.open)
    assert Message.objects.filter(content="four").exists()


@only(DingTalkServer)
def test_dingtalk_s_groups_and_whom_it_does_not_know(peer, channel):
    peer.tells("Hello", conversationType="2", conversationId="cid+7/==", conversationTitle="All")
    rich = {"richText": [{"text": "Look "}, {"type": "picture", "downloadCode": "code-2"}, {"text": "here"}]}
    peer.files["code-2"] = picture("JPEG")
    peer.tells("", msgtype="richText", content=rich, conversationType="2", conversationId="cid+7/==")
    assert Message.objects.filter(content="Look here").get().attachments
    for row in answered():
        assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    assert {each.chat_id for each in peer.sent} == {"group:cid+7/=="}
    Chat.objects.update(chat_id="nobody")
    (row,) = outgoing.say(Conversation.objects.get(), "Hello")
    assert "knows nobody" in deliver(row)[0].error
    peer.answer(Says(403, body=b'{"code": "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi"}'))
    (row,) = outgoing.say(Conversation.objects.get(), "Hello")
    assert deliver(row)[0].status == DeliveryStatus.QUEUED


@only(DingTalkServer, QQServer)
def test_a_token_that_counts_no_more_is_asked_for_again(peer, channel):
    peer.tells("Hello")
    (row,) = answered()
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    peer.tokens.append("t-of-another-day")
    peer.tells("Hello")
    row = answered()[-1]
    assert deliver(row)[0].status == DeliveryStatus.QUEUED
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED


@only(QQServer)
def test_qq_s_signature_and_what_it_has_signed(peer, channel, client):
    peer.tells("Hello")
    assert (peer.last.status_code, peer.last.json()) == (200, {"op": 12})
    body = peer.events[-1] | {"d": peer.events[-1]["d"] | {"id": "ROBOT1.0_other"}}
    wrong = [peer.post(body, secret="another"), peer.post(body, at=-4000), peer.post(body, at=4000)]
    wrong.append(client.post("/channels/shop/webhook", body, content_type="application/json"))
    assert {each.status_code for each in wrong} == {401}
    asked = {"op": 13, "d": {"plain_token": "Arq0D5A61EgUu4OxUvOp", "event_ts": "1725442341"}}
    told = client.post("/channels/shop/webhook", asked, content_type="application/json").json()
    key_of(SECRETS["CHANNEL_SECRET_TOKEN"]).public_key().verify(
        bytes.fromhex(told["signature"]), b"1725442341Arq0D5A61EgUu4OxUvOp"
    )
    # What is signed for whoever asks is no event.
    for text, stamp in (('{"op":0}', "1725442341"), ("a", '1725442341{"op":0}'), ("", "1")):
        forged = {"op": 13, "d": {"plain_token": text, "event_ts": stamp}}
        assert client.post("/channels/shop/webhook", forged, content_type="application/json").status_code == 401
    assert Turn.objects.count() == 1


@only(QQServer)
def test_qq_takes_answers_alone_and_each_once(peer, channel):
    peer.tells_in_a_group_of("g1", "Hello")
    (row,) = answered()
    peer.answer(Says(resets=True))
    assert deliver(row)[0].status == DeliveryStatus.QUEUED
    # It had arrived, though nobody has heard that.
    peer.takes(next(each.said for each in peer.asked if peer.is_sent(each)))
    due_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    assert ([each.chat_id for each in peer.sent], len(peer.taken)) == (["group:g1"] * 2, 1)
    conversation, turn = Conversation.objects.get(), Turn.objects.get()
    # What the turn says besides answers what began it.
    (row,) = outgoing.say(conversation, "**More** [here](https://x.example)", turn_id=turn.pk)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    assert peer.sent[-1].text == "More here (https://x.example)"
    (row,) = outgoing.say(conversation, "Good morning")
    assert "only replies" in deliver(row)[0].error


# --- listening -----------------------------------------------------------------------------------------------------


@only(TelegramServer, MatrixServer, MailHouse)
def test_a_listener_is_there_as_long_as_its_channel_is_on(peer, channel):
    row = Listener.objects.get()
    assert sweeper.find(LISTENERS) == [row.pk]
    accounts.change(channel, is_active=False)
    assert not Listener.objects.exists()
    accounts.change(channel, is_active=True)
    assert Listener.objects.count() == 1


@only(TelegramServer)
def test_one_worker_listens_and_a_dead_one_is_replaced(peer, channel):
    row = Listener.objects.get()
    first = listener.claim(row.pk, worker="one")
    assert listener.claim(row.pk, worker="two") is None
    Listener.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert sweeper.find(LISTENERS) == [row.pk]
    second = listener.claim(row.pk, worker="two")
    # What the first one hears now, it does not store.
    heard = first.platform.ask(first.cursor)
    assert listener.take(first, heard) is None
    assert listener.still_held([first]) == set()
    assert listener.still_held([second]) == {row.pk}
    listener.release(first)
    assert Listener.objects.get().status == ListenerStatus.LISTENING


@only(TelegramServer)
def test_whoever_listens_stops_once_its_channel_is_changed(peer, channel):
    row = Listener.objects.get()
    with Listening(row) as worker:
        peer.updates.append({"update_id": 1, "message": peer.message_of("Hello", "anna", "42")})
        wait_until(lambda: Turn.objects.exists())
        worker.watch()
        assert worker.runner.held == [row.pk]
        accounts.change(channel, settings=channel.settings | {"groups": "all"})
        worker.watch()
        worker.until_it_lets_go()
    assert Listener.objects.get().status == ListenerStatus.WAITING


class Listening:
    """A worker's runner that listens by a row, on a loop of its own."""

    def __init__(self, row: Listener) -> None:
        self._row, self._loop = row, asyncio.new_event_loop()
        self._threads = DatabaseThreads(2)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.runner = ListenerRunner(worker="worker-1", database=self._threads)

    def __enter__(self) -> "Listening":
        self._thread.start()
        self._ended = asyncio.run_coroutine_threadsafe(self.runner.advance(self._row.pk), self._loop)
        return self

    def until_it_listens(self) -> None:
        wait_until(lambda: self.runner.held)

    def until_it_lets_go(self) -> None:
        self._ended.result(60)

    def watch(self) -> None:
        """What a worker does every second."""
        asyncio.run_coroutine_threadsafe(self.runner.watch(), self._loop).result(60)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.close()


@only(TelegramServer)
def test_a_worker_that_stops_hands_its_listener_back(peer, channel):
    row = Listener.objects.get()
    with Listening(row) as worker:
        worker.until_it_listens()
    row.refresh_from_db()
    assert (row.status, row.lease_until) == (ListenerStatus.WAITING, None)


@only(TelegramServer)
def test_a_platform_that_fails_is_asked_again_later_and_the_channel_says_why(peer, channel, monkeypatch):
    monkeypatch.setenv("CHANNEL_SECRET_TOKEN", "another-token")
    row = Listener.objects.get()
    with Listening(row) as worker:
        worker.until_it_lets_go()
    row.refresh_from_db()
    assert (row.status, row.failures) == (ListenerStatus.WAITING, 1)
    assert "Unauthorized" in row.error
    assert row.run_after > timezone.now() + timedelta(minutes=4)
    # As if the time had gone by: a sweep finds it at once.
    gone_by = timedelta(minutes=5, seconds=1)
    Listener.objects.update(run_after=F("run_after") - gone_by, notified_at=F("notified_at") - gone_by)
    assert sweeper.find(LISTENERS) == [row.pk]
    monkeypatch.delenv("CHANNEL_SECRET_TOKEN")
    Listener.objects.update(run_after=None)
    with Listening(row) as worker:
        worker.until_it_lets_go()
    row.refresh_from_db()
    assert row.error.startswith("CHANNEL_SECRET_TOKEN is not set here")


@only(TelegramServer)
def test_an_event_over_which_the_host_stumbles_is_passed_over_in_the_end(peer, channel, monkeypatch):
    def stumble(*_, **__):
        raise KeyError("a fault of ours")

    with monkeypatch.context() as broken:
        broken.setattr("conversations.engine.channels.from_channels.take", stumble)
        with pytest.raises(KeyError):
            peer.tells("Hello")
        Listener.objects.update(failures=listener.MAX_FAILURES)
        hear(channel)
    assert Listener.objects.get().cursor == {"offset": 2}
    peer.tells("And more")
    assert Message.objects.get().content == "And more"


# --- settings and secrets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "4711:the-token-itself"},
        {"token": ""},
        {"token": "PATH"},
        {"server": "ftp://example.org/"},
        {"groups": "some"},
        {"colour": "red"},
    ],
    ids=str,
)
@only(TelegramServer)
def test_settings_that_make_no_sense_make_no_channel(peer, channel, owner, wrong):
    with pytest.raises(ValidationError) as refused:
        make_channel(owner, "telegram", {"token": "CHANNEL_SECRET_TOKEN"} | wrong, name="other")
    assert "the-token-itself" not in str(refused.value)
    assert Channel.objects.count() == 1


@only(TelegramServer)
def test_no_other_variable_is_ever_read(peer, channel):
    Channel.objects.update(settings=channel.settings | {"token": "PATH"})
    channel.refresh_from_db()
    with pytest.raises(accounts.SecretNotSet):
        accounts.platform(channel).ask({})


LEAVING = """
import json, os, django
django.setup()
from nanohost import hardening
from nanohost.lib import env
hardening.harden()
names = ["CHANNEL_SECRET_LEFT", "MCP_SECRET_LEFT", "CHANNEL_SECRET_KEPT"]
print(json.dumps([[name in os.environ for name in names], [env.secret(name) for name in names]]))
"""


def test_secrets_of_channels_leave_the_environment(tmp_path):
    (tmp_path / "secret").write_text("of-a-file-4711")
    given = {"CHANNEL_SECRET_LEFT": "a-secret-that-leaves", "MCP_SECRET_LEFT": "another-one-that-leaves"}
    given |= {"CHANNEL_SECRET_KEPT_FILE": str(tmp_path / "secret"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    # In a process of its own: what leaves the environment of this one, other tests would miss.
    told = subprocess.run(
        [sys.executable, "-c", LEAVING], env=os.environ | given, capture_output=True, text=True, check=True
    )
    are_left, values = json.loads(told.stdout)
    assert are_left == [False, False, False]
    assert values == ["a-secret-that-leaves", "another-one-that-leaves", "of-a-file-4711"]
