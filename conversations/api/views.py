"""The REST API. A view reads HTTP, makes one domain call and answers at once; waiting is the gateway's."""

import re
from typing import Any, ClassVar
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.http import HttpResponse, JsonResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from agent import access
from conversations import pins, search, turn_search
from conversations.api import serializers as shapes
from conversations.api.pages import InSeqOrder, NewestMessagesFirst, NewestTurnsFirst
from conversations.attachments import serving, store
from conversations.engine import branching, deferred, inbox, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import UnknownAgent
from conversations.events import answers
from conversations.events.answers import accepted, as_response, turns_as_json
from conversations.feedback_models import Feedback
from conversations.models import OPEN_DEFERRED, AttachmentUse, Conversation, DeferredMessage, Message, Turn
from conversations.web.gateway import await_turn, new_turn_id
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import (
    IDEMPOTENCY_KEY,
    NewestFirst,
    Nothing,
    Pages,
    checked,
    idempotency_key,
    owner_of,
    parameter_of,
    problems,
    request_id,
)
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.statements import Given, Rows
from nanohost.lib.text import UNSTORABLE
from tools.models import ToolCall

_conversation = Rows(
    lambda: Conversation.objects.select_related("agent").filter(pk=Given("id"), owner_id=Given("owner_id"))
)
_turn = Rows(lambda: Turn.objects.filter(pk=Given("id"), owner_id=Given("owner_id")))


def owned_conversation(request: Request, conversation_id: UUID) -> Conversation:
    """The caller's conversation; somebody else's is as unknown as none."""
    for conversation in _conversation(id=conversation_id, owner_id=owner_of(request)):
        if access.admits(key_of(request), conversation.agent):
            return conversation
    raise NotFound("There is no conversation with that id, or it is not yours.")


def owned_turn(request: Request, turn_id: UUID) -> Turn:
    """The caller's turn; somebody else's is as unknown as none."""
    for turn in _turn(id=turn_id, owner_id=owner_of(request)):
        if not access.admits_all(key_of(request)):
            owned_conversation(request, turn.conversation_id)
        return turn
    raise NotFound("There is no turn with that id, or it is not yours.")


def _owned_deferred(request: Request, deferred_id: UUID) -> DeferredMessage:
    mine = DeferredMessage.objects.filter(pk=deferred_id, conversation__owner=owner_of(request))
    for message in access.admitted(mine, key_of(request), agent="conversation__agent"):
        return message
    raise NotFound("There is no deferred message with that id, or it is not yours.")


class ConversationList(ListAPIView[Conversation]):
    """Conversations of the caller, but for those that are there for one request of ``/v1`` only."""

    scopes: ClassVar = {"GET": (Scope.READ,), "POST": (Scope.CHAT,)}

    serializer_class = shapes.ConversationView
    pagination_class = NewestFirst

    def get_queryset(self) -> Any:
        rows = Conversation.objects.select_related("agent")
        owned = rows.filter(owner=owner_of(self.request), is_transient=False)
        mine: Any = access.admitted(owned, key_of(self.request))
        for name, field in (("pinned", "is_pinned"), ("archived", "is_archived")):
            if (wanted := _flag_of(self.request, name)) is not None:
                mine = mine.filter(**{field: wanted})
        if (key := _text_of(self.request, "key")) is not None:
            mine = mine.filter(key=key)
        if (words := _text_of(self.request, "search")) is not None:
            said = search.find(words, owner_id=owner_of(self.request))
            mine = mine.filter(Q(pk__in=said) | Q(pk__in=mine.titled(words).values("pk")))
        return mine.with_title()

    @extend_schema(
        operation_id="listConversations",
        parameters=[
            OpenApiParameter("key", str, description="The one of this key only."),
            OpenApiParameter("pinned", bool, description="Those that are pinned, or those that are not."),
            OpenApiParameter("archived", bool, description="Those that are archived, or those that are not."),
            OpenApiParameter(
                "search",
                str,
                description="Those in which a message has all of these words, each by its beginning; and those of your"
                " newest 1,000 whose title holds the text.",
            ),
        ],
        responses={200: shapes.ConversationView(many=True), **problems()},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="createConversation",
        request=shapes.NewConversation,
        responses={200: shapes.ConversationCreated, 201: shapes.ConversationCreated, **problems(409)},
    )
    def post(self, request: Request) -> Response:
        """Start a conversation with an agent. With a ``key`` that there is one of, that one is answered, with 200."""
        wanted = {"owner_id": owner_of(request), "metadata": {}, **checked(shapes.NewConversation, request)}
        key = key_of(request)
        if "agent" in wanted and access.agent_of_key(key, wanted["agent"]) is None:
            raise UnknownAgent(access.UNKNOWN.format(wanted["agent"]))
        with transaction.atomic():
            conversation, is_new = (
                inbox.conversation_of(**wanted) if "key" in wanted else (inbox.start_conversation(**wanted), True)
            )
            if not access.admits(key, conversation.agent):
                raise UnknownAgent(access.UNKNOWN.format(conversation.agent.name))
        location = {"Location": f"/api/v1/conversations/{conversation.pk}"}
        told = shapes.ConversationCreated(conversation).data
        return Response(told, status=201 if is_new else 200, headers=location)


