"""Webhooks in the admin: made, tried, switched off, given another secret; what they were sent, and to be sent again."""

import logging
import re

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.test import Client
from django.urls import reverse

from conversations import announced
from conversations.engine.announcements import announce
from conversations.models import Delivery, DeliveryStatus, WebhookEndpoint
from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import page
from tests.support.delivering import deliver, webhook
from tests.support.receiver import Receiver, Says

pytestmark = pytest.mark.django_db(transaction=True)

ADD, LIST = (
    reverse("admin:conversations_webhookendpoint_add"),
    reverse("admin:conversations_webhookendpoint_changelist"),
)
DELIVERIES = reverse("admin:conversations_delivery_changelist")
FIELDS = {"name": "the shop", "url": "https://example.org/hook?token=abcdef0123456789abcdef", "kinds": ["turn.failed"]}


@pytest.fixture
def receiver():
    running = Receiver()
    yield running
    running.close()


def client_of(role: str) -> Client:
    sync_roles()
    member, _ = User.objects.get_or_create(username=f"of {role}", is_staff=True)
    member.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(member)
    return client


def secret_in(answer) -> str | None:
    found = re.search(r'id="secret"[^>]*>(whsec_[^<]+)<', answer.content.decode())
    return found and found[1]


def act(client: Client, action: str, *rows, page: str = LIST):
    chosen = [row.pk for row in rows]
    return client.post(page, {"action": action, "_selected_action": chosen}, follow=True)


def test_a_webhook_is_made_and_its_secret_shown_once_and_left_nowhere(admin_client, caplog):
    with caplog.at_level(logging.DEBUG):
        answer = admin_client.post(ADD, FIELDS)
        secret = secret_in(answer)
    row = WebhookEndpoint.objects.get()
    assert (row.name, row.url, row.kinds, row.is_active, row.made_by) == (*FIELDS.values(), True, "admin")
    assert "no-store" in answer["Cache-Control"]
    assert secret not in caplog.text
    assert secret not in str(answer.headers) + str(admin_client.cookies) + str(dict(admin_client.session))
    stored = [serializers.serialize("json", model.objects.all()) for model in apps.get_models()]
    assert not [rows for rows in stored if secret[6:] in rows]
    for address in (LIST, ADD, page("conversations_webhookendpoint", "change", row.pk), reverse("admin:index")):
        assert secret[6:] not in admin_client.get(address).content.decode()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"url": "example.org"}, "A URL must start with http"),
        ({"url": "https://u:p@example.org/"}, "A URL holds no user name"),
        ({"kinds": []}, "This field is required."),
        ({"kinds": ["turn.imagined"]}, "Select a valid choice."),
        ({"name": ""}, "This field is required."),
    ],
)
def test_what_makes_no_sense_makes_no_webhook(admin_client, wrong, words):
    answer = admin_client.post(ADD, FIELDS | wrong)
    assert words in answer.content.decode()
    assert not WebhookEndpoint.objects.exists()


def test_without_the_key_that_secrets_are_made_of_none_is_made(admin_client, settings, receiver):
    hook, _ = webhook(receiver, settings)
    settings.WEBHOOK_KEY = ""
    assert "There is no WEBHOOK_KEY here" in admin_client.post(ADD, FIELDS).content.decode()
    assert "Nothing was done" in act(admin_client, "rotate", hook).content.decode()
    assert WebhookEndpoint.objects.count() == 1


def test_each_change_stands_in_the_audit_log_with_what_it_was(admin_client, receiver, settings):
    hook, _ = webhook(receiver, settings)
    changed = {"name": "the other shop", "url": hook.url, "kinds": hook.kinds, "is_active": "on"}
    admin_client.post(page("conversations_webhookendpoint", "change", hook.pk), changed)
    act(admin_client, "switch_off", hook)
    act(admin_client, "rotate", hook)
    told = list(AuditEntry.objects.filter(object_type="conversations.webhookendpoint").order_by("pk"))
    assert [entry.action for entry in told] == ["webhook.made", "webhook.changed", "webhook.changed", "webhook.rotated"]
    assert [entry.actor for entry in told[1:]] == ["user admin"] * 3
    assert (told[1].before, told[1].after) == ('{"name": "the shop"}', '{"name": "the other shop"}')
    assert (told[2].before, told[2].after) == ('{"is_active": true}', '{"is_active": false}')


