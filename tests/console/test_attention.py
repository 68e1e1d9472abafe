"""What needs attention: each condition comes with its cause, is told everywhere alike, and goes with it."""

import asyncio
import re
from datetime import timedelta

import pytest
import yaml
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone
from django.utils.html import escape
from django_celery_beat.models import PeriodicTask

from agent.llm.breaker import Breaker
from agent.models import ProviderOutage
from agent.spending.models import Budget, BudgetPeriod
from conversations import events
from conversations.engine import intake
from conversations.models import Delivery, DeliveryStatus, Turn, Worker
from conversations.statuses import TurnStatus
from nanohost.console import attention, broker, figures
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from nanohost.lib import outages
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from scheduler.models import Schedule
from scheduler.system_jobs import sync_system_jobs
from tests.support.console_client import client_of
from tests.support.listening import HeardListener, until
from tests.support.sources import ROOT
from tests.support.wait import wait_until
from tools.custom.models import CustomTool
from tools.mcp.models import McpServer, McpTool
from tools.models import Approval, ApprovalState, CallStatus, ToolCall

pytestmark = pytest.mark.django_db

WELL = "Nothing needs attention."


@pytest.fixture(autouse=True)
def well():
    """A host that is well: a worker of each kind is online, and beat has just looked at its jobs."""
    row = {"version": "0", "turns_most": 8, "heartbeat_at": Now(), "sandbox": "bubblewrap"}
    Worker.objects.create(name="host:1:1", queues="turns,tools,deliveries", **row)
    sync_system_jobs()
    figures.refresh(seconds=60)


@pytest.fixture
def monitor(settings):
    """Who watches the host, by its token."""
    settings.METRICS_TOKEN = "a token"
    return Client(HTTP_AUTHORIZATION="Bearer a token")


def told():
    return {need.name: need for need in attention.needs()}


def turn_of(conversation, status, **fields):
    number = Turn.objects.count() + 1
    return Turn.objects.create(
        conversation=conversation, owner=conversation.owner, number=number, status=status, request_id="r", **fields
    )


# --- each comes with its cause -----------------------------------------------------------------------------------


def no_workers(conversation):
    turn_of(conversation, TurnStatus.QUEUED)
    Worker.objects.update(ended_at=Now())


def a_failing_provider(conversation):
    ProviderOutage.objects.create(provider="openai", since=Now(), until=from_now(3600), code="llm_unavailable")


def a_turn_that_nobody_came_for(conversation):
    turn = turn_of(conversation, TurnStatus.QUEUED, notified_at=from_now(-120))
    Turn.objects.filter(pk=turn.pk).update(created_at=from_now(-120))


def failed_turns(conversation):
    for _ in range(6):
        turn_of(conversation, TurnStatus.FAILED, error_code="llm_timeout", model="m", ended_at=Now())
    figures.refresh(seconds=60)


def beat_is_silent(conversation):
    PeriodicTask.objects.filter(name="tick").update(last_run_at=from_now(-600))


def a_schedule(conversation, **fields):
    now = timezone.now()
    given = {"kind": "every", "every_seconds": 60, "zone": "UTC", "phase": now, "prompt": "x"}
    Schedule.objects.create(owner=conversation.owner, agent=conversation.agent, **(given | fields))


def a_late_schedule(conversation):
    a_schedule(conversation, next_at=timezone.now() - timedelta(minutes=5))


def a_paused_schedule(conversation):
    a_schedule(conversation, active=False, failures=9, paused_because="It failed.", next_at=timezone.now())


def a_budget_that_is_mostly_used(conversation):
    low = Budget.objects.create(name="low <b>", whose="host", measure="tokens", every="day", amount=100)
    BudgetPeriod.objects.create(budget=low, start=timezone.localdate(), spent=85)


def a_pause(conversation):
    intake.pause(by="anna", because="deploy")


