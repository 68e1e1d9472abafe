"""What of a conversation is deleted by its age: its messages, the records of what its model was sent, and what its
tools were called with and answered.

Each is deleted from the beginning on, and the conversation remembers how far. Nothing is touched that the prompt of an
open turn may have. Whoever calls has a transaction, and says how many rows it may look at. Conversations of one request
each are deleted whole.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Greatest
from django.utils import timezone

from agent.models import Agent
from conversations import taint
from conversations.attachments.store import forget
from conversations.engine.inbox import RETRIED_SECONDS
from conversations.feedback_models import Feedback
from conversations.models import (
    MAX_SEQ,
    OPEN_COMPACTION,
    OPEN_DEFERRED,
    OPEN_DELIVERY,
    CallerRound,
    Compaction,
    Conversation,
    DeferredMessage,
    Delivery,
    Message,
    Replay,
    ReplayCase,
    StoredResponse,
    Turn,
)
from conversations.pins import seqs_of
from conversations.statuses import FINAL
from nanohost.accounts import audit, holds
from nanohost.lib.erasing import Erased, Pace

# What stands in a transcript where a tool's result was deleted, and for the arguments of a call.
ERASED_RESULT = "(This result was deleted, by its age.)"
ERASED_ARGUMENTS = "{}"

# Conversations that are looked at in one statement.
PAGE = 200

# How far each has been deleted, by the field of the conversation that tells.
MESSAGES, SENT, RESULTS = WHAT = ("erased_through", "sent_erased_through", "results_erased_through")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A conversation. ``has_aged``: something of it is old enough."""

    id: UUID
    owner_id: int
    has_aged: bool


def page(agent_id: int, what: str, *, before: datetime, after: UUID | None) -> list[Found]:
    """Some of an agent's conversations, those behind one of them. ``what``: which of the three is asked for."""
    this = OuterRef("pk")
    own = Message.objects.filter(conversation=this)
    first = own.filter(seq__gt=OuterRef(what)).order_by("seq").values("created_at")[:1]
    others: list[QuerySet[Any]] = []
    if what == MESSAGES:
        others.append(_never_begun(own, before))
        others.append(_done_with(DeferredMessage.objects.filter(conversation=this), before))
        others.append(_given_up(Compaction.objects.filter(conversation=this), before))
        others.append(_gone_out(Delivery.objects.filter(conversation_id=this), before))
    # Of each conversation by itself: asked whether there is one, PostgreSQL may first look for those of all.
    has = {f"other_{number}": Subquery(rows.order_by().values("pk")[:1]) for number, rows in enumerate(others)}
    rows = Conversation.objects.filter(agent=agent_id).order_by("pk").annotate(first_at=Subquery(first), **has)
    found = (rows.filter(pk__gt=after) if after else rows).values_list("pk", "owner_id", "first_at", *has)
    return [
        Found(id=pk, owner_id=owner_id, has_aged=any(has_others) or bool(first_at and first_at < before))
        for pk, owner_id, first_at, *has_others in found[:PAGE]
    ]


def _never_begun(messages: QuerySet[Message], before: datetime) -> QuerySet[Message]:
    """Messages of turns that ended before they began: they have no number."""
    ended = Q(turn=None) | Q(turn__status__in=FINAL)
    return messages.filter(ended, seq=None, created_at__lt=before)


def _done_with(messages: QuerySet[DeferredMessage], before: datetime) -> QuerySet[DeferredMessage]:
    return messages.filter(created_at__lt=before).exclude(state__in=OPEN_DEFERRED)


def _gone_out(deliveries: QuerySet[Delivery], before: datetime) -> QuerySet[Delivery]:
    """What was said in chats elsewhere, and is on its way no more."""
    return deliveries.filter(created_at__lt=before).exclude(status__in=OPEN_DELIVERY)


def _given_up(compactions: QuerySet[Compaction], before: datetime) -> QuerySet[Compaction]:
    """Those that came to nothing: what they had made so far may stand in them."""
    return compactions.filter(summary_seq=None, through_seq=None, ended_at__lt=before).exclude(
        status__in=OPEN_COMPACTION
    )


