"""E-mails: whoever asked for it is told of a call that waits for consent, by a real mail server, until it takes it."""

import re
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from conversations.deliveries import outbox
from conversations.models import Delivery, DeliveryStatus, Turn
from nanohost.lib import env
from tests.support.delivering import deliver
from tests.support.mail_server import MailServer
from tests.support.scripts import script
from tests.support.sources import read_settings
from tests.support.working import advance
from tools.models import Approval, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

ANNA, BERT = "anna@example.org", "bert@example.org"


@pytest.fixture
def server(settings):
    running = MailServer()
    running.use(settings)
    settings.APPROVAL_EMAILS = [ANNA, BERT]
    settings.PUBLIC_URL = "https://chat.example.org"
    yield running
    running.close()


@pytest.fixture
def ask(say, tool_settings, effects):
    """A turn that waits for consent."""
    tool_settings("append_line", grants=["FS_WRITE"])
    ToolSetting.objects.filter(name="append_line").update(approval="always")

    def asking() -> Turn:
        call = {"name": "append_line", "arguments": {"path": str(effects), "line": "the secret plan"}}
        return advance(say(script({"call": [call]}, {"say": "{results}"})))

    return asking


def stored() -> list[Delivery]:
    return list(Delivery.objects.order_by("recipient"))


def test_each_address_is_told_what_waits_and_where_and_no_contents(server, ask):
    turn = ask()
    approval = Approval.objects.get()
    rows = deliver(*stored())
    assert [(row.recipient, row.status, row.channel) for row in rows] == [
        (ANNA, DeliveryStatus.DELIVERED, "email"),
        (BERT, DeliveryStatus.DELIVERED, "email"),
    ]
    assert sorted(recipient for recipient, _ in server.received) == [ANNA, BERT]
    message = dict(server.received)[ANNA]
    said = message.get_content()
    assert message["Subject"] == f"Approval needed: {approval.agent} wants to call append_line"
    assert message["Auto-Submitted"] == "auto-generated"
    assert f"https://chat.example.org{reverse('admin:tools_approval_change', args=[approval.pk])}" in said
    assert "This tool always needs it." in said
    assert approval.expires_at.isoformat() in said
    assert "secret plan" not in message.as_string()
    assert {row.owner_id for row in rows} == {turn.owner_id}


def test_without_its_own_address_the_console_is_named(server, ask, settings):
    settings.PUBLIC_URL = ""
    ask()
    deliver(*stored())
    said = server.received[0][1].get_content()
    assert f"open the console, Approvals, and look for {Approval.objects.get().pk}" in said


def test_where_nobody_asked_for_it_nothing_is_stored(server, ask, settings):
    settings.APPROVAL_EMAILS = []
    ask()
    assert stored() == []


def test_with_what_is_rolled_back_goes_what_was_to_be_told(server, ask, monkeypatch):
    def fails(*given: object, **named: object) -> None:
        raise RuntimeError("the transaction is rolled back")

    monkeypatch.setattr("conversations.engine.steps.budgets.settle", fails)
    ask()
    assert stored() == [] == list(Approval.objects.all())


@pytest.mark.parametrize(
    ("to_recipient", "to_message", "is_final", "words"),
    [
        ("550 No such user", None, True, "The mail server answered 550: No such user"),
        ("450 Mailbox busy", None, False, "The mail server answered 450: Mailbox busy"),
        (None, "554 It looks like spam", False, "The mail server answered 554: It looks like spam"),
        (None, "451 Try again later", False, "The mail server answered 451: Try again later"),
    ],
)
def test_what_is_not_taken_is_tried_again_unless_there_is_no_such_address(
    server, ask, settings, to_recipient, to_message, is_final, words
):
    settings.APPROVAL_EMAILS = [ANNA]
    server.to_recipient, server.to_message = to_recipient or server.to_recipient, to_message or server.to_message
    ask()
    (row,) = deliver(*stored())
    assert row.status == (DeliveryStatus.FAILED if is_final else DeliveryStatus.QUEUED)
    assert row.error == words
    assert row.last_status == int(words.split()[4].strip(":"))


def test_a_server_that_is_away_is_tried_again_and_sent_the_same(server, ask, settings):
    settings.APPROVAL_EMAILS = [ANNA]
    ask()
    settings.EMAIL_PORT = 1
    (row,) = deliver(*stored())
    assert row.status == DeliveryStatus.QUEUED
    assert row.error.startswith("The mail server cannot be used: ConnectionRefusedError")
    server.use(settings)
    Delivery.objects.update(run_after=F("run_after") - timedelta(hours=1), notified_at=timezone.now())
    (row,) = deliver(row)
    assert (row.status, len(row.tries)) == (DeliveryStatus.DELIVERED, 2)
    ((_, message),) = server.received
    assert message["Message-ID"].startswith(f"<{outbox.id_of(row)}@")


def test_a_server_that_never_answers_is_given_up_for_now(server, ask, settings):
    settings.APPROVAL_EMAILS, settings.EMAIL_TIMEOUT = [ANNA], 0.2
    server.hangs = True
    ask()
    (row,) = deliver(*stored())
    server.hangs = False
    assert (row.status, bool(re.search("time", row.error))) == (DeliveryStatus.QUEUED, True), row.error


def test_whom_the_server_does_not_know_is_told_so_and_tried_again(server, ask, settings):
    """An operator may mend it within the day."""
    settings.APPROVAL_EMAILS = [ANNA]
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "nanohost", "wrong"
    server.password = b"right"
    ask()
    (row,) = deliver(*stored())
    assert (row.status, row.last_status) == (DeliveryStatus.QUEUED, 535)
    settings.EMAIL_HOST_PASSWORD = "right"
    Delivery.objects.update(run_after=F("run_after") - timedelta(hours=1), notified_at=timezone.now())
    (row,) = deliver(row)
    assert row.status == DeliveryStatus.DELIVERED


def test_one_mail_server_is_sent_a_few_at_once(server, ask, settings):
    settings.APPROVAL_EMAILS = [f"person-{number}@example.org" for number in range(Delivery.MAX_AT_ONCE + 1)]
    ask()
    rows = stored()
    held = [outbox.claim(row.pk, worker="worker-1") for row in rows]
    assert [bool(hold) for hold in held] == [True] * Delivery.MAX_AT_ONCE + [False]
    outbox.settle(held[0], outbox.Outcome())
    assert outbox.claim(rows[-1].pk, worker="worker-1")


def test_what_makes_no_sense_is_refused_at_the_start(monkeypatch):
    monkeypatch.setenv("APPROVAL_EMAILS", "anna@example.org, bert")
    with pytest.raises(ImproperlyConfigured, match="'bert' is no e-mail address"):
        env.addresses("APPROVAL_EMAILS")
    monkeypatch.setenv("APPROVAL_EMAILS", ANNA)
    with pytest.raises(ImproperlyConfigured, match="APPROVAL_EMAILS needs EMAIL_HOST"):
        read_settings()
    monkeypatch.setenv("EMAIL_USE_TLS", "true")
    monkeypatch.setenv("EMAIL_USE_SSL", "true")
    with pytest.raises(ImproperlyConfigured, match="both set"):
        read_settings()


def test_the_page_of_a_delivery_shows_the_e_mail(server, ask, admin_client):
    ask()
    (row, _) = stored()
    page = admin_client.get(f"/admin/conversations/delivery/{row.pk}/change/").content.decode()
    assert "wants to call the tool append_line" in page
    assert ANNA in page
    assert ANNA in admin_client.get("/admin/conversations/delivery/").content.decode()
