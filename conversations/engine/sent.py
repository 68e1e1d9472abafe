"""What a model was sent: kept as a record of some 200 bytes with its answer, and built again from it.

A prompt is made of what is stored: messages, a summary, a version of the agent and one of the memory. So the record
only says which of them, and by how much the history was cut. What is built again is held against the record's
checksums: if they agree, it is what was sent, byte by byte; if not, it is said so. They no longer do when a release
words its prompts or describes its tools in another way, or when TIME_ZONE is changed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from django.conf import settings

from agent.llm.base import ModelRequest
from agent.loop import ChatMessage, Limit
from agent.models import PROMPT_DOCUMENTS, AgentVersion
from agent.prompt import Background, Pinned, build_prompt
from conversations import pins
from conversations.engine import claims
from conversations.models import Conversation, Message, Turn
from memory import log
from memory.models import MemoryVersion
from tools import registry
from tools.errors import UnknownTool

# --- making a prompt ---------------------------------------------------------------------------------------------


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
) -> list[ChatMessage]:
    """The prompt. ``room``: the tokens it may have. ``result_chars``: the characters of a tool's result."""
    return build_prompt(
        background=background,
        transcript=transcript,
        result_chars=result_chars,
        most=claims.MOST_MESSAGES,
        tokens=room,
        limit=limit,
    )


# --- keeping a record --------------------------------------------------------------------------------------------


def record(
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
        "sum": _digest(request.messages),
        "toolsum": _digest(request.tools)[:16],
    }
    return {name: value for name, value in kept.items() if value}


def _digest(value: Any) -> str:
    """32 hexadecimal digits."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
    said = claims.said_between(conversation.pk, kept["first"], kept["last"])
    messages = prompt_of(background, said, room=kept["room"], result_chars=kept["results"], limit=limit)
    if _digest(messages) != kept["sum"]:
        doubts.append("the messages differ: another release or other settings made them")
    offered, gone = _functions([] if limit else names)
    if gone:
        doubts.append(f"no code registers the tool {', '.join(gone)} any more")
    elif _digest(offered)[:16] != kept["toolsum"]:
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
