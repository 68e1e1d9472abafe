"""Responses: an answer of an agent that its client can come back to.

A response is a part of a turn, and goes on from nothing, from a conversation that stays, or from a response before it.
Without a conversation that stays it stands in one that is in no list: with the responses that go on from it one after
the other. One that goes on from an earlier one has a copy of what came before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.db import transaction
from django.http import JsonResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agent import access
from agent.loop import ChatMessage
from conversations.engine import caller, inbox, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import ConversationBusy, UnknownCall
from conversations.events.answers import accepted, as_response
from conversations.models import CallerRound, Conversation, Message, StoredResponse, Turn
from conversations.openai_api import ids, sent_back, shapes
from conversations.openai_api.chat_completions import IDEMPOTENCY, give_way, is_retry
from conversations.openai_api.conversations import conversation_of
from conversations.openai_api.errors import InvalidValue, PreviousResponseNotFound, ResponseNotFound
from conversations.openai_api.input_items import Given
from conversations.openai_api.items import said
from conversations.openai_api.messages import refuse_disorder
from conversations.openai_api.pages import PARAMETERS, listed, page_of
from conversations.openai_api.response_request import Asked, read
from conversations.openai_api.response_view import ResponseView, answers_of, stretch_of
from conversations.openai_api.shapes import errors
from conversations.openai_api.views import KeyView
from conversations.web.gateway import await_turn, new_turn_id
from nanohost.accounts import audit, holds
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import idempotency_key, owner_of, request_id
from tools.models import ToolCall

# Of what came before, so many messages are copied: nearly as many as a prompt has.
MAX_COPIED = 400


class _Passed(Exception):
    """Another response goes on from there already."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The part of a turn that a request is answered with."""

    turn: Turn
    number: int = 0


# --- whose turn it is --------------------------------------------------------------------------------------------


def take(request: Request, asked: Asked) -> Taken:
    """Store what is asked, or find that it was stored before."""
    if is_retry(request) and (earlier := inbox.retried(key=key_of(request), body_hash=asked.body_hash)):
        return Taken(turn=earlier)
    if asked.previous:
        return _Chain(request, asked).take()
    if asked.conversation is not None:
        return _InConversation(request, asked).take()
    return _Alone(request, asked).take()


