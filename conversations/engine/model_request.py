"""What a model is sent: built for a step, kept as a record of some 200 bytes with its answer, and built again from it.

A prompt is made of what is stored: messages, a summary, a version of the agent and one of the memory. So the record
only says which of them, and by how much the history was cut. What is built again is held against the record's
checksums: if they agree, it is what was sent, byte by byte; if not, it is said so. They no longer do when a release
words its prompts or describes its tools in another way, or when TIME_ZONE or a skill is changed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from django.conf import settings

from agent import answer_schemas, images, llm, tokens
from agent.answer_schemas import AnswerFormat
from agent.errors import ModelCannotSee, NoProvider
from agent.fixed import as_json
from agent.llm.base import ModelRequest
from agent.llm.capabilities import can_see, takes_schema
from agent.loop import ChatMessage, Limit, is_heard_anew
from agent.models import PROMPT_DOCUMENTS, AgentVersion
from agent.prompt import Background, Pinned, build_prompt
from conversations import pins
from conversations.engine.compacting.parts import USED_SHARE
from conversations.engine.history import MAX_MESSAGES, said_between
from conversations.engine.step_context import StepContext
from conversations.models import Conversation, Message, Turn
from conversations.options import NOTHING, Options
from memory import log
from memory.models import MemoryVersion
from tools import registry
from tools.errors import UnknownTool
from tools.skills import shelf as skills

# A history that takes so much of its room is compacted before it has to be cut, to so much of it.
FULL_SHARE, KEPT_SHARE = 0.75, 0.4

# --- building it ---------------------------------------------------------------------------------------------


def background_of(
    profile: Mapping[str, Any],
    *,
    key: str,
    owner_id: int | None,
    memory: str,
    notes: str,
    summary: str,
    tools: Sequence[str],
    pinned: Sequence[Pinned] = (),
    options: Options = NOTHING,
    is_transient: bool = False,
) -> Background:
    """What a model is told before the history. ``profile``: of a version of the agent. ``key``: the conversation's. Of
    one that is there for a request only nothing is told: the next request has another, and prompts are to begin
    alike."""
    may_read = skills.TOOL in tools
    shelf = skills.shelf(agent=profile["name"], owner_id=owner_id) if may_read else skills.Shelf()
    channel, _, chat = ("" if is_transient else key).partition(":")
    return Background(
        system_prompt=profile["system_prompt"],
        agent=profile["name"],
        zone=settings.TIME_ZONE,
        documents={name: profile["documents"][name] for name in PROMPT_DOCUMENTS if name in profile["documents"]},
        memory=memory,
        notes=notes,
        skills=skills.always_of(shelf),
        skill_index=skills.index_of(shelf),
        channel=channel,
        chat=chat,
        summary=summary,
        pinned=pinned,
        tools=tools,
        instructions=options.instructions,
        is_stamped=not is_transient,
    )


def prompt_of(
    background: Background,
    transcript: Sequence[ChatMessage],
    *,
    room: int,
    result_chars: int,
    limit: Limit | None,
    form: AnswerFormat | None = None,
    again: Sequence[ChatMessage] = (),
    sees: bool = True,
) -> list[ChatMessage]:
    """The prompt. ``room``: the tokens it may have, without ``again``. ``result_chars``: the characters of a tool's
    result. ``form``: of the answer, if it is asked for in words. ``again``: what comes behind it, if it was answered
    before in another form. ``sees``: whether the model may be sent pictures."""
    prompt = build_prompt(
        background=background,
        transcript=images.shown(transcript, sees=sees),
        result_chars=result_chars,
        most=MAX_MESSAGES,
        tokens=room,
        limit=limit,
        form=answer_schemas.in_words(form) if form else "",
    )
    return [*prompt, *again]


def background(context: StepContext) -> Background:
    """What the model is told before the history, for a step."""
    claim, stored, agent = context.claim, context.snapshot, context.claim.agent
    return background_of(
        {"name": agent.name, "system_prompt": agent.system_prompt, "documents": agent.documents},
        key=claim.key,
        owner_id=claim.owner_id,
        memory=context.memory,
        notes=context.notes,
        summary=stored.summary,
        pinned=stored.pinned,
        tools=[tool["function"]["name"] for tool in context.tools],
        options=claim.options,
        is_transient=claim.is_transient,
    )


# How a model was told of the form that its answer is to have.
GIVEN, WORDS = "given", "words"


def told_form(context: StepContext, limit: Limit | None) -> str:
    """How the model is to be told of the form of its answer: by its provider, or in words; empty: it has none."""
    if (form := context.claim.answer_format) is None:
        return ""
    try:
        choice = llm.choose(context.model, context.provider)
    except NoProvider:  # which whoever asks is told
        return WORDS
    with_tools = bool(_offered(context, limit))
    return GIVEN if takes_schema(choice.provider, choice.model, form, with_tools=with_tools) else WORDS


def sees(context: StepContext) -> bool:
    """Whether the model of a step may be sent the pictures that there are."""
    if not any(images.images_in(context.snapshot.transcript)):
        return True
    try:
        choice = llm.choose(context.model, context.provider)
    except NoProvider:  # which whoever asks is told
        return True
    return can_see(choice.provider, choice.model)


def _cost_of(given: AnswerFormat | None) -> int:
    """Tokens of a schema that is given to a provider, which tells its model of it."""
    return tokens.estimated(given.schema_text) if given else 0


def _again(context: StepContext) -> list[ChatMessage]:
    """What comes behind the prompt of a turn whose answer was not in the form that was asked for."""
    return _of_answers(context.snapshot.invalid_answers)


def _of_answers(invalid: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    return answer_schemas.asked_again(invalid[-1]["content"], invalid[-1]["wrong"]) if invalid else []


def compact_to(context: StepContext, request: ModelRequest) -> int | None:
    """If the conversation is to be compacted once this request is answered: to how many tokens; else None. One that
    brings its whole history with each request is not: nobody would read the summary."""
    if context.claim.is_transient:
        return None
    stored, (system, *history) = context.snapshot, request.messages[: len(request.messages) - len(_again(context))]
    room = _room(context) - tokens.estimated_tools(request.tools) - tokens.estimated_message(system)
    is_long = stored.unconsolidated + 1 > context.claim.agent.compact_after() and not stored.is_left_long
    # Of what no summary covers: the rest is there in any case, and compacting would not make it less.
    open_ones = history[max(len(history) - stored.unconsolidated, 0) :]
    is_large = sum(map(tokens.estimated_message, open_ones)) > FULL_SHARE * room
    return max(int(KEPT_SHARE * room), 0) if is_long or is_large else None


def _offered(context: StepContext, limit: Limit | None) -> list[dict[str, Any]]:
    """The tools that a request offers: at a limit, none, nor to a model that has answered and only mends its answer."""
    if limit or context.snapshot.invalid_answers:
        return []
    return [*context.tools, *context.claim.options.offered()]


def _room_for_messages(context: StepContext, told: str, tools: list[dict[str, Any]]) -> int:
    """Tokens that a request's messages may have beside these tools, by an estimate that is not corrected."""
    besides = sum(map(tokens.estimated_message, _again(context)))
    besides += _cost_of(context.claim.answer_format) if told == GIVEN else 0
    return _room(context) - tokens.estimated_tools(tools) - besides


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
        self._told = told_form(context, limit)
        self._offers, self._sees = _offered(context, limit), sees(context)
        self._make()

    def _make(self) -> None:
        context, limit = self._context, self._limit
        self._room = _room_for_messages(context, self._told, self._offers)
        self.request, self.estimated = self._built()
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
            told=self._told,
            again=len(context.snapshot.invalid_answers),
            sees=self._sees,
        )

    def _built(self) -> tuple[ModelRequest, int]:
        """The request, and how many tokens it has, by an estimate that is not corrected."""
        context, told, tools = self._context, self._told, self._offers
        form = context.claim.answer_format if told else None
        prompt = prompt_of(
            background(context),
            context.snapshot.transcript,
            room=self._room,
            result_chars=settings.TOOL_RESULT_PROMPT_CHARS,
            limit=self._limit,
            # OpenAI wants to read in the prompt, too, that a JSON object is asked for.
            form=form if told == WORDS or (form and form.schema is None) else None,
            again=_again(context),
            sees=self._sees,
        )
        given = form if told == GIVEN else None
        estimated = tokens.estimated_tools(tools) + sum(map(tokens.estimated_message, prompt)) + _cost_of(given)
        request = ModelRequest(
            model=context.model,
            messages=prompt,
            tools=tools,
            provider=context.provider,
            effort=context.claim.agent.reasoning_effort,
            answer=given,
            temperature=context.claim.agent.temperature,
        )
        options, callers = context.claim.options, context.claim.callers_tools
        changes = options.applied(request, is_first=is_heard_anew(context.snapshot.own, callers))
        return replace(request, **changes) if changes else request, estimated

    def put_into_words(self) -> bool:
        """After it was refused: whether it had a schema, which is asked for in words now."""
        if self._told != GIVEN:
            return False
        self._told = WORDS
        self._make()
        return True

    def check(self) -> None:
        """Raise :class:`ModelCannotSee` if the turn itself has brought a picture that its model takes none of. Of
        earlier ones, words tell it; but a request that brings its whole history has brought those too."""
        snapshot, is_whole = self._context.snapshot, self._context.claim.is_transient
        if not self._sees and any(images.images_in(snapshot.transcript if is_whole else snapshot.own)):
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
    told: str,
    again: int,
    sees: bool,
) -> dict[str, Any]:
    """What is kept of a request. ``refused``: rooms of larger ones, which the model refused before as too long.
    ``told``: see :func:`told_form`. ``again``: how many answers there were before in another form."""
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
        "schema": told,
        "again": again,
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
    """A call of the model in a turn. ``answer`` None: it got none, or one that was not in the form that was asked for,
    which is ``invalid``. ``record`` None: nothing was kept of it."""

    answer: Message | None
    record: dict[str, Any] | None = field(repr=False)
    invalid: Mapping[str, Any] | None = field(repr=False, default=None)


