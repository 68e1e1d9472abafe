"""Calls that need consent: what waits, who decides, and what then runs."""

import json
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from agent.models import Agent
from conversations.deliveries import endpoints
from conversations.engine import lease, turn_control
from conversations.engine.consent import approvals
from conversations.models import Conversation, Delivery, Message, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.accounts.models import AuditEntry
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.voters import ANNA, BERT
from tests.support.working import advance, run_call
from tools.approvals import Voter, hash_of
from tools.errors import AlreadyDecided, ArgumentsRefused, OwnConversation
from tools.models import Approval, ApprovalState, CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def asked(say, tool_settings, effects):
    """A turn that waits for consent to one call of append_line, and what the call would do."""
    tool_settings("append_line", grants=["FS_WRITE"])
    ToolSetting.objects.filter(name="append_line").update(approval="always")

    def ask(*lines: str) -> Turn:
        calls = [{"name": "append_line", "arguments": {"path": str(effects), "line": line}} for line in lines]
        return advance(say(script({"call": calls}, {"say": "{results}"})))

    return ask


def the_approval() -> Approval:
    return Approval.objects.get()


def finish(turn: Turn) -> Turn:
    for call in ToolCall.objects.filter(turn_id=turn.pk, status=CallStatus.QUEUED):
        run_call(call)
    return advance(turn)


def test_a_call_waits_and_nothing_runs_it(asked, effects):
    turn = asked("one")
    assert (turn.status, turn.waiting_for) == (TurnStatus.WAITING, WaitingFor.APPROVAL)
    call = ToolCall.objects.get()
    assert (call.status, call.consent) == (CallStatus.WAITING, "consent:always")
    run_call(call)
    assert advance(turn).status == TurnStatus.WAITING
    assert not effects.exists()


def test_it_may_take_days(asked, effects):
    turn = asked("one")
    assert turn.deadline is None
    days_ago = timezone.now() - timedelta(days=3)
    Turn.objects.update(created_at=days_ago, started_at=days_ago)
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    turn = finish(turn)
    assert (turn.status, effects.read_text()) == (TurnStatus.SUCCEEDED, "one\n")


def test_its_time_does_not_begin_when_somebody_requeues_it(asked):
    turn = asked("one")
    assert turn_control.requeue_turn(turn)
    turn.refresh_from_db()
    assert (turn.waiting_for, turn.deadline) == (WaitingFor.APPROVAL, None)


def test_a_denial_tells_the_model_why(asked, effects):
    turn = asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="deny", reason="Not on a Sunday.")
    turn = advance(turn)
    said = Message.objects.filter(turn=turn, role="tool").get().content
    assert json.loads(said)["rule"] == "consent:denied"
    assert "Not on a Sunday." in said
    assert (turn.status, effects.exists()) == (TurnStatus.SUCCEEDED, False)


def test_the_calls_beside_it_do_not_wait(say, tool_settings, asked, effects):
    tool_settings("time")
    both = [{"name": "append_line", "arguments": {"path": str(effects), "line": "one"}}, {"name": "time"}]
    turn = advance(say(script({"call": both}, {"say": "Done."})))
    run_call(ToolCall.objects.get(tool_name="time"))
    assert ToolCall.objects.get(tool_name="time").status == CallStatus.SUCCESS
    assert advance(turn).waiting_for == WaitingFor.APPROVAL
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    assert finish(turn).status == TurnStatus.SUCCEEDED


def test_each_call_of_a_round_is_decided_by_itself(asked, effects):
    turn = asked("one", "two")
    first, second = Approval.objects.order_by("pk")
    approvals.decide(first.pk, by=ANNA, decision="approve")
    turn.refresh_from_db()
    assert turn.waiting_for == WaitingFor.APPROVAL
    approvals.decide(second.pk, by=ANNA, decision="deny")
    turn.refresh_from_db()
    assert turn.waiting_for == WaitingFor.TOOLS
    assert turn.deadline is not None
    assert finish(turn).status == TurnStatus.SUCCEEDED
    assert effects.read_text() == "one\n"


def test_changed_arguments_are_what_runs_and_the_model_is_told(asked, effects):
    turn = asked("one")
    other = json.dumps({"path": str(effects), "line": "two"})
    approvals.decide(the_approval().pk, by=ANNA, decision="approve", arguments=other)
    turn = finish(turn)
    assert effects.read_text() == "two\n"
    said = Message.objects.filter(turn=turn, role="tool").get().content
    assert said.startswith(f"[A person has approved this call with other arguments: {other}]")
    approval = the_approval()
    assert (approval.proposed, approval.approved_hash) == (other, hash_of(other))
    assert '"line": "one"' in approval.arguments