def an_approval(conversation):
    Approval.objects.create(
        call_id=new_id(),
        conversation_id=conversation.pk,
        turn_id=new_id(),
        owner_id=conversation.owner.pk,
        agent="default",
        tool_name="time",
        state=ApprovalState.PENDING,
        expires_at=from_now(3600),
    )


def a_failed_delivery(conversation):
    Delivery.objects.create(
        kind="webhook.test",
        channel=Delivery.Channel.EMAIL,
        recipient="a@example.com",
        status=DeliveryStatus.FAILED,
        data={},
        expires_at=timezone.now() + timedelta(days=1),
    )


def a_call_cut_short(conversation):
    ToolCall.objects.create(
        conversation_id=new_id(),
        turn_id=new_id(),
        agent="a",
        call_id="c",
        position=0,
        tool_name="send",
        status=CallStatus.UNKNOWN,
    )
    figures.refresh(seconds=60)


def no_sandbox(conversation):
    Worker.objects.update(sandbox="none: the settings say so")


def a_server_that_keeps_failing(conversation):
    server = McpServer.objects.create(name="ours", command="x", enabled=True)
    for _ in range(3):
        server.note_error("It did not start: <b>no key</b>")


def a_tool_that_its_server_changed(conversation):
    server = McpServer.objects.create(name="theirs", command="x")
    McpTool.objects.create(server=server, name="a", full_name="mcp_theirs_a", hash="1" * 64, seen_hash="2" * 64)
    McpTool.objects.create(server=server, name="b", full_name="mcp_theirs_b", hash="1" * 64, seen_hash="1" * 64)


def a_custom_tool_that_was_changed(conversation):
    given = {"workspace": "default/1", "hash": "1" * 64}
    CustomTool.objects.create(**given, file="a.py", full_name="custom_a", seen_hash="2" * 64)
    CustomTool.objects.create(**given, file="b.py", full_name="custom_b", seen_hash="1" * 64)
    CustomTool.objects.create(**given, file="c.py", full_name="custom_c")
    CustomTool.objects.create(**given, file="d.py", full_name="custom_d", seen_hash="2" * 64, unfit="It says nothing.")


CAUSES = {
    "no_turn_worker": no_workers,
    "no_tool_worker": no_workers,
    "provider_failing": a_failing_provider,
    "turns_blocked": a_turn_that_nobody_came_for,
    "turns_fail": failed_turns,
    "jobs_late": beat_is_silent,
    "schedules_late": a_late_schedule,
    "schedules_paused": a_paused_schedule,
    "budget_nearly_used": a_budget_that_is_mostly_used,
    "intake_paused": a_pause,
    "approvals_wait": an_approval,
    "deliveries_failed": a_failed_delivery,
    "calls_unknown": a_call_cut_short,
    "sandbox_missing": no_sandbox,
    "mcp_server_failing": a_server_that_keeps_failing,
    "mcp_tools_changed": a_tool_that_its_server_changed,
    "custom_tools_changed": a_custom_tool_that_was_changed,
}
# Those of servers; each has a test of its own.
OF_SERVERS = {"database_refuses_writes", "broker_away", "events_not_heard"}


@pytest.fixture(autouse=True)
def custom_tools(settings):
    settings.CUSTOM_TOOLS = True


def test_a_host_that_is_well_says_so(admin_client, monitor):
    assert told() == {}
    assert WELL in admin_client.get("/admin/").content.decode()
    assert monitor.get("/health/status").json() == {"status": "ok", "conditions": []}


def test_each_condition_is_provoked_here():
    assert CAUSES.keys() | OF_SERVERS == set(attention.CONDITIONS)