def _text_of(request: Request, name: str) -> str | None:
    text = request.query_params.get(name)
    if text is not None and UNSTORABLE.search(text):
        raise InvalidRequest(f"{name} holds a null character.")
    return text


def _flag_of(request: Request, name: str) -> bool | None:
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"{name} is true or false.")
    return None if text is None else text == "true"


class ConversationDetail(APIView):
    """One conversation."""

    scopes: ClassVar = {"GET": (Scope.READ,), "PATCH": (Scope.CHAT,), "DELETE": (Scope.CHAT,)}

    @extend_schema(operation_id="getConversation", responses={200: shapes.ConversationView, **problems(404)})
    def get(self, request: Request, conversation_id: UUID) -> Response:
        return Response(shapes.ConversationView(owned_conversation(request, conversation_id)).data)

    @extend_schema(
        operation_id="changeConversation",
        request=shapes.ConversationChanges,
        responses={200: shapes.ConversationView, **problems(404)},
    )
    def patch(self, request: Request, conversation_id: UUID) -> Response:
        """Name, pin or archive a conversation. Turns go on in one that is archived as in any other."""
        conversation = owned_conversation(request, conversation_id)
        conversation.arrange(**checked(shapes.ConversationChanges, request))
        return Response(shapes.ConversationView(conversation).data)

    @extend_schema(operation_id="deleteConversation", responses={204: None, **problems(404, 409)})
    def delete(self, request: Request, conversation_id: UUID) -> Response:
        """Delete a conversation with its messages and turns; those that run are cancelled. Tool calls stay. What a
        legal hold keeps is not deleted: 409 `legal_hold`."""
        turn_control.delete_conversation(owned_conversation(request, conversation_id).pk)
        return Response(status=204)


