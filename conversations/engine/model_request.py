"""What a model is sent: built for a step, kept as a record of some 200 bytes with its answer, and built again from it.

A prompt is made of what is stored: messages, a summary, a version of the agent and one of the memory. So the record
only says which of them, and by how much the history was cut. What is built again is held against the record's
checksums: if they agree, it is what was sent, byte by byte; if not, it is said so. They no longer do when a release
words its prompts or describes its tools in another way, or when TIME_ZONE is changed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from django.conf import settings

from agent import images, tokens
from agent.errors import ModelCannotSee
from agent.fixed import as_json
from agent.llm.base import ModelRequest
from agent.llm.capabilities import can_see
from agent.loop import ChatMessage, Limit
from agent.models import PROMPT_DOCUMENTS, AgentVersion
from agent.prompt import Background, Pinned, build_prompt
from conversations import pins
from conversations.engine.compaction import USED_SHARE
from conversations.engine.history import MAX_MESSAGES, said_between
from conversations.engine.step_context import StepContext
from conversations.models import Conversation, Message, Turn
from memory import log
from memory.models import MemoryVersion
from tools import registry
from tools.errors import UnknownTool

# A history that takes so much of its room is compacted before it has to be cut, to so much of it.
FULL_SHARE, KEPT_SHARE = 0.75, 0.4

# --- building it ---------------------------------------------------------------------------------------------


def background_of(
    profile: Mapping[str, Any],
    *,
    key: str,
    memory: str,
    notes: str,
    summary: str,
    tools: Sequence[str],
    pinned: Sequence[Pinned] = (),
) -> Background:
    """What a model is told before the history. ``profile``: of a version of the agent. ``key``: the conversation's."""
    channel, _, chat = key.partition(":")
    return Background(
        system_prompt=profile["system_prompt"],
        agent=profile["name"],
        zone=settings.TIME_ZONE,
        documents={name: profile["documents"][name] for name in PROMPT_DOCUMENTS if name in profile["documents"]},
        memory=memory,
        notes=notes,
        channel=channel,
        chat=chat,
        summary=summary,
        pinned=pinned,
        tools=tools,
    )


def prompt_of(
    background: Background,
    transcript: Sequence[ChatMessage],
    *,
    room: int,
    result_chars: int,
    limit: Limit | None,
    sees: bool = True,
) -> list[ChatMessage]:
    """The prompt. ``room``: the tokens it may have. ``result_chars``: the characters of a tool's result. ``sees``:
    whether the model may be sent pictures."""
    return build_prompt(
        background=background,
        transcript=images.shown(transcript, sees=sees),
        result_chars=result_chars,
        most=MAX_MESSAGES,
        tokens=room,
        limit=limit,
    )


def background(context: StepContext) -> Background:
    """What the model is told before the history, for a step."""
    claim, stored, agent = context.claim, context.snapshot, context.claim.agent
    return background_of(
        {"name": agent.name, "system_prompt": agent.system_prompt, "documents": agent.documents},
        key=claim.key,
        memory=context.memory,
        notes=context.notes,
        summary=stored.summary,
        pinned=stored.pinned,
        tools=[tool["function"]["name"] for tool in context.tools],
    )


def sees(context: StepContext) -> bool:
    """Whether the model of a step may be sent the pictures that there are."""
    has_some = any(images.images_in(context.snapshot.transcript))
    return not has_some or can_see(context.model, context.provider)


def build(context: StepContext, limit: Limit | None) -> tuple[ModelRequest, int]:
    """What the model is to be asked for a step, and how many tokens that is, by an estimate that is not corrected."""
    tools = _offered(context, limit)
    prompt = prompt_of(
        background(context),
        context.snapshot.transcript,
        room=_room_for_messages(context, limit),
        result_chars=settings.TOOL_RESULT_PROMPT_CHARS,
        limit=limit,
        sees=sees(context),
    )
    estimated = tokens.estimated_tools(tools) + sum(map(tokens.estimated_message, prompt))
    request = ModelRequest(
        model=context.model,
        messages=prompt,
        tools=tools,
        provider=context.provider,
        effort=context.claim.agent.reasoning_effort,
    )
    return request, estimated


