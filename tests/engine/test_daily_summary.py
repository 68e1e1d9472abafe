"""Summaries of a day: one a conversation, beside the prompt and not in it."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from conversations.engine import inbox
from conversations.engine.compacting import daily
from conversations.engine.incoming import Incoming
from conversations.engine.turns import claim_and_load
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from nanohost.accounts.models import ApiKey
from nanohost.lib.ids import first_id_at, new_id
from scheduler.daily import summarise_day
from scheduler.system_jobs import sync_system_jobs
from tests.support.compacting import compact, rows, run
from tests.support.openai_server import call, completion
from tests.support.stepping import runs_of
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

DAY = date(2026, 11, 21)
SINCE, UNTIL = datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def yesterday(owner, agent) -> list[Conversation]:
    """Three conversations in which something was said on that day, and in a fourth the day after."""
    made = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(4)]
    for place, conversation in enumerate(made):
        hours = 30 if place == 3 else 9
        for seq, role in enumerate(("user", "assistant"), start=1):
            message = Message.objects.create(conversation=conversation, seq=seq, role=role, content=f"word {place}")
            at = SINCE + timedelta(hours=hours)
            Message.objects.filter(pk=message.pk).update(created_at=at)
        Conversation.objects.filter(pk=conversation.pk).update(next_seq=3)
    return made


def ask() -> int:
    return daily.request(day=DAY, since=SINCE, until=UNTIL)


def test_each_conversation_of_the_day_gets_one_summary(yesterday, say):
    assert ask() == 3
    for row in rows():
        run(row)
    summaries = Message.objects.filter(type="SUMMARY")
    assert {(each.role, each.kind, each.content) for each in summaries} == {
        ("system", "daily", f"The user said: word {place}") for place in range(3)
    }
    assert ask() == 0
    assert [row.status for row in rows()] == [CompactionStatus.DONE] * 3
    assert [(row.first_seq, row.through_seq, row.day) for row in rows()] == [(1, 2, DAY)] * 3


def days_of(job):
    """When summaries were stored while beat's clock is stepped from one evening over two mornings, and of which day."""
    stored = []
    for at in runs_of(job, UNTIL - timedelta(hours=3), hours=38):
        summarise_day(now=at)
        for row in Compaction.objects.filter(status=CompactionStatus.QUEUED):
            run(row)
            stored.append((at, row.day, row.conversation_id))
    return stored


def test_switched_on_there_are_summaries_of_yesterday_at_the_next_nine_o_clock(yesterday):
    sync_system_jobs()
    job = PeriodicTask.objects.get(name="daily_summary")
    assert (days_of(job), Message.objects.filter(kind="daily").count()) == ([], 0)
    job.enabled = True
    first, second = UNTIL + timedelta(hours=9), UNTIL + timedelta(hours=33)
    expected = {(first, DAY, each.pk) for each in yesterday[:3]} | {(second, UNTIL.date(), yesterday[3].pk)}
    assert set(days_of(job)) == expected
    assert Message.objects.filter(kind="daily").count() == 4


def test_it_is_never_taken_for_the_rolling_summary(yesterday):
    ask()
    for row in rows():
        run(row)
    first = Conversation.objects.get(pk=yesterday[0].pk)
    assert (first.summary_seq, first.consolidated_through) == (None, 0)
    turn = inbox.receive(Incoming("And now?"), conversation=first, request_id="r")
    _, context = claim_and_load(turn.pk, worker="worker-1")
    assert context.snapshot.summary == ""
    assert len(context.snapshot.transcript) == 3


def test_one_that_fails_leaves_the_others_done_and_is_shown(yesterday, model):
    ask()
    first, second, third = rows()
    model.answer(*[completion(None, tool_calls=[call("time")], finish_reason="tool_calls")] * 3)
    for _ in range(4):
        Compaction.objects.filter(pk=second.pk).update(run_after=None)
        run(second)
    model.forget()
    for row in (first, third):
        model.answer(completion("They spoke."))
        run(row)
    second.refresh_from_db()
    assert (second.status, second.error) == ("failed", "the model's answer: it called time instead of save_summary")
    assert Message.objects.filter(kind="daily").count() == 2


def test_a_day_and_a_rolling_one_do_not_wait_for_each_other(yesterday):
    from conversations.engine.compacting import compaction

    ask()
    compaction.request(yesterday[0].pk, None, keep_tokens=0)
    assert Compaction.objects.filter(conversation=yesterday[0], status="queued").count() == 2


def test_the_api_lists_it_told_apart(conversation, fill, client):
    fill(44)
    compact(conversation)
    Compaction.objects.create(
        conversation=conversation, kind="daily", day=DAY, since=SINCE, until=timezone.now(), keep_tokens=0
    )
    run(rows()[-1])
    _, secret = ApiKey.objects.issue(owner=conversation.owner)
    as_owner = {"headers": {"Authorization": f"Bearer {secret}"}}
    path = f"/api/v1/conversations/{conversation.pk}"
    listed = client.get(f"{path}/summaries", **as_owner).json()["results"]
    assert [(each["kind"], each["day"], each["content"] != "") for each in listed] == [
        ("daily", str(DAY), True),
        ("rolling", None, True),
    ]
    messages = client.get(f"{path}/messages", **as_owner).json()["results"]
    assert [each["kind"] for each in messages[-2:]] == ["rolling", "daily"]


def test_commands_and_summaries_are_not_what_was_said(conversation, say):
    settle([say("/help")])
    now = datetime.now(UTC)
    assert daily.request(day=DAY, since=now - timedelta(days=1), until=now + timedelta(days=1)) == 0


def test_ids_sort_by_time():
    before = first_id_at(datetime.now(UTC) - timedelta(milliseconds=2))
    made = new_id()
    assert before < made < first_id_at(datetime.now(UTC) + timedelta(milliseconds=2))
