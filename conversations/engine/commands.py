"""Commands in a chat message, such as /new: the host carries them out, and no model sees them or their answers.

A command is a turn like others: it waits behind what was said before it, and ends with an answer. Only /stop does not
wait: what is under way is cancelled as soon as it is taken in.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Count, Sum

from agent.errors import LlmError
from agent.llm.base import Completion
from conversations import taint
from conversations.engine import steps
from conversations.engine.compacting import compaction, parts
from conversations.engine.compacting.compactor import Asker, consolidate
from conversations.engine.compacting.parts import Part, Result
from conversations.engine.incoming import command_in
from conversations.engine.lease import Claim
from conversations.engine.paying import purse_of
from conversations.engine.step_context import StepContext
from conversations.errors import Overtaken
from conversations.models import Compaction, CompactionKind, CompactionStatus, Conversation, Message, Turn
from conversations.statuses import TurnStatus
from memory.consolidation import Malformed
from memory.errors import MemoryChanged
from nanohost.accounts import holds
from nanohost.lib.clock import Now
from nanohost.lib.database_threads import DatabaseThreads

Stored = Callable[..., Awaitable[None]]

HELP = """\
/new: keep the conversation in memory, and start afresh
/reset: start afresh, without keeping anything of it in memory
/clear: the same, and forget what the agent keeps for this conversation, and what is pinned
/stop: cancel what is under way
/status: how this conversation stands
/help: this list
Messages stay in the transcript whatever you do; only the model no longer sees them."""


async def carry_out(claim: Claim, context: StepContext, database: DatabaseThreads, *, stored: Stored) -> None:
    """Do what the turn's message commands, and end the turn with the answer. ``stored`` runs a function as ``database``
    does, again and again while the database is away."""
    match command_in(context.snapshot.command):
        case "new":
            await _archive(claim, database, stored)
        case "reset":
            await database(_begin_anew, claim, reply="Started afresh. Nothing of the conversation was archived.")
        case "clear":
            await database(_clear, claim)
        case "stop":
            await database(_tell_what_stopped, claim)
        case "status":
            await database(_tell_status, claim, context)
        case "help":
            await database(_answer, claim, HELP)
        case unknown:
            await database(_answer, claim, f"There is no command /{unknown}. These are:\n{HELP}")


def _answer(claim: Claim, reply: str) -> None:
    steps.finish(claim, Completion(), reply=reply, has_called=False, kind=Message.Kind.COMMAND)


def _begin_anew(
    claim: Claim, *, reply: str, forget_state: bool = False, part: Part | None = None, result: Result | None = None
) -> None:
    """End the turn, with the conversation's start behind it; with what was archived, or not at all."""

    def move(seq: int) -> None:
        rows = Conversation.objects.filter(pk=claim.conversation_id)
        if part and result:
            rows = rows.filter(consolidated_through=part.consolidated_through, starts_at_seq=part.starts_at)
            compaction.apply(part, result, turn_id=claim.turn_id)
        conversation = rows.only(*taint.OF_CONVERSATION).first()  # ours: its number was taken in this transaction
        if conversation is None:
            raise Overtaken
        changes: dict[str, Any] = {"starts_at_seq": seq + 1, "consolidated_through": seq, "summary_seq": None}
        changes |= taint.begun_anew(conversation, with_pins=not forget_state)
        # One that waits to be tried again would count its failures against what is said from now on.
        Compaction.objects.filter(conversation_id=claim.conversation_id, status=CompactionStatus.QUEUED).exclude(
            kind=CompactionKind.DAILY
        ).update(status=CompactionStatus.DROPPED, ended_at=Now())
        if forget_state:
            changes |= {"state": {}, "state_times": {}, "state_tainted": {}, "pins": []}
        if rows.update(**changes) != 1:
            raise Overtaken

    steps.finish(claim, Completion(), reply=reply, has_called=False, kind=Message.Kind.COMMAND, also=move)


def _clear(claim: Claim) -> None:
    """Begin anew, and forget what is kept for the conversation, unless a legal hold keeps it."""
    whose: dict[str, Any] = {"owner_id": claim.owner_id, "agent": claim.agent.name}
    with transaction.atomic():
        is_held = bool(holds.placed_until_the_end().on(conversation_id=claim.conversation_id, **whose))
        kept = "is kept, by a legal hold" if is_held else "is forgotten"
        reply = f"Started afresh; what was kept for this conversation {kept}."
        _begin_anew(claim, reply=reply, forget_state=not is_held)


async def _archive(claim: Claim, database: DatabaseThreads, stored: Stored) -> None:
    """Put all that is left into memory, then begin anew; if the first fails, nothing changes. What a model has answered
    is paid for, and so is stored though the database may be away."""
    reply = "Started afresh. The conversation is kept in memory."
    read = partial(parts.read, claim.conversation_id, agent=claim.agent, keep_tokens=None)
    changed, problem = "Nothing was changed", "the memory keeps changing"
    ask = Asker(purse_of(claim, database), partial(stored, steps.charge, claim))
    for _ in range(compaction.MAX_CLASHES):
        try:
            part = await database(read)
            result = await consolidate(part, agent=claim.agent, model=claim.model, ask=ask) if part else None
            await stored(_begin_anew, claim, reply=reply, part=part, result=result)
            return
        except (Overtaken, MemoryChanged):
            continue
        except LlmError as error:
            problem = f"the model could not be called ({error.code})"
        except Malformed as error:
            problem = f"the model's answer was of no use: {error}"
            if part and error.memory is not None:
                given: dict[str, Any] = {"model": claim.model, "turn_id": claim.turn_id}
                await stored(compaction.keep_memory, part, error.memory, **given)
                changed = "Nothing was changed but the long-term memory"
        break
    reply = f"{changed}: {problem}. Try /new again, or /reset to start afresh without archiving."
    await stored(_answer, claim, reply)


def _tell_what_stopped(claim: Claim) -> None:
    """What the command was stored with was to be cancelled; by now each of them has ended, so or otherwise."""
    turns = Turn.objects.filter(conversation_id=claim.conversation_id, status=TurnStatus.CANCELLED)
    match turns.filter(cancelled_by=claim.turn_id).count():
        case 0:
            _answer(claim, "Nothing was under way.")
        case 1:
            _answer(claim, "Stopped: one turn was cancelled.")
        case several:
            _answer(claim, f"Stopped: {several} turns were cancelled.")


def _tell_status(claim: Claim, context: StepContext) -> None:
    stored, agent = context.snapshot, claim.agent
    turns = Turn.objects.filter(conversation_id=claim.conversation_id)
    spent = turns.aggregate(prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens"), turns=Count("pk"))
    waiting = turns.filter(status=TurnStatus.QUEUED).count()
    lines = [
        f"Agent {agent.name}, version {agent.version}; model {claim.model}.",
        f"{len(stored.transcript)} messages are in the prompt, {stored.unconsolidated - 1} of them in no summary yet.",
        f"There is {'a' if stored.summary else 'no'} summary of what came before.",
        f"The long-term memory has {len(context.memory)} characters.",
        f"{spent['turns']} turns have used {spent['prompt']} tokens of prompts and {spent['completion']} of answers.",
        f"{waiting} more are waiting." if waiting else "Nothing else is waiting.",
    ]
    _answer(claim, "\n".join(lines))