# --- messages ----------------------------------------------------------------------------------------------------


def count_messages(conversation_id: UUID, *, before: datetime) -> Counter[str]:
    """How many rows would go, by table."""
    conversation = Conversation.objects.get(pk=conversation_id)
    own = Message.objects.filter(conversation=conversation)
    through = _aged_through(conversation, MESSAGES, before)
    behind, given_up = _summaries_of(conversation, through), Compaction.objects.filter(conversation=conversation)
    seqs = behind.filter(summary_seq__gt=through).values_list("summary_seq", flat=True)
    deferred = DeferredMessage.objects.filter(conversation=conversation)
    return _counted(
        {
            Message: own.filter(seq__gt=conversation.erased_through, seq__lte=through).count()
            + own.filter(seq__in=list(seqs)).count()
            + _never_begun(own, before).count(),
            Compaction: behind.count() + _given_up(given_up, before).count(),
            DeferredMessage: _done_with(deferred, before).count(),
            Delivery: _gone_out(Delivery.objects.filter(conversation_id=conversation_id), before).count(),
        }
    )


def _counted(rows: dict[Any, int]) -> Counter[str]:
    return Counter({model._meta.db_table: count for model, count in rows.items() if count})


def erase_messages(conversation_id: UUID, *, before: datetime | None, rows: int, erased: Erased) -> bool:
    """Delete a conversation's oldest messages, the summaries of none but them, and messages that were never said; True
    if there are more. ``before`` None: all there are, whoever may want them; so a person is erased."""
    conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
    if conversation is None:
        return False
    own: QuerySet[Message] = Message.objects.filter(conversation=conversation)
    loose: QuerySet[Message] = own.filter(seq=None)
    compactions: QuerySet[Compaction]
    deliveries: QuerySet[Delivery]
    if before is None:
        through = MAX_SEQ
        deferred = DeferredMessage.objects.filter(conversation=conversation)
        compactions = Compaction.objects.filter(conversation=conversation)
        deliveries = Delivery.objects.filter(conversation_id=conversation_id)
    else:
        through, loose = _aged_through(conversation, MESSAGES, before), _never_begun(own, before)
        deferred = _done_with(DeferredMessage.objects.filter(conversation=conversation), before)
        compactions = _given_up(Compaction.objects.filter(conversation=conversation), before)
        deliveries = _gone_out(Delivery.objects.filter(conversation_id=conversation_id), before)
    left = rows
    numbered = own.filter(seq__gt=conversation.erased_through, seq__lte=through).order_by("seq")[:left]
    gone = _delete(own, list(numbered), erased)
    left -= len(gone)
    if gone:
        conversation.erased_through = gone[-1].seq or 0
    if left:
        summed_up = list(_summaries_of(conversation, conversation.erased_through)[:left])
        seqs = [each.summary_seq for each in summed_up if each.summary_seq]
        gone += _delete(own, list(own.filter(seq__in=seqs)), erased)
        _delete_rows(summed_up, erased)
        left -= len(summed_up)
    if gone:
        _delete_invalid_answers({each.turn_id for each in gone if each.turn_id}, erased)
        _forget_asked([each.turn_id for each in gone if each.turn_id])
        _move_on(conversation, {each.seq for each in gone})
        _pass_taint_on(conversation_id, conversation.erased_through, gone)
    if left > 0:
        left -= len(_delete(own, list(loose[:left]), erased))
    for others in (deferred, compactions, deliveries):
        if left > 0:
            left -= len(_delete_rows(list(others[:left]), erased))
    return left <= 0


def _delete(own: QuerySet[Message], messages: Sequence[Message], erased: Erased) -> list[Message]:
    for each in messages:
        erased.add(Message, each.pk, each.role, each.content, each.tool_calls, each.sent)
    # By the conversation as well, which says in which part of a table in parts they are.
    own.filter(pk__in=[each.pk for each in messages]).delete()
    forget(each.pk for each in messages if each.attachments)
    return list(messages)


