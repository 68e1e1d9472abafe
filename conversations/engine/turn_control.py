"""Turn control: cancelling, failing and requeueing turns that another process may hold, and deleting conversations."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Q, Value, When

from agent.errors import LlmBadResponse, LlmTimeout, LlmUnavailable
from conversations import events
from conversations.deliveries import outbox
from conversations.engine import announcements, doorbell, outgoing, spawned
from conversations.engine.steps import close_round, end_calls, notify_next
from conversations.errors import BY_OPERATOR, RESTORED
from conversations.events import SAYING_TOOL
from conversations.kinds import TOOLS, TURNS
from conversations.models import MAX_REASON, Conversation, Turn
from conversations.statuses import AT_REST, OPEN, TurnStatus, WaitingFor
from nanohost.accounts import audit, holds
from nanohost.accounts.models import LegalHold
from nanohost.lib.clock import Now, from_now
from nanohost.lib.redaction import redact_head
from tools import gate
from tools.models import ToolCall

# What a turn waits for that waits for its provider; not one that was asked to wait.
_PROVIDERS_FAULTS = (LlmTimeout.code, LlmUnavailable.code, LlmBadResponse.code)
# Turns that are hurried at a time; the others find the provider back in their time.
MAX_HURRIED = 1000


def cancel_turn(turn: Turn, *, by: UUID | None = None) -> bool:
    """Cancel a turn, wherever it is; one that has ended stays as it ended: False. ``by``: the turn it gives way to.

    A queued or waiting turn is ended here, with its open calls, and so is one whose worker is gone. A running one is
    flagged: its worker looks at the flag between steps, and every second while a model is silent.
    """
    whose = {"cancelled_by": by} if by else {}
    while not _cancel_at_rest(turn, whose) and not _flag_running(turn, whose):
        # Neither at rest nor running: it has ended, or it has just changed from one to the other.
        if not Turn.objects.open().filter(pk=turn.pk).exists():
            return False
    # Later, where no lock of its conversation is held: whoever ends a sub-agent's turn takes the two in another order.
    transaction.on_commit(partial(_cancel_spawned_by, turn.owner_id, turn.pk))
    return True


def cancel_spawned(conversation_id: UUID) -> None:
    """Cancel what the sub-agents of a conversation do, and those of theirs, once the current transaction has
    committed. What is missed, since this process ends before, brings no result to a turn that was cancelled."""

    def cancel() -> None:
        for turn in Turn.objects.open().filter(conversation__spawned_in=conversation_id):
            cancel_turn(turn)

    transaction.on_commit(cancel)


def _cancel_spawned_by(owner_id: int, turn_id: UUID) -> None:
    calls = list(
        ToolCall.objects.filter(turn_id=turn_id, tool_name__in=(spawned.TOOL, SAYING_TOOL)).values_list("pk", flat=True)
    )
    started = {"conversation__owner_id": owner_id, "conversation__spawned_by__in": calls}
    for turn in Turn.objects.open().filter(**started) if calls else ():
        cancel_turn(turn)


def _cancel_at_rest(turn: Turn, whose: Mapping[str, UUID]) -> bool:
    at_rest = Q(status__in=AT_REST)
    at_rest |= Q(status=TurnStatus.RUNNING, lease_until__lt=Now())
    cancelled = {"status": TurnStatus.CANCELLED, "error_code": "turn_cancelled", "cancel_requested": True, **whose}
    return _end(turn, at_rest, cancelled, rule="cancelled", reason="the turn was cancelled")


def _flag_running(turn: Turn, whose: Mapping[str, UUID]) -> bool:
    return bool(Turn.objects.filter(pk=turn.pk, status=TurnStatus.RUNNING).update(cancel_requested=True, **whose))


def fail_turn(turn: Turn, *, reason: str, code: str = BY_OPERATOR) -> bool:
    """End a turn as failed, wherever it is, for a reason that its client is told; False if it has ended already.

    A worker that holds it loses it: nothing of what it still does is stored.
    """
    failed = {"status": TurnStatus.FAILED, "error_code": code, "error_detail": redact_head(reason, MAX_REASON)}
    return _end(turn, Q(status__in=OPEN), failed, rule="turn_ended", reason="an operator ended the turn")


def _end(turn: Turn, if_it_is: Q, outcome: Mapping[str, object], *, rule: str, reason: str) -> bool:
    with transaction.atomic():
        # Conversation, turn, call: the order in which locks are taken everywhere.
        Conversation.objects.filter(pk=turn.conversation_id).update(updated_at=Now())
        ended = Turn.objects.filter(if_it_is, pk=turn.pk).update(
            waiting_for="", lease_until=None, fence=F("fence") + 1, ended_at=Now(), **outcome
        )
        if ended:
            close_round(turn.conversation_id, turn.pk, rule=rule, reason=reason)
            events.publish_end_after_commit(turn.pk)
            announcements.turn_ended(turn.pk, str(outcome["status"]))
            outgoing.no_reply_to(turn, str(outcome["status"]), code=str(outcome["error_code"]))
            _report(turn, str(outcome["status"]), code=str(outcome["error_code"]))
            notify_next(turn.conversation_id)
    return bool(ended)


def _report(turn: Turn, status: str, *, code: str) -> None:
    if status != TurnStatus.CANCELLED:
        whose: dict[str, Any] = {"owner_id": turn.owner_id, "conversation_id": turn.conversation_id, "turn_id": turn.pk}
        spawned.report(key=turn.conversation.key, **whose, status=status, code=code)


def requeue_turn(turn: Turn) -> bool:
    """Have a worker look at an open turn now, with all of a turn's time before it; False if it has ended.

    A running one is taken from its worker, by the fence, and goes on from its last stored step. Its calls stay what
    they are: one with side effects whose worker is gone becomes UNKNOWN and is not run again. ``attempts`` stays as
    well: what has cost workers before is still run apart from others.
    """
    while not _take_away(turn) and not _hurry(turn):
        if not Turn.objects.open().filter(pk=turn.pk).exists():
            return False
    return True


def ask_models_again() -> int:
    """Have turns that wait until their model is asked again ask it now; returns how many, MAX_HURRIED at most."""
    waiting = Turn.objects.filter(status=TurnStatus.WAITING, waiting_for=WaitingFor.RETRY)
    failed = waiting.filter(retry_code__in=_PROVIDERS_FAULTS, run_after__gt=Now()).order_by("run_after")
    with transaction.atomic():
        ids = list(failed.values_list("pk", flat=True)[:MAX_HURRIED])
        hurried = waiting.filter(pk__in=ids).update(run_after=Now(), notified_at=Now())
        for turn_id in ids:
            doorbell.notify(TURNS, turn_id)
    return hurried


def _take_away(turn: Turn) -> bool:
    with transaction.atomic():
        taken = Turn.objects.filter(pk=turn.pk, status=TurnStatus.RUNNING).update(
            status=TurnStatus.WAITING,
            waiting_for=WaitingFor.RETRY,
            fence=F("fence") + 1,
            lease_until=None,
            **_anew(),
        )
        if taken:
            doorbell.notify(TURNS, turn.pk)
    return bool(taken)


def _hurry(turn: Turn) -> bool:
    with transaction.atomic():
        queued = Turn.objects.filter(pk=turn.pk, status=TurnStatus.QUEUED).update(notified_at=Now())
        # While people decide, no time of the turn runs.
        of_people = When(waiting_for__in=(WaitingFor.APPROVAL, WaitingFor.ANSWER), then=Value(None))
        # It is the caller's to come back; no worker could do anything.
        of_caller = When(waiting_for=WaitingFor.CALLER, then=F("deadline"))
        anew = _anew()
        anew["deadline"] = Case(of_people, of_caller, default=anew["deadline"])
        if queued or Turn.objects.filter(pk=turn.pk, status=TurnStatus.WAITING).update(**anew):
            doorbell.notify(TURNS, turn.pk)
            for call_id in ToolCall.objects.open().filter(turn_id=turn.pk).values_list("pk", flat=True):
                doorbell.notify(TOOLS, call_id)
            return True
    return False


def _anew() -> dict[str, Any]:
    deadline = from_now(settings.TURN_TIMEOUT_SECONDS)
    told = {"retries": 0, "retry_code": "", "retry_detail": "", "retrying_since": None}
    return {"run_after": Now(), "notified_at": Now(), "deadline": deadline, **told}


def count_open() -> int:
    """How many turns have not ended."""
    return Turn.objects.open().count()


def end_restored() -> int:
    """End all turns that were open when a dump was made, which may have gone on and acted since; returns how many.

    Their calls with side effects become UNKNOWN, begun or not: none of them is run a second time. So do messages that
    were to be sent, before turns that end say what is to be sent now.
    """
    outbox.doubt_open("The database was restored from a backup of when this was to be sent.")
    ended = 0
    # The last of a conversation first, so that none of them starts when one before it ends.
    for turn in list(Turn.objects.open().order_by("conversation_id", "-number")):
        with transaction.atomic():
            # Conversation, turn, call, as everywhere.
            Conversation.objects.filter(pk=turn.conversation_id).update(updated_at=Now())
            list(Turn.objects.select_for_update().filter(pk=turn.pk).values_list("pk"))
            gate.doubt_queued([turn.pk])
            reason = "The database was restored from a backup of when this turn was open."
            ended += fail_turn(turn, reason=reason, code=RESTORED)
    return ended


def holds_on(conversation: Conversation, placed: holds.Holds) -> list[LegalHold]:
    """The legal holds that keep a conversation."""
    return placed.on(owner_id=conversation.owner_id, agent=conversation.agent.name, conversation_id=conversation.pk)


def delete_conversation(conversation_id: UUID) -> None:
    """Delete a conversation with its turns and messages. Tool calls stay: they are the audit.

    Whoever still works on one of its turns finds the row gone at the next write, which then changes nothing.
    Raises :class:`nanohost.accounts.errors.UnderLegalHold`.
    """
    with transaction.atomic():
        # Before the conversation's lock, as by all who delete.
        placed = holds.placed_until_the_end()
        rows = Conversation.objects.select_for_update(of=("self",)).select_related("agent")
        conversation = rows.filter(pk=conversation_id).first()
        if conversation is None:
            return
        holds.refuse(holds_on(conversation, placed))
        open_turns = Turn.objects.filter(conversation_id=conversation_id, status__in=OPEN)
        ended = list(open_turns.select_for_update().values_list("pk", flat=True))
        end_calls(ended, rule="deleted", reason="the conversation was deleted")
        for turn_id in ended:
            events.publish_end_after_commit(turn_id)
            announcements.turn_ended(turn_id, TurnStatus.CANCELLED, error_code="conversation_deleted")
        cancel_spawned(conversation_id)
        outbox.forget_said(conversation_id)
        audit.record(
            "conversation.deleted",
            about=conversation,
            name=str(conversation.pk),
            before={"owner": conversation.owner_id, "messages": conversation.next_seq - 1},
        )
        conversation.delete()