@pytest.mark.parametrize("name", CAUSES)
def test_a_condition_comes_with_its_cause_and_is_told_alike_everywhere(name, conversation, admin_client, monitor):
    CAUSES[name](conversation)
    need = told()[name]
    assert need.words.endswith((".", ")"))
    for address in ("/admin/", "/admin/attention/"):
        page = admin_client.get(address).content.decode()
        assert f'data-condition="{name}"' in page
        assert escape(need.words.partition(" (late by")[0]) in page  # which is more by each look
        assert WELL not in page
    assert admin_client.get(need.link).status_code == 200
    said = monitor.get("/health/status").json()
    assert said["status"] == "attention"
    found = {each["condition"]: each for each in said["conditions"]}
    assert (found[name]["hits"], found[name]["urgent"]) == (need.hits, need.is_urgent)
    figures_told = monitor.get("/metrics").content.decode()
    (figure,) = re.findall(rf'^nanohost_condition{{condition="{name}"}} (.+)$', figures_told, re.MULTILINE)
    assert float(figure) == 1


ROWS = ["turns_fail", "schedules_late", "schedules_paused", "approvals_wait", "deliveries_failed", "calls_unknown"]
ROWS += ["mcp_server_failing", "mcp_tools_changed", "custom_tools_changed"]


@pytest.mark.parametrize("name", ROWS)
def test_its_link_leads_to_the_rows_that_it_counts(name, conversation, admin_client):
    a_schedule(conversation, next_at=timezone.now() + timedelta(minutes=5))
    CAUSES[name](conversation)
    need = told()[name]
    assert admin_client.get(need.link).context["cl"].result_count == need.hits


def test_urgent_ones_come_first(conversation):
    for cause in CAUSES.values():
        if cause is not no_workers:
            cause(conversation)
    urgent = [need.is_urgent for need in attention.needs()]
    assert urgent == sorted(urgent, reverse=True)
    assert {True, False} == set(urgent)


# --- and goes with its button ------------------------------------------------------------------------------------

BUTTONS = ["turns_blocked", "provider_failing", "intake_paused", "deliveries_failed", "calls_unknown"]


@pytest.mark.parametrize("name", BUTTONS)
def test_its_button_mends_it(name, conversation, admin_client):
    CAUSES[name](conversation)
    page = admin_client.get("/admin/").content.decode()
    address = f"/admin/attention/{name}/"
    assert f'action="{address}"' in page
    before = LogEntry.objects.count()
    pressed = admin_client.post(address, {"hits": told()[name].hits}, follow=True)
    assert pressed.redirect_chain == [("/admin/", 302)]
    if name == "provider_failing":  # it is asked by the next turn, and is over when it answers
        assert ProviderOutage.objects.get().until <= timezone.now()
    else:
        assert name not in told()
    if name != "deliveries_failed":  # which the audit log has
        assert LogEntry.objects.count() == before + 1
    assert "Nothing was done" in admin_client.post("/admin/attention/no_such/", follow=True).content.decode()


def test_every_button_is_tried_here(conversation):
    for cause in CAUSES.values():
        if cause is not no_workers:  # whose turn is before all others
            cause(conversation)
    assert sorted(need.name for need in attention.needs() if need.mend) == sorted(BUTTONS)


@pytest.mark.parametrize(("role", "mends"), [(VIEWER, False), (OPERATOR, True), (ADMIN, True)])
@pytest.mark.parametrize("name", BUTTONS)
def test_who_may_press_it(name, role, mends, conversation):
    CAUSES[name](conversation)
    sync_roles()
    client = client_of(role)
    address = f"/admin/attention/{name}/"
    assert (f'action="{address}"' in client.get("/admin/").content.decode()) is mends
    assert client.post(address).status_code == (302 if mends else 403)
    assert client.get(address).status_code == 405


