"""The doorbell at a broker that is away, silent or back: notifying never holds anybody up, and nothing depends on
it."""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from celery import Celery
from celery.worker.request import Request
from django.test import Client
from kombu import Consumer, Queue

from conversations import tasks
from conversations.engine import doorbell, worker
from conversations.engine.doorbell import LEFT_ALONE_SECONDS
from conversations.engine.sweeper import find
from conversations.kinds import TURNS
from conversations.web import health
from nanohost.celery import make_app
from tests.faults.servers import Redis, free_port, missing_binaries
from tests.support.brokers import SilentBroker
from tests.support.sources import read_settings

# An API call answers within so many seconds whatever the broker does, and one notification is the least part of it.
SOON = 5.0
pytestmark = pytest.mark.shapeless(reason="brokers of its own")
needs_redis = pytest.mark.skipif("redis-server" in missing_binaries(), reason="needs redis-server")


@pytest.fixture
def mute() -> Iterator[SilentBroker]:
    with SilentBroker() as broker:
        yield broker


@pytest.fixture
def deaf() -> Iterator[int]:
    """The port of a broker that does not even accept: the kernel's queue before it is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(listener.getsockname())
        yield listener.getsockname()[1]
        for client in waiting:
            client.close()


@pytest.fixture
def bell_at(monkeypatch) -> Callable[[int], doorbell.Broker]:
    """Have the doorbell notify by a broker at a port, by the settings it has with servers: ``bell_at(port)``."""

    def point(port: int) -> doorbell.Broker:
        monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1/none")
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{port}/0")
        app = Celery("nanohost", set_as_current=False)
        app.config_from_object(SimpleNamespace(**read_settings()), namespace="CELERY")
        for module in (doorbell, health):
            monkeypatch.setattr(module, "current_app", app)
        monkeypatch.setattr(doorbell, "shared", doorbell.Broker())
        return doorbell.shared

    return point


def notify(bell: doorbell.Broker) -> bool:
    """Whether the broker took it; fails if it took long to find out."""
    began = time.monotonic()
    taken = bell.notify(TURNS, UUID(int=0))
    assert time.monotonic() - began < SOON
    return taken


def notify_together(bell: doorbell.Broker, callers: int) -> list[bool]:
    """What each of many callers was told; fails if any of them waited long."""
    taken: list[bool] = []
    all_here = threading.Barrier(callers)

    def call() -> None:
        all_here.wait()
        taken.append(notify(bell))

    threads = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == callers, "some of them waited too long"
    return taken


def let_time_pass(bell: doorbell.Broker) -> None:
    """As if the broker had been left alone for long enough."""
    assert bell.failed_at is not None
    bell.failed_at -= LEFT_ALONE_SECONDS


def test_a_broker_that_is_down_holds_nobody_up(bell_at):
    bell = bell_at(free_port())
    assert [notify(bell), notify(bell)] == [False, False]


def test_a_broker_that_never_answers_holds_nobody_up_and_is_then_left_alone(bell_at, mute):
    bell = bell_at(mute.port)
    assert [notify(bell), notify(bell), notify(bell)] == [False, False, False]
    assert len(mute.accepted) == 1


def test_a_broker_that_never_accepts_holds_nobody_up_and_is_then_left_alone(bell_at, deaf):
    bell = bell_at(deaf)
    assert not notify(bell)
    began = time.monotonic()
    assert not notify(bell)
    assert time.monotonic() - began < 0.5, "a try would have taken a second"


def test_as_many_as_may_notify_at_once_wait_side_by_side_and_not_for_one_another(bell_at, mute, monkeypatch):
    monkeypatch.setenv("WEB_THREADS", "80")
    assert notify_together(bell_at(mute.port), 80) == [False] * 80


def test_after_a_while_one_caller_tries_again_and_the_others_do_not_wait(bell_at, mute):
    bell = bell_at(mute.port)
    notify(bell)
    let_time_pass(bell)
    assert notify_together(bell, 10) == [False] * 10
    assert len(mute.accepted) == 2
    assert not notify(bell)
    assert len(mute.accepted) == 2, "and it is left alone again"


@pytest.mark.django_db(transaction=True)
def test_a_message_is_taken_in_while_the_broker_is_silent_and_found_by_the_next_sweep(bell_at, mute, say):
    bell_at(mute.port)
    began = time.monotonic()
    turn = say("Hello")
    assert time.monotonic() - began < SOON
    assert len(mute.accepted) == 1, "workers were notified"
    assert find(TURNS) == [turn.pk], "by the very next sweep: nobody was told"


@pytest.mark.django_db
def test_readiness_is_told_soon_though_the_broker_is_silent(bell_at, mute):
    bell_at(mute.port)
    began = time.monotonic()
    assert Client().get("/health/ready").json()["checks"]["doorbell"] == "unavailable"
    assert time.monotonic() - began < SOON / 2


# --- a broker that comes back ------------------------------------------------------------------------------------


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path / "redis")
    yield server
    if server.process:
        server.go_on()
        server.stop()


def notifications_in(server: Redis) -> int:
    with server.connect() as client:
        return int(client.llen("turns"))  # type: ignore[arg-type]  # not a client that is awaited


@needs_redis
def test_a_broker_that_comes_up_is_notified_again(bell_at, redis):
    bell = bell_at(redis.port)
    assert not notify(bell)
    redis.start()
    assert not notify(bell), "it is left alone yet"
    let_time_pass(bell)
    assert notify(bell)
    assert notify_together(bell, 5) == [True] * 5, "from now on by all"
    assert notifications_in(redis) == 6


@needs_redis
def test_a_broker_that_falls_silent_holds_nobody_up_and_is_notified_when_it_speaks_again(bell_at, redis):
    redis.start()
    bell = bell_at(redis.port)
    assert notify_together(bell, 5) == [True] * 5
    redis.hang()
    assert not any(notify_together(bell, 5))
    redis.go_on()
    let_time_pass(bell)
    assert notify(bell)
    assert notifications_in(redis) >= 6, "what was sent into the silence may have arrived"


@needs_redis
def test_as_many_as_may_notify_at_once_are_all_taken(bell_at, redis):
    redis.start()
    bell = bell_at(redis.port)
    assert notify(bell)
    redis.hang()
    threading.Timer(0.3, redis.go_on).start()
    assert notify_together(bell, 24) == [True] * 24
    assert bell.failed_at is None
    assert notifications_in(redis) == 25


@needs_redis
def test_of_those_who_are_first_together_one_keeps_its_connection(bell_at, redis):
    redis.start()
    bell = bell_at(redis.port)
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        assert notify_together(bell, 20) == [True] * 20
        assert len(os.listdir("/proc/self/fd")) - before < 10
    finally:
        gc.enable()


@needs_redis
def test_a_broker_that_was_restarted_between_two_notifications_misses_none(bell_at, redis):
    redis.start()
    bell = bell_at(redis.port)
    assert notify_together(bell, 5) == [True] * 5
    redis.stop()
    redis.start()
    assert notify_together(bell, 5) == [True] * 5
    assert notifications_in(redis) == 5


def test_celery_takes_a_notification_for_a_task_of_its_own(monkeypatch):
    """With its monitoring switched on, it makes a request of each."""
    app = make_app(current=False)
    app.loader.import_default_modules()
    app.conf.broker_url = "memory://notifications"
    monkeypatch.setattr(doorbell, "current_app", app)
    monkeypatch.setattr(doorbell, "shared", doorbell.Broker())
    with app.connection_for_read() as connection, connection.channel() as channel:
        queue = Queue(TURNS.queue, routing_key=TURNS.queue, channel=channel)
        queue.declare()
        queue.purge()  # all in-memory brokers of a process are one
        assert doorbell.shared.notify(TURNS, UUID(int=7))
        message = queue.get()
    request = Request(message, app=app)
    assert (request.name, request.args, request.kwargs) == (TURNS.task, [str(UUID(int=7))], {})
    assert request.info()["id"] == str(UUID(int=7))


@needs_redis
def test_a_notification_is_followed_before_celery_makes_a_message_of_it(bell_at, redis, monkeypatch):
    redis.start()
    bell = bell_at(redis.port)
    heard, messages = [], []
    runtime = SimpleNamespace(take=lambda kind, row_id, *, wait: heard.append(row_id))
    monkeypatch.setattr(worker, "runtime", lambda: runtime)
    app = doorbell.current_app
    with app.connection_for_read() as connection, connection.channel() as channel:
        queue = Queue(TURNS.queue, routing_key=TURNS.queue)
        consumer = SimpleNamespace(connection_errors=(), connection=connection)
        tasks.pass_on(make_app(current=False).tasks[TURNS.task], app, consumer)
        with Consumer(channel, [queue], on_message=messages.append, no_ack=True):
            assert bell.notify(TURNS, UUID(int=7))
            connection.drain_events(timeout=5)
            app.send_task(TURNS.task, (str(UUID(int=8)),))  # as an older web node notifies
            connection.drain_events(timeout=5)
            with app.producer_or_acquire() as producer:  # as workers speak with one another
                producer.publish({}, exchange="", routing_key=TURNS.queue, headers={"ticket": "1"})
            connection.drain_events(timeout=5)
    assert heard == [UUID(int=7)]
    assert [message.headers.get("task") for message in messages] == [TURNS.task, None]
