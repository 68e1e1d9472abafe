"""Tools of the caller: a turn that waits for them, and goes on with what they gave.

A round is asked for by the turn's worker (:func:`conversations.engine.steps.wait_for_caller`). Nobody holds the turn
meanwhile: the caller may come back after days, to another host. A repeated answer changes nothing.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from conversations.engine import doorbell, transcript, turn_control
from conversations.errors import NotWaiting, OutputMissing, UnknownCall
from conversations.kinds import TURNS
from conversations.models import CallerRound, Conversation, Turn
from conversations.options import Options
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now
from nanohost.lib.redaction import redact_known
from nanohost.lib.statements import Rows

# Turns that are cancelled at a time.
MAX_EXPIRED = 200


def find(call_ids: Collection[str], *, owner_id: int) -> CallerRound | None:
    """The owner's round that one of these calls is of, the last one that was asked for; None if they are of none."""
    ids = {found for call_id in call_ids if (found := CallerRound.id_of(call_id))}
    if not ids:
        return None
    rounds = CallerRound.objects.select_related("turn__conversation__agent")
    return rounds.filter(pk__in=ids, turn__owner_id=owner_id).order_by("created_at").last()


def pending(conversation_id: UUID) -> CallerRound | None:
    """The round that a conversation's turn waits for, if it waits for one."""
    waiting = {"turn__status": TurnStatus.WAITING, "turn__waiting_for": WaitingFor.CALLER}
    rounds = CallerRound.objects.filter(turn__conversation_id=conversation_id, answered_at=None, **waiting)
    return rounds.order_by("number").last()


def is_repeated(asked: CallerRound, outputs: Mapping[str, str]) -> bool:
    """Whether the round was answered just so before."""
    return asked.answered_at is not None and asked.outputs_hash == _hash_of(outputs)


def is_open(asked: CallerRound) -> bool:
    """Whether the turn waits for this round."""
    waits = asked.turn.status == TurnStatus.WAITING and asked.turn.waiting_for == WaitingFor.CALLER
    return asked.answered_at is None and waits


def answer(asked: CallerRound, outputs: Mapping[str, str], *, options: Options, request_id: str) -> Turn:
    """Go on with what the calls of a round gave, by their ids. Returns the turn.

    ``options``: what the turn is asked with from here on. The same outputs once more change nothing. Raises
    :class:`OutputMissing` unless every call has its output, :class:`UnknownCall` for one of another call, and
    :class:`NotWaiting` if the turn waits for this round no longer.
    """
    wanted = {call["id"]: call["function"]["name"] for call in asked.calls}
    if missing := [call_id for call_id in wanted if call_id not in outputs]:
        raise OutputMissing(f"No tool output found for function call {missing[0]}.")
    if unknown := [call_id for call_id in outputs if call_id not in wanted]:
        raise UnknownCall(f"No function call {unknown[0][:64]} waits for an output.")
    turn, digest = asked.turn, _hash_of(outputs)
    with transaction.atomic():
        # Conversation, turn, call: the order in which locks are taken everywhere.
        list(Conversation.objects.select_for_update().filter(pk=turn.conversation_id).values_list("pk"))
        waiting = Turn.objects.filter(pk=turn.pk, status=TurnStatus.WAITING, waiting_for=WaitingFor.CALLER)
        now = CallerRound.objects.select_for_update().get(pk=asked.pk)
        if now.answered_at is not None and now.outputs_hash == digest:
            return turn
        # All of a turn's time is before it, from the claim on.
        goes_on = {"waiting_for": WaitingFor.TOOLS, "deadline": None, "notified_at": Now(), "request_id": request_id}
        kept = replace(options, brought=Options.of(turn.options).brought).as_json()
        if now.answered_at is not None or waiting.update(**goes_on, options=kept) != 1:
            raise NotWaiting("The turn no longer waits for these outputs.")
        results = [
            {"role": "tool", "tool_call_id": call_id, "name": name, "content": redact_known(outputs[call_id])}
            for call_id, name in wanted.items()
        ]
        seq = transcript.take_seqs(turn.conversation_id, len(results))
        transcript.append(turn.conversation_id, turn.pk, seq, results)
        CallerRound.objects.filter(pk=asked.pk).update(outputs_hash=digest, answered_at=timezone.now())
        doorbell.notify(TURNS, turn.pk)
    return turn


_overdue = Rows(
    lambda: Turn.objects.filter(status=TurnStatus.WAITING, waiting_for=WaitingFor.CALLER, deadline__lte=Now())[
        :MAX_EXPIRED
    ]
)


def expire_due() -> None:
    """Cancel turns whose caller has not come back in time."""
    for turn in _overdue():
        turn_control.cancel_turn(turn)


def _hash_of(outputs: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(outputs, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
