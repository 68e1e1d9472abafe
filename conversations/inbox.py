"""Taking messages in: stored, with the turn that will answer them, before anybody is told so."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.utils import timezone

from agent.models import DEFAULT_AGENT, Agent
from conversations import doorbell, endings
from conversations.commands import STOP, command_in
from conversations.errors import (
    ConversationBusy,
    IdempotencyConflict,
    IntakePaused,
    NotFailed,
    UnknownAgent,
    UnknownModel,
)
from conversations.models import (
    ACTIVE,
    Conversation,
    IntakePause,
    LaterMessage,
    LaterState,
    Message,
    Turn,
    TurnStatus,
    WaitingFor,
)
from nanohost.lib.clock import Now
from nanohost.lib.errors import NotFound
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Given, Insert, Rows, Update

OnBusy = Literal["enqueue", "reject", "interrupt"]
WhilePaused = Literal["hold", "refuse"]

# Nobody knows for how long the intake will be paused: so often a client may ask.
RETRY_AFTER_SECONDS = 15


def start_conversation(*, owner_id: int, agent: str = DEFAULT_AGENT, metadata: dict[str, object]) -> Conversation:
    """A new conversation with an agent; raises :class:`UnknownAgent`."""
    profile = Agent.objects.filter(name=agent).first()
    if profile is None:
        raise UnknownAgent(f"There is no agent named {agent!r}.")
    conversation_id = new_id()
    return Conversation.objects.create(
        id=conversation_id, key=f"api:{conversation_id}", owner_id=owner_id, agent=profile, metadata=metadata
    )


_insert_turn = Insert(
    Turn,
    *("id", "conversation_id", "owner_id", "number", "model", "request_id", "idempotency_key", "body_hash"),
    *("created_at", "waiting_for"),
    status=TurnStatus.QUEUED,
    rung_at=Now(),
)
_insert_message = Insert(
    Message, "id", "conversation_id", "turn_id", "content", "created_at", "kind", role=Message.Role.USER, seq=None
)


def receive(
    *,
    conversation: Conversation,
    content: str,
    model: str = "",
    idempotency_key: str | None = None,
    request_id: str,
    turn_id: UUID | None = None,
    on_busy: OnBusy = "enqueue",
    while_paused: WhilePaused = "hold",
) -> Turn:
    """Store a user's message and the turn that will answer it, and ring for it. Returns the turn.

    ``turn_id``: the id it is to have; one is made if there is none. ``on_busy``: what becomes of it while turns of the
    conversation are open: it waits behind them, is refused as :class:`ConversationBusy`, or has them cancelled.
    ``while_paused``: what becomes of it while the intake is paused: it is stored and begins when that is resumed, or is
    refused as :class:`IntakePaused`, for clients that can come back.

    The same idempotency key with the same request returns the turn it made before; with another request it raises
    :class:`IdempotencyConflict`, paused or not. Raises :class:`UnknownModel`, and :class:`NotFound` if the conversation
    is deleted meanwhile.
    """
    body_hash = _hash_of(conversation.pk, content, model)
    if idempotency_key and (earlier := _earlier_turn(conversation, idempotency_key, body_hash)):
        return earlier
    if model and settings.LLM_MODELS and model not in settings.LLM_MODELS:
        raise UnknownModel(f"{model!r} is not offered; choose one of {', '.join(settings.LLM_MODELS)}.")
    command = command_in(content)
    if command == STOP:
        on_busy = "interrupt"
    try:
        with transaction.atomic():
            number, set_aside, waiting_for = _take_number(conversation.pk, while_paused)  # and the conversation's lock
            if on_busy != "enqueue":
                _make_way(conversation.pk, on_busy)
            stored: dict[str, Any] = {
                "id": turn_id or new_id(),
                "conversation_id": conversation.pk,
                "owner_id": conversation.owner_id,
                "number": number,
                "model": model or conversation.agent.model or settings.LLM_MODEL_DEFAULT,
                "request_id": request_id,
                "idempotency_key": idempotency_key,
                "body_hash": body_hash,
                "created_at": timezone.now(),
                "waiting_for": waiting_for,
            }
            _insert_turn(**stored)
            # What was set aside comes first: ids sort as they are made.
            along = _take_along(conversation.pk, stored["id"]) if set_aside and not command else []
            for said in (*along, content):
                _insert_message(
                    id=new_id(),
                    conversation_id=conversation.pk,
                    turn_id=stored["id"],
                    content=said,
                    created_at=stored["created_at"],
                    kind=Message.Kind.COMMAND if command else Message.Kind.SAID,
                )
            doorbell.ring_for_turn(stored["id"])
    except IntegrityError:
        # A duplicate that ran beside us was stored first; any other violation is a fault of ours.
        if idempotency_key and (earlier := _earlier_turn(conversation, idempotency_key, body_hash)):
            return earlier
        raise
    return Turn(**stored)


def ask_again(turn: Turn, *, request_id: str) -> Turn:
    """Ask what a failed turn was asked once more, in a turn of its own with the same model; returns that turn, which
    is the same however often it is asked for.

    Raises :class:`NotFailed`, and what :func:`receive` raises.
    """
    if turn.status != TurnStatus.FAILED:
        raise NotFailed(f"It is {turn.status}.")
    said = Message.objects.filter(turn=turn, role=Message.Role.USER).order_by("pk").last()
    if said is None:
        raise NotFailed("Nothing was asked in it.")
    return receive(
        conversation=turn.conversation,
        content=said.content,
        model=turn.model,
        idempotency_key=f"again:{turn.pk}",
        request_id=request_id,
    )


def _take_along(conversation_id: UUID, turn_id: UUID) -> list[str]:
    """What rides along with a turn, in order; in the transaction that stores it, under the conversation's lock."""
    waiting = LaterMessage.objects.filter(conversation=conversation_id, state=LaterState.WAITING)
    due = waiting.filter(Q(run_after=None) | Q(run_after__lte=Now())).exclude(kind=LaterMessage.Kind.WAKE)
    taken = list(due.order_by("pk"))
    LaterMessage.objects.filter(pk__in=[each.pk for each in taken]).update(state=LaterState.DONE, turn_id=turn_id)
    Conversation.objects.filter(pk=conversation_id).update(set_aside=F("set_aside") - len(taken))
    return [f"[note] {each.content}" if each.kind == LaterMessage.Kind.NOTE else each.content for each in taken]


