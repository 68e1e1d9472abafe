"""Chat completions: the array of a request is the transcript, and its answer a turn of an agent.

The turn is as durable as any: stored before it is begun, audited, paid for. What goes with the request is a
conversation of its own, which is not listed, not summed up, and deleted after TRANSIENT_DAYS; or, where the request
names one, a conversation that stays, to which only what is new in the array is appended.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from uuid import UUID

from django.http import JsonResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request

from agent.loop import ChatMessage
from conversations.engine import caller, inbox, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import TurnProblem, UnknownCall
from conversations.events import Success
from conversations.events.answers import Answer, accepted, as_response, problem_answer
from conversations.models import CallerRound, Conversation, Turn
from conversations.openai_api import caller_tools, ids, sent_back, shapes
from conversations.openai_api.chunks import ChunkWire
from conversations.openai_api.conversations import conversation_of
from conversations.openai_api.errors import InvalidValue
from conversations.openai_api.messages import Transcript, transcript_of
from conversations.openai_api.models import AsModel, model_of
from conversations.openai_api.parameters import answer_format, model_parameters
from conversations.openai_api.parts import refuse_too_much
from conversations.openai_api.shapes import errors
from conversations.openai_api.turn_parts import Part, Used, first_message, is_over, part_of
from conversations.openai_api.values import as_flag, as_object, as_one_of, as_text, metadata_of, or_else
from conversations.openai_api.views import KeyView
from conversations.options import Options
from conversations.web.gateway import await_turn, new_turn_id
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import IDEMPOTENCY_KEY, idempotency_key, owner_of, request_id
from nanohost.lib.errors import NotFound
from nanohost.lib.openai_errors import PREFIX

CONVERSATION_HEADER = "X-Conversation-Id"
IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY}$"},
    OpenApiParameter.HEADER,
    description="1 to 255 of ASCII, without spaces: the same key and body get the same turn's answer.",
)
_CONVERSATION = OpenApiParameter(
    CONVERSATION_HEADER,
    str,
    OpenApiParameter.HEADER,
    description="A persistent conversation: the new messages of the array are appended to it.",
)
ON_BUSY = ("enqueue", "reject", "interrupt")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, read. ``conversation_id``: of the conversation that it names. ``on_busy``: what becomes of it while a
    turn of that is open."""

    model: AsModel
    transcript: Transcript
    options: Options
    streams: bool
    tells_usage: bool
    tells_progress: bool
    conversation_id: str
    on_busy: inbox.OnBusy
    response_format: str
    body_hash: str


def read(request: Request) -> Asked:
    """Read a request's body and headers; raises what is wrong with it."""
    body = as_object(request.data, None)
    key = key_of(request)
    model = model_of(key, as_text(body.get("model"), "model", least=1, most=128))
    transcript = transcript_of(body.get("messages"))
    tools = caller_tools.functions_of(body.get("tools"))
    given = body.get("tool_choice")
    chosen = as_object(given.get("function"), "tool_choice.function").get("name") if isinstance(given, dict) else given
    choice, is_named = caller_tools.choice_of(body, chosen)
    if not model.is_plain:
        caller_tools.refuse_own_names(tools, model.agent, owner_id=key.owner_id)
    if is_named:
        allowed = model.agent.allowed_tools(owner_id=key.owner_id)
        caller_tools.refuse_unknown_choice(choice, tools, allowed, is_plain=model.is_plain)
    metadata = metadata_of(body)
    stream_options = as_object(or_else(body.get("stream_options"), {}), "stream_options")
    conversation_id = request.headers.get(CONVERSATION_HEADER) or metadata.get("conversation_id", "")
    asked = json.dumps([body, conversation_id], ensure_ascii=False, sort_keys=True).encode()
    refuse_too_much(transcript.messages, body_bytes=len(asked), param="messages")
    return Asked(
        model=model,
        transcript=transcript,
        options=Options(
            instructions=transcript.instructions,
            tools=tools,
            tool_choice=choice,
            is_named_choice=is_named,
            is_plain=model.is_plain,
            parameters=model_parameters(body),
            metadata=metadata,
        ),
        streams=as_flag(or_else(body.get("stream"), False), "stream"),
        tells_usage=_flag_of(stream_options, "include_usage"),
        tells_progress=_flag_of(stream_options, "include_progress"),
        conversation_id=conversation_id,
        on_busy=as_one_of(metadata.get("on_busy", "enqueue"), "metadata.on_busy", ON_BUSY),  # type: ignore[arg-type]
        response_format=answer_format(body.get("response_format"), "response_format"),
        body_hash=hashlib.sha256(asked).hexdigest(),
    )