def _delete_invalid_answers(turn_ids: set[UUID], erased: Erased) -> None:
    """Of turns whose messages go: what was answered there but stands in no transcript."""
    turns = Turn.objects.filter(pk__in=turn_ids, invalid_answers__isnull=False)
    for turn in turns:
        erased.add(Turn, turn.pk, turn.invalid_answers)
    turns.update(invalid_answers=None)


def _forget_asked(turn_ids: Sequence[UUID]) -> None:
    """What turns that have ended were asked with besides words, and what they asked their callers to run."""
    turns = Turn.objects.filter(pk__in=turn_ids, status__in=FINAL)
    turns.exclude(options=None).update(options=None)
    _forget_rounds(turns)
    StoredResponse.objects.filter(turn__in=turns).delete()
    Replay.objects.filter(turn__in=turns).delete()
    ReplayCase.objects.filter(turn__in=turns).delete()
    Feedback.objects.filter(turn__in=turns).delete()


def _forget_rounds(turns: QuerySet[Turn]) -> None:
    CallerRound.objects.filter(turn__in=turns).delete()


def _delete_rows(rows: Sequence[Any], erased: Erased) -> Sequence[Any]:
    """Of deferred messages, compactions and deliveries."""
    for row in rows:
        erased.add(type(row), row.pk, _SAID[type(row)](row))
        type(row).objects.filter(pk=row.pk).delete()
        if isinstance(row, DeferredMessage) and row.attachments:
            forget([row.pk])
    return rows


# Where a row has what it says.
_SAID: dict[type[Any], Callable[[Any], Any]] = {
    DeferredMessage: lambda row: row.content,
    Compaction: lambda row: row.made_so_far,
    Delivery: lambda row: row.data,
}


def _summaries_of(conversation: Conversation, through: int) -> QuerySet[Compaction]:
    """Of summaries, the records of those that tell of nothing behind a message; but not of one that an open turn's
    prompt has."""
    done = Compaction.objects.filter(conversation=conversation, through_seq__lte=through).order_by("pk")
    done = done.exclude(status__in=OPEN_COMPACTION)
    is_needed = conversation.summary_seq is not None and _has_open_turn(conversation)
    return done.exclude(summary_seq=conversation.summary_seq) if is_needed else done


def _has_open_turn(conversation: Conversation) -> bool:
    return Turn.objects.open().filter(conversation=conversation).exists()


def _move_on(conversation: Conversation, gone: set[int | None]) -> None:
    """Nothing points to what is gone any more."""
    through = conversation.erased_through
    Conversation.objects.filter(pk=conversation.pk).update(
        erased_through=through,
        sent_erased_through=Greatest("sent_erased_through", through),
        results_erased_through=Greatest("results_erased_through", through),
        starts_at_seq=Greatest("starts_at_seq", through + 1),
        consolidated_through=Greatest("consolidated_through", through),
        summary_seq=None if conversation.summary_seq in gone else F("summary_seq"),
        pins=[each for each in conversation.pins if each["seq"] > through],
        # Of the file it was taken in from, which has the messages that are gone.
        imported=None,
    )
    # A summary that is undone gives way to none, then.
    seqs = [seq for seq in gone if seq]
    later = Compaction.objects.filter(conversation=conversation, before_summary__in=seqs)
    later.update(before_summary=None)


def _pass_taint_on(conversation_id: UUID, through: int, gone: Sequence[Message]) -> None:
    """What untrusted text had entered before is told by the marks of messages: where one goes, the next that is left
    has it. The last counts of those that went one behind the other."""
    marks = {max(each.seq, through): each.tainted_by for each in gone if each.seq and each.tainted_by}
    for seq, by in marks.items():
        taint.mark_next(conversation_id, seq, by)


