"""The inbox: a message is stored with the turn that will answer it, before the client is told that it was accepted."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import Count, DurationField, Exists, F, Q, QuerySet
from django.utils import timezone

from agent.models import DEFAULT_AGENT, Agent
from agent.spending import book, budgets
from agent.spending.budgets import Payer
from conversations import taint
from conversations.attachments import store
from conversations.engine import doorbell, spawned, step_context, transcript, turn_control
from conversations.engine.incoming import STOP, Incoming, message_of, refer_all
from conversations.engine.lease import POINTERS, Claim, TurnState
from conversations.errors import (
    BudgetUsedUp,
    ConversationBusy,
    IdempotencyConflict,
    IntakePaused,
    KeyTaken,
    ModelNotAllowed,
    NotFailed,
    TooManyTurns,
    UnknownAgent,
)
from conversations.kinds import TURNS
from conversations.models import Conversation, DeferredMessage, DeferredState, IntakePause, Message, Turn
from conversations.options import Options
from conversations.statuses import ACTIVE, TurnStatus, WaitingFor
from nanohost.accounts.models import ApiKey
from nanohost.lib import traces
from nanohost.lib.clock import Now, from_now
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.ids import new_id
from nanohost.lib.lease import lease_length
from nanohost.lib.statements import Given, Insert, Rows, Update

OnBusy = Literal["enqueue", "reject", "interrupt"]
WhilePaused = Literal["hold", "refuse"]

# Where check-ins speak, and sub-agents. Nobody else begins there, or it would be with another agent.
OWN_CHANNELS = ("heartbeat:", spawned.CHANNEL)

# A client that has waited for its own time-out, of ten minutes by default, tries again then.
RETRIED_SECONDS = 20 * 60

# Nobody knows for how long the intake will be paused: so often a client may ask.
RETRY_AFTER_SECONDS = 15


# Of a conversation's metadata: it is with a visitor of somebody's page, whom nobody knows. And what taints it.
EMBEDDED, BY_VISITORS = "embedded", "a visitor of a page that embeds this chat"


def start_conversation(*, owner_id: int, agent: str = DEFAULT_AGENT, metadata: dict[str, object]) -> Conversation:
    """A new conversation with an agent; raises :class:`UnknownAgent`."""
    profile, conversation_id = _agent(agent), new_id()
    return Conversation.objects.create(
        id=conversation_id, key=f"api:{conversation_id}", owner_id=owner_id, agent=profile, metadata=metadata, cost=0
    )


def conversation_of(
    *, owner_id: int, key: str, agent: str | None = None, metadata: dict[str, object], with_agent: Agent | None = None
) -> tuple[Conversation, bool]:
    """The owner's conversation of this key, made if there is none, and whether it was made now. One that is there stays
    as it is: ``metadata`` are a new one's, and ``with_agent`` whom it is with if nobody is named.

    Raises :class:`UnknownAgent`; :class:`KeyTaken` if it is with another agent than the one that is named; and
    :class:`InvalidRequest` if it would have to be made in a channel of the host's own.
    """
    profile = with_agent if with_agent and not agent else _agent(agent or DEFAULT_AGENT)
    rows, fresh = Conversation.objects.select_related("agent"), {"agent": profile, "metadata": metadata, "cost": 0}
    if key.startswith(OWN_CHANNELS) and not rows.filter(owner_id=owner_id, key=key).exists():
        channel = key.partition(":")[0]
        raise InvalidRequest(f"The channel {channel}:… is the host's own: what is there is found by its key.")
    # Of two who make it at once, the database lets one; the other finds what that one has made.
    conversation, is_new = rows.get_or_create(owner_id=owner_id, key=key, defaults=fresh)
    if agent and conversation.agent_id != profile.pk:
        raise KeyTaken(f"The conversation of this key is with the agent {conversation.agent}.")
    return conversation, is_new


def _agent(name: str) -> Agent:
    profile = Agent.objects.filter(name=name).first()
    if profile is None:
        raise UnknownAgent(f"There is no agent named {name!r}.")
    return profile


_insert_turn = Insert(
    Turn,
    *("id", "conversation_id", "owner_id", "number", "model", "request_id", "idempotency_key", "body_hash"),
    *("created_at", "waiting_for", "api_key_id", "response_format", "options", "traceparent"),
    status=TurnStatus.QUEUED,
    notified_at=Now(),
    cost=0,
)
_insert_claimed_turn = Insert(
    Turn,
    *("id", "conversation_id", "owner_id", "number", "model", "request_id", "idempotency_key", "body_hash"),
    *("created_at", "agent_version", "worker", "api_key_id", "response_format", "options", "traceparent"),
    status=TurnStatus.RUNNING,
    fence=1,
    lease_until=from_now(Given("lease", DurationField())),
    deadline=from_now(Given("timeout", DurationField())),
    started_at=Now(),
    stepped_at=Now(),
    notified_at=Now(),
    cost=0,
)
_insert_message = Insert(
    Message,
    *("id", "conversation_id", "turn_id", "content", "created_at", "kind", "seq", "tainted_by", "attachments"),
    role=Message.Role.USER,
)


def transient_conversation(*, owner_id: int, agent: Agent, metadata: Mapping[str, Any]) -> Conversation:
    """One for a single request that brings its whole history; not stored yet."""
    made_for = new_id()
    return Conversation(
        id=made_for,
        key=f"openai:{made_for}",
        owner_id=owner_id,
        agent=agent,
        metadata=dict(metadata),
        cost=0,
        is_transient=True,
    )


def receive(
    incoming: Incoming,
    *,
    conversation: Conversation,
    request_id: str,
    idempotency_key: str | None = None,
    body_hash: str = "",
    turn_id: UUID | None = None,
    key: ApiKey | None = None,
    on_busy: OnBusy = "enqueue",
    while_paused: WhilePaused = "hold",
    or_own_model: bool = False,
    also: Callable[[UUID, int], None] | None = None,
) -> Turn:
    """Store a user's message and the turn that will answer it. Returns the turn.

    A process that has room for the turn, and need not have it wait for another, claims it as it is stored and begins
    with it at once; otherwise workers are notified of it. The conversation is stored as well, if it is not yet.

    ``body_hash``: of the whole request, where that is more than the message. ``turn_id``: the id it is to have; one is
    made if there is none. ``key``: what it was asked with; the models that it lists take the place of LLM_MODELS.
    ``on_busy``: what becomes of it while turns of the conversation are open: it waits behind them, is refused as
    :class:`ConversationBusy`, or has them cancelled. ``while_paused``: what becomes of it while the intake is paused:
    it is stored and begins when that is resumed, or is refused as :class:`IntakePaused`, for clients that can come
    back; those are also refused, as :class:`TooManyTurns`, while as many turns of their ``key`` are open as may be.
    ``or_own_model``: the agent's own takes the place of any other, which is refused otherwise. ``also``: what else is
    stored in the transaction; it is given the turn's id and number, and may raise, so that nothing is.

    The same idempotency key with the same request returns the turn it made before; with another request it raises
    :class:`IdempotencyConflict`, paused or not. Raises :class:`ModelNotAllowed`, :class:`BudgetUsedUp` to those who can
    come back, :class:`NotFound` if the conversation is deleted meanwhile, and what
    :meth:`Incoming.with_files_stored` raises.
    """
    body_hash = body_hash or _hash_of(conversation.pk, incoming)
    if idempotency_key and (earlier := _earlier_turn(conversation, idempotency_key, body_hash)):
        return earlier
    asked_model = _model_of(conversation.agent, incoming.model, or_own_model, key)
    command = incoming.command
    if command == STOP:
        on_busy = "interrupt"
    if while_paused == "refuse" and not command:
        _refuse_unpaid(conversation, key)
    if conversation.metadata.get(EMBEDDED) and not incoming.tainted_by:
        incoming = replace(incoming, tainted_by=BY_VISITORS)
    incoming = incoming.with_files_stored(conversation.owner_id, key)
    began = time.monotonic()
    try:
        with doorbell.place(TURNS) as place, transaction.atomic():
            if conversation._state.adding:
                incoming.begin(conversation)
            taken = _take_number(conversation.pk, while_paused)  # and the lock
            turn_id = turn_id or new_id()
            if on_busy != "enqueue":
                _make_way(conversation.pk, on_busy, turn_id)
            if command == STOP:
                turn_control.cancel_spawned(conversation.pk)
            if key and key.turns_at_once and while_paused == "refuse" and command != STOP:
                _refuse_too_many(key, key.turns_at_once)
            stored: dict[str, Any] = {
                "id": turn_id,
                "conversation_id": conversation.pk,
                "owner_id": conversation.owner_id,
                "number": taken.number,
                "model": asked_model,
                "request_id": request_id,
                "idempotency_key": idempotency_key,
                "body_hash": body_hash,
                "created_at": taken.now,
                "api_key_id": key.pk if key else None,
                "response_format": incoming.response_format,
                "options": incoming.options.as_json() if incoming.options is not None else None,
                "traceparent": traces.received(turn_id) if traces.is_on else "",
            }
            along = _take_along(conversation.pk, turn_id) if taken.set_aside and not command else []
            # What taints the conversation does so where a turn is claimed.
            may_begin = not any(each.source for each in (*along, incoming)) and not taken.waiting_for
            if place and may_begin and not _open_turn(conversation_id=conversation.pk):
                claim = _insert_claimed(stored, conversation, taken, worker=place.worker, began=began)
                transaction.on_commit(partial(_begin, place, claim))
                status = TurnStatus.RUNNING
            else:
                claim, status = None, TurnStatus.QUEUED
                _insert_turn(**stored, waiting_for=taken.waiting_for)
                doorbell.notify(TURNS, turn_id)
            _insert_messages(incoming, along, conversation, turn_id, created_at=taken.now, has_begun=bool(claim))
            if also:
                also(turn_id, taken.number)
    except IntegrityError:
        # A duplicate that ran beside us was stored first; any other violation is a fault of ours.
        if idempotency_key and (earlier := _earlier_turn(conversation, idempotency_key, body_hash)):
            return earlier
        raise
    stored |= {"status": status, "waiting_for": taken.waiting_for}
    in_order = [stored[field.attname] for field in Turn._meta.concrete_fields if field.attname in stored]
    return Turn.from_db(DEFAULT_DB_ALIAS, list(stored), in_order)


def _insert_messages(
    incoming: Incoming,
    along: Sequence[Incoming],
    conversation: Conversation,
    turn_id: UUID,
    *,
    created_at: datetime,
    has_begun: bool,
) -> None:
    """Store a turn's messages, those that ride along with it before its own: ids sort as they are made. Those of a turn
    that has begun are in the transcript at once; otherwise they wait in the inbox."""
    count = len(incoming.precedes) + len(along) + 1 + len(incoming.follows)
    first = transcript.take_seqs(conversation.pk, count) if has_begun else None
    seqs: Iterator[int | None] = itertools.repeat(None) if first is None else itertools.count(first)
    store.hold([file for each in (*along, incoming) for file in each.all_attachments])
    for message in incoming.precedes:
        _insert_other(message_of(message, conversation, turn_id=turn_id, seq=next(seqs)))
    kind = Message.Kind.COMMAND if incoming.command else Message.Kind.SAID
    common = {"conversation_id": conversation.pk, "turn_id": turn_id, "created_at": created_at, "kind": kind}
    for each in (*along, incoming):
        message_id = new_id()
        _insert_message(
            id=message_id,
            content=each.content,
            seq=next(seqs),
            tainted_by=each.source or None,
            attachments=list(each.attachments) or None,
            **common,
        )
        store.refer(conversation.pk, message_id, each.attachments)
    for message in incoming.follows:
        _insert_other(message_of(message, conversation, turn_id=turn_id, seq=next(seqs)))


def _insert_other(message: Message) -> None:
    message.save(force_insert=True)
    refer_all([message])


def _insert_claimed(
    stored: dict[str, Any], conversation: Conversation, taken: "_Taken", *, worker: str, began: float
) -> Claim:
    """Store a turn that has begun; ``began``: when its time did, on this process's monotonic clock."""
    timeout = timedelta(seconds=settings.TURN_TIMEOUT_SECONDS)
    version = conversation.agent.version
    _insert_claimed_turn(**stored, agent_version=version, worker=worker, lease=lease_length(), timeout=timeout)
    return Claim(
        turn_id=stored["id"],
        conversation_id=conversation.pk,
        owner_id=conversation.owner_id,
        key=conversation.key,
        agent=conversation.agent,
        model=stored["model"],
        response_format=stored["response_format"],
        request_id=stored["request_id"],
        api_key_id=stored["api_key_id"],
        is_transient=conversation.is_transient,
        options=Options.of(stored["options"]),
        traceparent=stored["traceparent"],
        fence=1,
        attempts=0,
        deadline=began + timeout.total_seconds(),
        as_claimed=TurnState(0, 0, 0, "", None, "", None, *taken.pointers),
    )