def compact_to(context: StepContext, request: ModelRequest) -> int | None:
    """If the conversation is to be compacted once this request is answered: to how many tokens; else None."""
    stored, (system, *history) = context.snapshot, request.messages
    room = _room(context) - tokens.estimated_tools(request.tools) - tokens.estimated_message(system)
    is_long = stored.unconsolidated + 1 > settings.MEMORY_COMPACT_AFTER and not stored.is_left_long
    # Of what no summary covers: the rest is there in any case, and compacting would not make it less.
    open_ones = history[max(len(history) - stored.unconsolidated, 0) :]
    is_large = sum(map(tokens.estimated_message, open_ones)) > FULL_SHARE * room
    return max(int(KEPT_SHARE * room), 0) if is_long or is_large else None


def _offered(context: StepContext, limit: Limit | None) -> list[dict[str, Any]]:
    """The tools that a request offers: at a limit, none."""
    return [] if limit else context.tools


def _room_for_messages(context: StepContext, limit: Limit | None) -> int:
    """Tokens that a request's messages may have, by an estimate that is not corrected."""
    return _room(context) - tokens.estimated_tools(_offered(context, limit))


def _room(context: StepContext) -> int:
    """Tokens a prompt may have, counted as estimates are. No provider makes it larger by reporting few: some leave out
    what they had cached."""
    return int(USED_SHARE * context.claim.agent.prompt_tokens() / max(tokens.correction.ratio(context.model), 1.0))


class Asking:
    """What the model is asked for a step of a turn; if it is refused as too long, something smaller.

    ``record``: what is kept of it, from which it can be told later what was sent.
    """

    def __init__(self, context: StepContext, limit: Limit | None) -> None:
        self._context, self._limit = context, limit
        self._refused: list[int] = []
        self._make()

    def _make(self) -> None:
        context, limit = self._context, self._limit
        self._room = _room_for_messages(context, limit)
        self.request, self.estimated = build(context, limit)
        self.record = _record(
            self.request,
            room=self._room,
            limit=limit,
            refused=self._refused,
            agent_version=context.claim.agent.version,
            memory_version=context.memory_version,
            notes=context.notes,
            today=context.today,
            first_seq=context.snapshot.first_seq,
            last_seq=context.snapshot.last_seq,
            summary_seq=context.snapshot.summary_seq,
            pinned=context.snapshot.pinned,
            # Also where none is offered: the system prompt tells how to use them.
            tools=[tool["function"]["name"] for tool in context.tools],
            sees=sees(context),
        )

    def check(self) -> None:
        """Raise :class:`ModelCannotSee` if the turn itself has brought a picture that its model takes none of. Of
        earlier ones, words tell it."""
        if any(images.images_in(self._context.snapshot.own)) and not sees(self._context):
            raise ModelCannotSee(f"{self.request.model} takes text alone")

    def make_smaller(self) -> bool:
        """After it was refused as too long: dense text has more tokens than were estimated. Whether it is smaller now;
        what cannot be made smaller is refused for good."""
        tokens.correction.refused(self.request.model)
        before = self.estimated
        self._refused = [*self._refused, self._room]
        self._make()
        return self.estimated < before


# --- keeping a record --------------------------------------------------------------------------------------------


def _record(
    request: ModelRequest,
    *,
    room: int,
    limit: Limit | None,
    refused: Sequence[int],
    agent_version: int,
    memory_version: int,
    notes: str,
    today: date,
    first_seq: int,
    last_seq: int,
    summary_seq: int | None,
    pinned: Sequence[Pinned],
    tools: Sequence[str],
    sees: bool,
) -> dict[str, Any]:
    """What is kept of a request. ``refused``: rooms of larger ones, which the model refused before as too long."""
    kept = {
        "agent": agent_version,
        "memory": memory_version,
        "notes": [today.isoformat(), _digest(notes)[:8]] if notes else None,
        "first": first_seq,
        "last": last_seq,
        "summary": summary_seq,
        "pins": [each.seq for each in pinned],
        "tools": list(tools),
        "room": room,
        "results": settings.TOOL_RESULT_PROMPT_CHARS,
        "limit": limit and limit.value,
        "refused": list(refused),
        # By hash; their bytes are in the storage, and what they say is in the messages.
        "files": list(dict.fromkeys(each["sha256"] for one in request.messages for each in one.get("attachments", ()))),
        "blind": not sees,
        "sum": _digest(as_json(request.messages)),
        "toolsum": _digest(as_json(request.tools))[:16],
    }
    return {name: value for name, value in kept.items() if value}