class _Taking:
    """Takes a request in. ``messages``: what it brings that is not known. ``outputs``: what it says that the caller's
    tools gave, whose calls it does not bring."""

    def __init__(self, request: Request, asked: Asked) -> None:
        self.request, self.asked = request, asked
        self.owner_id = owner_of(request)

    def read(self, *, known: frozenset[str] = frozenset()) -> None:
        """Read the input, but for items of known ids."""
        given: Given = self.asked.given
        if strange := next((each.id for each in given.items if each.is_reference and each.id not in known), None):
            raise InvalidValue(
                f"The item {strange[:64]} that is referred to is not in what came before.", param="input"
            )
        messages = given.messages(known=known)
        called = {call["id"] for each in messages for call in each.get("tool_calls") or ()}
        self.outputs: dict[str, str] = {}
        self.messages: list[ChatMessage] = []
        for each in messages:
            if each["role"] == "tool" and each["tool_call_id"] not in called:
                self.outputs[each["tool_call_id"]] = each["content"]
            else:
                self.messages.append(each)
        self.messages = sent_back.marked(self.messages, owner_id=self.owner_id)
        if self.outputs and self.messages:
            raise InvalidValue(
                "Outputs of function calls come alone, or with their calls and all that came before.", param="input"
            )
        if not self.outputs:
            refuse_disorder(self.messages, "input")
            if not any(each["role"] == "user" for each in self.messages) or self.messages[-1]["role"] == "assistant":
                raise InvalidValue("The input has to end in a message of the user's, or in outputs.", param="input")

    def goes_on(self, found: CallerRound, outputs: dict[str, str], previous_id: UUID | None) -> Taken:
        """The next part of a turn that waits for outputs, or the one that they have made before."""
        taken = Taken(turn=found.turn, number=found.number + 1)
        if caller.is_repeated(found, outputs):
            return taken
        with transaction.atomic():
            caller.answer(found, outputs, options=self._options(), request_id=request_id(self.request))
            self._keep(previous_id, found.number + 1, found.turn_id, 0)
        return taken

    def fresh(self, messages: Sequence[ChatMessage], previous: "_Source | None" = None) -> Taken:
        """A turn in a conversation that is in no list, of a whole transcript."""
        at = max(at for at, each in enumerate(messages) if each["role"] == "user")
        model, follows = self.asked.model, messages[at + 1 :]
        conversation = inbox.transient_conversation(
            owner_id=self.owner_id, agent=model.agent, metadata=self.asked.options.metadata
        )
        conversation.is_dropped = not self.asked.is_stored
        if previous and previous.conversation.tainted_at_seq:
            conversation.tainted_at_seq, conversation.tainted_by = 1, previous.conversation.tainted_by
        options = replace(self._options(), brought=sum(each["role"] == "assistant" for each in follows))
        incoming = Incoming(
            messages[at]["content"],
            files=messages[at].get("files", ()),
            attachments=messages[at].get("attachments", ()),
            history=messages[:at],
            follows=follows,
            options=options,
            response_format=self.asked.response_format,
        )
        turn = self._receive(
            incoming,
            conversation=conversation,
            also=partial(self._keep, previous.row.pk if previous else None, 0),
        )
        return Taken(turn=turn)

    def appended(
        self, conversation: Conversation, *, previous_id: UUID | None = None, after: int | None = None
    ) -> Taken:
        """A turn in a conversation that there is. ``after``: the number of its last turn, or it raises
        :class:`_Passed`."""
        at = max(at for at, each in enumerate(self.messages) if each["role"] == "user")
        precedes, follows = self.messages[:at], self.messages[at + 1 :]
        brought = sum(each["role"] == "assistant" for each in (*precedes, *follows))

        def also(turn_id: UUID, number: int) -> None:
            if after is not None and number != after + 1:
                raise _Passed
            self._keep(previous_id, 0, turn_id, number)

        incoming = Incoming(
            self.messages[at]["content"],
            files=self.messages[at].get("files", ()),
            precedes=precedes,
            follows=follows,
            options=replace(self._options(), brought=brought),
            response_format=self.asked.response_format,
        )
        turn = self._receive(incoming, conversation=conversation, on_busy=self.asked.on_busy, also=also)
        return Taken(turn=turn)

    def instructions(self) -> str:
        """What the program asks besides."""
        return "\n\n".join(filter(None, (self.asked.instructions, self.asked.system)))

    def _options(self) -> Any:
        return replace(self.asked.options, instructions=self.instructions())

    def _keep(self, previous_id: UUID | None, number: int, turn_id: UUID, turn_number: int) -> None:
        if not self.asked.is_stored:
            return
        kept = self.asked.asked | ({"system": system} if (system := self.system()) else {})
        StoredResponse.objects.get_or_create(
            pk=StoredResponse.id_of(turn_id, number),
            defaults={
                "turn_id": turn_id,
                "number": number,
                "previous_id": previous_id,
                "asked": kept,
                "is_background": self.asked.is_background,
            },
        )

    def system(self) -> str:
        """What goes on with what follows."""
        return self.asked.system

    def _receive(self, incoming: Incoming, **how: Any) -> Turn:
        return inbox.receive(
            incoming,
            **how,
            idempotency_key=idempotency_key(self.request),
            body_hash=self.asked.body_hash,
            request_id=request_id(self.request),
            turn_id=new_turn_id(self.request),
            while_paused="refuse",
            key=key_of(self.request),
        )