def _begin(place: doorbell.Place, claim: Claim) -> None:
    place.begin((claim, step_context.as_claimed(claim)))


def _refuse_unpaid(conversation: Conversation, key: ApiKey | None) -> None:
    """Raise :class:`BudgetUsedUp` if nothing is left to pay an answer with: whoever asks is told before anything is
    stored. Where something is left, it may turn out to be too little."""
    payer = Payer(owner_id=conversation.owner_id, agent_id=conversation.agent_id, api_key_id=key.pk if key else None)
    known = book.read()
    if limits := budgets.limits_on(known, payer):
        now = timezone.now()
        if limit := budgets.used_up(limits, now, with_rest=known.with_rest):
            raise BudgetUsedUp(budgets.told(limit, now))


_lock_key = Rows(
    lambda: ApiKey.objects.filter(pk=Given("key_id")).order_by().select_for_update().values_list("pk", flat=True)
)
_open_turns_of_key = Rows[int](
    lambda: (
        Turn.objects.open()
        .filter(api_key_id=Given("key_id"), cancel_requested=False)
        # Many callers never come back: a model's choice of a tool is all that they wanted.
        .exclude(waiting_for=WaitingFor.CALLER)
        .order_by()
        .values("api_key_id")
        .annotate(open_turns=Count("pk"))
        .values_list("open_turns", flat=True)
    )
)