@pytest.mark.parametrize("arguments", ["{}", "[]", "nonsense", '{"path": 1, "line": "x"}'])
def test_changed_arguments_pass_the_gate(asked, arguments):
    asked("one")
    with pytest.raises(ArgumentsRefused):
        approvals.decide(the_approval().pk, by=ANNA, decision="approve", arguments=arguments)
    assert the_approval().state == ApprovalState.PENDING


def test_changed_arguments_lead_nowhere_that_the_agent_was_not_given(say, tool_settings):
    tool_settings("tell_somebody")
    ToolSetting.objects.filter(name="tell_somebody").update(approval="always")
    call = {"name": "tell_somebody", "arguments": {"text": "Hello"}}
    turn = advance(say(script({"call": [call]}, {"say": "Done."})))
    assert turn.waiting_for == WaitingFor.APPROVAL
    other = json.dumps({"text": "Hello", "to": "boss"})
    with pytest.raises(ArgumentsRefused, match="no destination named 'boss'"):
        approvals.decide(the_approval().pk, by=ANNA, decision="approve", arguments=other)
    assert the_approval().state == ApprovalState.PENDING
    assert ToolCall.objects.get().status == CallStatus.WAITING


def test_changed_arguments_are_refused_where_untrusted_text_stands_against_the_call(asked, conversation, effects):
    asked("one")
    Agent.objects.update(taint="refuse")
    Conversation.objects.update(tainted_at_seq=1, tainted_by="the page example.org")
    other = json.dumps({"path": str(effects), "line": "two"})
    with pytest.raises(ArgumentsRefused, match="Untrusted text has entered this conversation, from the page"):
        approvals.decide(the_approval().pk, by=ANNA, decision="approve", arguments=other)
    assert the_approval().state == ApprovalState.PENDING


def test_a_masked_secret_is_not_approved_as_an_argument(asked, effects, own_secrets):
    asked("sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF")
    approval = the_approval()
    assert "sk-proj" not in approval.arguments
    with pytest.raises(ArgumentsRefused, match="secret"):
        approvals.decide(approval.pk, by=ANNA, decision="approve", arguments=approval.arguments)


def test_a_secret_argument_is_run_whole_and_kept_nowhere(asked, effects):
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    turn = asked("one")
    other = json.dumps({"path": str(effects), "line": secret})
    approvals.decide(the_approval().pk, by=ANNA, decision="approve", arguments=other)
    finish(turn)
    assert effects.read_text() == f"{secret}\n"
    rows = [*Approval.objects.values_list(), *ToolCall.objects.values_list(), *AuditEntry.objects.values_list()]
    assert secret not in str(rows)


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_secret_in_a_reason_is_kept_nowhere(asked, decision):
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    turn = asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision=decision, reason=f"It has {secret} in it.")
    finish(turn)
    models = (Approval, ToolCall, AuditEntry, Message, Delivery)
    assert secret not in str([list(model.objects.values_list()) for model in models])


def test_a_secret_in_a_reason_to_second_is_kept_nowhere(asked):
    ToolSetting.objects.update(four_eyes=True)
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve", reason=f"It has {secret} in it.")
    assert secret not in str(list(AuditEntry.objects.values_list()))


def test_what_runs_is_what_was_approved(asked, effects):
    turn = asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    other = json.dumps({"path": str(effects), "line": "two"})
    ToolCall.objects.update(arguments=other, private_arguments="")
    finish(turn)
    assert ToolCall.objects.get().rule == "consent:changed"
    assert not effects.exists()


def test_a_rule_that_has_since_said_no_refuses(asked, effects):
    turn = asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    ToolSetting.objects.filter(name="append_line").update(enabled=False)
    finish(turn)
    assert ToolCall.objects.get().rule == "not_enabled"
    assert not effects.exists()


def test_a_call_without_approval_does_not_run_once_consent_is_needed(say, tool_settings, effects):
    tool_settings("append_line", grants=["FS_WRITE"])
    call = {"name": "append_line", "arguments": {"path": str(effects), "line": "one"}}
    turn = advance(say(script({"call": [call]}, {"say": "Done."})))
    ToolSetting.objects.filter(name="append_line").update(approval="always")
    finish(turn)
    assert ToolCall.objects.get().rule == "consent:missing"
    assert not effects.exists()


