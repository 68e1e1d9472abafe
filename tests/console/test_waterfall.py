"""A turn over time: what its page draws of its rows."""

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db.models import F
from django.test import Client
from django.urls import reverse

from conversations.engine.consent import approvals
from conversations.models import Delivery, Message, Turn
from nanohost.console.roles import VIEWER, sync_roles
from nanohost.lib.clock import from_now
from tests.support.delivering import deliver, webhook
from tests.support.factories import OwnerFactory
from tests.support.receiver import Receiver
from tests.support.scripts import script
from tests.support.voters import ANNA
from tests.support.working import advance, settle
from tools.models import Approval, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


def look(client: Client, turn: Turn) -> Any:
    answer = client.get(reverse("admin:conversations_turn_time", args=[turn.pk]))
    assert answer.status_code == 200
    return answer


def bars_of(client: Client, turn: Turn) -> list[tuple[str, str, str]]:
    return [(each.bar.kind, each.bar.name, each.bar.state) for each in look(client, turn).context["bars"]]


@pytest.fixture
def receiver() -> Any:
    running = Receiver()
    yield running
    running.close()


def test_a_turn_is_drawn_from_its_rows(admin_client, say, settings, tool_settings, receiver) -> None:
    tool_settings("time", "echo")
    ToolSetting.objects.filter(name="time").update(approval="always")
    webhook(receiver, settings)
    asked = [{"name": "time"}, {"name": "echo", "arguments": {"value": "x"}}]
    waits = advance(say(script({"call": asked}, {"say": "Done."})))
    assert waits is not None
    kinds = [kind for kind, _, _ in bars_of(admin_client, waits)]
    assert {"model", "approval"} <= set(kinds)
    (open_one,) = [each for each in look(admin_client, waits).context["bars"] if each.bar.kind == "approval"]
    assert open_one.bar.ended is None
    assert open_one.took.endswith("so far")

    approvals.decide(Approval.objects.get(turn_id=waits.pk).pk, by=ANNA, decision="approve")
    (turn,) = settle([waits])
    deliver(*Delivery.objects.all())
    bars = bars_of(admin_client, turn)
    answered = [name for kind, name, _ in bars if kind == "model"]
    assert [name.rpartition(": ")[2] for name in answered] == ["asks for tools", "answers"]
    assert {(kind, name, state) for kind, name, state in bars if kind in ("tool", "approval")} == {
        ("tool", "time", "SUCCESS"),
        ("tool", "echo", "SUCCESS"),
        ("approval", "time: waits for consent", "approved"),
    }
    assert ("delivery", "webhook: turn.succeeded", "delivered") in bars
    page = look(admin_client, turn).content.decode()
    for row in (*ToolCall.objects.all(), *Approval.objects.all(), *Delivery.objects.all(), *Message.objects.all()):
        if getattr(row, "role", "assistant") == "assistant":
            assert str(row.pk) in page
    placed = [(float(each.left), float(each.width)) for each in look(admin_client, turn).context["bars"]]
    assert placed == sorted(placed, key=lambda each: each[0])
    assert all(0 <= left <= 100 and width >= 0 and left + width <= 100.02 for left, width in placed)


def test_one_that_waits_or_has_failed_says_so_and_another_turn_s_rows_are_not_its(admin_client, say) -> None:
    queued = say("still to come")
    assert bars_of(admin_client, queued) == [("wait", "waits in the queue", "")]
    (failed,) = settle([queued])
    Delivery.objects.create(
        kind="turn.succeeded", data={"turnId": str(Turn().pk)}, expires_at=from_now(60), notified_at=None
    )
    Delivery.objects.create(kind="strange", data=["no", "object"], expires_at=from_now(60), notified_at=None)
    assert "delivery" not in {kind for kind, _, _ in bars_of(admin_client, failed)}
    # A clock that was set back: nothing is drawn outside.
    Turn.objects.filter(pk=failed.pk).update(ended_at=F("created_at"), started_at=None)
    assert all(float(each.width) >= 0 for each in look(admin_client, failed).context["bars"])


def test_whoever_may_read_sees_it_and_nobody_else(client, say) -> None:
    (turn,) = settle([say("Hello")])
    sync_roles()
    person = OwnerFactory(is_staff=True)
    client.force_login(person)
    address = reverse("admin:conversations_turn_time", args=[turn.pk])
    assert client.get(address).status_code == 403
    person.groups.add(Group.objects.get(name=VIEWER))
    assert client.get(address).status_code == 200
    assert client.get(address.replace(str(turn.pk), "0" * 8 + str(turn.pk)[8:])).status_code == 404