class _Alone(_Taking):
    """A request that brings all that it goes on from."""

    def take(self) -> Taken:
        self.read()
        outputs = self.outputs or _last_outputs(self.messages)
        found = caller.find(outputs, owner_id=self.owner_id) if outputs else None
        if found and self._is_its_own(found) and (caller.is_repeated(found, outputs) or caller.is_open(found)):
            return self.goes_on(found, outputs, None)
        if self.outputs:
            raise UnknownCall(_no_call(self.outputs), param="input")
        give_way(self.messages, owner_id=self.owner_id)
        return self.fresh(self.messages)

    def _is_its_own(self, found: CallerRound) -> bool:
        conversation = found.turn.conversation
        return bool(conversation.is_transient and conversation.agent_id == self.asked.model.agent.pk)


class _InConversation(_Taking):
    """A request that goes on in a conversation that stays."""

    def take(self) -> Taken:
        conversation = self._conversation()
        self.read(known=_known(self.asked.given, conversation))
        if self.outputs:
            found = caller.find(self.outputs, owner_id=self.owner_id)
            if found and found.turn.conversation_id == conversation.pk:
                return self.goes_on(found, self.outputs, None)
            raise UnknownCall(_no_call(self.outputs), param="input")
        if (pending := caller.pending(conversation.pk)) and self.asked.on_busy != "interrupt":
            raise InvalidValue(_no_output(pending), param="input")
        return self.appended(conversation)

    def _conversation(self) -> Conversation:
        conversation = conversation_of(self.request, self.asked.conversation)
        agent = self.asked.model.agent
        if conversation.agent_id != agent.pk:
            # Until its first turn it is nobody's: who made it could not say whose.
            own = Conversation.objects.filter(pk=conversation.pk, next_turn=1)
            if not own.update(agent=agent):
                raise InvalidValue(f"This conversation is with the agent {conversation.agent.name}.", param="model")
            conversation.agent = agent
        return conversation


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A response that another one goes on from."""

    row: StoredResponse

    @property
    def conversation(self) -> Conversation:
        return self.row.turn.conversation


class _Chain(_Taking):
    """A request that goes on from a response: in its conversation if nothing else does, or from a copy."""

    def take(self) -> Taken:
        row = _row(self.request, self.asked.previous)
        if row is None:
            raise PreviousResponseNotFound(param="previous_response_id")
        self.source = _Source(row=row)
        self.read(known=_known(self.asked.given, row.turn.conversation))
        asks = CallerRound.objects.filter(turn=row.turn, number=row.number).first()
        if asks is None and not row.turn.ended:
            raise ConversationBusy("The response that this one continues has not ended.", turnId=str(row.turn_id))
        if self.outputs:
            return self._with_outputs(asks)
        if asks:
            raise InvalidValue(_no_output(asks), param="input")
        is_last = row.turn.number == row.turn.conversation.next_turn - 1
        if is_last and self._stays_in(row.turn.conversation):
            try:
                return self.appended(row.turn.conversation, previous_id=row.pk, after=row.turn.number)
            except _Passed:
                pass  # by another request, just now
        return self.fresh([*self._before(None), *self.messages], self.source)

    def transcript(self) -> list[ChatMessage]:
        """What a model would read, if it were asked."""
        row = _row(self.request, self.asked.previous)
        if row is None:
            raise PreviousResponseNotFound(param="previous_response_id")
        self.source = _Source(row=row)
        asks = CallerRound.objects.filter(turn=row.turn, number=row.number).first()
        given = self.asked.given.messages(known=_known(self.asked.given, row.turn.conversation))
        return [*self._before(asks), *given]

    def _with_outputs(self, asks: CallerRound | None) -> Taken:
        if asks is None or not set(self.outputs) <= {call["id"] for call in asks.calls}:
            raise UnknownCall(_no_call(self.outputs), param="input")
        if missing := [call["id"] for call in asks.calls if call["id"] not in self.outputs]:
            raise InvalidValue(f"No tool output found for function call {missing[0]}.", param="input")
        asks.turn = self.source.row.turn
        goes_on = caller.is_repeated(asks, self.outputs) or caller.is_open(asks)
        if goes_on and asks.turn.conversation.agent_id == self.asked.model.agent.pk:
            return self.goes_on(asks, self.outputs, self.source.row.pk)
        told = [{"role": "tool", "tool_call_id": call, "content": output} for call, output in self.outputs.items()]
        return self.fresh([*self._before(asks), *told], self.source)

    def _stays_in(self, conversation: Conversation) -> bool:
        is_kept = conversation.is_transient and self.asked.is_stored
        return bool(is_kept and conversation.agent_id == self.asked.model.agent.pk)

    def _before(self, asks: CallerRound | None) -> list[ChatMessage]:
        """What the transcript was at the response's end."""
        turn = self.source.row.turn
        rows = said(Message.objects.filter(conversation=turn.conversation_id))
        last = answers_of(turn, self.source.row.number, asks).last()
        if last is None or asks is None:
            # Behind its last answer, there may be what became of calls.
            last = Message.objects.filter(turn=turn, seq__isnull=False).order_by("seq").last()
        through = last.seq if last else 0
        rows = rows.filter(seq__gte=turn.conversation.starts_at_seq, seq__lte=through or 0)
        found = [_as_told(each) for each in rows.order_by("-seq")[:MAX_COPIED]][::-1]
        if asks is None:
            return found
        # What the host's tools gave beside the caller's is stored behind.
        answered = {each["tool_call_id"] for each in found if each["role"] == "tool"}
        wanted = {call["id"] for each in found for call in each.get("tool_calls") or ()} - answered
        results = ToolCall.objects.filter(turn_id=turn.pk, call_id__in=wanted)
        return found + [{"role": "tool", "tool_call_id": each.call_id, "content": each.result} for each in results]

    def instructions(self) -> str:
        return "\n\n".join(filter(None, (self.asked.instructions, self.system())))

    def system(self) -> str:
        before = self.source.row.asked.get("system", "")
        return "\n\n".join(filter(None, (before, self.asked.system)))


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """What a request would have a model read. ``tainted_by``: from where untrusted text has entered the conversation
    that it goes on from; empty: none has."""

    messages: list[ChatMessage]
    instructions: str
    tainted_by: str = ""


