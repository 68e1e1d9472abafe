"""Deferred messages."""

from collections.abc import Callable
from datetime import datetime

from conversations.engine import deferred
from conversations.models import DeferredMessage
from tests.plans.operations.common import operation, say, the_long_one


def defer(kind: deferred.Kind, when: str = "2020-01-01T00:00Z") -> None:
    run_after = datetime.fromisoformat(when)
    deferred.put(the_long_one(), kind=kind, content="words", run_after=run_after, request_id="request")


@operation("deferred.put")
def put_deferred() -> Callable[[], object]:
    return lambda: defer(deferred.Kind.CONTEXT)


@operation("deferred.cancel")
def cancel_deferred() -> Callable[[], object]:
    defer(deferred.Kind.CONTEXT)
    message = DeferredMessage.objects.latest("pk")
    return lambda: deferred.cancel(message)


@operation("inbox.receive, with what rides along")
def receive_with_more() -> Callable[[], object]:
    defer(deferred.Kind.CONTEXT)
    return say


@operation("deferred.fire_due")
def fire_due() -> Callable[[], object]:
    defer(deferred.Kind.WAKE)
    return deferred.fire_due


@operation("deferred.fire")
def fire() -> Callable[[], object]:
    defer(deferred.Kind.WAKE)
    message = DeferredMessage.objects.latest("pk")
    return lambda: deferred.fire(message.pk)