def calls_of(turn: Turn) -> list[ModelCall]:
    """The model calls of a turn, in their order."""
    answers = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, kind=Message.Kind.SAID, seq__isnull=False)
    found = [ModelCall(answer=each, record=each.sent) for each in answers.defer("content").order_by("seq")]
    if invalid := [ModelCall(answer=None, record=each["sent"], invalid=each) for each in turn.invalid_answers or ()]:
        # Behind all that has called tools.
        place = sum(1 for each in found if each.answer and each.answer.tool_calls)
        found[place:place] = invalid
    if turn.sent:
        place = sum(1 for each in found if each.answer and (each.answer.seq or 0) <= turn.sent["last"])
        place += turn.sent.get("again", 0)
        found.insert(place, ModelCall(answer=None, record=turn.sent))
    return found


def build_again(conversation: Conversation, model: str, kept: dict[str, Any], *, turn: Turn | None = None) -> Sent:
    """What a model was sent, from its record. ``turn``: whose it is, for what it was asked with besides words."""
    asked_with, is_transient = Options.of(turn.options if turn else None), conversation.is_transient
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
    told |= {"options": asked_with, "is_transient": is_transient}
    background = background_of(profile, key=conversation.key, owner_id=conversation.owner_id, tools=names, **told)
    said = said_between(conversation.pk, kept["first"], kept["last"], is_stamped=not is_transient)
    form, again = None, []
    if "schema" in kept:
        of_turn = turn.response_format if turn else ""
        form = answer_schemas.stored(of_turn, profile.get("answer_schema", ""), profile["name"])
        again = _of_answers((turn.invalid_answers or ())[: kept["again"]]) if turn and "again" in kept else []
    in_words = form if kept.get("schema") == WORDS or (form and form.schema is None) else None
    bounds: dict[str, Any] = {"room": kept["room"], "result_chars": kept["results"], "limit": limit}
    messages = prompt_of(background, said, **bounds, form=in_words, again=again, sees=not kept.get("blind"))
    if _digest(as_json(messages)) != kept["sum"]:
        doubts.append("the messages differ: another release or other settings made them")
    tells_none = bool(limit) or "again" in kept
    offered, gone = _functions([] if tells_none else names)
    offered += [] if tells_none else asked_with.offered()
    if gone:
        doubts.append(f"no code registers the tool {', '.join(gone)} any more")
    elif _digest(as_json(offered))[:16] != kept["toolsum"]:
        doubts.append("the tools are described in another way by now")
    answer = form if kept.get("schema") == GIVEN else None
    return Sent(request=ModelRequest(model=model, messages=messages, tools=offered, answer=answer), doubts=doubts)


def _functions(names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools as a model is told of them; and the names of those that are gone."""
    found, gone = [], []
    for name in names:
        try:
            found.append(registry.get(name).as_function())
        except UnknownTool:
            gone.append(name)
    return found, gone