def test_a_queued_call_needs_its_approval(asked, effects):
    turn = asked("one")
    ToolCall.objects.update(status=CallStatus.QUEUED)
    finish(turn)
    assert ToolCall.objects.get().rule == "consent:missing"
    assert not effects.exists()


def test_an_agent_may_ask_for_more_and_never_for_less(say, asked, tool_settings):
    tool_settings("time")
    Agent.objects.update(approvals={"time": "always", "append_line": "never"})
    advance(say(script({"call": [{"name": "time"}]})))
    assert the_approval().tool_name == "time"
    Turn.objects.update(status=TurnStatus.CANCELLED)
    asked("one")
    assert Approval.objects.count() == 2


def test_nobody_in_time_is_a_denial(asked, effects):
    turn = asked("one")
    approvals.expire_due()
    assert the_approval().state == ApprovalState.PENDING
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(AlreadyDecided, match="time"):
        approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    assert the_approval().state == ApprovalState.EXPIRED
    approvals.expire_due()
    turn = finish(turn)
    assert (turn.status, effects.exists()) == (TurnStatus.SUCCEEDED, False)


def test_the_sweep_denies_what_is_overdue(asked):
    turn = asked("one")
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    approvals.expire_due()
    assert the_approval().state == ApprovalState.EXPIRED
    assert advance(turn).status == TurnStatus.SUCCEEDED


@pytest.mark.parametrize("second", ["approve", "deny"])
def test_who_comes_second_is_told(asked, second):
    asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    with pytest.raises(AlreadyDecided, match="approved by anna"):
        approvals.decide(the_approval().pk, by=BERT, decision=second)


def test_the_same_again_changes_nothing(asked):
    asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    entries = AuditEntry.objects.filter(action="consent.decided")
    again = approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    assert (again.state, entries.count()) == (ApprovalState.APPROVED, 1)


def test_of_two_at_once_one_wins(asked, effects):
    turn = asked("one")
    approval_id = the_approval().pk

    def decide(voter: Voter, decision: str) -> str:
        try:
            return str(approvals.decide(approval_id, by=voter, decision=decision).state)
        except AlreadyDecided:
            return "told"

    ended = in_threads([lambda: decide(ANNA, "approve"), lambda: decide(BERT, "deny")])
    assert sorted(ended) in (["approved", "told"], ["denied", "told"])
    finish(turn)
    assert effects.exists() == ("approved" in ended)


def test_a_cancelled_turn_withdraws_it(asked):
    turn = asked("one")
    assert turn_control.cancel_turn(turn)
    assert the_approval().state == ApprovalState.WITHDRAWN
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    assert ToolCall.objects.get().status == CallStatus.FAILED


def test_a_call_that_ends_otherwise_waits_for_nobody_and_those_are_told_who_want_it(asked):
    endpoints.make(name="the shop", url="https://example.org/", kinds=["approval.decided"])
    turn = asked("one")
    turn_control.cancel_turn(turn)
    (told,) = Delivery.objects.all()
    assert (told.kind, told.data["state"], told.data["decidedBy"]) == ("approval.decided", "withdrawn", None)
    entry = AuditEntry.objects.filter(object_type="tools.approval").latest("pk")
    assert (entry.action, entry.reason) == ("consent.withdrawn", "the turn was cancelled")


def test_a_conversation_that_is_deleted_waits_for_nobody(asked):
    endpoints.make(name="the shop", url="https://example.org/", kinds=["approval.decided"])
    turn = asked("one")
    turn_control.delete_conversation(turn.conversation_id)
    assert [each.data["state"] for each in Delivery.objects.all()] == ["withdrawn"]
    assert the_approval().state == ApprovalState.WITHDRAWN


def test_four_eyes_are_two_strangers(asked, owner, effects):
    ToolSetting.objects.update(four_eyes=True)
    turn = asked("one")
    approval_id = the_approval().pk
    with pytest.raises(OwnConversation):
        approvals.decide(approval_id, by=Voter(pk=owner.pk, name=str(owner)), decision="approve")
    for _ in range(2):
        assert approvals.decide(approval_id, by=ANNA, decision="approve").state == ApprovalState.PENDING
    assert approvals.decide(approval_id, by=BERT, decision="approve").state == ApprovalState.APPROVED
    finish(turn)
    assert effects.read_text() == "one\n"