def _flag_of(stream_options: dict[str, Any], name: str) -> bool:
    return as_flag(or_else(stream_options.get(name), False), f"stream_options.{name}")


# --- whose turn it is --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The part of a turn that a request is answered with."""

    turn: Turn
    number: int = 0


def take(request: Request, asked: Asked) -> Taken:
    """Store what is asked, or find that it was stored before."""
    if asked.transcript.outputs and (taken := _goes_on(request, asked)):
        return taken
    if is_retry(request) and (earlier := inbox.retried(key=key_of(request), body_hash=asked.body_hash)):
        return Taken(turn=earlier)
    return Taken(turn=_stored(request, asked) if asked.conversation_id else _transient(request, asked))


def is_retry(request: Request) -> bool:
    """Whether OpenAI's packages send it once more by themselves, after a time-out, a 5xx or a cut connection."""
    count = request.headers.get("X-Stainless-Retry-Count", "0")
    return count.isascii() and count.isdigit() and bool(count.strip("0"))


def _goes_on(request: Request, asked: Asked) -> Taken | None:
    """The turn that waits for these outputs, gone on with; None if none does: what the array says is then taken for
    what was said before."""
    outputs = asked.transcript.outputs
    found = caller.find(outputs, owner_id=owner_of(request))
    if found and (found.turn.conversation.agent_id != asked.model.agent.pk or not _names(found, asked)):
        found = None
    if found and caller.is_repeated(found, outputs):
        return Taken(turn=found.turn, number=found.number + 1)
    if found and caller.is_open(found):
        turn = caller.answer(found, outputs, options=asked.options, request_id=request_id(request))
        return Taken(turn=turn, number=found.number + 1)
    if asked.conversation_id:
        raise UnknownCall("No turn of this conversation waits for these outputs.", param="messages")
    return None


def _names(found: CallerRound, asked: Asked) -> bool:
    """Whether it is in the conversation that the request names, or in none that stays."""
    conversation = found.turn.conversation
    if not asked.conversation_id:
        return bool(conversation.is_transient)
    return conversation.pk == ids.row_of(asked.conversation_id, ids.CONVERSATION)


def _transient(request: Request, asked: Asked) -> Turn:
    """A turn in a conversation of its own."""
    owner_id, at = owner_of(request), asked.transcript.asked_at
    messages = sent_back.marked(asked.transcript.messages, owner_id=owner_id)
    follows = messages[at + 1 :]
    give_way(messages, owner_id=owner_id)
    incoming = Incoming(
        messages[at]["content"],
        files=messages[at].get("files", ()),
        history=messages[:at],
        follows=follows,
        options=replace(asked.options, brought=sum(each["role"] == "assistant" for each in follows)),
        response_format=asked.response_format,
    )
    conversation = inbox.transient_conversation(
        owner_id=owner_id, agent=asked.model.agent, metadata=asked.options.metadata
    )
    return inbox.receive(incoming, conversation=conversation, **_as_received(request, asked))


def give_way(messages: Sequence[ChatMessage], *, owner_id: int) -> None:
    """What was waiting for outputs that a transcript now goes on from has its answer here."""
    last = next((each["tool_calls"] for each in reversed(messages) if each.get("tool_calls")), ())
    found = caller.find([call["id"] for call in last], owner_id=owner_id)
    if found and found.turn.conversation.is_transient and caller.is_open(found):
        turn_control.cancel_turn(found.turn)


def _stored(request: Request, asked: Asked) -> Turn:
    """A turn in the conversation that the request names."""
    conversation = _conversation(request, asked)
    said = asked.transcript.new
    if any(message["role"] == "tool" for message in said):
        raise UnknownCall("No turn of this conversation waits for these outputs.", param="messages")
    if (pending := caller.pending(conversation.pk)) and asked.on_busy != "interrupt":
        missing = f"No tool output found for function call {pending.calls[0]['id']}."
        raise InvalidValue(f"{missing} With metadata.on_busy interrupt, its turn is cancelled.", param="messages")
    incoming = Incoming(
        "\n\n".join(message["content"] for message in said),
        files=[file for message in said for file in message.get("files", ())],
        options=asked.options,
        response_format=asked.response_format,
    )
    return inbox.receive(incoming, conversation=conversation, on_busy=asked.on_busy, **_as_received(request, asked))


