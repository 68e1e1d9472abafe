"""What every model client offers. Values only: no Django, no storage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.answer_schemas import AnswerFormat
from agent.loop import ChatMessage
from nanohost.lib.text import storable

# As many as OpenAI lets a model be offered; an answer with more has run wild.
MAX_TOOL_CALLS = 128


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One call of a model. ``messages`` and ``tools`` in the OpenAI chat format; without tools, none are offered.

    ``tool_choice``: the name of the tool that it has to call; empty where that is up to the model. ``must_call``: it
    has to call one of them. ``max_tokens``: of the answer, what is thought aloud included; None where nothing bounds it
    but the model. ``provider``: the one that its agent names, if it names one. ``effort``: how much it is to think,
    low, medium or high; empty: as it does by itself. ``answer``: what its provider is told of the form of its answer;
    None: nothing. ``temperature``: None: as the provider has it. ``parameters``: other parameters of Chat Completions,
    by their names there; a provider that has none of that kind is not told.

    An assistant's message may have ``thoughts``: what its provider is sent back of what the model thought before it,
    ``by`` whom it was answered, the ``text`` of it, and the provider's own ``blocks``. They are that provider's alone.

    A user's message may have ``attachments`` (see :mod:`agent.images`); ``pictures``: the bytes of the pictures among
    them, in base64, by their hash.
    """

    model: str
    messages: list[ChatMessage]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = ""
    must_call: bool = False
    max_tokens: int | None = None
    provider: str = ""
    effort: str = ""
    answer: AnswerFormat | None = None
    temperature: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens, as the provider counts them; 0 where it says nothing. ``cached_tokens``: those of the prompt that it had
    kept from before, which cost less. ``written_tokens``: those that it keeps from now on, where that costs more."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            written_tokens=self.written_tokens + other.written_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model answered: text, tool calls in the OpenAI chat format, or both; and what it thought aloud before.

    ``took_ms``: how long the call took, in milliseconds, 1 at least; 0 for what no model was asked for. ``provider``:
    who was asked, and ``why`` that one, in words. ``thoughts``: of what it thought, what the provider wants to be sent
    back as it is. ``is_cut``: it ends where it had no more tokens, and not where the model was done.
    """

    content: str = ""
    reasoning: str = ""
    thoughts: tuple[dict[str, Any], ...] = ()
    tool_calls: tuple[dict[str, Any], ...] = ()
    model: str = ""
    usage: Usage = Usage()
    took_ms: int = 0
    provider: str = ""
    why: str = ""
    is_cut: bool = False

    def as_message(self) -> ChatMessage:
        """The answer as a message of the chat."""
        message: ChatMessage = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        if self.reasoning or self.thoughts:
            message["thoughts"] = {"by": self.provider, "text": self.reasoning, "blocks": list(self.thoughts)}
        return message


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of an answer, as it arrives; one of the two is not empty. It can be stored as it is."""

    content: str = ""
    reasoning: str = ""


OnDelta = Callable[[Delta], None]


class LlmClient(Protocol):
    """A provider. One client serves all turns of a process; calls run side by side on its event loop."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        """Ask the model; raises :class:`agent.errors.LlmError`. Cancelling the call closes its connection.

        With ``on_delta`` the answer is streamed: each piece of its text is handed over in order, on the event loop,
        so the function must be quick. The completion is the same as without; if the call fails, the pieces that came
        before are worth nothing. What ``on_delta`` raises ends the call, and is raised.
        """
        ...

    async def list_models(self) -> list[str]:
        """The models that the provider says it has; raises :class:`agent.errors.LlmError`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call in the OpenAI chat format; ``arguments`` is JSON text, as the model wrote it."""
    return {"id": call_id, "type": "function", "function": {"name": storable(name), "arguments": storable(arguments)}}


def with_unique_ids(tool_calls: Sequence[dict[str, Any]], *, taken: set[str], fresh: Any) -> tuple[dict[str, Any], ...]:
    """The calls with an id each that is not taken; some models repeat ids, count from 0 each round, or give none."""
    seen = set(taken)
    unique = []
    for call in tool_calls:
        call_id = storable(call["id"] or "")[:128]
        if not call_id or call_id in seen:
            call_id = fresh()
        seen.add(call_id)
        unique.append(call | {"id": call_id})
    return tuple(unique)
