"""A worker process's runtime: its row, its loop, its bounds, its goodbye."""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from conversations.engine import doorbell, sweeper
from conversations.engine import worker as worker_module
from conversations.engine.turns import TurnRunner
from conversations.engine.worker import Runtime, forget_dead_workers
from conversations.kinds import TOOLS, TURNS
from conversations.models import Turn, Worker
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from tests.support.scripts import script
from tests.support.wait import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def runtime(settings, monkeypatch) -> Iterator[Runtime]:
    monkeypatch.setattr(worker_module, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(Worker, "HEARTBEAT_SECONDS", 0.1)
    settings.SWEEP_SECONDS = 0.1
    settings.WORKER_MAX_TURNS = 2
    made = Runtime((TURNS,))  # without tools: the process they run in takes a second to start
    made.start()
    yield made
    made.stop()


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Collection[UUID]]:
    """Grows with each sweep that has begun since: what the worker then held."""
    begun: list[Collection[UUID]] = []
    before = TurnRunner.before_sweep

    def tell_before(runner: TurnRunner) -> None:
        begun.append(runner.held)
        before(runner)

    monkeypatch.setattr(TurnRunner, "before_sweep", tell_before)
    return begun


def sweep_twice(sweeps: list[Collection[UUID]]) -> None:
    """Wait until a sweep that has begun after this is over: when the next one begins."""
    begun = len(sweeps)
    wait_until(lambda: len(sweeps) >= begun + 2)


def status(turn: Turn) -> str:
    return Turn.objects.get(pk=turn.pk).status


def test_a_worker_introduces_itself_and_says_goodbye(settings):
    runtime = Runtime()
    runtime.start()
    assert Worker.objects.alive().get().name == runtime.name
    runtime.stop()
    assert not Worker.objects.alive().exists()
    assert Worker.objects.get().ended_at is not None


def test_what_is_notified_in_a_workers_own_process_it_takes_itself(runtime, say):
    """Nothing else hears a notification here: there is no consumer of the broker."""
    turn = say("Hello")
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_a_worker_that_winds_down_takes_nothing_more(runtime, say):
    runtime.wind_down()
    turn = say("Hello")
    runtime.take(TURNS, turn.pk)
    assert status(turn) == TurnStatus.QUEUED


def test_a_turn_handed_over_is_run(runtime, say):
    turn = say("Hello")
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_the_heartbeat_renews_leases_and_reports_its_pool(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: Turn.objects.of_worker(runtime.name).count() == 1)
    pool = connection.settings_dict["OPTIONS"].get("pool")
    row = Worker.objects.get(name=runtime.name)
    assert row.pool_most == (pool["max_size"] if pool else None)
    assert row.told_pool == (f"{row.pool_used} of {row.pool_most}" if pool else "none")
    before = Turn.objects.get(pk=turn.pk).lease_until
    wait_until(Turn.objects.filter(pk=turn.pk, lease_until__gt=before).exists)


def test_the_heartbeat_does_not_wait_behind_other_work(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.RUNNING)
    done = threading.Event()
    try:
        for _ in range(20):
            asyncio.run_coroutine_threadsafe(runtime._database(done.wait), runtime._loop)
        for _ in range(2):  # the first may have been on its way
            before = Turn.objects.get(pk=turn.pk).lease_until
            wait_until(lambda before=before: Turn.objects.get(pk=turn.pk).lease_until > before)
    finally:
        done.set()


def test_a_turn_taken_over_is_let_go_without_a_write(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.RUNNING)
    Turn.objects.update(fence=9, worker="worker-2", lease_until=from_now(60))
    wait_until(lambda: len(runtime.held(TURNS)) == 0)
    assert (Turn.objects.get().fence, status(turn)) == (9, TurnStatus.RUNNING)


def test_a_turn_that_is_held_is_not_claimed_a_second_time_when_its_lease_ran_out(runtime, say):
    """As after a stall of the whole process: the sweeper notifies before the heartbeat has renewed the lease."""
    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    wait_until(
        lambda: status(turn) == TurnStatus.RUNNING and len(runtime.held(TURNS)) == 1
    )  # claimed, and known to be held
    Turn.objects.update(lease_until=from_now(-1))
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: Turn.objects.filter(lease_until__gt=Now()).exists())
    wait_until(lambda: runtime.free(TURNS) == 1)
    turn.refresh_from_db()
    assert (turn.fence, turn.attempts, len(runtime.held(TURNS))) == (1, 0, 1)