def test_calls_that_stopped_after_somebody_looked_are_not_taken_for_checked(conversation, admin_client):
    address = "/admin/attention/calls_unknown/"
    a_call_cut_short(conversation)
    a_call_cut_short(conversation)
    for nonsense in ("", "0", "-1", "x", "\u0663", "9" * 400):
        assert "Nothing was done" in admin_client.post(address, {"hits": nonsense}, follow=True).content.decode()
    assert told()["calls_unknown"].hits == 2
    a_call_cut_short(conversation)
    assert (
        "2 tool calls are marked as checked" in admin_client.post(address, {"hits": "2"}, follow=True).content.decode()
    )
    assert told()["calls_unknown"].hits == 1
    admin_client.post(address, {"hits": "1"})
    assert "calls_unknown" not in told()
    assert "Nothing was done" in admin_client.post(address, {"hits": "1"}, follow=True).content.decode()
    a_call_cut_short(conversation)
    assert told()["calls_unknown"].hits == 1


def test_a_button_needs_its_form_s_token(conversation, admin_user):
    a_pause(conversation)
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post("/admin/attention/intake_paused/").status_code == 403
    assert intake.current_pause()


def test_strangers_are_told_nothing(client, conversation, monitor):
    a_pause(conversation)
    for address in ("/admin/attention/", "/admin/attention/intake_paused/"):
        assert client.get(address).status_code == 302
        assert client.post(address).status_code in (302, 403, 405)
    assert client.get("/health/status").status_code == 403
    assert monitor.get("/health/status").json()["conditions"][0]["condition"] == "intake_paused"
    assert monitor.post("/health/status").status_code == 405
    assert intake.current_pause()


# --- servers -----------------------------------------------------------------------------------------------------


def test_redis_that_does_not_answer(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert broker.PATIENCE_SECONDS < 1
    assert "Start Redis" in told()["broker_away"].words


def test_a_database_that_refuses_writes(monkeypatch):
    monkeypatch.setattr(outages, "REFUSES_FOR", float("inf"))
    assert told()["database_refuses_writes"].is_urgent


@pytest.mark.production(reason="the embedded bus is the process's own")
def test_a_web_node_that_hears_nothing_any_more():
    """It has followed, then its listener ended; Redis answers as ever."""

    async def follow(transport):
        await transport.attach(HeardListener())
        await until(lambda: transport.is_connected and not transport.is_deaf())
        await transport.detach()

    events.transport.cache_clear()  # one of this test's own, and none that is deaf for the next
    try:
        asyncio.run(follow(events.transport()))
        wait_until(lambda: "events_not_heard" in told())
        assert told()["events_not_heard"].is_urgent
    finally:
        events.transport.cache_clear()


# --- a provider that people want asked ---------------------------------------------------------------------------


def test_a_process_that_found_an_outage_asks_again_when_somebody_wants_it():
    from agent.errors import LlmUnavailable

    now = [0.0]
    breaker = Breaker(clock=lambda: now[0])
    for work in range(5):
        breaker.failed("p", LlmUnavailable("away"), work=work, rest=60)
    breaker.learn({}, read_at=now[0])  # read before it was stored
    with pytest.raises(LlmUnavailable):
        breaker.check("p")
    breaker.learn({"p": 59.0}, read_at=now[0])
    with pytest.raises(LlmUnavailable):
        breaker.check("p")
    breaker.learn({}, read_at=now[0])  # somebody has ended its rest
    breaker.check("p")
    breaker.failed("p", LlmUnavailable("away"), work="probe", rest=60)
    with pytest.raises(LlmUnavailable):
        breaker.check("p")


# --- and alarms --------------------------------------------------------------------------------------------------


def test_there_is_an_alarm_for_each_condition():
    alarms = yaml.safe_load((ROOT / "docs" / "monitoring" / "alerts.yml").read_text())["groups"]
    labelled = [name for group in alarms for rule in group["rules"] if (name := rule["labels"].get("condition"))]
    assert set(labelled) == set(attention.CONDITIONS)


def test_what_strangers_wrote_is_text_and_no_markup(conversation, admin_client):
    a_budget_that_is_mostly_used(conversation)
    page = admin_client.get("/admin/attention/").content.decode()
    assert "low &lt;b&gt;" in page
    assert "low <b>" not in page