class BranchCreate(APIView):
    """Saying something else."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createBranch",
        request=shapes.NewBranch,
        responses={201: shapes.ConversationCreated, **problems(404)},
    )
    def post(self, request: Request, conversation_id: UUID) -> Response:
        """Start a conversation with what came before a message of a user in this one, which stays as it is: to say
        something else, or the same once more."""
        conversation = owned_conversation(request, conversation_id)
        made = branching.branch(conversation, checked(shapes.NewBranch, request)["before"])
        location = {"Location": f"/api/v1/conversations/{made.pk}"}
        return Response(shapes.ConversationCreated(made).data, status=201, headers=location)


_MESSAGE_OR_TURN = PolymorphicProxySerializer(
    component_name="MessageOrTurn",
    serializers=[shapes.DeferredMessageView, shapes.ChatPending],
    resource_type_field_name=None,
)
_IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY}$"},
    OpenApiParameter.HEADER,
    description="1 to 255 of ASCII, without spaces: the same key and body get the same turn's answer.",
)
_PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="respond-async: answer at once with 202 and the turn's address."
)
_LAST_EVENT_ID = [
    OpenApiParameter("Last-Event-ID", str, OpenApiParameter.HEADER, description="Continue after this event."),
    OpenApiParameter("last_event_id", str, description="The same, for those who cannot send the header."),
]
_EVENT = {
    "type": "object",
    "description": "One of the events; docs/api.md lists them.",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data", "retry")},
}
_EVENTS = {(200, "text/event-stream"): _EVENT}


class Chat(APIView):
    """Say something and get the answer."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="chat",
        request=shapes.ChatIn,
        parameters=[_IDEMPOTENCY_KEY, _PREFER],
        responses={
            (200, "application/json"): shapes.ChatAnswer,
            **_EVENTS,
            202: shapes.ChatPending,
            **problems(404, 409, 422, 502, 504),
        },
    )
    def post(self, request: Request, conversation_id: UUID) -> JsonResponse:
        """Store the message and wait for the turn's answer, CHAT_WAIT_SECONDS at most; then 202 and its Location.

        With ``Accept: text/event-stream`` or ``"stream": true`` the answer is the turn's events, as they come.
        """
        conversation = owned_conversation(request, conversation_id)
        said = checked(shapes.ChatIn, request)
        turn = _received(request, conversation, said)
        if said.get("stream") or "text/event-stream" in request.headers.get("Accept", ""):
            return _streamed(request, turn)
        if _prefers_no_wait(request):
            return as_response(accepted(turn), {"Preference-Applied": "respond-async"})
        if turn.ended:  # an idempotent repeat
            return as_response(answers.current(turn.pk, request_id=request_id(request)))
        await_turn(request, turn.pk, renderer=answers)
        return as_response(accepted(turn))


class TurnList(APIView):
    """The turns of a conversation."""

    scopes: ClassVar = {"GET": (Scope.READ,), "POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createTurn",
        request=shapes.ChatMessageIn,
        parameters=[_IDEMPOTENCY_KEY],
        responses={202: shapes.ChatPending, **problems(404, 409)},
    )
    def post(self, request: Request, conversation_id: UUID) -> JsonResponse:
        """Store the message, and answer at once with the turn that will answer it, and its Location."""
        conversation = owned_conversation(request, conversation_id)
        said = checked(shapes.ChatMessageIn, request)
        return as_response(accepted(_received(request, conversation, said)))

    @extend_schema(
        operation_id="listTurns",
        parameters=[parameter_of(each) for each in NewestTurnsFirst().get_schema_operation_parameters(None)],
        responses={200: shapes.TurnPage, **problems(404)},
    )
    def get(self, request: Request, conversation_id: UUID) -> Response:
        """A page of a conversation's turns, the newest first."""
        conversation = owned_conversation(request, conversation_id)
        pages = NewestTurnsFirst()
        turns = pages.paginate_queryset(Turn.objects.filter(conversation=conversation), request, view=self)
        return pages.get_paginated_response(turns_as_json(turns))


def _received(request: Request, conversation: Conversation, said: dict[str, Any]) -> Turn:
    incoming = Incoming(
        said["message"],
        files=said["files"],
        model=said.get("model", ""),
        response_format=said.get("response_format", ""),
    )
    return inbox.receive(
        incoming,
        conversation=conversation,
        idempotency_key=idempotency_key(request),
        request_id=request_id(request),
        turn_id=new_turn_id(request),
        on_busy=said.get("onBusy", "enqueue"),
        while_paused="refuse",
        key=key_of(request),
    )


def _streamed(request: Request, turn: Turn) -> JsonResponse:
    """The gateway sends the turn's events instead."""
    await_turn(request, turn.pk, renderer=answers, streams=True)
    return as_response(accepted(turn))


def _prefers_no_wait(request: Request) -> bool:
    return "respond-async" in re.split(r"[\s,;]+", request.headers.get("Prefer", "").lower())