def transcript_of(request: Request, asked: Asked) -> Transcript:
    """What a request would have a model read; nothing is stored."""
    tainted_by = ""
    if asked.previous:
        chain = _Chain(request, asked)
        messages, tainted_by = chain.transcript(), chain.source.conversation.tainted_by
        return Transcript(messages=messages, instructions=chain.instructions(), tainted_by=tainted_by)
    if asked.conversation is not None:
        conversation = conversation_of(request, asked.conversation)
        rows = said(Message.objects.filter(conversation=conversation, seq__gte=conversation.starts_at_seq))
        before = [_as_told(each) for each in rows.order_by("-seq")[:MAX_COPIED]][::-1]
        given = asked.given.messages(known=_known(asked.given, conversation))
        tainted_by = conversation.tainted_by
    else:
        before, given = [], asked.given.messages()
    instructions = "\n\n".join(filter(None, (asked.instructions, asked.system)))
    return Transcript(messages=[*before, *given], instructions=instructions, tainted_by=tainted_by)


def _as_told(message: Message) -> ChatMessage:
    chat: ChatMessage = {name: value for name, value in message.as_chat().items() if name != "thoughts"}
    return chat | ({"name": message.tool_name} if message.tool_name else {})


def _last_outputs(messages: Sequence[ChatMessage]) -> dict[str, str]:
    found: dict[str, str] = {}
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        found[message["tool_call_id"]] = message["content"]
    return found


def _no_call(outputs: dict[str, str]) -> str:
    return f"No tool call found for function call output with call_id {next(iter(outputs))[:64]}."