def test_a_sweep_leaves_what_its_worker_holds_to_others(runtime, say, owner, sweeps):
    """As while the heartbeat is held up: taking it again would use up the room that others need."""
    from conversations.engine import inbox

    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    # A sweep that was under way when it was taken does not know of it; its lease does not run out so soon.
    wait_until(lambda: sweeps and turn.pk in sweeps[-1])
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    beats = threading.Event()
    try:
        asyncio.run_coroutine_threadsafe(runtime._heart(beats.wait), runtime._loop)
        Turn.objects.filter(pk=turn.pk).update(lease_until=long_ago, notified_at=long_ago)
        doorbell.answer_no_more()  # a sweep finds it
        other = say("Hello", conversation=inbox.start_conversation(owner_id=owner.pk, metadata={}))
        Turn.objects.filter(pk=other.pk).update(notified_at=long_ago + timedelta(days=1))
        wait_until(lambda: status(other) == TurnStatus.SUCCEEDED)
        assert Turn.objects.get(pk=turn.pk).notified_at == long_ago
    finally:
        beats.set()


def test_what_is_on_its_way_to_the_loop_is_not_claimed_again(runtime, say):
    """As while the loop stalls: its lease may run out before it is renewed for the first time."""
    stalled = threading.Event()
    runtime._loop.call_soon_threadsafe(stalled.wait)
    try:
        turn = say("Hello")
        assert turn.pk in runtime.held(TURNS)
        Turn.objects.filter(pk=turn.pk).update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
        runtime.take(TURNS, turn.pk)
        Turn.objects.filter(pk=turn.pk).update(lease_until=datetime(2100, 1, 1, tzinfo=UTC))
    finally:
        stalled.set()
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)
    assert Turn.objects.get(pk=turn.pk).fence == 1


def test_a_full_worker_sweeps_for_nothing_it_has_no_room_for(runtime, say, owner, conversation, sweeps):
    from conversations.engine import inbox

    turns = [say(script({"sleep": 60}))]
    for _ in range(2):
        turns.append(say(script({"sleep": 60}), conversation=inbox.start_conversation(owner_id=owner.pk, metadata={})))
    wait_until(lambda: Turn.objects.of_worker(runtime.name).count() == 2)
    sweep_twice(sweeps)  # one that was begun while there was room is over by then
    Turn.objects.filter(pk=turns[2].pk).update(notified_at=None)
    sweep_twice(sweeps)
    assert Turn.objects.get(pk=turns[2].pk).notified_at is None


def test_an_answer_outlives_a_database_that_is_away_for_a_moment(runtime, say, monkeypatch, caplog):
    """The model was paid once, and is not asked again."""
    from conversations.engine import steps

    caplog.set_level(logging.INFO)

    asked: list[int] = []
    finish = steps.finish

    def refuse_once(*args: object, **options: object) -> None:
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("database is locked")
        finish(*args, **options)

    monkeypatch.setattr(steps, "finish", refuse_once)
    turn = say("Hello")
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)
    assert len(asked) == 2
    assert [line.message for line in caplog.records if line.name == "nanohost.model"] == ["model call"]


def test_a_stop_hands_the_turns_back(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.RUNNING)
    runtime.stop()
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, turn.attempts) == (TurnStatus.WAITING, WaitingFor.RETRY, 0)


def test_a_turn_that_is_being_claimed_at_the_stop_is_released_too(runtime, say, monkeypatch):
    from conversations.engine import lease

    claimed, stopped, go_on = threading.Event(), threading.Event(), threading.Event()
    claim, stop = lease.claim, TurnRunner.stop

    async def tell_stop(runner: TurnRunner) -> None:
        stopped.set()
        await stop(runner)

    def slow_claim(*args: object, **options: object) -> object:
        held = claim(*args, **options)
        claimed.set()
        assert go_on.wait(10)
        return held

    doorbell.answer_no_more()  # it is not claimed here as it is stored
    turn = say(script({"sleep": 60}))
    monkeypatch.setattr(lease, "claim", slow_claim)
    monkeypatch.setattr(TurnRunner, "stop", tell_stop)
    runtime.take(TURNS, turn.pk)
    assert claimed.wait(10)
    stopping = threading.Thread(target=runtime.stop)
    stopping.start()
    assert stopped.wait(10)
    assert status(turn) == TurnStatus.RUNNING
    go_on.set()
    stopping.join()
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, turn.attempts) == (TurnStatus.WAITING, WaitingFor.RETRY, 0)


