"""The inbox of calls that wait for consent, in the admin."""

import json

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER, sync_roles
from tests.support.factories import OwnerFactory
from tests.support.scripts import script
from tests.support.working import advance, run_call
from tools.models import Approval, ApprovalState, CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clients(db):
    """A signed-in client of each role."""
    sync_roles()
    made = {}
    for role in ROLES:
        user = OwnerFactory(username=role, is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        made[role] = Client()
        made[role].force_login(user)
    return made


@pytest.fixture
def turn(say, tool_settings):
    tool_settings("time")
    ToolSetting.objects.filter(name="time").update(approval="always")
    return advance(say(script({"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}, {"say": "Done."})))


@pytest.fixture
def approval(turn):
    return Approval.objects.get(turn_id=turn.pk)


def read(client, approval):
    return client.get(reverse("admin:tools_approval_change", args=[approval.pk]), secure=True)


def decide(client, approval, decision, **more):
    page = read(client, approval)
    form = {"decision": decision, "arguments": page.context["wanted"], "shown": page.context["wanted"]}
    form |= {"seen": page.context["seen"], "reason": "", **more}
    return post(client, approval, form)


def post(client, approval, form):
    address = reverse("admin:conversations_approval_decide", args=[approval.pk])
    return client.post(address, form, secure=True, follow=True)


def told(answer):
    return [str(each) for each in answer.context["messages"]]


def test_the_page_shows_what_is_asked_and_what_was_said(clients, approval, owner):
    page = read(clients[OPERATOR], approval).content.decode()
    for words in (
        "consent:always",
        "The agent default",
        owner.username,
        "&quot;timezone&quot;",
        "the whole transcript",
    ):
        assert words in page


def test_who_may_decide_approves(clients, turn, approval):
    assert told(decide(clients[OPERATOR], approval, "approve", reason="Fine.")) == ["Approved."]
    approval.refresh_from_db()
    assert (approval.decided_by, approval.reason) == (OPERATOR, "Fine.")
    assert run_call(ToolCall.objects.get(turn_id=turn.pk)).status == CallStatus.SUCCESS


def test_changed_arguments_are_looked_at_by_the_gate(clients, turn, approval):
    assert "timezone" in told(decide(clients[ADMIN], approval, "approve", arguments='{"timezone": 1}'))[0]
    changed = decide(clients[ADMIN], approval, "approve", arguments='{"timezone": "Asia/Tokyo"}')
    assert told(changed) == ["Approved."]
    assert "Asia/Tokyo" in run_call(ToolCall.objects.get(turn_id=turn.pk)).arguments


def test_who_may_not_decide_does_not(clients, approval):
    assert "It waits for somebody who has." in read(clients[VIEWER], approval).content.decode()
    assert post(clients[VIEWER], approval, {"decision": "approve"}).status_code == 403
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING


def test_nobody_approves_what_was_changed_meanwhile(clients, approval):
    Approval.objects.update(four_eyes=True)
    first = read(clients[OPERATOR], approval).context
    decide(clients[ADMIN], approval, "approve", arguments='{"timezone": "Asia/Tokyo"}')
    form = {"decision": "approve", "arguments": first["wanted"], "shown": first["wanted"], "seen": first["seen"]}
    assert "changed the arguments" in told(post(clients[OPERATOR], approval, form))[0]
    assert Approval.objects.get().state == ApprovalState.PENDING


def test_who_is_second_is_told(clients, approval):
    page = read(clients[ADMIN], approval).context
    decide(clients[OPERATOR], approval, "approve")
    second = post(clients[ADMIN], approval, {"decision": "deny", "seen": page["seen"]})
    assert told(second) == ["This was approved by operator already; nothing was changed."]


def test_what_is_no_decision_is_a_denial(clients, approval):
    post(clients[OPERATOR], approval, {"decision": "perhaps"})
    assert Approval.objects.get().state == ApprovalState.DENIED


def test_many_are_denied_at_once_with_a_reason(clients, approval):
    address = reverse("admin:tools_approval_changelist")
    form = {"action": "deny", "_selected_action": [str(approval.pk)]}
    assert "What happens" in clients[OPERATOR].post(address, form, secure=True).content.decode()
    missing = clients[OPERATOR].post(address, form | {"confirmed": "yes"}, secure=True)
    assert (missing.status_code, Approval.objects.get().state) == (400, ApprovalState.PENDING)
    done = clients[OPERATOR].post(address, form | {"confirmed": "yes", "reason": "No."}, secure=True, follow=True)
    assert told(done) == ["Denied: 1."]
    assert json.loads(ToolCall.objects.get().result)["message"] == "operator has denied this call. The reason: No."


def test_the_count_stands_at_the_side(clients, approval):
    def badges():
        groups = clients[OPERATOR].get(reverse("admin:index"), secure=True).context["sidebar_navigation"]
        return [item["badge"] for group in groups for item in group["items"] if "badge" in item]

    assert badges() == [1]
    decide(clients[OPERATOR], approval, "deny")
    assert badges() == []


def test_the_queue_says_what_the_turn_waits_for(clients, turn):
    page = clients[OPERATOR].get(reverse("queue"), secure=True).content.decode()
    assert "time (waiting for consent for" in page
    asked = {"tool": "time", "agent": "default", "arguments": "{}"}
    simulated = clients[ADMIN].post(reverse("admin:simulator"), asked, secure=True).content.decode()
    assert "It would wait for consent" in simulated