def _aged_through(conversation: Conversation, what: str, before: datetime) -> int:
    """The last message of those at the beginning that are all old enough. No turn is cut in two, and nothing is among
    them that an open turn's prompt may have."""
    begins = {MESSAGES: conversation.erased_through, SENT: conversation.sent_erased_through}
    begin = begins.get(what, conversation.results_erased_through)
    own = Message.objects.filter(conversation=conversation, seq__gt=begin)
    young = own.filter(created_at__gte=before).order_by("seq").first()
    through = conversation.next_seq - 1 if young is None else (young.seq or 0) - 1
    if young and young.turn_id:
        first = own.filter(turn=young.turn_id).order_by("seq").values_list("seq", flat=True).first()
        through = min(through, (first or 0) - 1)
    elif young and young.role == Message.Role.TOOL:  # of an import, whose messages are of no turn
        asks = own.filter(seq__lt=young.seq, role=Message.Role.ASSISTANT).order_by("-seq")
        through = min(through, (asks.values_list("seq", flat=True).first() or 0) - 1)
    if _has_open_turn(conversation):
        through = min(through, _needed_from(conversation) - 1)
    return max(through, begin)


def _needed_from(conversation: Conversation) -> int:
    """The first message that an open turn's prompt may have, or that it has pinned, or for its summary."""
    starts_at = conversation.starts_at_seq
    said = Message.objects.filter(
        conversation=conversation, seq__gte=starts_at, type=Message.Type.NORMAL, kind=Message.Kind.SAID
    )
    window = conversation.agent.window()
    nth_last = said.order_by("-seq").values_list("seq", flat=True)[window - 1 : window]
    needed = [next(iter(nth_last), None) or starts_at, max(conversation.consolidated_through + 1, starts_at)]
    needed += seqs_of(conversation.pins)
    needed += [conversation.summary_seq] if conversation.summary_seq else []
    return min(needed)


# --- what a model was sent ---------------------------------------------------------------------------------------


def count_sent(conversation_id: UUID, *, before: datetime) -> Counter[str]:
    """How many records would go, by table."""
    conversation = Conversation.objects.get(pk=conversation_id)
    own = _behind(conversation, SENT, before)
    unanswered = _unanswered(conversation, own.order_by().values("turn"))
    return _counted({Message: own.filter(sent__isnull=False).count(), Turn: unanswered.count()})


def _behind(conversation: Conversation, what: str, before: datetime) -> QuerySet[Message]:
    begin = conversation.sent_erased_through if what == SENT else conversation.results_erased_through
    through = _aged_through(conversation, what, before)
    return Message.objects.filter(conversation=conversation, seq__gt=begin, seq__lte=through).order_by("seq")


def _unanswered(conversation: Conversation, turns: Any) -> QuerySet[Turn]:
    """Of turns that have ended, those that asked a model that did not answer."""
    return Turn.objects.filter(conversation=conversation, pk__in=turns, status__in=FINAL).filter(
        Q(sent__isnull=False) | Q(invalid_answers__isnull=False)
    )


def erase_sent(conversation_id: UUID, *, before: datetime, rows: int, erased: Erased) -> bool:
    """Delete the oldest records of what a conversation's models were sent; True if there are more."""
    conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
    if conversation is None:
        return False
    found = list(_behind(conversation, SENT, before)[:rows])
    if not found:
        return False
    kept = [each for each in found if each.sent is not None]
    for each in kept:
        erased.add(Message, each.pk, each.sent)
    own = Message.objects.filter(conversation=conversation)
    own.filter(pk__in=[each.pk for each in kept]).update(sent=None)
    turns = list(_unanswered(conversation, {each.turn_id for each in found if each.turn_id}))
    for turn in turns:
        erased.add(Turn, turn.pk, *filter(None, (turn.sent, turn.invalid_answers)))
    Turn.objects.filter(pk__in=[turn.pk for turn in turns]).update(sent=None, invalid_answers=None)
    Conversation.objects.filter(pk=conversation.pk).update(sent_erased_through=found[-1].seq)
    return len(found) == rows


# --- what tools were called with, and answered -------------------------------------------------------------------


def count_results(conversation_id: UUID, *, before: datetime) -> Counter[str]:
    """How many messages would lose a result, or arguments."""
    conversation = Conversation.objects.get(pk=conversation_id)
    found = _behind(conversation, RESULTS, before).filter(_OF_TOOLS)
    return _counted({Message: sum(_without_results(each) is not None for each in found.iterator(200))})


_OF_TOOLS = Q(role=Message.Role.TOOL) | Q(tool_calls__isnull=False)


