"""Approvals over the API: who sees what, and who decides."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client

from agent.models import Agent
from conversations.models import Conversation, Message, Turn
from nanohost.accounts.models import EVERY_AGENT, ApiKey
from nanohost.console.roles import VIEWER, sync_roles
from tests.support.scripts import script
from tests.support.working import advance, settle
from tools.models import Approval, ApprovalState, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


def client_of(owner: Any, **limits: Any) -> Client:
    _, text = ApiKey.objects.issue(owner=owner, **{"scopes": ["approve"], "agent_names": [EVERY_AGENT], **limits})
    return Client(headers={"Authorization": f"Bearer {text}"})


def get(client: Client, path: str = "") -> Any:
    return client.get(f"/api/v1/approvals{path}", secure=True)


def decide(client: Client, approval: Approval, **body: Any) -> Any:
    path = f"/api/v1/approvals/{approval.pk}/decide"
    return client.post(path, body, content_type="application/json", secure=True)


@pytest.fixture
def turn(say: Any, tool_settings: Any) -> Turn:
    tool_settings("time")
    ToolSetting.objects.filter(name="time").update(approval="always")
    waits = advance(say(script({"call": [{"name": "time"}]}, {"say": "{results}"})))
    assert waits is not None
    return waits


@pytest.fixture
def approval(turn: Turn) -> Approval:
    return Approval.objects.get(turn_id=turn.pk)


def test_it_shows_who_asks_for_what_by_which_rule(owner: Any, approval: Approval) -> None:
    (listed,) = get(client_of(owner)).json()["results"]
    assert listed["approvalId"] == str(approval.pk)
    assert (listed["owner"], listed["agent"], listed["toolName"]) == (owner.username, "default", "time")
    assert (listed["rule"], listed["arguments"], listed["state"]) == ("consent:always", "{}", "pending")
    detail = get(client_of(owner), f"/{approval.pk}").json()
    assert [each["role"] for each in detail.pop("messages")] == ["USER", "ASSISTANT"]
    assert detail == listed


def test_an_approval_runs_the_call(owner: Any, turn: Turn, approval: Approval) -> None:
    answer = decide(client_of(owner), approval, decision="approve", reason="Go.")
    assert (answer.status_code, answer.json()["state"]) == (200, "approved")
    assert (answer.json()["decidedBy"], answer.json()["reason"]) == (owner.username, "Go.")
    (ended,) = settle([turn])
    assert ended.status == "succeeded"


def test_changed_arguments_pass_the_schema(owner: Any, turn: Turn, approval: Approval) -> None:
    refused = decide(client_of(owner), approval, decision="approve", arguments={"timezone": 5})
    assert (refused.status_code, refused.json()["code"]) == (422, "arguments_refused")
    changed = decide(client_of(owner), approval, decision="approve", arguments={"timezone": "Europe/Berlin"})
    assert changed.json()["proposedArguments"] == '{"timezone": "Europe/Berlin"}'
    settle([turn])
    assert "Europe/Berlin" in Message.objects.get(turn=turn, role="tool").content


def test_who_comes_second_is_told_who_was_first(owner: Any, approval: Approval) -> None:
    client = client_of(owner)
    decide(client, approval, decision="deny")
    assert decide(client, approval, decision="deny").status_code == 200  # the same, once more
    second = decide(client, approval, decision="approve")
    assert (second.status_code, second.json()["code"]) == (409, "already_decided")
    assert owner.username in second.json()["detail"]


def test_a_stranger_finds_nothing(outsider: Any, approval: Approval) -> None:
    client = client_of(outsider)
    assert get(client).json()["results"] == []
    assert get(client, f"/{approval.pk}").status_code == 404
    assert decide(client, approval, decision="approve").status_code == 404
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING


def test_who_may_decide_in_the_console_decides_on_everybodys(outsider: Any, approval: Approval) -> None:
    sync_roles()
    outsider.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    assert decide(client_of(outsider), approval, decision="approve").status_code == 200


def test_who_may_decide_but_read_no_transcripts_is_shown_none(outsider: Any, approval: Approval) -> None:
    sync_roles()
    outsider.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    assert get(client_of(outsider), f"/{approval.pk}").json()["messages"] == []
    outsider.groups.add(Group.objects.get(name=VIEWER))
    assert len(get(client_of(outsider), f"/{approval.pk}").json()["messages"]) == 2


def test_a_key_decides_for_its_agents_only(owner: Any, approval: Approval) -> None:
    Agent.objects.update(is_public=False)
    for limits in ({"agent_names": []}, {"agent_names": ["another"]}):
        assert decide(client_of(owner, **limits), approval, decision="approve").status_code == 404
    Agent.objects.update(is_public=True)
    assert decide(client_of(owner, agent_names=[]), approval, decision="approve").status_code == 200


def test_two_strangers_decide_where_four_eyes_are_wanted(owner: Any, approval: Approval) -> None:
    Approval.objects.update(four_eyes=True)
    refused = decide(client_of(owner), approval, decision="approve")
    assert (refused.status_code, refused.json()["code"]) == (403, "own_conversation")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "maybe"},
        {"decision": "deny", "arguments": {}},
        {"decision": "approve", "arguments": []},
        {"decision": "approve", "arguments": {"timezone": "\ud800"}},
        {"decision": "deny", "reason": "x" * 501},
        {"decision": "deny", "why": "x"},
    ],
)
def test_bad_input_decides_nothing(owner: Any, approval: Approval, body: dict[str, Any]) -> None:
    assert decide(client_of(owner), approval, **body).status_code == 400
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING


def test_the_list_is_narrowed_by_state(owner: Any, approval: Approval) -> None:
    client = client_of(owner)
    assert len(get(client, "?state=pending").json()["results"]) == 1
    assert get(client, "?state=approved").json()["results"] == []
    assert get(client, "?state=open").status_code == 400


def test_what_belongs_to_nobody_left_is_still_shown(owner: Any, approval: Approval) -> None:
    Conversation.objects.all().delete()
    assert get(client_of(owner), f"/{approval.pk}").json()["messages"] == []