class MessageList(ListAPIView[Message]):
    """A conversation's transcript."""

    scopes: ClassVar = {"GET": (Scope.READ,), "POST": (Scope.CHAT,)}

    serializer_class = shapes.MessageView
    pagination_class: type[Pages] = InSeqOrder

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return Message.objects.none()
        self._conversation = owned_conversation(self.request, self.kwargs["conversation_id"])
        return Message.objects.transcript().filter(conversation=self._conversation)

    def paginate_queryset(self, queryset: Any) -> Any:
        page = super().paginate_queryset(queryset)
        turns = {each.turn_id for each in page or () if each.tool_calls and each.turn_id}
        calls = ToolCall.objects.filter(turn_id__in=turns).values_list("turn_id", "call_id", "status") if turns else ()
        self._statuses = {(turn_id, call_id): status for turn_id, call_id, status in calls}
        user: Any = self.request.user
        answered = {each.turn_id for each in page or () if each.role == Message.Role.ASSISTANT and each.turn_id}
        mine = (
            Feedback.objects.filter(turn__in=answered, by=user.get_username()) if answered else Feedback.objects.none()
        )
        self._ratings = dict(mine.values_list("turn_id", "rating"))
        return page

    def get_serializer_context(self) -> dict[str, Any]:
        conversation = getattr(self, "_conversation", None)
        pinned = set(pins.seqs_of(conversation.pins)) if conversation else set()
        about = {"pinned": pinned, "statuses": getattr(self, "_statuses", {}), "ratings": getattr(self, "_ratings", {})}
        return {**super().get_serializer_context(), **about}

    @extend_schema(
        operation_id="listMessages",
        parameters=[OpenApiParameter("order", enum=["oldest", "newest"], description="Which come first; the oldest.")],
        responses={200: shapes.MessageView(many=True), **problems(404)},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Messages in ``seq`` order. One that waits for its turn to start has no ``seq`` yet and is not shown."""
        order = request.query_params.get("order", "oldest")
        if order not in ("oldest", "newest"):
            raise InvalidRequest("order is oldest or newest.")
        if order == "newest":
            self.pagination_class = NewestMessagesFirst
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="sendMessage",
        request=shapes.MessageIn,
        parameters=[_IDEMPOTENCY_KEY],
        responses={202: _MESSAGE_OR_TURN, **problems(404, 409)},
    )
    def post(self, request: Request, conversation_id: UUID) -> HttpResponse:
        """Say something at a time (``runAfter``), or without waking the agent: it then rides along with the next turn.

        Without either it makes a turn at once, and the answer is the turn's, as that of POST /turns.
        """
        conversation = owned_conversation(request, conversation_id)
        said = checked(shapes.MessageIn, request)
        rides_along = not said.get("trigger", True) or said.get("onWake", False)
        if not rides_along and "runAfter" not in said:
            return as_response(accepted(_received(request, conversation, said)))
        stored = deferred.put(
            conversation,
            kind=deferred.Kind.NOTE
            if said.get("onWake")
            else deferred.Kind.CONTEXT
            if rides_along
            else deferred.Kind.WAKE,
            content=said["message"],
            files=said["files"],
            model=said.get("model", ""),
            run_after=said.get("runAfter"),
            idempotency_key=idempotency_key(request),
            request_id=request_id(request),
            key=key_of(request),
        )
        return Response(shapes.DeferredMessageView(stored).data, status=202)


class AttachmentDetail(APIView):
    """A file that came with a message of the caller's."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    @extend_schema(
        operation_id="getAttachment",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **problems(404)},
    )
    def get(self, request: Request, attachment_id: UUID) -> HttpResponse:
        """The file, as a download, with the name that it was sent by last."""
        use = _owned_use(request, attachment_id)
        return serving.download(use.attachment, use.name)


class AttachmentThumbnail(APIView):
    """A small picture of one."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    @extend_schema(
        operation_id="getAttachmentThumbnail", responses={(200, "image/png"): OpenApiTypes.BINARY, **problems(404)}
    )
    def get(self, request: Request, attachment_id: UUID) -> HttpResponse:
        """Of a picture, at most 256 pixels a side, as PNG."""
        return serving.thumbnail(_owned_use(request, attachment_id).attachment)


def _owned_use(request: Request, attachment_id: UUID) -> AttachmentUse:
    """The caller's file, in the last conversation with an agent that the key may name."""
    if use := store.use_for(key_of(request), owner_of(request), attachment_id):
        return use
    raise NotFound("There is no file with that id, or it is not yours.")