def _refuse_too_many(key: ApiKey, most: int) -> None:
    """One after the other, so that two of them cannot both be the last that there is room for. Turns that are being
    cancelled count no more: this one may be what they give way to."""
    _lock_key(key_id=key.pk)
    if sum(_open_turns_of_key(key_id=key.pk)) >= most:
        detail = f"{most} turns of this key are open, which is as many as may be; try again when one has ended."
        raise TooManyTurns(detail, headers={"Retry-After": "1"})


def ask_again(turn: Turn, *, request_id: str) -> Turn:
    """Ask what a failed turn was asked once more, in a turn of its own; returns that turn, which is the same however
    often it is asked for. It has the same model, or the agent's own if that is no longer offered.

    Raises :class:`NotFailed`, and what :func:`receive` raises.
    """
    if turn.status != TurnStatus.FAILED:
        raise NotFailed(f"It is {turn.status}.")
    said = Message.objects.filter(turn=turn, role=Message.Role.USER).order_by("pk").last()
    if said is None:
        raise NotFailed("Nothing was asked in it.")
    incoming = Incoming(
        said.content,
        attachments=said.attachments or (),
        tainted_by=said.tainted_by or "",
        model=turn.model,
        response_format=turn.response_format,
    )
    return receive(
        incoming,
        conversation=turn.conversation,
        idempotency_key=f"again:{turn.pk}",
        request_id=request_id,
        or_own_model=True,
    )