def test_another_secret_is_shown_once(admin_client, receiver, settings):
    (hook, former), (other, _) = (webhook(receiver, settings) for _ in range(2))
    secret = secret_in(act(admin_client, "rotate", hook))
    assert secret not in (None, former)
    assert "choose one webhook" in act(admin_client, "rotate", hook, other).content.decode()
    assert WebhookEndpoint.objects.filter(former_seed="").get() == other


def test_a_test_event_is_sent_and_can_be_seen_and_sent_again(admin_client, receiver, settings):
    hook, _ = webhook(receiver, settings, kinds=["turn.failed"])
    answer = act(admin_client, "try_out", hook)
    row = Delivery.objects.get()
    assert page("conversations_delivery", "change", row.pk) in answer.content.decode()
    receiver.answer(Says(500, body=b"<b>not now</b>"), Says())
    deliver(row)
    shown = admin_client.get(page("conversations_delivery", "change", row.pk)).content.decode()
    assert "It answered 500: &lt;b&gt;not now&lt;/b&gt;" in shown
    assert announced.TEST in shown
    assert "Send again" in shown
    admin_client.post(reverse("admin:conversations_delivery_again", args=[row.pk]))
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    act(admin_client, "send_again", row, page=DELIVERIES)
    deliver(row)
    assert len(receiver.ids) == 3
    assert len(set(receiver.ids)) == 1


def test_what_failed_is_found_by_filters(admin_client, receiver, settings):
    hook, _ = webhook(receiver, settings)
    for kind in (announced.BUDGET_WARNING, announced.BUDGET_EXCEEDED):
        announce(kind, {})
    Delivery.objects.filter(kind=announced.BUDGET_WARNING).update(
        status=DeliveryStatus.FAILED, error="It answered 500."
    )
    found = admin_client.get(f"{DELIVERIES}?status__exact=failed&endpoint__id__exact={hook.pk}")
    assert [row.kind for row in found.context["cl"].result_list] == [announced.BUDGET_WARNING]
    assert "It answered 500." in found.content.decode()
    assert (
        f"{DELIVERIES}?endpoint__id__exact={hook.pk}&amp;status__exact=failed"
        in admin_client.get(LIST).content.decode()
    )


@pytest.mark.parametrize(("role", "switches", "changes"), [(VIEWER, 0, 0), (OPERATOR, 1, 0), (ADMIN, 1, 1)])
def test_who_may_do_what(receiver, settings, role, switches, changes):
    hook, _ = webhook(receiver, settings, url=FIELDS["url"])
    announce(announced.BUDGET_WARNING, {})
    Delivery.objects.update(status=DeliveryStatus.FAILED)
    client = client_of(role)
    act(client, "rotate", hook)
    assert WebhookEndpoint.objects.exclude(former_seed="").count() == changes
    assert client.get(ADD).status_code == (200 if changes else 403)
    address = client.get(page("conversations_webhookendpoint", "change", hook.pk)).content.decode()
    assert ("abcdef0123456789abcdef" in address) == bool(changes)
    again = client.post(reverse("admin:conversations_delivery_again", args=[Delivery.objects.get().pk]))
    assert again.status_code == (302 if switches else 403)
    act(client, "try_out", hook)
    assert Delivery.objects.filter(kind=announced.TEST).count() == switches
    act(client, "switch_off", hook)
    hook.refresh_from_db()
    assert hook.is_active != bool(switches)
    assert client.post(page("conversations_webhookendpoint", "delete", hook.pk), {"post": "yes"}).status_code == 403
