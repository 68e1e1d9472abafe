"""Channels and servers that others have written: what our own peers in the tests say of the protocols is so."""

from urllib.parse import quote

import pytest

from conversations.channel_models import Listener
from conversations.engine import outgoing
from conversations.models import Conversation, Delivery, DeliveryStatus, Message, Turn
from tests.support.chat_platforms import SECRETS, hear, make_channel
from tests.support.delivering import deliver
from tests.support.mail_server import MailServer
from tests.support.real_peers import NO_DOVECOT, NO_SYNAPSE, Dovecot, Synapse
from tests.support.wait import wait_until
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = SECRETS["CHANNEL_SECRET_TOKEN"]


@pytest.fixture(autouse=True)
def loopback(settings, monkeypatch):
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def sent() -> list[Delivery]:
    """What is said is delivered, in its order."""
    settle(Turn.objects.open())
    while waiting := list(Delivery.objects.open().order_by("number")[:1]):
        (row,) = deliver(*waiting)
        assert row.status == DeliveryStatus.DELIVERED, row.error
    return list(Delivery.objects.order_by("number"))


@pytest.mark.skipif(bool(NO_DOVECOT), reason=NO_DOVECOT)
def test_a_mailbox_of_dovecot_s(owner, settings):
    box, post = Dovecot("agent@example.org", PASSWORD), MailServer()
    post.password = PASSWORD.encode()
    settings.HTTP_ALLOWED_PORTS = [str(box.port), str(post.port)]
    try:
        given = {"address": "agent@example.org", "password": "CHANNEL_SECRET_TOKEN", "security": "none"}
        given |= {"imap_host": "127.0.0.1", "imap_port": box.port}
        given |= {"smtp_host": "127.0.0.1", "smtp_port": post.port}

        def comes(name: str, text: str) -> None:
            head = f"From: Anna <anna@example.com>\r\nTo: agent@example.org\r\nMessage-ID: <{name}@example.com>\r\n"
            box.append(f"{head}Subject: The shop\r\n\r\n{text}\r\n".encode())

        comes("old", "of before")
        channel = make_channel(owner, "email", given, allow_from=["anna@example.com"])
        hear(channel)
        assert not Message.objects.exists()
        comes("one", "Hello")
        comes("two", "And hello again")
        hear(channel)
        hear(channel)
        texts = Message.objects.filter(role="user").order_by("pk").values_list("content", flat=True)
        assert [each.strip() for each in texts] == ["Hello", "And hello again"]
        Listener.objects.update(cursor=Listener.objects.get().cursor | {"next": 1})
        hear(channel)  # all of it once more, and what was there before
        assert Turn.objects.count() == 3
        sent()
        assert [str(message["In-Reply-To"]) for _, message in post.received][:2] == [
            "<one@example.com>",
            "<two@example.com>",
        ]
    finally:
        box.close()
        post.close()


@pytest.mark.skipif(bool(NO_SYNAPSE), reason=NO_SYNAPSE)
def test_a_room_of_synapse_s(owner, settings, monkeypatch):
    server = Synapse()
    settings.HTTP_ALLOWED_PORTS = [str(server.port)]
    try:
        anna, agent = server.person("anna"), server.person("agent")
        monkeypatch.setenv("CHANNEL_SECRET_TOKEN", agent)
        given = {"server": server.url, "user": "@agent:example.org", "token": "CHANNEL_SECRET_TOKEN"}
        channel = make_channel(owner, "matrix", given, allow_from=["@anna:example.org"])
        hear(channel)
        room = server.ask("POST", "/_matrix/client/v3/createRoom", {"invite": ["@agent:example.org"]}, token=anna)
        place = f"/_matrix/client/v3/rooms/{quote(room['room_id'], safe='')}"

        def joined() -> bool:
            hear(channel)
            return "@agent:example.org" in server.ask("GET", f"{place}/joined_members", token=anna)["joined"]

        wait_until(joined)
        hello = {"msgtype": "m.text", "body": "Hello"}
        begun = server.ask("PUT", f"{place}/send/m.room.message/1", hello, token=anna)["event_id"]

        def heard() -> bool:
            hear(channel)
            return Message.objects.filter(content="Hello").exists()

        wait_until(heard)
        (answer,) = sent()
        conversation, turn = Conversation.objects.get(), Turn.objects.get()
        # In doubt, it is sent again: the server knows it.
        Delivery.objects.filter(pk=answer.pk).update(status=DeliveryStatus.QUEUED, ended_at=None)
        assert sent()[0].external_id == answer.external_id
        outgoing.edit(conversation, answer.number, "**New**", destination="origin", turn_id=turn.pk)
        outgoing.react(conversation, "👍", turn_id=turn.pk)
        sent()
        told = server.ask("GET", f"{place}/messages?dir=b&limit=50", token=anna)["chunk"]
        theirs = [each for each in told if each["sender"] == "@agent:example.org" and each["type"] != "m.room.member"]
        reaction, edit, said = theirs
        assert said["event_id"] == answer.external_id
        assert edit["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": answer.external_id}
        assert "<strong>New</strong>" in edit["content"]["m.new_content"]["formatted_body"]
        assert reaction["content"]["m.relates_to"] == {"rel_type": "m.annotation", "event_id": begun, "key": "👍"}
    finally:
        server.close()
