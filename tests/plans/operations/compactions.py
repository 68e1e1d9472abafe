"""Compactions."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.utils import timezone

from agent.llm.base import Completion
from agent.spending import bills
from conversations.engine.compacting import compaction, daily, parts
from conversations.models import Compaction, CompactionStatus
from nanohost.lib.ids import new_id
from tests.plans.operations.common import DAILY, READING, operation, the_long_one
from tests.plans.operations.turns import USAGE


def asked_for() -> Compaction:
    compaction.request(the_long_one().pk, None, keep_tokens=1000)
    return Compaction.objects.get(status=CompactionStatus.QUEUED)


def held() -> compaction.Hold:
    hold = compaction.claim(asked_for().pk, worker="worker")
    assert hold
    return hold


def the_part(hold: compaction.Hold) -> parts.Part:
    part = parts.read(hold.conversation_id, agent=hold.agent, keep_tokens=hold.keep_tokens)
    assert part
    return part


def with_hold(act: Callable[[compaction.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = held()
        return lambda: act(hold)

    return prepare


def with_part(act: Callable[[compaction.Hold, parts.Part], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = held()
        part = the_part(hold)
        return lambda: act(hold, part)

    return prepare


@operation("compaction.request")
def ask_for_compaction() -> Callable[[], object]:
    return asked_for


@operation("compaction.request_after")
def ask_for_compaction_after_a_turn() -> Callable[[], object]:
    long = the_long_one()
    return lambda: compaction.request_after(long.summary_seq, long.pk, new_id(), keep_tokens=1000)


@operation("compaction.claim")
def claim_compaction() -> Callable[[], object]:
    row = asked_for()
    return lambda: compaction.claim(row.pk, worker="worker")


operation("compaction.charge")(with_hold(lambda hold: compaction.charge(hold, Completion(usage=USAGE), bills.NOTHING)))
operation("compaction.renew")(with_hold(compaction.renew))
operation("compaction.release")(with_hold(compaction.release))
operation("compaction.drop")(with_hold(compaction.drop))
operation("compaction.fail")(with_hold(compaction.fail))
operation("compaction.reschedule")(with_hold(lambda hold: compaction.reschedule(hold, error="", counts=True)))
operation("compaction.fall_back")(with_hold(lambda hold: compaction.fall_back(hold, model="m", reason="It failed.")))
# 2,000 messages at once; a stub reads them again, whole.
operation("parts.read", READING)(with_hold(the_part))
operation("compaction.keep_so_far", READING)(
    with_part(lambda hold, part: compaction.keep_so_far(hold, part, parts.Result(summary="words")))
)
operation("compaction.keep_memory", READING)(
    with_part(lambda hold, part: compaction.keep_memory(part, "- words", model="m", turn_id=None, hold=hold))
)
operation("compaction.store", READING)(
    with_part(lambda hold, part: compaction.store(hold, part, replace(parts.stub_of(part), memory="- words")))
)


@operation("daily.request", DAILY)
def ask_for_summaries() -> Callable[[], object]:
    until = timezone.now()
    return lambda: daily.request(day=until.date(), since=until - timedelta(days=1), until=until)


def a_day() -> compaction.Hold:
    until = timezone.now()
    daily.request(day=until.date(), since=until - timedelta(days=1), until=until)
    hold = compaction.claim(Compaction.objects.filter(day=until.date())[0].pk, worker="worker")
    assert hold
    return hold


@operation("daily.read")
def read_day() -> Callable[[], object]:
    hold = a_day()
    return lambda: daily.read(hold)


@operation("daily.store")
def store_day() -> Callable[[], object]:
    hold = a_day()
    lines = daily.read(hold)
    return lambda: daily.store(hold, lines, parts.Result(summary="words"))