def note(*, conversation_id: UUID, content: str, by_agent: bool = False) -> bool:
    """Append what nobody has asked for. What the host itself has to say is for people, and the model does not see it;
    what its agent says (``by_agent``) it sees as its own words.

    False if a turn is active, into whose middle it would fall. Where the conversation is gone, nobody is left to be
    told: True.
    """
    with transaction.atomic():
        conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
        if conversation is None:
            return True
        if Turn.objects.filter(conversation_id=conversation_id, status__in=ACTIVE).exists():
            return False
        Message.objects.create(
            conversation=conversation,
            seq=conversation.next_seq,
            role=Message.Role.ASSISTANT if by_agent else Message.Role.SYSTEM,
            kind=Message.Kind.SAID if by_agent else Message.Kind.COMMAND,
            content=content,
        )
        Conversation.objects.filter(pk=conversation_id).update(next_seq=F("next_seq") + 1, updated_at=Now())
    return True


def begin_anew(*, conversation_id: UUID) -> None:
    """Let the next prompt begin with the next message, unless a turn is active. In the caller's transaction, which then
    has the conversation's lock."""
    row = Conversation.objects.select_for_update().filter(pk=conversation_id)
    next_seq = row.values_list("next_seq", flat=True).first()
    if next_seq and not Turn.objects.filter(conversation_id=conversation_id, status__in=ACTIVE).exists():
        row.update(starts_at_seq=next_seq, consolidated_through=next_seq - 1, summary_seq=None)


def _make_way(conversation_id: UUID, on_busy: OnBusy) -> None:
    busy = list(Turn.objects.open().filter(conversation_id=conversation_id).order_by("-number"))
    if busy and on_busy == "reject":
        raise ConversationBusy(turnId=str(busy[-1].pk))
    for turn in busy:  # the last first, so that none of them starts when one before it ends
        endings.cancel_turn(turn)


def _place() -> QuerySet[Conversation]:
    return Conversation.objects.filter(pk=Given("conversation_id"))


def _taking(place: Callable[[], QuerySet[Conversation]]) -> Update:
    """Takes a turn's place in its conversation."""
    return Update(
        place,
        lambda: {"next_turn": F("next_turn") + 1, "updated_at": Now()},
        returning=("next_turn", "set_aside"),
    )


# Whether the intake is paused costs no statement of its own, and is never known from before.
_take_unless_paused = _taking(lambda: _place().filter(~Exists(IntakePause.objects.current())))
_take = _taking(_place)


def _take_number(conversation_id: UUID, while_paused: WhilePaused) -> tuple[int, int, str]:
    """The turn's place, taken under the conversation's lock: turns run in the order in which they were accepted. Then
    how many messages wait to ride along with it, and what it waits for itself, if the intake is paused."""
    waiting_for = ""
    taken = _take_unless_paused(conversation_id=conversation_id)
    if not taken and while_paused == "hold":
        taken, waiting_for = _take(conversation_id=conversation_id), WaitingFor.INTAKE
    if not taken:
        if Conversation.objects.filter(pk=conversation_id).exists():
            raise IntakePaused(
                "New turns are not taken in just now, as while a new version is deployed. Send the request again later,"
                " with the same Idempotency-Key if it had one.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        raise NotFound()
    ((next_turn, set_aside),) = taken
    return int(next_turn) - 1, int(set_aside), waiting_for


def _hash_of(conversation_id: UUID, content: str, model: str) -> str:
    asked = json.dumps([str(conversation_id), content, model], ensure_ascii=False)
    return hashlib.sha256(asked.encode()).hexdigest()


_by_idempotency_key = Rows(
    lambda: Turn.objects.filter(owner_id=Given("owner_id"), idempotency_key=Given("idempotency_key"))
)


def _earlier_turn(conversation: Conversation, idempotency_key: str, body_hash: str) -> Turn | None:
    found = _by_idempotency_key(owner_id=conversation.owner_id, idempotency_key=idempotency_key)
    turn = found[0] if found else None
    if turn and turn.body_hash != body_hash:
        raise IdempotencyConflict(f"This Idempotency-Key was used for another request, which is turn {turn.pk}.")
    return turn
