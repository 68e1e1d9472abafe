"""One lease for each kind of work: whoever holds a row renews, releases and reschedules it, and nobody else does."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from conversations.engine.compacting import compaction
from conversations.engine.replaying import replays
from conversations.kinds import COMPACTIONS, DELIVERIES, REPLAYS
from conversations.models import Compaction, Delivery, Replay, Turn
from nanohost.lib.clock import from_now
from nanohost.lib.lease import NOTIFIED_FOR

pytestmark = pytest.mark.django_db(transaction=True)


def a_compaction(turn: Turn) -> Compaction:
    return Compaction.objects.create(conversation=turn.conversation, keep_tokens=1, cost=0)


def a_replay(turn: Turn) -> Replay:
    return Replay.objects.create(
        turn=turn, owner_id=turn.owner_id, agent_id=turn.conversation.agent_id, changes={}, cost=0
    )


def a_delivery(turn: Turn) -> Delivery:
    return Delivery.objects.create(kind="turn.failed", data={}, expires_at=timezone.now() + timedelta(hours=1))


@pytest.fixture(
    params=[(COMPACTIONS, a_compaction), (REPLAYS, a_replay), (DELIVERIES, a_delivery)], ids=lambda it: it[0].noun
)
def claimed(request: Any, say: Any) -> Any:
    """A row that a worker has claimed, of each kind."""
    kind, make = request.param
    row = make(say("Hello"))
    kind.rows.filter(pk=row.pk).update(**type(row).claimed(worker="worker-1", lease=1))
    row.refresh_from_db()
    return kind, row


def test_who_holds_it_renews_it_and_nobody_else(claimed):
    kind, row = claimed
    assert kind.rows.held(row.pk, row.fence + 1).renew() == 0
    assert kind.rows.get(pk=row.pk).lease_until == row.lease_until
    assert kind.rows.held(row.pk, row.fence).renew() == 1
    assert kind.rows.get(pk=row.pk).lease_until > row.lease_until


def test_what_is_not_held_is_not_renewed(claimed):
    kind, row = claimed
    kind.rows.held(row.pk, row.fence).release()
    assert kind.rows.filter(pk=row.pk).renew() == 0
    assert kind.rows.get(pk=row.pk).lease_until is None


def test_what_is_released_is_found_by_the_next_sweep(claimed):
    kind, row = claimed
    assert kind.rows.find(limit=9) == []
    assert kind.rows.held(row.pk, row.fence + 1).release() == 0
    assert kind.rows.held(row.pk, row.fence).release() == 1
    assert kind.rows.find(limit=9) == [row.pk]


def test_what_is_rescheduled_is_found_as_soon_as_its_time_has_come(claimed):
    kind, row = claimed
    assert kind.rows.held(row.pk, row.fence + 1).reschedule(60) == 0
    assert kind.rows.held(row.pk, row.fence).reschedule(60, at_the_latest=from_now(3600)) == 1
    assert kind.rows.find(limit=9) == []
    later = kind.rows.get(pk=row.pk)
    assert later.run_after - later.notified_at == timedelta(seconds=NOTIFIED_FOR)
    kind.rows.filter(pk=row.pk).update(run_after=from_now(-1), notified_at=from_now(-1 - NOTIFIED_FOR))
    assert kind.rows.find(limit=9) == [row.pk]


def test_what_is_rescheduled_comes_no_later_than_it_may(claimed):
    kind, row = claimed
    kind.rows.held(row.pk, row.fence).reschedule(3600, at_the_latest=from_now(-1))
    assert kind.rows.find(limit=9) == [row.pk]


def test_a_compaction_and_a_replay_that_wait_are_found_as_soon_as_their_time_has_come(say):
    """Nobody notifies workers of them by then."""
    turn = say("Hello")
    held = compaction.claim(a_compaction(turn).pk, worker="worker-1")
    compaction.reschedule(held, error="words", counts=True)
    asked_again = replays.claim(a_replay(turn).pk, worker="worker-1")
    replays.reschedule(asked_again, code="llm_unavailable", detail="words")
    for row in (Compaction.objects.get(), Replay.objects.get()):
        assert row.run_after - row.notified_at == timedelta(seconds=NOTIFIED_FOR)
