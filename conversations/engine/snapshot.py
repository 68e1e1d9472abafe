"""A snapshot of a turn and its conversation, as stored, on which its next step is decided."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from agent.llm.base import Usage
from agent.loop import ChatMessage
from agent.prompt import Pinned
from conversations import pins
from conversations.engine import history
from conversations.engine.lease import OF_TURN, POINTERS, RETRYING_FOR, Claim, TurnState, mine
from conversations.errors import FenceLost
from nanohost.lib.statements import Rows


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the next step is decided on: ``own`` are the turn's messages, ``transcript`` what the model may see.

    ``retries``: failures of the provider since the last stored step. ``retry_code``: of the last of them.
    ``retrying_for``: seconds since the first of them. ``fallback_model``: the model that is asked in place of the
    turn's, if another is. ``invalid_answers``: of the turn, those that were not in the form that was asked for.
    ``summary``: of what came before the transcript.
    ``unconsolidated``: how many messages no summary covers. ``command``: the turn's message, if it is a command to
    the host. ``first_seq``, ``last_seq`` and ``summary_seq``: where the transcript and the summary were read.
    ``pinned``: messages that are in every prompt. ``is_left_long``: it is not summarised for its length alone, since a
    summary of it was undone just now. ``tainted_by``: from where untrusted text has entered, if some has.
    """

    own: list[ChatMessage]
    transcript: list[ChatMessage]
    usage: Usage
    retries: int
    retry_code: str
    retrying_for: float
    fallback_model: str
    invalid_answers: Sequence[dict[str, Any]]
    summary: str
    unconsolidated: int
    command: str
    first_seq: int
    last_seq: int
    summary_seq: int | None
    pinned: Sequence[Pinned]
    is_left_long: bool
    tainted_by: str

    @property
    def answers(self) -> int:
        """How many answers of a model the turn has."""
        return sum(message["role"] == "assistant" for message in self.own)

    @property
    def calls(self) -> int:
        """How many tool calls the turn has asked for."""
        return sum(len(message.get("tool_calls", ())) for message in self.own)

    def rounds_of(self, tools: AbstractSet[str]) -> int:
        """How often the turn has asked for calls of some of these tools."""
        asked = ([call["function"]["name"] for call in message.get("tool_calls", ())] for message in self.own)
        return sum(not tools.isdisjoint(names) for names in asked)


_state = Rows(
    lambda: (
        mine(unless_cancelled=True)
        .annotate(retrying_for=RETRYING_FOR)
        .values_list(*OF_TURN, *(f"conversation__{name}" for name in POINTERS))
    ),
)


def load(claim: Claim, state: TurnState | None = None) -> Snapshot:
    """What is stored now; raises :class:`FenceLost` if the turn is no longer ours or is to be cancelled. ``state``:
    what was read of it just now."""
    state = state or _state_of(claim)
    starts_at, consolidated_through, summary_seq = state.starts_at_seq, state.consolidated_through, state.summary_seq
    messages, summary = history.read(
        claim.conversation_id,
        claim.turn_id,
        starts_at=starts_at,
        consolidated_through=consolidated_through,
        window=claim.agent.window(),
        summary_seq=summary_seq,
        # A history that came with the request says nothing of when its messages were sent.
        is_stamped=not claim.is_transient,
        deletions=state.deletions,
    )
    turn = claim.turn_id.int
    own = [each for each in messages if each.turn == turn]
    first_seq, last_seq = (messages[0].seq, messages[-1].seq) if messages else (0, 0)
    unconsolidated = len([each for each in messages if each.seq > consolidated_through])
    return Snapshot(
        own=[each.chat for each in own],
        transcript=[each.shown for each in messages if not each.is_command],
        usage=Usage(prompt_tokens=state.prompt_tokens, completion_tokens=state.completion_tokens),
        retries=state.retries,
        retry_code=state.retry_code,
        fallback_model=state.fallback_model,
        invalid_answers=state.invalid_answers or (),
        retrying_for=state.retrying_for.total_seconds() if state.retrying_for else 0.0,
        summary=summary,
        unconsolidated=unconsolidated,
        command=str(own[0].chat["content"]) if own and own[0].is_command else "",
        first_seq=first_seq,
        last_seq=last_seq,
        summary_seq=summary_seq,
        pinned=pins.for_prompt(claim.conversation_id, pins.seqs_of(state.pins), first_seq=first_seq),
        tainted_by=state.tainted_by,
        # But not so long that the prompt would lack the beginning of what no summary covers.
        is_left_long=last_seq < state.summarise_from_seq and unconsolidated < history.MAX_MESSAGES // 2,
    )


def _state_of(claim: Claim) -> TurnState:
    for row in _state(turn_id=claim.turn_id, fence=claim.fence):
        return TurnState(*row)
    raise FenceLost