def test_the_second_of_four_eyes_approves_what_the_first_has_seen(asked, effects):
    ToolSetting.objects.update(four_eyes=True)
    turn = asked("one")
    approval_id = the_approval().pk
    other = json.dumps({"path": str(effects), "line": "two"})
    approvals.decide(approval_id, by=ANNA, decision="approve")
    changed = approvals.decide(approval_id, by=BERT, decision="approve", arguments=other)
    assert changed.state == ApprovalState.PENDING
    again = approvals.decide(approval_id, by=ANNA, decision="approve", seen=hash_of(other))
    assert again.state == ApprovalState.APPROVED
    finish(turn)
    assert effects.read_text() == "two\n"


def test_nobody_approves_unseen_what_somebody_else_has_proposed(asked, effects):
    ToolSetting.objects.update(four_eyes=True)
    turn = asked("one")
    approval_id = the_approval().pk
    other = json.dumps({"path": str(effects), "line": "two"})
    approvals.decide(approval_id, by=BERT, decision="approve", arguments=other)
    with pytest.raises(AlreadyDecided, match="argumentsHash"):
        approvals.decide(approval_id, by=ANNA, decision="approve")
    assert (the_approval().state, the_approval().votes.count()) == (ApprovalState.PENDING, 1)
    approvals.decide(approval_id, by=ANNA, decision="approve", seen=hash_of(other))
    finish(turn)
    assert effects.read_text() == "two\n"


def test_one_of_four_eyes_may_deny(asked):
    ToolSetting.objects.update(four_eyes=True)
    asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    assert approvals.decide(the_approval().pk, by=BERT, decision="deny").state == ApprovalState.DENIED


def test_it_holds_no_worker(asked):
    turn = asked("one")
    assert (turn.lease_until, Turn.objects.claimable().count()) == (None, 0)
    assert lease.claim(turn.pk, worker="w") is None


def test_every_decision_is_in_the_audit_log(asked):
    asked("one")
    approvals.decide(the_approval().pk, by=ANNA, decision="deny", reason="No.")
    entries = AuditEntry.objects.filter(object_type="tools.approval").order_by("pk")
    assert [(each.action, each.reason) for each in entries] == [("consent.requested", ""), ("consent.decided", "No.")]


def test_webhooks_are_told(asked):
    endpoints.make(name="the shop", url="https://example.org/", kinds=["approval.requested", "approval.decided"])
    asked("a line")
    approvals.decide(the_approval().pk, by=ANNA, decision="approve")
    asking, decided = Delivery.objects.order_by("pk")
    assert (asking.kind, asking.data["state"], asking.data["toolName"]) == (
        "approval.requested",
        "pending",
        "append_line",
    )
    assert (decided.kind, decided.data["state"], decided.data["decidedBy"]) == ("approval.decided", "approved", "anna")
    assert "a line" not in str([asking.data, decided.data])


# --- kill -9 -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def victims(django_db_setup):
    """Where those who decide die, on this test's database."""
    arguments = [sys.executable, "-m", "tests.faults.deciding", str(connection.settings_dict["NAME"])]
    running = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    running.stdin.close()
    assert running.wait(timeout=20) == 0


# What a decision writes: a vote, the call, the approval, an entry of the log, the turn.
@pytest.mark.parametrize("point", ["before:1", *(f"inside:{nth}" for nth in range(1, 6)), "after:1"])
def test_whoever_is_killed_has_decided_once_or_not_at_all(asked, effects, victims, point):
    turn = asked("one")
    approval = the_approval()
    victims.stdin.write(f"{approval.pk} approvals.decide:{point}\n")
    victims.stdin.flush()
    assert int(victims.stdout.readline()) == -signal.SIGKILL
    approval.refresh_from_db()
    is_decided = point == "after:1"
    assert approval.state == (ApprovalState.APPROVED if is_decided else ApprovalState.PENDING)
    assert ToolCall.objects.get().status == (CallStatus.QUEUED if is_decided else CallStatus.WAITING)
    assert AuditEntry.objects.filter(action="consent.decided").count() == is_decided
    approvals.decide(approval.pk, by=ANNA, decision="approve")
    assert finish(turn).status == TurnStatus.SUCCEEDED
    assert effects.read_text() == "one\n"