class DeferredList(ListAPIView[DeferredMessage]):
    """A conversation's messages to come."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    serializer_class = shapes.DeferredMessageView
    pagination_class = NewestFirst

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return DeferredMessage.objects.none()
        conversation = owned_conversation(self.request, self.kwargs["conversation_id"])
        return DeferredMessage.objects.filter(conversation=conversation, state__in=OPEN_DEFERRED)

    @extend_schema(operation_id="listDeferred", responses={200: shapes.DeferredMessageView(many=True), **problems(404)})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Those that wait for their time or for the next turn, and those whose turn may have to be tried again."""
        return super().get(request, *args, **kwargs)


class DeferredDetail(APIView):
    """One message to come, or what became of it."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(operation_id="getDeferred", responses={200: shapes.DeferredMessageView, **problems(404)})
    def get(self, request: Request, deferred_id: UUID) -> Response:
        return Response(shapes.DeferredMessageView(_owned_deferred(request, deferred_id)).data)


class DeferredCancel(APIView):
    """Cancelling a message to come."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="cancelDeferred",
        request=Nothing,
        responses={200: shapes.DeferredMessageView, **problems(404)},
    )
    def post(self, request: Request, deferred_id: UUID) -> Response:
        """Have it said no more: no further turn is made of it, and one that is open is cancelled with it. One that has
        ended, or was answered, stays as it is: its state tells."""
        message = _owned_deferred(request, deferred_id)
        checked(Nothing, request)
        deferred.cancel(message)
        return Response(shapes.DeferredMessageView(_owned_deferred(request, deferred_id)).data)


class TurnSearch(APIView):
    """Turns, wherever they were asked."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    @extend_schema(
        operation_id="findTurns", parameters=[shapes.TurnFilters], responses={200: shapes.FoundTurns, **problems()}
    )
    def get(self, request: Request) -> Response:
        """Those of the caller's turns that match, the newest first. A page looks at 1,000 turns at most (with `search`,
        at all that have the words): if `next` is not null there may be more, also where a page has none."""
        wanted = shapes.filters_of(request.query_params.dict())
        limit, after = min(wanted.pop("limit"), Pages.max_page_size), wanted.pop("cursor", None)
        rows = access.admitted(Turn.objects.all(), key_of(request), agent="conversation__agent")
        page = turn_search.find(rows, wanted, limit=limit, after=after, owner_id=owner_of(request))
        following = replace_query_param(request.build_absolute_uri(), "cursor", page.after) if page.after else None
        return Response({"next": following, "results": turns_as_json(page.turns)})


class TurnDetail(APIView):
    """One turn."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(operation_id="getTurn", responses={200: shapes.TurnView, **problems(404)})
    def get(self, request: Request, turn_id: UUID) -> Response:
        return Response(turns_as_json([owned_turn(request, turn_id)])[0])


class TurnEvents(APIView):
    """What happens in a turn."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(
        operation_id="followTurn", parameters=_LAST_EVENT_ID, responses={**_EVENTS, 204: None, **problems(404)}
    )
    def get(self, request: Request, turn_id: UUID) -> JsonResponse:
        """The turn's events from its beginning, or from behind the last one that was seen, to its end."""
        return _streamed(request, owned_turn(request, turn_id))


class TurnCancel(APIView):
    """Cancelling a turn."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(operation_id="cancelTurn", request=Nothing, responses={200: shapes.TurnView, **problems(404)})
    def post(self, request: Request, turn_id: UUID) -> Response:
        """Cancel a turn. A running one ends within moments: its status tells. One that has ended stays as it is."""
        turn = owned_turn(request, turn_id)
        checked(Nothing, request)
        turn_control.cancel_turn(turn)
        return Response(turns_as_json([owned_turn(request, turn_id)])[0])
