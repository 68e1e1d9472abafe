"""Notifications as a worker hears them, off a real queue of kombu's."""

from collections.abc import Callable
from types import SimpleNamespace
from uuid import UUID

import pytest
from kombu import Connection, Queue

from conversations import tasks
from conversations.engine import worker
from conversations.kinds import COMPACTIONS, DELIVERIES, KINDS, LISTENERS, REPLAYS, TOOLS, TURNS
from nanohost.celery import make_app

pytestmark = pytest.mark.shapeless(reason="a broker in memory")


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Notify with these arguments, and hear it; returns whether it was acknowledged."""
    app = make_app(current=False)
    task = app.tasks["conversations.tasks.advance_turn"]

    def hear(*arguments: object) -> bool:
        with Connection("memory://") as connection, connection.channel() as channel:
            queue = Queue("turns", routing_key="turns", channel=channel)
            queue.declare()
            app.send_task(task.name, arguments, connection=connection, queue=queue)
            message = queue.get()
            consumer = SimpleNamespace(connection_errors=(), connection=connection)
            tasks.pass_on(task, app, consumer)(message, None, None, None, None)
            return bool(message.acknowledged)

    return hear


@pytest.mark.parametrize("arguments", [("no id",), (), (str(UUID(int=7)),)], ids=["no id", "nothing", "no worker"])
def test_a_notification_that_cannot_be_followed_ends_nothing(hear, monkeypatch, caplog, arguments):
    monkeypatch.setattr(worker, "_runtime", None)
    assert hear(*arguments)
    assert "could not be followed" in caplog.text


def test_a_worker_that_is_full_of_compactions_still_hears_of_turns(hear, monkeypatch):
    """One thread hears of both: to wait for room for the one would hold up the other."""
    asked = []
    runtime = SimpleNamespace(take=lambda kind, row_id, *, wait: asked.append((kind, wait)))
    monkeypatch.setattr(worker, "_runtime", runtime)
    for kind in KINDS:
        make_app(current=False).tasks[kind.task].run(str(UUID(int=7)))
    assert asked == [
        (TURNS, True),
        (TOOLS, True),
        *((kind, False) for kind in (COMPACTIONS, DELIVERIES, LISTENERS, REPLAYS)),
    ]


def test_who_wants_celerys_monitoring_gets_its_requests(monkeypatch, settings):
    settings.WORKER_EVENTS = True
    made = []
    monkeypatch.setattr(tasks, "default", lambda *given: made.append(given))
    task = make_app(current=False).tasks["conversations.tasks.advance_turn"]
    tasks.pass_on(task, None, None)
    assert made == [(task, None, None)]
