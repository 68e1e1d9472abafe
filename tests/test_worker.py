"""A worker process's runtime: its row, its loop, its bounds, its goodbye."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from conversations import worker as worker_module
from conversations.models import Turn, TurnStatus, WaitingFor, Worker
from conversations.worker import Runtime, forget_dead_workers
from nanohost.lib.clock import from_now
from tests.scripts import script

pytestmark = pytest.mark.django_db(transaction=True)


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition; fails if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come about in time"
        time.sleep(0.01)


@pytest.fixture
def runtime(settings, monkeypatch) -> Iterator[Runtime]:
    monkeypatch.setattr(worker_module, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(Worker, "HEARTBEAT_SECONDS", 0.1)
    settings.SWEEP_SECONDS = 0.1
    settings.WORKER_MAX_TURNS = 2
    made = Runtime()
    made.start()
    yield made
    made.stop()


def status(turn: Turn) -> str:
    return Turn.objects.get(pk=turn.pk).status


def test_a_worker_introduces_itself_and_says_goodbye(settings):
    runtime = Runtime()
    runtime.start()
    assert Worker.objects.alive().get().name == runtime.name
    runtime.stop()
    assert not Worker.objects.alive().exists()
    assert Worker.objects.get().ended_at is not None


def test_a_turn_handed_over_is_run(runtime, say):
    turn = say("Hello")
    runtime.take_turn(turn.pk)
    until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_the_heartbeat_renews_leases_and_reports_what_is_held(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take_turn(turn.pk)
    until(lambda: Worker.objects.get(name=runtime.name).turns_held == 1)
    before = Turn.objects.get(pk=turn.pk).lease_until
    until(lambda: Turn.objects.get(pk=turn.pk).lease_until > before)


def test_a_turn_taken_over_is_let_go_without_a_write(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take_turn(turn.pk)
    until(lambda: status(turn) == TurnStatus.RUNNING)
    Turn.objects.update(fence=9, worker="worker-2", lease_until=from_now(60))
    until(lambda: runtime._runner.count == 0)
    assert (Turn.objects.get().fence, status(turn)) == (9, TurnStatus.RUNNING)


def test_a_stop_hands_the_turns_back(runtime, say):
    turn = say(script({"sleep": 60}))
    runtime.take_turn(turn.pk)
    until(lambda: status(turn) == TurnStatus.RUNNING)
    runtime.stop()
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, turn.attempts) == (TurnStatus.WAITING, WaitingFor.RETRY, 0)


def test_a_full_worker_takes_no_more_turns(runtime, say, owner, conversation):
    from conversations import inbox

    turns = []
    for _ in range(3):
        own = inbox.start_conversation(owner_id=owner.pk, metadata={})
        turns.append(say(script({"sleep": 60}), conversation=own))
    taker = threading.Thread(target=lambda: [runtime.take_turn(turn.pk) for turn in turns])
    taker.start()
    until(lambda: runtime._runner.count == 2)
    assert taker.is_alive(), "the third waits for room"
    assert status(turns[2]) == TurnStatus.QUEUED
    runtime.stop()
    taker.join(timeout=5)
    assert not taker.is_alive()


def test_a_duty_that_fails_does_not_end_the_worker(runtime, say, monkeypatch, caplog):
    def broken() -> int:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(worker_module, "sweep", broken)
    until(lambda: "periodic duty" in caplog.text)
    turn = say("Hello")
    runtime.take_turn(turn.pk)
    until(lambda: status(turn) == TurnStatus.SUCCEEDED)


def test_workers_not_heard_of_for_a_week_are_forgotten():
    Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at=from_now(-8 * 86_400))
    Worker.objects.create(name="new", version="0", turns_most=1, heartbeat_at=from_now(-60))
    assert forget_dead_workers() == 1
    assert Worker.objects.get().name == "new"
