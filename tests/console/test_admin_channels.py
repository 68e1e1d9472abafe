"""Channels in the admin: made, tried, switched off, given another secret; who may write; what is cancelled."""

import re

import pytest
from django.urls import reverse

from conversations.channel_models import Channel, Chat, Destination, Sender, SenderState
from conversations.models import Delivery, DeliveryStatus, Turn
from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import client_of, page
from tests.support.delivering import deliver
from tests.support.platforms import WebhookProgram
from tests.support.receiver import Says
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(settings):
    running = WebhookProgram(settings)
    yield running
    running.close()


def act(client, action, *rows):
    name = f"{rows[0]._meta.app_label}_{rows[0]._meta.model_name}"
    return client.post(page(name), {"action": action, "_selected_action": [row.pk for row in rows]}, follow=True)


def shown_once(answer) -> str:
    found = re.search(r'id="secret"[^>]*>([^<]+)<', answer.content.decode())
    return found[1] if found else ""


def test_a_channel_is_made_and_people_talk_by_it(admin_client, owner, agent, program):
    given = {"name": "shop", "kind": "webhook", "agent": agent.pk, "owner": owner.pk, "settings": "{}"}
    given |= {"allow_from": "[]", "unknown": "pairing", "in_doubt": "leave"}
    for wrong in ({"name": "api"}, {"settings": '{"token": "x"}'}, {"allow_from": '"anna"'}, {"kind": "pigeon"}):
        answer = admin_client.post(page("conversations_channel", "add"), given | wrong)
        assert answer.status_code == 200
        assert not Channel.objects.exists()
    answer = admin_client.post(page("conversations_channel", "add"), given)
    program.secret, channel = shown_once(answer), Channel.objects.get()
    address = page("conversations_channel", "change", channel.pk)
    assert program.secret.startswith("whsec_")
    assert program.secret not in admin_client.get(address).content.decode()
    given |= {"settings": f'{{"url": "{program.receiver.url}"}}', "is_active": "on"}
    assert admin_client.post(address, given).status_code == 302

    program.tell("Hello")
    assert "refused" in admin_client.get(page("conversations_sender")).content.decode()
    code = shown_once(act(admin_client, "pairing_code", channel))
    program.tell(f"/pair {code}", event_id="2")
    program.tell("Hello", event_id="3")
    assert "there is no chat to send" not in act(admin_client, "try_out", channel).content.decode()
    settle(Turn.objects.all())
    deliver(*Delivery.objects.all())
    assert [each.text[:14] for each in program.sent] == ["This is a test", program.sent[1].text[:14]]
    told = {entry.action for entry in AuditEntry.objects.all()}
    assert {"channel.made", "channel.changed", "channel.pairing_opened", "sender.paired", "channel.tried"} <= told


def test_what_went_wrong_is_told_sent_again_and_cancelled(admin_client, owner, program):
    channel = program.channel(owner)
    program.answer(Says(400, body=b"no such chat"))
    program.tell("Hello")
    settle(Turn.objects.all())
    (row,) = deliver(Delivery.objects.get())
    said = admin_client.get(page("conversations_channel")).content.decode()
    assert "the last message did not go out: It answered 400: no such chat." in said
    shown = admin_client.get(page("conversations_delivery", "change", row.pk)).content.decode()
    assert "shop:42" in shown
    admin_client.post(reverse("admin:conversations_delivery_again", args=[row.pk]))
    act(admin_client, "cancel", row)
    row.refresh_from_db()
    assert row.status == DeliveryStatus.CANCELLED
    listed = admin_client.get(page("conversations_delivery") + f"?account__id__exact={channel.pk}").content.decode()
    assert str(row.pk) in listed


def test_what_has_not_gone_out_is_changed_until_it_is_sent(admin_client, owner, program):
    program.channel(owner)
    program.tell("Hello")
    settle(Turn.objects.all())
    row = Delivery.objects.get()
    address = reverse("admin:conversations_delivery_text", args=[row.pk])
    shown = page("conversations_delivery", "change", row.pk)
    assert 'aria-label="New text"' in admin_client.get(shown).content.decode()
    for wrong in ("  ", "x" * 16_001):
        assert "has to have 1 to 16000" in admin_client.post(address, {"new_text": wrong}, follow=True).content.decode()
    admin_client.post(address, {"new_text": "Good\r\nmorning"})
    row.refresh_from_db()
    deliver(row)
    assert [each.text for each in program.sent] == ["Good\nmorning"]
    assert 'aria-label="New text"' not in admin_client.get(shown).content.decode()
    late = admin_client.post(address, {"new_text": "Good evening"}, follow=True)
    assert "nothing is changed" in late.content.decode()
    row.refresh_from_db()
    assert row.data["text"] == "Good\nmorning"
    assert AuditEntry.objects.filter(action="delivery.changed").count() == 1


def test_a_destination_is_given_and_taken_back(admin_client, owner, agent, program):
    program.channel(owner)
    program.tell("Hello")
    chat = Chat.objects.get()
    admin_client.post(page("conversations_destination", "add"), {"agent": agent.pk, "name": "boss", "chat": chat.pk})
    given = Destination.objects.get()
    assert (given.name, given.made_by) == ("boss", "admin")
    admin_client.post(page("conversations_destination", "delete", given.pk), {"post": "yes"})
    told = AuditEntry.objects.filter(action__startswith="destination.").order_by("pk")
    assert [entry.action for entry in told] == ["destination.made", "destination.deleted"]


@pytest.mark.parametrize(("role", "acts", "changes"), [(VIEWER, 0, 0), (OPERATOR, 1, 0), (ADMIN, 1, 1)])
def test_who_may_do_what(owner, program, role, acts, changes):
    channel = program.channel(owner, settings={"url": "https://example.org/?token=abcdef0123456789abcdef"})
    sender = Sender.objects.create(channel=channel, sender_id="otto")
    sync_roles()
    client = client_of(role)
    act(client, "rotate", channel)
    act(client, "allow", sender)
    channel.refresh_from_db()
    sender.refresh_from_db()
    assert (bool(channel.former_seed), sender.state == SenderState.ALLOWED) == (bool(changes), bool(changes))
    said = client.get(page("conversations_channel", "change", channel.pk)).content.decode()
    assert ("abcdef0123456789abcdef" in said) == bool(changes)
    act(client, "block", sender)
    act(client, "switch_off", channel)
    channel.refresh_from_db()
    sender.refresh_from_db()
    assert (channel.is_active, sender.state == SenderState.BLOCKED) == (not acts, bool(acts))
