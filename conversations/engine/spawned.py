"""Sub-agents: conversations that a call of the tool ``spawn`` has made, each for one task.

The turn that works on the task brings its result back to where the call was made. It is stored in the transaction that
ends the turn, as a message that wakes the other conversation: so it comes once, whatever dies, and is tried again as
any such message is.
"""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from agent.prompt import shorten
from conversations.models import Conversation, DeferredMessage, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.clock import Now
from tools.models import ToolCall
from tools.taint import MAX_SOURCE

# The tool that starts them.
TOOL = "spawn"

# What keys of such conversations begin with.
CHANNEL = "spawn:"

# Of a result; all of it stands in the sub-agent's own conversation.
MAX_RESULT_CHARS = 50_000

# What their messages' idempotency keys begin with: with a blank, as no client's does.
_RESULT_OF = "result of "
# And those of turns that another agent has begun: then come the call that did, and through how many it came.
OF_AGENT = "agent "


def report(
    *, key: str, owner_id: int, conversation_id: UUID, turn_id: UUID, status: str, text: str = "", code: str = ""
) -> None:
    """Have a result told where its sub-agent was started, in the transaction that ends its turn. One that was cancelled
    has none, nor does anybody wait for one whose caller was cancelled. ``text``: of an answer. ``code``: of a failure.
    """
    if not key.startswith(CHANNEL) or status == TurnStatus.CANCELLED:
        return
    turn = Turn.objects.select_related("conversation").filter(pk=turn_id).first()
    if turn is None:
        return
    # What people have said there since is answered there.
    asked_by = call_in(turn.idempotency_key or "") or (turn.conversation.spawned_by if turn.number == 1 else None)
    call = ToolCall.objects.filter(pk=asked_by, owner_id=owner_id).first() if asked_by else None
    if call is None:
        return
    if Turn.objects.filter(pk=call.turn_id, status=TurnStatus.CANCELLED).exists():
        return
    # Whoever ends a sub-agent's turn locks its conversation and then this one; nobody locks them the other way round.
    there = Conversation.objects.select_for_update(no_key=True).filter(pk=call.conversation_id).first()
    if there is None:
        return
    child = turn.conversation
    told = f"It has answered:\n\n{shorten(text, MAX_RESULT_CHARS)}" if status == TurnStatus.SUCCEEDED else ""
    result = DeferredMessage.objects.create(
        conversation=there,
        kind=DeferredMessage.Kind.WAKE,
        content=f"[{_called(child, turn)}, {child.pk}] {told or f'It has failed ({code}).'}",
        tainted_by=f"a sub-agent, conversation {child.pk}"[:MAX_SOURCE] if child.tainted_at_seq is not None else None,
        run_after=Now(),
        idempotency_key=f"{_RESULT_OF}{turn_id}",
        request_id=turn.request_id,
        api_key_id=turn.api_key_id,
    )
    # Whoever sweeps would find it some seconds later.
    transaction.on_commit(partial(_tell_of, result.pk), robust=True)


def _called(child: Conversation, turn: Turn) -> str:
    if call_in(turn.idempotency_key or ""):
        return f"the agent {child.agent.name}"
    return f"sub-agent “{child.name}”"


def call_in(idempotency_key: str) -> UUID | None:
    """The call by which an agent has begun a turn, by the turn's key."""
    return UUID(idempotency_key.split(" ")[1]) if idempotency_key.startswith(OF_AGENT) else None


def hops_in(idempotency_key: str) -> int | None:
    """Through how many messages of agents such a turn came about; None for another."""
    return int(idempotency_key.split(" ")[2]) if idempotency_key.startswith(OF_AGENT) else None


def reported_on(turn: Turn) -> Turn | None:
    """The turn whose result has begun this one; None if it was begun otherwise."""
    made_of = deferred_in(turn.idempotency_key or "")
    woken = (
        DeferredMessage.objects.filter(pk=made_of, conversation_id=turn.conversation_id).first() if made_of else None
    )
    told = (woken.idempotency_key or "") if woken else ""
    return Turn.objects.filter(pk=told.removeprefix(_RESULT_OF)).first() if told.startswith(_RESULT_OF) else None


def tell_at_once(tell: Callable[[UUID], None]) -> None:
    """From now on, a result that is stored is told by this, given the id of its message."""
    _tellers[:] = [tell]


def _tell_of(message_id: UUID) -> None:
    for tell in _tellers:
        tell(message_id)


_tellers: list[Callable[[UUID], None]] = []


def is_report(turn: Turn) -> bool:
    """Whether a turn was begun by a sub-agent's result."""
    made_of = deferred_in(turn.idempotency_key or "")
    woken = (
        DeferredMessage.objects.filter(pk=made_of, conversation_id=turn.conversation_id).first() if made_of else None
    )
    return woken is not None and (woken.idempotency_key or "").startswith(_RESULT_OF)


def deferred_in(idempotency_key: str) -> UUID | None:
    """The deferred message that a turn was made of, by the turn's key, "later <id> <tries>"."""
    kind, _, rest = idempotency_key.partition(" ")
    return UUID(rest.partition(" ")[0]) if kind == "later" and rest else None
