"""What the tick, the API and the console read does not grow with how many schedules there are, nor with their past: the
plans of PostgreSQL, with 100,000 schedules and 200,000 runs. Nothing here is timed."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client

from agent.models import Agent
from conversations.models import Turn
from nanohost.accounts.models import WIDE, ApiKey
from nanohost.lib.ids import new_id
from scheduler import agent_tools, runs, series
from scheduler.check_in import ask_agents, settle
from scheduler.models import CheckIn, Schedule, ScheduleRun
from scheduler.ticking import BATCH, fire, tick
from tests.support import many_schedules
from tests.support.factories import AgentFactory, OwnerFactory
from tests.support.query_plan import ExplainedStatement, explained
from tools.registry import Caller

pytestmark = [
    pytest.mark.production(reason="the plans are PostgreSQL's"),
    pytest.mark.django_db,
    pytest.mark.timeout(300),
]

TABLES = {"scheduler_schedule", "scheduler_schedulerun", "conversations_turn", "conversations_conversation"}
TABLES |= {"scheduler_heartbeat"}
# Of 50 schedules that are due, each is joined with its owner and its agent.
BATCH_ROWS = 10 * BATCH
# A list of the console walks by time until it has counted to 500.
LIST_ROWS = 10_000


@pytest.fixture
def many(agent: Any) -> Any:
    """An owner of them, among other owners' conversations and turns."""
    owner = OwnerFactory()
    minute = timedelta(minutes=1)
    many_schedules.fill(owner_id=owner.pk, agent_id=agent.pk, begin=-minute, spread=minute)
    return owner


def ran(act: Callable[[], object]) -> list[ExplainedStatement]:
    """What it ran; undone."""
    with transaction.atomic():
        with explained() as statements:
            act()
        transaction.set_rollback(True)
    assert statements
    return statements


def wrong(statements: list[ExplainedStatement], *, rows: int) -> list[str]:
    """Statements that read a table from end to end, or more rows than that."""
    return [str(each) for each in statements if each.scanned() & TABLES or each.rows() > rows]


def test_a_tick_reads_what_is_due_and_no_more(many: Any) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=58)
    looks = ran(lambda: tick(now=begin))
    assert any(step.get("Index Name") == "schedules_due" for each in looks for step in each.steps())
    assert wrong(looks, rows=BATCH_ROWS) == []
    one = Schedule.objects.select_related("owner", "agent").filter(active=True).order_by("next_at")[0]
    series.run_now(one)
    Turn.objects.update(status="failed")
    assert wrong(ran(lambda: fire(one, now=begin)), rows=BATCH_ROWS) == []
    assert wrong(ran(lambda: runs.settle(now=begin)), rows=BATCH_ROWS) == []
    ScheduleRun.objects.filter(ended_at=None).update(state="due", retry_at=begin)
    (again,) = runs.due_again(now=begin)
    assert wrong(ran(lambda: list(runs.due_again(now=begin))), rows=BATCH_ROWS) == []
    assert wrong(ran(lambda: runs.retry(again, now=begin)), rows=BATCH_ROWS) == []


def test_an_agents_tool_reads_a_bounded_part_of_what_its_owner_has(many: Any, agent: Any) -> None:
    ids = {"conversation_id": new_id(), "turn_id": new_id(), "call_id": new_id()}
    caller = Caller(owner_id=many.pk, agent=agent.name, request_id="request-1", **ids)
    known = str(Schedule.objects.latest("created_at").pk)

    def is_refused() -> None:
        wanted = {"prompt": "x", "at": "2099-05-05T09:00", "new_conversation": True}
        with pytest.raises(ValueError, match="You may have 20 schedules"):
            agent_tools.schedule(caller, "create", **wanted)

    assert wrong(ran(is_refused), rows=BATCH_ROWS) == []
    assert wrong(ran(lambda: agent_tools.schedule(caller, "list")), rows=BATCH_ROWS) == []
    for action in ("pause", "cancel"):
        assert wrong(ran(lambda: agent_tools.schedule(caller, action, known)), rows=BATCH_ROWS) == []  # noqa: B023 -- called at once


def test_a_check_in_reads_nothing_of_those_before(many: Any, agent: Any) -> None:
    now = datetime.now(UTC)
    Agent.objects.filter(pk=agent.pk).update(documents={"HEARTBEAT": "Look after it."}, check_in_owner=many)
    agents = [agent, *(AgentFactory() for _ in range(9))]
    times = [now - timedelta(minutes=30 * number) for number in range(4320, 0, -1)]  # three months
    done = {"state": "ok", "tokens": 9}
    rows = [CheckIn(agent=each, slot=at, day=at.date(), ended_at=at, **done) for at in times for each in agents]
    CheckIn.objects.bulk_create(rows, batch_size=1000)  # at once, the session is idle for longer than it may be
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE scheduler_heartbeat")
    assert wrong(ran(lambda: ask_agents(now=now)), rows=BATCH_ROWS) == []
    ask_agents(now=now)
    Turn.objects.update(status="succeeded")
    assert wrong(ran(lambda: settle(now=now)), rows=BATCH_ROWS) == []
    boss = Client()
    boss.force_login(get_user_model().objects.create_superuser("boss"))
    for query in ("", "state__exact=capped", "state__exact=ok", f"agent__id__exact={agent.pk}"):
        assert wrong(ran(lambda: boss.get(f"/admin/scheduler/checkin/?{query}", secure=True)), rows=LIST_ROWS) == []  # noqa: B023 -- called at once


def test_the_ledger_is_cleared_by_index(many: Any) -> None:
    old = ScheduleRun.objects.order_by("slot").values("pk")[:50]
    ScheduleRun.objects.filter(pk__in=old).update(ended_at=datetime.now(UTC) - timedelta(days=91))
    of_runs = [each for each in ran(runs.forget_old) if "schedulerun" in each.sql]
    assert len(of_runs) > 1
    assert wrong(of_runs, rows=BATCH_ROWS) == []


KEY = "nh_plans_0123456789abcdefghij"


def test_the_api_and_the_console_read_a_bounded_part(many: Any) -> None:
    ApiKey.objects.register(KEY, owner=many, **WIDE)
    api, console = Client(headers={"Authorization": f"Bearer {KEY}"}), Client()
    console.force_login(get_user_model().objects.create_superuser("boss"))
    schedule = ScheduleRun.objects.latest("slot").schedule_id
    far_down = api.get("/api/v1/schedules?limit=10", secure=True).json()["next"].partition("testserver")[2]
    paths = ["/api/v1/schedules", far_down, f"/api/v1/schedules/{schedule}/runs", "/admin/scheduler/schedule/"]
    paths += [f"/admin/scheduler/schedule/?{query}" for query in ("active__exact=0", "active__exact=1", "p=3")]
    paths += [f"/admin/scheduler/schedulerun/?{query}" for query in ("", "state__exact=failed", "state__exact=fired")]
    paths += [f"/admin/scheduler/schedulerun/?{query}={schedule}" for query in ("schedule__exact", "q")]
    failures = []
    for path in paths:
        client = console if path.startswith("/admin") else api
        assert client.get(path, secure=True).status_code == 200, path
        failures += [(path, each) for each in wrong(ran(lambda: client.get(path, secure=True)), rows=LIST_ROWS)]  # noqa: B023 -- called at once
    assert not failures, "\n".join(f"{path}: {statement}" for path, statement in failures)
