"""A call that a process with room claims in the transaction that stores it, and the turn that goes on with its end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection

from agent.llm.base import Completion, tool_call
from conversations import events
from conversations.engine import doorbell, lease, snapshot, steps, tool_calls, transcript
from conversations.engine.runner import Runner
from conversations.engine.tool_calls import CallRunner, run_call
from conversations.engine.turns import TurnRunner
from conversations.engine.worker import Runtime
from conversations.kinds import TOOLS, TURNS, Kind
from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.ids import new_id
from tests.support.process_with_room import ProcessWithRoom
from tests.support.scripts import script
from tests.support.wait import wait_until
from tools import calls
from tools.models import CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

TIME, LINE = tool_call("c1", "time", "{}"), tool_call("c2", "append_line", '{"path": "/a", "line": "b"}')


@pytest.fixture
def here(tool_settings) -> Iterator[dict[str, ProcessWithRoom]]:
    """A process that works on both kinds, by their queues."""
    tool_settings("time")
    tool_settings("append_line", grants=["FS_WRITE"])
    made = {"turns": ProcessWithRoom(), "tools": ProcessWithRoom()}
    for kind in (TURNS, TOOLS):
        doorbell.answer_here(kind, made[kind.queue])
    yield made
    doorbell.answer_no_more()


def ask(say, here, *wanted) -> tuple[Turn, list[ToolCall]]:
    """A turn that has asked for these calls; and those, as they are stored."""
    turn = say("What time is it?")
    (held, _) = here["turns"].begun.pop()
    assert steps.store_calls(held, Completion(tool_calls=wanted), limit=None)
    return turn, list(ToolCall.objects.filter(turn_id=turn.pk).order_by("position"))


OWN = {"id", "turn_id", "conversation_id"}
TIMES = {"created_at", "started_at", "lease_until", "notified_at"}


def test_the_row_is_that_of_a_call_that_was_queued_and_claimed(say, here):
    _, (now,) = ask(say, here, TIME)
    here["tools"].places = 0
    Turn.objects.update(status=TurnStatus.CANCELLED)
    _, (later,) = ask(say, here, TIME)
    assert (now.status, later.status) == (CallStatus.RUNNING, CallStatus.QUEUED)
    later = calls.claim(later.pk, worker="worker-1")
    fields = {each.name for each in ToolCall._meta.fields} - OWN - TIMES
    assert {name: getattr(now, name) for name in fields} == {name: getattr(later, name) for name in fields}
    assert all(getattr(row, name) for name in TIMES for row in (now, later))
    assert now.lease_until - now.started_at == lease.lease_length()
    (begun,) = here["tools"].begun
    assert {name: getattr(begun, name) for name in fields | OWN} == {name: getattr(now, name) for name in fields | OWN}
    assert abs((begun.created_at - now.created_at).total_seconds()) < 60
    assert here["tools"].notified == [later.pk]


def test_of_several_one_begins_and_workers_are_notified_of_the_others(say, here):
    twice = tool_call("c3", "time", "{}")
    _, stored = ask(say, here, LINE, TIME, twice)
    assert [call.status for call in stored] == [CallStatus.QUEUED, CallStatus.RUNNING, CallStatus.QUEUED]
    assert [call.pk for call in here["tools"].begun] == [stored[1].pk]
    assert here["tools"].notified == [stored[0].pk, stored[2].pk]


def test_one_that_must_not_run_twice_is_queued(say, here):
    """Whoever has claimed it may die before it begins, and then nobody would know that."""
    _, (stored,) = ask(say, here, LINE)
    assert (stored.status, here["tools"].begun) == (CallStatus.QUEUED, [])


def test_one_with_a_rate_limit_is_queued(say, here):
    ToolSetting.objects.filter(name="time").update(calls_per_minute_owner=5)
    _, (stored,) = ask(say, here, TIME)
    assert (stored.status, here["tools"].begun) == (CallStatus.QUEUED, [])


def test_one_whose_tool_was_given_a_rate_limit_since_is_counted_by_it(say, here):
    _, (first,) = ask(say, here, TIME)
    Turn.objects.update(status=TurnStatus.CANCELLED)
    _, (second,) = ask(say, here, TIME)
    ToolSetting.objects.filter(name="time").update(calls_per_minute_owner=1)
    for call in here["tools"].begun:
        run_call(call.pk, worker="worker-1", claimed=call)
    first.refresh_from_db()
    second.refresh_from_db()
    assert [first.status, second.status] == [CallStatus.SUCCESS, CallStatus.REJECTED]


def test_what_is_not_stored_does_not_begin(say, here, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise OperationalError

    monkeypatch.setattr(doorbell, "notify", broken)
    with pytest.raises(OperationalError):
        ask(say, here, TIME, LINE)
    assert (here["tools"].begun, ToolCall.objects.count()) == ([], 0)


def test_one_whose_worker_died_before_it_began_is_run_again(say, here):
    _, (stored,) = ask(say, here, TIME)
    assert calls.claim(stored.pk, worker="worker-2") is None
    ToolCall.objects.update(lease_until=stored.created_at)
    again = calls.claim(stored.pk, worker="worker-2")
    assert (again.fence, again.attempts, again.worker) == (2, 2, "worker-2")


# --- the turn ----------------------------------------------------------------------------------------------------


def run_begun(here) -> None:
    """Run the calls that have begun, as a worker does."""
    while here["tools"].begun:
        call = here["tools"].begun.pop(0)
        run_call(call.pk, worker="worker-1", claimed=call)


by_one_writer = pytest.mark.embedded(reason="on PostgreSQL locks are taken in another order")


@by_one_writer
def test_a_turn_is_claimed_with_the_end_of_its_last_call(say, here, monkeypatch):
    told = []
    monkeypatch.setattr(events, "publish", lambda turn_id, kind, *_, **__: told.append(str(kind)))
    turn, _ = ask(say, here, TIME)
    run_begun(here)
    turn.refresh_from_db()
    assert (turn.status, turn.worker, turn.fence, turn.waiting_for) == (TurnStatus.RUNNING, "worker-1", 2, "")
    ((held, context),) = here["turns"].begun
    assert (held.turn_id, held.fence) == (turn.pk, 2)
    assert context.snapshot == snapshot.load(held)
    assert [message["role"] for message in context.snapshot.own] == ["user", "assistant", "tool"]
    assert here["turns"].notified == []
    assert told.count("tool.finished") == 1
    steps.finish(held, Completion(content="Noon"), reply="Noon")


@by_one_writer
def test_while_another_call_is_open_it_waits(say, here):
    turn, stored = ask(say, here, TIME, LINE)
    run_begun(here)
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, here["turns"].begun) == (TurnStatus.WAITING, WaitingFor.TOOLS, [])
    assert here["turns"].notified == [turn.pk]
    run_call(stored[1].pk, worker="worker-1")
    assert [held.turn_id for held, _ in here["turns"].begun] == [turn.pk]


def test_without_room_workers_are_notified_of_it(say, here):
    turn, _ = ask(say, here, TIME)
    here["turns"].places = 0
    run_begun(here)
    turn.refresh_from_db()
    assert (turn.status, here["turns"].begun, here["turns"].notified) == (TurnStatus.WAITING, [], [turn.pk])


FAULTS = [
    ValueError("a fault of ours"),
    IntegrityError("no such row"),
    OperationalError("malformed JSON"),  # SQLite has the same error for what lasts and for what is over at the next try
]


@by_one_writer
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_in_the_claim_loses_no_outcome(say, here, monkeypatch, fault):
    def broken(*_: object, **__: object) -> None:
        raise fault

    turn, (call,) = ask(say, here, TIME)
    monkeypatch.setattr(transcript, "append", broken)
    run_begun(here)
    call.refresh_from_db()
    turn.refresh_from_db()
    assert (call.status, turn.status) == (CallStatus.SUCCESS, TurnStatus.WAITING)
    assert (here["turns"].begun, here["turns"].notified) == ([], [turn.pk])
    assert turn.conversation.next_seq == 3  # no number is lost


@by_one_writer
def test_nothing_begins_and_nothing_is_told_before_both_are_committed(say, here, monkeypatch):
    turn, _ = ask(say, here, TIME)
    commit, tries = connection.commit, []

    def failing() -> None:
        if ToolCall.objects.get().ended:
            tries.append((len(here["turns"].begun), len(here["turns"].notified), Turn.objects.get().status))
            if len(tries) == 1:
                raise OperationalError("disk I/O error")
        commit()

    monkeypatch.setattr(connection, "commit", failing)
    run_begun(here)
    assert tries == [(0, 0, TurnStatus.RUNNING), (0, 0, TurnStatus.WAITING)]
    assert (here["turns"].begun, here["turns"].notified) == ([], [turn.pk])


@pytest.mark.production(reason="SQLite lets one write at a time")
def test_where_many_write_a_turn_is_not_locked_after_its_call(say, here):
    turn, _ = ask(say, here, TIME)
    run_begun(here)
    turn.refresh_from_db()
    assert (turn.status, here["turns"].begun, here["turns"].notified) == (TurnStatus.WAITING, [], [turn.pk])


def test_one_that_was_ended_elsewhere_meanwhile_claims_nothing(say, here):
    turn, _ = ask(say, here, TIME)
    ToolCall.objects.update(fence=2)
    run_begun(here)
    turn.refresh_from_db()
    assert (turn.status, here["turns"].begun, here["turns"].notified) == (TurnStatus.WAITING, [], [])


# --- in a worker's process ---------------------------------------------------------------------------------------


@pytest.fixture
def runtime(tool_settings) -> Iterator[Runtime]:
    tool_settings("time")
    runtime = Runtime((TURNS, TOOLS))
    runtime.start()
    yield runtime
    runtime.stop()


ASKS = script({"call": [{"name": "time", "arguments": {}}]}, {"sleep": 60})


def until_stopped(monkeypatch, kind: Kind, runner: type[Runner], *, once: Callable[[], bool]) -> threading.Event:
    """Whoever asks this process for a place of a kind, ``once`` that is so, gets it when the process's runner of the
    kind has stopped: before the transaction, whose lock a stop may have to wait for. The event: somebody asks."""
    asking, has_stopped = threading.Event(), threading.Event()
    place, stop = doorbell.place, runner.stop

    @contextmanager
    def slow(of: Kind) -> Iterator[doorbell.Place | None]:
        with place(of) as found:
            if of == kind and once():
                asking.set()
                assert has_stopped.wait(10)
            yield found

    async def told(self: Runner) -> None:
        await stop(self)
        has_stopped.set()

    monkeypatch.setattr(doorbell, "place", slow)
    monkeypatch.setattr(runner, "stop", told)
    return asking


def test_one_that_is_stored_while_the_process_stops_goes_back(runtime, say, monkeypatch):
    storing = until_stopped(monkeypatch, TOOLS, CallRunner, once=lambda: True)
    say(ASKS)
    assert storing.wait(10)
    runtime.stop()
    call = ToolCall.objects.get()
    assert (call.status, call.attempts, call.lease_until, call.notified_at) == (CallStatus.QUEUED, 0, None, None)
    assert runtime.free(TOOLS) == TOOLS.places()


def test_one_that_waits_for_a_thread_as_the_process_stops_goes_back(say, here, settings, monkeypatch):
    settings.TOOL_CONCURRENCY = 1
    runner = CallRunner(worker="worker-1", database=DatabaseThreads(1))
    going, has_stopped, go_on, over = threading.Event(), threading.Event(), threading.Event(), []
    run, shutdown = tool_calls.run_call, ThreadPoolExecutor.shutdown

    def slow(call_id: UUID, *, worker: str, claimed: ToolCall | None) -> None:
        if claimed is None:
            going.set()
            assert go_on.wait(10)
        else:
            run(call_id, worker=worker, claimed=claimed)

    def told(pool: ThreadPoolExecutor, *, wait: bool = True, cancel_futures: bool = False) -> None:
        shutdown(pool, wait=False, cancel_futures=cancel_futures)
        if wait:
            has_stopped.set()
            shutdown(pool)

    monkeypatch.setattr(tool_calls, "run_call", slow)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", told)
    _, (call,) = ask(say, here, TIME)
    (claimed,) = here["tools"].begun
    loop = asyncio.new_event_loop()
    runner.begin(new_id(), loop=loop, then=over.append)
    assert going.wait(10)
    runner.begin_claimed(claimed, loop=loop, then=over.append)
    runner.wind_down()
    stopping = threading.Thread(target=loop.run_until_complete, args=[runner.stop()])
    stopping.start()
    assert has_stopped.wait(10)
    go_on.set()
    stopping.join()
    loop.close()
    call.refresh_from_db()
    assert (call.status, call.attempts, len(over)) == (CallStatus.QUEUED, 0, 2)


def test_one_that_cannot_begin_keeps_nobody_else_from_it(runtime, say, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise OperationalError

    monkeypatch.setattr(CallRunner, "begin_claimed", broken)
    wanted = {"name": "time", "arguments": {}}
    say(script({"call": [wanted, wanted]}, {"sleep": 60}))
    wait_until(lambda: ToolCall.objects.filter(status=CallStatus.SUCCESS).exists())
    wait_until(lambda: runtime.free(TOOLS) == TOOLS.places())
    assert {call.position: call.status for call in ToolCall.objects.all()} == {
        0: CallStatus.RUNNING,  # until its lease runs out
        1: CallStatus.SUCCESS,
    }


@by_one_writer
def test_a_turn_that_a_call_claims_while_the_process_stops_goes_back(runtime, say, monkeypatch):
    claiming = until_stopped(monkeypatch, TURNS, TurnRunner, once=ToolCall.objects.exists)
    release, tries = steps.release, []

    def failing(held: lease.Claim) -> None:
        tries.append(held.fence)
        if len(tries) == 1:  # what nobody waits for is stored all the same, if it is stored at once
            raise OperationalError("database is locked")
        release(held)

    monkeypatch.setattr(steps, "release", failing)
    turn = say(ASKS)
    assert claiming.wait(10)
    runtime.stop()
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, turn.attempts) == (TurnStatus.WAITING, WaitingFor.RETRY, 0)
    assert ToolCall.objects.get().status == CallStatus.SUCCESS
    assert runtime.free(TURNS) == TURNS.places()


def test_both_leave_their_places(say, tool_settings, settings):
    tool_settings("time")
    settings.WORKER_MAX_TURNS = settings.TOOL_CONCURRENCY = 1
    runtime = Runtime((TURNS, TOOLS))
    runtime.start()
    try:
        for _ in range(3):
            turn = say(script({"call": [{"name": "time", "arguments": {}}]}, {"say": "Noon"}))
            wait_until(lambda turn=turn: Turn.objects.get(pk=turn.pk).ended)
            assert Turn.objects.get(pk=turn.pk).status == TurnStatus.SUCCEEDED
            wait_until(lambda: runtime.free(TURNS) == runtime.free(TOOLS) == 1)
        assert ToolCall.objects.filter(status=CallStatus.SUCCESS, worker=runtime.name).count() == 3
    finally:
        runtime.stop()