def _digest(text: str) -> str:
    """32 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


# --- and building it again ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A request as it was, or nearly.

    ``request`` None: it cannot be built again. ``doubts``: why it is not, or may not be, what was sent; none: it is.
    """

    request: ModelRequest | None
    doubts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """A call of the model in a turn. ``answer`` None: it got none. ``record`` None: nothing was kept of it."""

    answer: Message | None
    record: dict[str, Any] | None = field(repr=False)


def calls_of(turn: Turn) -> list[ModelCall]:
    """The model calls of a turn, in their order."""
    answers = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, kind=Message.Kind.SAID, seq__isnull=False)
    found = [ModelCall(answer=each, record=each.sent) for each in answers.defer("content").order_by("seq")]
    if turn.sent:
        place = sum(1 for each in found if each.answer and (each.answer.seq or 0) <= turn.sent["last"])
        found.insert(place, ModelCall(answer=None, record=turn.sent))
    return found


def build_again(conversation: Conversation, model: str, kept: dict[str, Any]) -> Sent:
    """What a model was sent, from its record."""
    whose: dict[str, Any] = {"owner_id": conversation.owner_id, "agent": conversation.agent.name}
    doubts: list[str] = []
    if (through := conversation.erased_through) and kept["first"] <= through:
        doubts.append(f"messages up to {through} were deleted, by their age")
    elif (through := conversation.results_erased_through) and kept["first"] <= through:
        doubts.append(f"results of tools up to message {through} were deleted, by their age")
    versions = AgentVersion.objects.filter(agent=conversation.agent_id, number=kept["agent"])
    profile = versions.values_list("profile", flat=True).first()
    if profile is None:
        doubts.append(f"version {kept['agent']} of the agent is not kept")
    memory: str | None = ""
    if number := kept.get("memory"):
        memory = MemoryVersion.objects.filter(**whose, number=number).values_list("content", flat=True).first()
        if memory is None:
            doubts.append(f"version {number} of the long-term memory is gone")
    summary: str | None = ""
    if seq := kept.get("summary"):
        written = Message.objects.filter(conversation=conversation, seq=seq)
        summary = written.values_list("content", flat=True).first()
        if summary is None:
            doubts.append(f"the summary, message {seq}, is gone")
    notes: str | None = ""
    if of_day := kept.get("notes"):
        day, digest = date.fromisoformat(of_day[0]), of_day[1]
        then = (text for text in log.notes_as_they_were(**whose, day=day) if _digest(text)[:8] == digest)
        notes = next(then, None)
        if notes is None:
            doubts.append(f"the notes of {day} have changed")
    if profile is None or memory is None or summary is None or notes is None:
        return Sent(request=None, doubts=doubts)
    names, limit = kept.get("tools", []), Limit(kept["limit"]) if "limit" in kept else None
    pinned = pins.for_prompt(conversation.pk, kept.get("pins", []), first_seq=kept.get("first", 0))
    if len(pinned) != len(kept.get("pins", [])):
        doubts.append("a pinned message is gone")
    told: dict[str, Any] = {"memory": memory, "notes": notes, "summary": summary, "pinned": pinned}
    background = background_of(profile, key=conversation.key, tools=names, **told)
    said = said_between(conversation.pk, kept["first"], kept["last"])
    how: dict[str, Any] = {"room": kept["room"], "result_chars": kept["results"], "sees": not kept.get("blind")}
    messages = prompt_of(background, said, limit=limit, **how)
    if _digest(as_json(messages)) != kept["sum"]:
        doubts.append("the messages differ: another release or other settings made them")
    offered, gone = _functions([] if limit else names)
    if gone:
        doubts.append(f"no code registers the tool {', '.join(gone)} any more")
    elif _digest(as_json(offered))[:16] != kept["toolsum"]:
        doubts.append("the tools are described in another way by now")
    return Sent(request=ModelRequest(model=model, messages=messages, tools=offered), doubts=doubts)


def _functions(names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools as a model is told of them; and the names of those that are gone."""
    found, gone = [], []
    for name in names:
        try:
            found.append(registry.get(name).as_function())
        except UnknownTool:
            gone.append(name)
    return found, gone
