"""What a step of a turn is decided on, and what the model is sent for it."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.conf import settings
from django.utils import timezone

from agent import tokens
from agent.llm.base import ModelRequest
from agent.loop import Limit
from agent.prompt import Background
from conversations.engine import claims, sent
from conversations.engine.claims import Claim, View
from conversations.engine.compaction import USED_SHARE
from conversations.engine.sent import background_of, prompt_of
from memory import documents
from tools import gate

# A history that takes so much of its room is compacted before it has to be cut, to so much of it.
FULL_SHARE, KEPT_SHARE = 0.75, 0.4


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A held turn, with all that is stored for its next step. ``tools``: those the model is told of.
    ``memory_version``: of the long-term memory in the background. ``today``: the day of its notes."""

    claim: Claim
    view: View
    tools: list[dict[str, Any]]
    background: Background
    memory_version: int
    today: date

    def request(self, limit: Limit | None) -> tuple[ModelRequest, int]:
        """What the model is to be asked, and how many tokens that is, by an estimate that is not corrected."""
        tools = self.offered(limit)
        prompt = prompt_of(
            self.background,
            self.view.transcript,
            room=self.room(limit),
            result_chars=settings.TOOL_RESULT_PROMPT_CHARS,
            limit=limit,
        )
        estimated = tokens.estimated_tools(tools) + sum(map(tokens.estimated_message, prompt))
        return ModelRequest(model=self.claim.model, messages=prompt, tools=tools), estimated

    def offered(self, limit: Limit | None) -> list[dict[str, Any]]:
        """The tools that a request offers: at a limit, none."""
        return [] if limit else self.tools

    def room(self, limit: Limit | None) -> int:
        """Tokens that a request's messages may have, by an estimate that is not corrected."""
        return self._room() - tokens.estimated_tools(self.offered(limit))

    def compact_to(self, request: ModelRequest) -> int | None:
        """If the conversation is to be compacted once this request is answered: to how many tokens; else None."""
        system, *history = request.messages
        room = self._room() - tokens.estimated_tools(request.tools) - tokens.estimated_message(system)
        is_long = self.view.unconsolidated + 1 > settings.MEMORY_COMPACT_AFTER and not self.view.is_left_long
        # Of what no summary covers: the rest is there in any case, and compacting would not make it less.
        open_ones = history[max(len(history) - self.view.unconsolidated, 0) :]
        is_large = sum(map(tokens.estimated_message, open_ones)) > FULL_SHARE * room
        return max(int(KEPT_SHARE * room), 0) if is_long or is_large else None

    def _room(self) -> int:
        """Tokens a prompt may have, counted as estimates are. No provider makes it larger by reporting few: some leave
        out what they had cached."""
        ratio = max(tokens.correction.ratio(self.claim.model), 1.0)
        return int(USED_SHARE * self.claim.agent.prompt_tokens() / ratio)


class Asking:
    """What the model is asked for a step of a turn; if it is refused as too long, something smaller.

    ``record``: what is kept of it, from which it can be told later what was sent.
    """

    def __init__(self, outlook: Outlook, limit: Limit | None) -> None:
        self._outlook, self._limit = outlook, limit
        self._refused: list[int] = []
        self._make()

    def _make(self) -> None:
        outlook, limit = self._outlook, self._limit
        self._room = outlook.room(limit)
        self.request, self.estimated = outlook.request(limit)
        self.record = sent.record(
            self.request,
            room=self._room,
            limit=limit,
            refused=self._refused,
            agent_version=outlook.claim.agent.version,
            memory_version=outlook.memory_version,
            notes=outlook.background.notes,
            today=outlook.today,
            first_seq=outlook.view.first_seq,
            last_seq=outlook.view.last_seq,
            summary_seq=outlook.view.summary_seq,
            pinned=outlook.view.pinned,
            # Also where none is offered: the system prompt tells how to use them.
            tools=outlook.background.tools,
        )

    def make_smaller(self) -> bool:
        """After it was refused as too long: dense text has more tokens than were estimated. Whether it is smaller now;
        what cannot be made smaller is refused for good."""
        tokens.correction.refused(self.request.model)
        before = self.estimated
        self._refused = [*self._refused, self._room]
        self._make()
        return self.estimated < before


def look(claim: Claim) -> Outlook:
    """Read what the next step is decided on; raises :class:`conversations.errors.FenceLost`.

    The tools the model is told of are those the gate would let this agent run now.
    """
    view = claims.read(claim)
    agent = claim.agent
    survey = gate.survey(agent_tools=agent.allowed_tools())
    tools = [tool.as_function() for tool, forbidden_by in survey if forbidden_by is None]
    today = timezone.localdate()
    known = documents.background(agent=agent.name, owner_id=claim.owner_id, today=today)
    background = background_of(
        agent.profile(),
        key=claim.key,
        memory=known.content,
        notes=known.notes,
        summary=view.summary,
        pinned=view.pinned,
        tools=[tool["function"]["name"] for tool in tools],
    )
    return Outlook(
        claim=claim, view=view, tools=tools, background=background, memory_version=known.version, today=today
    )