def _as_received(request: Request, asked: Asked) -> dict[str, Any]:
    return {
        "idempotency_key": idempotency_key(request),
        "body_hash": asked.body_hash,
        "request_id": request_id(request),
        "turn_id": new_turn_id(request),
        "while_paused": "refuse",
        "key": key_of(request),
    }


def _conversation(request: Request, asked: Asked) -> Conversation:
    conversation = conversation_of(request, asked.conversation_id)
    if conversation.agent_id != asked.model.agent.pk:
        raise InvalidValue(f"This conversation is with the agent {conversation.agent.name}.", param="model")
    return conversation


# --- how it is answered ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ChatCompletion:
    """Renders a part of a turn as a chat completion."""

    model: str
    turn_id: UUID
    number: int
    created: int
    tells_usage: bool = False
    tells_progress: bool = False
    # Of the conversation that stays.
    conversation_id: str = ""
    # Of the turn's messages, the first that is part of it.
    first_message: int = 0

    @property
    def id(self) -> str:
        """Told from the turn; the parts behind the first have a number."""
        return f"chatcmpl-{self.turn_id.hex}" + (f"-{self.number}" if self.number else "")

    def is_answered(self, turn: Turn) -> bool:
        return is_over(turn, self.number)

    def current(self, turn_id: UUID, *, request_id: str) -> Answer | None:
        turn = Turn.objects.filter(pk=turn_id).first()
        if turn is None:
            return problem_answer(NotFound("The turn was deleted."), request_id, path=PREFIX)
        try:
            part = part_of(turn, self.number)
        except TurnProblem as failed:
            return problem_answer(failed, request_id, path=PREFIX)
        return self._answer(part) if part else None

    def succeeded(self, success: Success) -> Answer | None:
        if self.number or success["calls"] or success.get("rounds"):
            return None  # it may have said more than its reply
        used = Used(
            prompt_tokens=success["prompt_tokens"],
            completion_tokens=success["completion_tokens"],
            cached_tokens=success.get("cached_tokens", 0),
        )
        texts = [success["reply"]] if success["reply"] else []
        return self._answer(Part(texts=texts, calls=[], is_cut=success.get("is_cut", False), used=used))

    def wire(self) -> ChunkWire:
        return ChunkWire(
            head={
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": self.created,
                "model": self.model,
            },
            first_message=self.first_message,
            tells_usage=self.tells_usage,
            tells_progress=self.tells_progress,
        )

    def _answer(self, part: Part) -> Answer:
        message: dict[str, Any] = {"role": "assistant", "content": part.text, "refusal": None}
        if part.calls:
            message |= {"content": part.text or None, "tool_calls": part.calls}
        finish_reason = "tool_calls" if part.calls else "length" if part.is_cut else "stop"
        body = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
            "usage": usage_of(part.used),
        }
        headers = {CONVERSATION_HEADER: self.conversation_id} if self.conversation_id else {}
        return Answer(status=200, body=body, headers=headers)


def usage_of(used: Used) -> dict[str, Any]:
    """Tokens, as chat completions tell them."""
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }


class ChatCompletions(KeyView):
    """Ask an agent."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createChatCompletion",
        request=shapes.ChatCompletionRequest,
        parameters=[IDEMPOTENCY, _CONVERSATION],
        responses={
            (200, "application/json"): shapes.ChatCompletionView,
            (200, "text/event-stream"): shapes.ChatCompletionChunkView,
            **errors(402, 404, 409, 422, 502, 504),
        },
    )
    def post(self, request: Request) -> JsonResponse:
        """Ask an agent, and have its answer, or as chunks with `"stream": true`; see docs/openai.md."""
        asked = read(request)
        taken = take(request, asked)
        turn = taken.turn
        renderer = ChatCompletion(
            model=asked.model.name,
            turn_id=turn.pk,
            number=taken.number,
            created=int(turn.created_at.timestamp()),
            tells_usage=asked.tells_usage,
            tells_progress=asked.tells_progress,
            conversation_id=str(turn.conversation_id) if asked.conversation_id else "",
            first_message=first_message(turn, taken.number) if asked.streams else 0,
        )
        is_new = turn.pk == new_turn_id(request)
        if not asked.streams and not is_new and (answer := renderer.current(turn.pk, request_id=request_id(request))):
            return as_response(answer)
        await_turn(
            request,
            turn.pk,
            renderer=renderer,
            streams=asked.streams,
            is_held=True,
            cancels=key_of(request).cancel_on_disconnect,
        )
        return as_response(accepted(turn))