def asked_again(turns: Sequence[Turn]) -> dict[UUID, Turn]:
    """The turns in which these were asked once more, by the id of the former one."""
    failed = [turn for turn in turns if turn.status == TurnStatus.FAILED]
    if not failed:
        return {}
    keys = {f"again:{turn.pk}": turn.pk for turn in failed}
    owners = {turn.owner_id for turn in failed}
    found = Turn.objects.filter(owner__in=owners, idempotency_key__in=list(keys))
    return {keys[str(turn.idempotency_key)]: turn for turn in found}


def may_be_asked_again(turn: Turn, again: Mapping[UUID, Turn]) -> bool:
    """Whether it failed, and is not among those of :func:`asked_again`. What people cancel is left."""
    return turn.status == TurnStatus.FAILED and turn.pk not in again


def refuse_other_models(agent: Agent, model: str, key: ApiKey | None = None) -> None:
    """Raise :class:`ModelNotAllowed` unless a request may name this model; empty, it names none."""
    _model_of(agent, model, False, key)


def _model_of(agent: Agent, named: str, or_own_model: bool, key: ApiKey | None) -> str:
    """The model to ask."""
    own, listed = agent.own_model(), (key and key.model_names) or settings.LLM_MODELS
    if not named or named == own or named in listed:
        return named or own
    if or_own_model:
        return own
    offered = dict.fromkeys((own, *listed))
    raise ModelNotAllowed(f"{named!r} is not offered; choose one of {', '.join(offered)}.")


