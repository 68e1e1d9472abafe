"""What a replay is asked: a copy of what its turn was asked, with what is to be other, and the record that answers."""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.conf import settings

from agent import answer_schemas, llm
from agent.errors import NoProvider
from agent.llm.base import ModelRequest
from agent.llm.capabilities import takes_schema
from agent.loop import ChatMessage, unanswered_calls
from agent.models import Agent, AgentVersion
from agent.prompt import SECTION
from conversations.engine import outgoing
from conversations.engine.model_request import build_again, calls_of
from conversations.errors import CannotReplay
from conversations.models import Message, Replay, Turn
from conversations.options import Options
from conversations.replay_models import Unrecorded
from tools import gate

# What a call is answered that is not on record, and by which rule.
NOT_ON_RECORD = gate.Refused("replay:not_on_record", "The original turn did not make this call, so it was not run.")


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is other than in the turn. ``model``, ``temperature``: None, as it was. ``version``: of the agent; None: the
    one that the turn had. ``tools``: the names of those that are offered; None: those that were. ``unrecorded``: what
    a call is answered that is not on record."""

    model: str | None = None
    temperature: float | None = None
    version: int | None = None
    tools: Sequence[str] | None = None
    unrecorded: str = Unrecorded.REFUSE

    @staticmethod
    def names_in(text: str) -> list[str]:
        """Names of tools as people write them: separated by commas."""
        return [name.strip() for name in text.split(",") if name.strip()]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Changes":
        """Those of a row."""
        return cls(**stored)

    def as_json(self) -> dict[str, Any]:
        """As a row keeps them: without those that change nothing."""
        given: dict[str, Any] = {"model": self.model, "temperature": self.temperature, "version": self.version}
        given["tools"] = None if self.tools is None else list(self.tools)
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return found | ({"unrecorded": self.unrecorded} if self.unrecorded != Unrecorded.REFUSE else {})


class Record:
    """The tool calls of a turn with their answers, by name and arguments. Of calls that were made several times, each
    is answered as it then was, and the last answer is given again."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._answers: dict[tuple[str, str], deque[str]] = defaultdict(deque)
        self.calls: list[dict[str, str]] = []
        results = {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}
        for message in messages:
            for call in message.get("tool_calls") or ():
                name, arguments = _parts_of(call)
                answer = results.get(call["id"])
                if answer is not None:
                    self._answers[name, canonical(arguments)].append(answer)
                self.calls.append({"name": name, "arguments": arguments, "answer": answer or ""})

    def answer(self, call: Mapping[str, Any]) -> str | None:
        """What a call was answered; None if it is not on record."""
        name, arguments = _parts_of(call)
        known = self._answers.get((name, canonical(arguments)))
        if not known:
            return None
        return known.popleft() if len(known) > 1 else known[0]