def erase_results(conversation_id: UUID, *, before: datetime, rows: int, erased: Erased) -> bool:
    """Delete what the oldest results and calls in a transcript say; True if there are more. The messages stay, so that
    each call has its result."""
    conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
    if conversation is None:
        return False
    found = list(_behind(conversation, RESULTS, before)[:rows])
    if not found:
        return False
    own = Message.objects.filter(conversation=conversation)
    ended = Turn.objects.filter(pk__in={each.turn_id for each in found if each.turn_id}, status__in=FINAL)
    _forget_rounds(ended)
    Replay.objects.filter(turn__in=ended).delete()  # which have the same results
    ReplayCase.objects.filter(turn__in=ended).delete()  # which could be asked no more
    for each in found:
        if changes := _without_results(each):
            erased.add(Message, each.pk, each.content if each.role == Message.Role.TOOL else each.tool_calls)
            own.filter(pk=each.pk).update(**changes)
    Conversation.objects.filter(pk=conversation.pk).update(results_erased_through=found[-1].seq, imported=None)
    return len(found) == rows


def _without_results(message: Message) -> dict[str, Any] | None:
    """What changes in a message; None if it has neither results nor arguments."""
    if message.role == Message.Role.TOOL and message.content != ERASED_RESULT:
        return {"content": ERASED_RESULT, "metadata": None}
    if message.tool_calls:
        without = {"arguments": ERASED_ARGUMENTS}
        emptied = [call | {"function": call.get("function", {}) | without} for call in message.tool_calls]
        return {"tool_calls": emptied, "metadata": None} if emptied != message.tool_calls else None
    return None


# --- conversations of one request each ---------------------------------------------------------------------------

TRANSIENT = "transient"


def forget_transient(*, seconds: float) -> int:
    """Delete conversations that were made for one request of ``/v1``, once they are TRANSIENT_DAYS old and their turn
    has ended; and those of which nothing is to be kept, as soon as no retry can ask for them any more. For about so
    long, and at least a batch of each kind. Returns how many. What legal holds keep stays."""
    until, now = time.monotonic() + seconds, timezone.now()
    before = {
        "is_transient": now - timedelta(days=settings.TRANSIENT_DAYS),
        "is_dropped": now - timedelta(seconds=RETRIED_SECONDS),
    }
    gone = 0
    for kind, then in before.items():
        pace, after = Pace(), None
        while True:
            looked, deleted = pace.transact(partial(_forget_some, kind, then, after))
            gone += deleted
            if not looked or time.monotonic() >= until:
                break
            after = looked
    return gone


def _forget_some(kind: str, before: datetime, after: datetime | None, rows: int) -> tuple[datetime | None, int]:
    """Look at so many, in the caller's transaction; until when the last was made, and how many were deleted."""
    placed = holds.placed_until_the_end()
    old = Conversation.objects.filter(created_at__lt=before, **{kind: True}).order_by("created_at")
    locked = old.select_for_update(of=("self",)).select_related("agent")
    found = list((locked.filter(created_at__gt=after) if after else locked)[:rows])
    open_ones = set(Turn.objects.open().filter(conversation__in=found).values_list("conversation_id", flat=True))
    by_agent: dict[Agent, list[UUID]] = {}
    for each in found:
        whose: dict[str, Any] = {"owner_id": each.owner_id, "agent": each.agent.name, "conversation_id": each.pk}
        if each.pk not in open_ones and not placed.on(**whose):
            by_agent.setdefault(each.agent, []).append(each.pk)
    for agent, ids in by_agent.items():
        erased = Erased()
        for message in Message.objects.filter(conversation__in=ids):
            erased.add(Message, message.pk, message.role, message.content, message.tool_calls, message.sent)
        for conversation_id in ids:
            erased.add(Conversation, conversation_id)
        Conversation.objects.filter(pk__in=ids).delete()
        said = {"kind": TRANSIENT, "days": settings.TRANSIENT_DAYS, "before": before.isoformat(), **erased.told()}
        audit.record("retention.erased", about=agent, after=said)
    return (found[-1].created_at if found else None), sum(map(len, by_agent.values()))