def _take_along(conversation_id: UUID, turn_id: UUID) -> list[Incoming]:
    """What rides along with a turn, in order; in the transaction that stores it, under the conversation's lock."""
    waiting = DeferredMessage.objects.filter(conversation=conversation_id, state=DeferredState.WAITING)
    due = waiting.filter(Q(run_after=None) | Q(run_after__lte=Now())).exclude(kind=DeferredMessage.Kind.WAKE)
    taken = list(due.order_by("pk"))
    DeferredMessage.objects.filter(pk__in=[each.pk for each in taken]).update(state=DeferredState.DONE, turn_id=turn_id)
    Conversation.objects.filter(pk=conversation_id).update(set_aside=F("set_aside") - len(taken))
    return [
        Incoming(
            f"[note] {each.content}" if each.kind == DeferredMessage.Kind.NOTE else each.content,
            attachments=each.attachments or (),
        )
        for each in taken
    ]


def note(*, conversation_id: UUID, content: str, by_agent: bool = False, tainted_by: str = "") -> bool:
    """Append what nobody has asked for. What the host itself has to say is for people, and the model does not see it;
    what its agent says (``by_agent``) it sees as its own words. ``tainted_by``: from where it came, if the agent said
    it where untrusted text had entered.

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
            tainted_by=tainted_by or None,
        )
        transcript.take_seqs(conversation_id, 1, marks=[tainted_by])
    return True


def begin_anew(*, conversation_id: UUID) -> None:
    """Let the next prompt begin with the next message, unless a turn is active. In the caller's transaction, which then
    has the conversation's lock."""
    row = Conversation.objects.select_for_update().filter(pk=conversation_id)
    conversation = row.only("next_seq", *taint.OF_CONVERSATION).first()
    if conversation and not Turn.objects.filter(conversation_id=conversation_id, status__in=ACTIVE).exists():
        first = conversation.next_seq
        changes: dict[str, Any] = {"starts_at_seq": first, "consolidated_through": first - 1, "summary_seq": None}
        row.update(**changes, **taint.begun_anew(conversation))


