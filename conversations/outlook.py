"""What a step of a turn is decided on, and what the model is sent for it."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone

from agent import tokens
from agent.llm.base import ModelRequest
from agent.loop import Limit
from agent.models import PROMPT_DOCUMENTS
from agent.prompt import Background, build_prompt
from conversations import claims
from conversations.claims import Claim, View
from memory import documents
from tools import gate

# A history that takes so much of its room is compacted before it has to be cut, to so much of it.
FULL_SHARE, KEPT_SHARE = 0.75, 0.4

# An estimate is never exact: so much of what fits is used.
USED_SHARE = 0.95


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A held turn, with all that is stored for its next step. ``tools``: those the model is told of."""

    claim: Claim
    view: View
    tools: list[dict[str, Any]]
    background: Background

    def request(self, limit: Limit | None) -> tuple[ModelRequest, int]:
        """What the model is to be asked, and how many tokens that is, by an estimate that is not corrected."""
        tools = [] if limit else self.tools
        for_tools = tokens.estimated_tools(tools)
        prompt = build_prompt(
            background=self.background,
            transcript=self.view.transcript,
            result_chars=settings.TOOL_RESULT_PROMPT_CHARS,
            most=claims.MOST_MESSAGES,
            tokens=self._room() - for_tools,
            limit=limit,
        )
        estimated = for_tools + sum(map(tokens.estimated_message, prompt))
        return ModelRequest(model=self.claim.model, messages=prompt, tools=tools), estimated

    def compact_to(self, request: ModelRequest) -> int | None:
        """If the conversation is to be compacted once this request is answered: to how many tokens; else None."""
        system, *history = request.messages
        room = self._room() - tokens.estimated_tools(request.tools) - tokens.estimated_message(system)
        is_long = self.view.unconsolidated + 1 > settings.MEMORY_COMPACT_AFTER
        # Of what no summary covers: the rest is there in any case, and compacting would not make it less.
        open_ones = history[max(len(history) - self.view.unconsolidated, 0) :]
        is_large = sum(map(tokens.estimated_message, open_ones)) > FULL_SHARE * room
        return max(int(KEPT_SHARE * room), 0) if is_long or is_large else None

    def _room(self) -> int:
        """Tokens a prompt may have, counted as estimates are. No provider makes it larger by reporting few: some leave
        out what they had cached."""
        ratio = max(tokens.correction.ratio(self.claim.model), 1.0)
        return int(USED_SHARE * self.claim.agent.prompt_tokens() / ratio)


def look(claim: Claim) -> Outlook:
    """Read what the next step is decided on; raises :class:`conversations.errors.FenceLost`.

    The tools the model is told of are those the gate would let this agent run now.
    """
    view = claims.read(claim)
    agent = claim.agent
    survey = gate.survey(agent_tools=agent.allowed_tools())
    tools = [tool.as_function() for tool, forbidden_by in survey if forbidden_by is None]
    known = documents.background(agent=agent.name, owner_id=claim.owner_id, today=timezone.localdate())
    channel, _, chat = claim.key.partition(":")
    background = Background(
        system_prompt=agent.system_prompt,
        agent=agent.name,
        zone=settings.TIME_ZONE,
        documents={name: agent.documents[name] for name in PROMPT_DOCUMENTS if name in agent.documents},
        memory=known.content,
        notes=known.notes,
        channel=channel,
        chat=chat,
        summary=view.summary,
        tools=[tool["function"]["name"] for tool in tools],
    )
    return Outlook(claim=claim, view=view, tools=tools, background=background)
