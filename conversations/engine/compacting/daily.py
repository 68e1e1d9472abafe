"""Daily summaries: what was said in each conversation on one day, for people. Prompts never have them.

Each is a :class:`Compaction` of its own, so that many are made side by side and one that fails leaves the others done.
"""

from collections.abc import Collection, Sequence
from datetime import date, datetime
from uuid import UUID

from django.db import transaction

from conversations import taint
from conversations.engine import doorbell, transcript
from conversations.engine.compacting.compaction import Hold, end
from conversations.engine.compacting.parts import Result, line_of
from conversations.kinds import COMPACTIONS
from conversations.models import Compaction, CompactionKind, Conversation, Message, MessageQuerySet
from memory.consolidation import Line
from nanohost.lib.clock import Now
from nanohost.lib.ids import first_id_at

# Rows that are stored and notified together.
BATCH = 200


def request(*, day: date, since: datetime, until: datetime, leaving_out: Collection[UUID] = ()) -> int:
    """Have a summary made of each conversation in which something was said in that time; returns of how many.

    A conversation has one a day: what was asked for before is not asked for again. ``leaving_out``: conversations that
    nobody reads.
    """
    said = _said(since, until).filter(pk__gte=first_id_at(since)).order_by()
    found: list[UUID] = list(said.values_list("conversation_id", flat=True).distinct())
    done = {*leaving_out, *Compaction.objects.filter(day=day).values_list("conversation_id", flat=True)}
    missing = [conversation_id for conversation_id in found if conversation_id not in done]
    asked = 0
    for start in range(0, len(missing), BATCH):
        # What a request of /v1 brings along was said before, and may be brought again with the next.
        some = Conversation.objects.filter(pk__in=missing[start : start + BATCH], is_transient=False).order_by()
        rows = [_row(conversation_id, day, since, until) for conversation_id in some.values_list("pk", flat=True)]
        asked += len(rows)
        with transaction.atomic():
            Compaction.objects.bulk_create(rows, ignore_conflicts=True)
            for row in rows:
                doorbell.notify(COMPACTIONS, row.pk)
    return asked


def _row(conversation_id: UUID, day: date, since: datetime, until: datetime) -> Compaction:
    return Compaction(
        conversation_id=conversation_id,
        kind=CompactionKind.DAILY,
        day=day,
        since=since,
        until=until,
        keep_tokens=0,
        cost=0,
        notified_at=Now(),
    )


def _said(since: datetime, until: datetime) -> MessageQuerySet:
    return Message.objects.transcript().filter(
        type=Message.Type.NORMAL, kind=Message.Kind.SAID, created_at__gte=since, created_at__lt=until
    )


def read(hold: Hold) -> Sequence[Line]:
    """What was said in the time that a summary is to cover, in order."""
    assert hold.since
    assert hold.until
    return [line_of(message) for message in _said(hold.since, hold.until).filter(conversation=hold.conversation_id)]


def store(hold: Hold, lines: Sequence[Line], result: Result) -> None:
    """Store the summary as a message; raises :class:`conversations.errors.FenceLost`."""
    with transaction.atomic():
        seq = transcript.take_seqs(hold.conversation_id, 1)
        marked = taint.last_before(hold.conversation_id, lines[-1].seq)
        end(hold, lines, result, seq=seq, kind=Message.Kind.DAILY, tainted_by=marked)