def _make_way(conversation_id: UUID, on_busy: OnBusy, turn_id: UUID) -> None:
    busy = list(Turn.objects.open().filter(conversation_id=conversation_id).order_by("-number"))
    if busy and on_busy == "reject":
        raise ConversationBusy(turnId=str(busy[-1].pk))
    for turn in busy:  # the last first, so that none of them starts when one before it ends
        turn_control.cancel_turn(turn, by=turn_id)


def _place() -> QuerySet[Conversation]:
    return Conversation.objects.filter(pk=Given("conversation_id"))


def _taking(place: Callable[[], QuerySet[Conversation]]) -> Update:
    """Takes a turn's place in its conversation."""
    return Update(
        place,
        lambda: {"next_turn": F("next_turn") + 1, "updated_at": Now()},
        returning=("next_turn", "set_aside", "updated_at", *POINTERS),
    )


# Whether the intake is paused costs no statement of its own, and is never known from before.
_take_unless_paused = _taking(lambda: _place().filter(~Exists(IntakePause.objects.current())))
_take = _taking(_place)


# Looked for under the conversation's lock: one that is stored or ended meanwhile waits for that, or is seen.
_open_turn = Rows[UUID](
    lambda: (
        Turn.objects.open().filter(conversation_id=Given("conversation_id")).order_by().values_list("pk", flat=True)[:1]
    )
)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """A turn's place in its conversation. ``set_aside``: how many messages wait to ride along with it. ``waiting_for``:
    what it waits for itself, if the intake is paused. ``now``: the time by the database's clock, as all that it is
    compared with. ``pointers``: where the conversation stands."""

    number: int
    set_aside: int
    waiting_for: str
    now: datetime
    pointers: Sequence[Any]


def _take_number(conversation_id: UUID, while_paused: WhilePaused) -> _Taken:
    """The turn's place, taken under the conversation's lock: turns run in the order in which they were accepted."""
    waiting_for = ""
    taken = _take_unless_paused(conversation_id=conversation_id)
    if not taken and while_paused == "hold":
        taken, waiting_for = _take(conversation_id=conversation_id), WaitingFor.INTAKE
    if not taken:
        if Conversation.objects.filter(pk=conversation_id).exists():
            raise IntakePaused(
                "New turns are not accepted just now, as while a new version is deployed. Send the request again later,"
                " with the same Idempotency-Key if it had one.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        raise NotFound()
    ((next_turn, set_aside, now, *pointers),) = taken
    return _Taken(number=next_turn - 1, set_aside=set_aside, waiting_for=waiting_for, now=now, pointers=pointers)


def _hash_of(conversation_id: UUID, incoming: Incoming) -> str:
    # Without more, it is what earlier releases made it of.
    more = [each for each in (incoming.response_format, incoming.digest()) if each]
    asked = json.dumps([str(conversation_id), incoming.content, incoming.model, *more], ensure_ascii=False)
    return hashlib.sha256(asked.encode()).hexdigest()


_by_idempotency_key = Rows(
    lambda: Turn.objects.filter(owner_id=Given("owner_id"), idempotency_key=Given("idempotency_key"))
)


def retried(*, key: ApiKey, body_hash: str) -> Turn | None:
    """The turn that the same request of the same key has made lately, if it goes on or was answered: the client has
    not heard of it, and asks again."""
    since = timezone.now() - timedelta(seconds=RETRIED_SECONDS)
    same = Turn.objects.filter(body_hash=body_hash, options__isnull=False, api_key_id=key.pk, created_at__gte=since)
    return same.exclude(status=TurnStatus.CANCELLED).order_by("-created_at").first()


def _earlier_turn(conversation: Conversation, idempotency_key: str, body_hash: str) -> Turn | None:
    found = _by_idempotency_key(owner_id=conversation.owner_id, idempotency_key=idempotency_key)
    turn = found[0] if found else None
    if turn and turn.body_hash != body_hash:
        raise IdempotencyConflict(f"This Idempotency-Key was used for another request, which is turn {turn.pk}.")
    return turn
