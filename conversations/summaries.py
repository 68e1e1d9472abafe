"""Undoing a summary: the one before it counts again, and what it covered is in the prompt again. Nothing is erased."""

import logging
from uuid import UUID

from django.db import transaction
from django.db.models import F

from conversations.errors import SummaryStays
from conversations.models import (
    MAX_REASON,
    OPEN_COMPACTION,
    Compaction,
    CompactionKind,
    CompactionStatus,
    Conversation,
)
from nanohost.lib.clock import Now
from nanohost.lib.errors import NotFound
from nanohost.lib.logs import about
from nanohost.lib.redaction import redact_head

logger = logging.getLogger(__name__)


def undo(conversation_id: UUID, seq: int, *, by: str, reason: str = "") -> Compaction:
    """Take back the summary that counts, message ``seq`` of its conversation; ``by``: who does.

    The pointer goes back to where the summary before it left it. A compaction under way is ended, and whoever works on
    it stores nothing. The summary, what it has added to the log, and its version of the long-term memory stay.
    Raises :class:`NotFound` and :class:`SummaryStays`.
    """
    with transaction.atomic():
        conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
        rows = Compaction.objects.filter(conversation_id=conversation_id, summary_seq=seq, kind=CompactionKind.ROLLING)
        row = rows.first()
        if conversation is None or row is None:
            raise NotFound("There is no summary for prompts with that number in this conversation.")
        if row.undone_at:
            raise SummaryStays("It was undone before.")
        if conversation.summary_seq != seq:
            raise SummaryStays(
                "Only the current summary can be undone: the latest, unless the conversation was restarted."
            )
        through, summary_seq = _before(row, conversation)
        # Its length alone would have it summarised after the next turn, in the same words: that is left for a while.
        until = conversation.next_seq + conversation.agent.window()
        Conversation.objects.filter(pk=conversation_id).update(
            consolidated_through=through, summary_seq=summary_seq, summarise_from_seq=until
        )
        under_way = Compaction.objects.filter(conversation_id=conversation_id, kind=CompactionKind.ROLLING)
        under_way.filter(status__in=OPEN_COMPACTION).update(
            status=CompactionStatus.DROPPED, fence=F("fence") + 1, lease_until=None, ended_at=Now()
        )
        why = redact_head(reason, MAX_REASON)
        rows.filter(pk=row.pk).update(undone_at=Now(), undone_by=by[:150], undone_because=why)
    with about(conversation=conversation_id):
        logger.info("summary %s was undone by %s; what counts reaches to message %s", seq, by, through)
    return rows.get(pk=row.pk)


def _before(row: Compaction, conversation: Conversation) -> tuple[int, int | None]:
    """What the pointer and the summary were before this one."""
    if row.before_through is not None:
        return row.before_through, row.before_summary
    if row.first_seq is None:
        raise SummaryStays("It was imported: no file says which messages it took in.")
    # It was made before its row told: by then each began where the one before ended.
    earlier = Compaction.objects.filter(
        conversation=conversation,
        kind=CompactionKind.ROLLING,
        undone_at=None,
        summary_seq__lt=row.summary_seq,
        summary_seq__gte=conversation.starts_at_seq,
    )
    return row.first_seq - 1, earlier.order_by("-summary_seq").values_list("summary_seq", flat=True).first()