def _no_output(asks: CallerRound) -> str:
    return f"No tool output found for function call {asks.calls[0]['id']}."


def _known(given: Given, conversation: Conversation) -> frozenset[str]:
    """Ids of given items that are in a conversation: clients send them once more."""
    told = {each.id: read_id for each in given.items if each.id and (read_id := ids.read(each.id))}
    if not told:
        return frozenset()
    wanted = [each.row_id for each in told.values()]
    found = set(Message.objects.filter(pk__in=wanted, conversation=conversation).values_list("pk", flat=True))
    found |= set(ToolCall.objects.filter(pk__in=wanted, conversation_id=conversation.pk).values_list("pk", flat=True))
    return frozenset(item_id for item_id, each in told.items() if each.row_id in found)


# --- the routes --------------------------------------------------------------------------------------------------


def _row(request: Request, response_id: object) -> StoredResponse | None:
    """The caller's response of that id."""
    wanted = ids.row_of(response_id, ids.RESPONSE)
    rows = StoredResponse.objects.select_related("turn__conversation__agent")
    row = rows.filter(pk=wanted, turn__owner_id=owner_of(request)).first() if wanted else None
    return row if row and access.admits(key_of(request), row.turn.conversation.agent) else None


def _owned(request: Request, response_id: str) -> StoredResponse:
    row = _row(request, response_id)
    if row is None:
        raise ResponseNotFound()
    return row


class ResponseCreate(KeyView):
    """Asking an agent."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createResponse",
        request=shapes.ResponseRequest,
        parameters=[IDEMPOTENCY],
        responses={
            (200, "application/json"): shapes.ResponseShown,
            (200, "text/event-stream"): shapes.ResponseEvent,
            **errors(402, 404, 409, 422, 502, 504),
        },
    )
    def post(self, request: Request) -> JsonResponse:
        """Ask an agent, and have its answer; as events with `"stream": true`; or at once, with `"background": true`,
        as a response to come back to."""
        asked = read(request)
        taken = take(request, asked)
        turn, is_new = taken.turn, taken.turn.pk == new_turn_id(request)
        view = _view_of(taken, asked)
        if asked.streams:
            view = replace(view, stretch=stretch_of(turn, taken.number) if taken.number or not is_new else view.stretch)
        elif asked.is_background:
            return JsonResponse(view.body(Turn.objects.get(pk=turn.pk)))
        elif not is_new and (answer := view.current(turn.pk, request_id=request_id(request))):
            return as_response(answer)
        cancels = key_of(request).cancel_on_disconnect and not asked.is_background
        await_turn(request, turn.pk, renderer=view, streams=asked.streams, is_held=True, cancels=cancels)
        return as_response(accepted(turn))


def _view_of(taken: Taken, asked: Asked) -> ResponseView:
    raises = not (asked.streams or asked.is_background)
    rows = StoredResponse.objects.select_related("turn__conversation")
    if row := rows.filter(pk=StoredResponse.id_of(taken.turn.pk, taken.number)).first():
        return ResponseView.of(row, raises=raises)
    turn = Turn.objects.select_related("conversation").get(pk=taken.turn.pk)
    conversation = turn.conversation
    return ResponseView(
        turn_id=turn.pk,
        number=taken.number,
        asked=asked.asked,
        created=timezone.now().timestamp() if taken.number else turn.created_at.timestamp(),
        conversation="" if conversation.is_transient else ids.shown(ids.CONVERSATION, conversation.pk),
        is_stored=False,
        raises=raises,
    )


# Of an event: more than there can be.
MAX_NUMBER = 10**9 - 1
_STREAM = [
    OpenApiParameter("stream", bool, description="Whether its events are wanted, from the beginning to its end."),
    OpenApiParameter(
        "starting_after",
        {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
        description="Only events after the one with this number.",
    ),
]


class ResponseDetail(KeyView):
    """One response."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT), "DELETE": (Scope.CHAT,)}

    @extend_schema(
        operation_id="retrieveResponse",
        parameters=_STREAM,
        responses={
            (200, "application/json"): shapes.ResponseShown,
            (200, "text/event-stream"): shapes.ResponseEvent,
            **errors(404),
        },
    )
    def get(self, request: Request, response_id: str) -> JsonResponse:
        """A response as it stands, or its events: those that were, and those to come."""
        streams, after = _flag(request, "stream"), _starting_after(request)
        row = _owned(request, response_id)
        if not streams:
            return JsonResponse(ResponseView.of(row).body(row.turn))
        view = ResponseView.of(row, starting_after=after, stretch=stretch_of(row.turn, row.number))
        await_turn(request, row.turn_id, renderer=view, streams=True, is_held=True)
        return as_response(accepted(row.turn))

    @extend_schema(operation_id="deleteResponse", responses={200: shapes.ResponseDeleted, **errors(404, 409)})
    def delete(self, request: Request, response_id: str) -> Response:
        """Delete a response. What was said stays in a conversation that stays; otherwise it goes with the last response
        that is part of it, whose turn is cancelled if it runs. What a legal hold keeps is not deleted."""
        row = _owned(request, response_id)
        conversation = row.turn.conversation
        with transaction.atomic():
            holds.refuse(turn_control.holds_on(conversation, holds.placed_until_the_end()))
            audit.record("response.deleted", about=row, name=row.shown_id)
            row.delete()
            left = StoredResponse.objects.filter(turn__conversation=conversation)
            if conversation.is_transient and not left.exists():
                turn_control.delete_conversation(conversation.pk)
        return Response({"id": ids.shown(ids.RESPONSE, row_id_of(response_id)), "object": "response", "deleted": True})