def _parts_of(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    return str(function["name"]), str(function["arguments"])


def canonical(arguments: str) -> str:
    """Arguments in one form, in whatever order and with whatever blanks a model wrote them; what is no JSON stays."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What a replay is asked. ``agent``: as it is for the replay, not to be saved. ``request``: the first. ``own``: the
    turn's messages that the first request has already. ``original``: what the turn was answered. ``doubts``: why it may
    not be what the turn was asked."""

    agent: Agent
    request: ModelRequest
    own: list[ChatMessage]
    record: Record
    unrecorded: str
    owner_id: int
    conversation_id: UUID
    tainted_by: str = ""
    original: str = ""
    doubts: list[str] = field(default_factory=list)

    @property
    def max_rounds(self) -> int:
        """Rounds of tool calls that are answered."""
        return settings.AGENT_MAX_TOOL_ROUNDS if self.agent.max_tool_rounds is None else self.agent.max_tool_rounds


def freeze(row: Replay) -> Frozen:
    """What a replay is asked, from what is stored; raises :class:`CannotReplay`."""
    turn, changes = row.turn, Changes.of(row.changes)
    if turn is None:
        raise CannotReplay("The turn is gone.")
    conversation = turn.conversation
    first = next(iter(calls_of(turn)), None)
    if first is None or first.record is None:
        raise CannotReplay("Nothing is kept of what the turn's model was sent.")
    kept = dict(first.record)
    if changes.version is not None:
        kept["agent"] = changes.version
    agent = Agent.of_profile(profile_of(conversation.agent, kept["agent"]), pk=conversation.agent_id)
    if changes.version is not None and "tools" in kept:
        # A version that may use other tools is told of those.
        allowed = agent.allowed_tools(owner_id=conversation.owner_id)
        kept["tools"] = [tool.name for tool in gate.offered(agent_tools=allowed)]
    if changes.tools is not None:
        kept["tools"] = list(changes.tools)
    sent = build_again(conversation, row.model, kept, turn=turn)
    if sent.request is None:
        raise CannotReplay(f"What the model was sent cannot be built again: {'; '.join(sent.doubts)}.")
    said = list(Message.objects.filter(turn=turn, kind=Message.Kind.SAID).transcript())
    chat: list[ChatMessage] = [each.as_chat() for each in said]
    asks = next((at for at, each in enumerate(chat) if each["role"] == Message.Role.ASSISTANT), len(chat))
    return Frozen(
        agent=agent,
        request=_request_of(sent.request, agent=agent, turn=turn, changes=changes),
        own=chat[:asks],
        record=Record(chat),
        unrecorded=changes.unrecorded,
        owner_id=turn.owner_id,
        conversation_id=conversation.pk,
        tainted_by=conversation.tainted_by,
        original=str(original_of(turn)["words"]),
        doubts=[] if changes.version or changes.tools is not None else list(sent.doubts),
    )


def profile_of(agent: Agent, number: int) -> dict[str, Any]:
    """A version of an agent, as it is kept; raises :class:`CannotReplay` if it is not."""
    found = AgentVersion.objects.filter(agent=agent, number=number).values_list("profile", flat=True).first()
    if found is None:
        raise CannotReplay(f"Version {number} of the agent {agent.name} is not kept.")
    profile: dict[str, Any] = found
    return profile


def _request_of(built: ModelRequest, *, agent: Agent, turn: Turn, changes: Changes) -> ModelRequest:
    """The request with what it was asked with besides words, and with what is to be other."""
    asked = replace(
        built,
        provider=agent.provider if changes.model in (None, agent.own_model()) else "",
        effort=agent.reasoning_effort,
        temperature=agent.temperature,
    )
    if given := Options.of(turn.options).applied(asked, is_first=True):
        asked = replace(asked, **given)
    if changes.temperature is not None:
        asked = replace(asked, temperature=changes.temperature)
    if asked.answer is None or changes.model is None:
        return asked
    try:
        choice = llm.choose(asked.model, asked.provider)
    except NoProvider:  # which whoever asks is told
        return asked
    if takes_schema(choice.provider, choice.model, asked.answer, with_tools=bool(asked.tools)):
        return asked
    # Another model is told of the form in words.
    system = asked.messages[0] | {
        "content": f"{asked.messages[0]['content']}{SECTION}{answer_schemas.in_words(asked.answer)}"
    }
    return replace(asked, answer=None, messages=[system, *asked.messages[1:]])


def answer_unrecorded(frozen: Frozen, call: Mapping[str, Any]) -> str:
    """What a call is answered that is not on record. Nothing runs: the gate says at most what it would do."""
    if frozen.unrecorded != Unrecorded.SIMULATE:
        return NOT_ON_RECORD.outcome().result
    name, arguments = _parts_of(call)
    verdict = gate.simulate(
        name,
        arguments,
        agent_tools=frozen.agent.allowed_tools(
            tainted_by=frozen.tainted_by,
            destinations=lambda: outgoing.names(frozen.agent),
            owner_id=frozen.owner_id,
        ),
        owner_id=frozen.owner_id,
        conversation_id=frozen.conversation_id,
    )
    if verdict.refusal:
        return verdict.refusal.outcome().result
    consent = f" once somebody has approved it ({verdict.consent})" if verdict.consent else ""
    said = f"The gate would let this call run{consent}. It was not run: this is a replay."
    return json.dumps({"status": "SIMULATED", "message": said}, ensure_ascii=False)


# --- beside the original -----------------------------------------------------------------------------------------


def original_of(turn: Turn) -> dict[str, Any]:
    """What became of a turn, in the form of a replay's ``result``."""
    said = list(Message.objects.filter(turn=turn, kind=Message.Kind.SAID).transcript())
    chat: list[ChatMessage] = [each.as_chat() for each in said]
    words = [each["content"] for each in chat if each["role"] == Message.Role.ASSISTANT]
    return {
        "words": words[-1] if words and not unanswered_calls(chat) else "",
        "calls": Record(chat).calls,
        "promptTokens": turn.prompt_tokens,
        "completionTokens": turn.completion_tokens,
        "cost": turn.cost,
        "ms": turn.model_ms,
        "modelCalls": turn.model_calls,
    }