def test_what_is_notified_while_it_is_being_looked_at_is_looked_at_again(runtime, say, monkeypatch):
    """The first look may have come too early to see what the second notification was of."""
    from conversations.engine import lease

    looked, go_on = threading.Event(), threading.Event()
    claim, advance = lease.claim, TurnRunner.advance
    looks, heard = [], []

    def slow_claim(*args: object, **options: object) -> object:
        looks.append(1)
        if len(looks) == 1:
            raise OperationalError("database is locked")  # so that the loop looks
        held = claim(*args, **options)
        looked.set()
        assert go_on.wait(10)
        return held

    async def hear(*args: object) -> None:
        heard.append(1)
        await advance(*args)

    doorbell.answer_no_more()  # it is not looked at in this thread
    turn = say("Hello")
    Turn.objects.filter(pk=turn.pk).update(run_after=from_now(3600))
    monkeypatch.setattr(lease, "claim", slow_claim)
    monkeypatch.setattr(TurnRunner, "advance", hear)
    runtime.take(TURNS, turn.pk)
    assert looked.wait(10)
    Turn.objects.filter(pk=turn.pk).update(run_after=None, notified_at=from_now(3600))  # no sweep finds it
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: len(heard) == 2)
    assert len(looks) == 2
    go_on.set()
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_a_full_worker_takes_no_more_turns(runtime, say, owner, conversation):
    from conversations.engine import inbox

    turns = []
    for _ in range(3):
        own = inbox.start_conversation(owner_id=owner.pk, metadata={})
        turns.append(say(script({"sleep": 60}), conversation=own))
    taker = threading.Thread(target=lambda: [runtime.take(TURNS, turn.pk) for turn in turns])
    taker.start()
    wait_until(lambda: len(runtime.held(TURNS)) == 2)
    assert taker.is_alive(), "the third waits for room"
    assert status(turns[2]) == TurnStatus.QUEUED
    runtime.stop()
    taker.join(timeout=5)
    assert not taker.is_alive()


def test_a_duty_that_fails_does_not_end_the_worker(runtime, say, monkeypatch, caplog):
    def broken(*_: object, **__: object) -> int:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(sweeper, "find", broken)
    wait_until(lambda: "periodic duty" in caplog.text)
    turn = say("Hello")
    runtime.take(TURNS, turn.pk)
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_a_turn_or_call_that_fails_unforeseen_leaves_its_place_to_the_next(say, settings, monkeypatch, caplog):
    from conversations.engine import lease
    from tools import calls

    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("unforeseen")

    settings.WORKER_MAX_TURNS = 2
    runtime = Runtime((TURNS, TOOLS))
    runtime.start()
    with monkeypatch.context() as broken:
        broken.setattr(lease, "claim", break_down)
        broken.setattr(calls, "claim", break_down)
        for _ in range(settings.WORKER_MAX_TURNS + 1):
            assert runtime.take(TURNS, new_id())
        for _ in range(settings.TOOL_CONCURRENCY + 1):
            assert runtime.take(TOOLS, new_id())
        wait_until(lambda: runtime.free(TURNS) == settings.WORKER_MAX_TURNS)
        wait_until(lambda: runtime.free(TOOLS) == settings.TOOL_CONCURRENCY)
    assert "was dropped" in caplog.text
    turn = say("Hello")
    wait_until(lambda: status(turn) == TurnStatus.SUCCEEDED)
    runtime.stop()


def test_workers_not_heard_of_for_a_week_are_forgotten():
    Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at=from_now(-8 * 86_400))
    Worker.objects.create(name="new", version="0", turns_most=1, heartbeat_at=from_now(-60))
    assert forget_dead_workers() == 1
    assert Worker.objects.get().name == "new"