def row_id_of(response_id: str) -> UUID:
    """Of an id that was read before."""
    found = ids.row_of(response_id, ids.RESPONSE)
    assert found
    return found


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise InvalidValue(f"{name} has to be true or false.", param=name)
    return given in ("true", "1")


def _starting_after(request: Request) -> int | None:
    given = request.query_params.get("starting_after")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and int(given[:10]) <= MAX_NUMBER):
        raise InvalidValue("starting_after has to be a whole number.", param="starting_after")
    return int(given)


class ResponseCancel(KeyView):
    """Cancelling a response."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(operation_id="cancelResponse", request=None, responses={200: shapes.ResponseShown, **errors(404)})
    def post(self, request: Request, response_id: str) -> JsonResponse:
        """Cancel a response, in the background or not; one that has ended stays as it is."""
        row = _owned(request, response_id)
        view = ResponseView.of(row)
        if not view.is_answered(row.turn):
            turn_control.cancel_turn(row.turn)
            row.turn.refresh_from_db()
        if view.is_answered(row.turn):
            return JsonResponse(view.body(row.turn))
        # Whoever runs it stops within moments.
        await_turn(request, row.turn_id, renderer=view, is_held=True)
        return as_response(accepted(row.turn))


class ResponseInputItems(KeyView):
    """What a response was made of."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(
        operation_id="listResponseInputItems", parameters=PARAMETERS, responses={200: shapes.ItemList, **errors(404)}
    )
    def get(self, request: Request, response_id: str) -> Response:
        """A page of all that was said before it, the newest first unless `order` is `asc`."""
        row = _owned(request, response_id)
        asks = CallerRound.objects.filter(turn=row.turn, number=row.number).first()
        rows = said(Message.objects.filter(conversation=row.turn.conversation_id))
        if first := answers_of(row.turn, row.number, asks).first():
            rows = rows.filter(seq__lt=first.seq)
        elif last := Message.objects.filter(turn=row.turn, seq__isnull=False).order_by("seq").last():
            rows = rows.filter(seq__lte=last.seq)
        return Response(listed(rows, page_of(request)))
