"""Conversations: those of ``/api/v1`` and of the console, as OpenAI's Conversations API shows and changes them."""

import json
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agent import access
from agent.loop import ChatMessage
from agent.models import DEFAULT_AGENT, Agent
from conversations.engine import editing, inbox, turn_control
from conversations.models import Conversation, Message
from conversations.openai_api import ids, sent_back, shapes
from conversations.openai_api.errors import ConversationNotFound, InvalidValue, ItemNotFound, ModelNotFound
from conversations.openai_api.input_items import items_of as given_items
from conversations.openai_api.items import Item, items_of, said
from conversations.openai_api.pages import PARAMETERS, as_list, listed, message_of, page_of
from conversations.openai_api.parts import refuse_too_much
from conversations.openai_api.shapes import MAX_ADDED, errors
from conversations.openai_api.values import as_list as as_entries
from conversations.openai_api.values import as_object, metadata_of, or_else
from conversations.openai_api.views import KeyView
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.api import owner_of


def conversation_of(request: Request, told: object) -> Conversation:
    """The caller's conversation of that id, of those that stay; raises :class:`ConversationNotFound`."""
    mine = Conversation.objects.select_related("agent").filter(owner_id=owner_of(request), is_transient=False)
    wanted = ids.row_of(told, ids.CONVERSATION)
    conversation = mine.filter(pk=wanted).first() if wanted else None
    if conversation is None or not access.admits(key_of(request), conversation.agent):
        raise ConversationNotFound()
    return conversation


def shown(conversation: Conversation) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "id": ids.shown(ids.CONVERSATION, conversation.pk),
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }


def first_agent(key: ApiKey) -> Agent:
    """The agent that a conversation begins with: until its first turn, which says whose it is."""
    rows = Agent.objects.order_by("name")
    agents = sorted((each for each in rows if access.admits(key, each)), key=lambda each: each.name != DEFAULT_AGENT)
    if not agents:
        raise ModelNotFound("This key may name no agent.")
    return agents[0]


def _added(given: Any, *, least: int, owner_id: int) -> list[ChatMessage]:
    """Items for a transcript, as messages."""
    read = given_items(as_entries(given, "items", least=least, most=MAX_ADDED), "items")
    if read.instructions:
        raise InvalidValue(
            "Messages of the system or a developer are no part of a conversation here: give them as instructions of"
            " each response.",
            param="items",
        )
    messages = read.messages()
    refuse_too_much(messages, body_bytes=len(json.dumps(given, ensure_ascii=False).encode()), param="items")
    return sent_back.marked(messages, owner_id=owner_id)


class ConversationCreate(KeyView):
    """Beginning a conversation."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createConversation",
        request=shapes.NewConversation,
        responses={200: shapes.ConversationShown, **errors()},
    )
    def post(self, request: Request) -> Response:
        """Begin a conversation. Its agent is the one that its first response names."""
        body = as_object(request.data, None)
        metadata = metadata_of(body)
        messages = _added(or_else(body.get("items"), []), least=0, owner_id=owner_of(request))
        agent = first_agent(key_of(request))
        conversation = inbox.start_conversation(owner_id=owner_of(request), agent=agent.name, metadata={**metadata})
        if messages:
            editing.append(conversation, messages, key_of(request))
        return Response(shown(conversation))


class ConversationDetail(KeyView):
    """One conversation."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT), "POST": (Scope.CHAT,), "DELETE": (Scope.CHAT,)}

    @extend_schema(operation_id="retrieveConversation", responses={200: shapes.ConversationShown, **errors(404)})
    def get(self, request: Request, conversation_id: str) -> Response:
        return Response(shown(conversation_of(request, conversation_id)))

    @extend_schema(
        operation_id="updateConversation",
        request=shapes.ConversationChange,
        responses={200: shapes.ConversationShown, **errors(404)},
    )
    def post(self, request: Request, conversation_id: str) -> Response:
        """Change its metadata, which are the client's own."""
        conversation = conversation_of(request, conversation_id)
        body = as_object(request.data, None)
        if "metadata" in body:
            conversation.metadata = metadata_of(body)
            conversation.save(update_fields=["metadata", "updated_at"])
        return Response(shown(conversation))

    @extend_schema(operation_id="deleteConversation", responses={200: shapes.ConversationDeleted, **errors(404, 409)})
    def delete(self, request: Request, conversation_id: str) -> Response:
        """Delete a conversation with its messages and turns; those that run are cancelled."""
        conversation = conversation_of(request, conversation_id)
        turn_control.delete_conversation(conversation.pk)
        told = {"id": ids.shown(ids.CONVERSATION, conversation.pk), "object": "conversation.deleted", "deleted": True}
        return Response(told)


class ConversationItems(KeyView):
    """What was said in a conversation."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT), "POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="listConversationItems", parameters=PARAMETERS, responses={200: shapes.ItemList, **errors(404)}
    )
    def get(self, request: Request, conversation_id: str) -> Response:
        """A page of its items, the newest first unless `order` is `asc`."""
        return Response(listed(_said_in(conversation_of(request, conversation_id)), page_of(request)))

    @extend_schema(
        operation_id="createConversationItems",
        request=shapes.NewItems,
        responses={200: shapes.ItemList, **errors(404, 409)},
    )
    def post(self, request: Request, conversation_id: str) -> Response:
        """Append items, of which no turn is made."""
        conversation = conversation_of(request, conversation_id)
        messages = _added(as_object(request.data, None).get("items"), least=1, owner_id=owner_of(request))
        rows = editing.append(conversation, messages, key_of(request)) if messages else []
        return Response(as_list(items_of(rows)))


class ConversationItem(KeyView):
    """One item."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT), "DELETE": (Scope.CHAT,)}

    @extend_schema(operation_id="retrieveConversationItem", responses={200: shapes.ItemShown, **errors(404)})
    def get(self, request: Request, conversation_id: str, item_id: str) -> Response:
        conversation = conversation_of(request, conversation_id)
        return Response(_item_of(conversation, item_id)[1])

    @extend_schema(operation_id="deleteConversationItem", responses={200: shapes.ConversationShown, **errors(404, 409)})
    def delete(self, request: Request, conversation_id: str, item_id: str) -> Response:
        """Delete an item: prompts have it no more. What was made of it, such as a summary, stays."""
        conversation = conversation_of(request, conversation_id)
        message, item = _item_of(conversation, item_id)
        editing.delete(conversation, message, without=lambda row: _without(row, item))
        return Response(shown(conversation))


def _said_in(conversation: Conversation) -> QuerySet[Message]:
    return said(Message.objects.filter(conversation=conversation))


def _item_of(conversation: Conversation, item_id: str) -> tuple[Message, Item]:
    message = message_of(_said_in(conversation), item_id)
    found = [item for item in items_of([message]) if item["id"] == item_id] if message else []
    if message is None or not found:
        raise ItemNotFound()
    return message, found[0]


def _without(message: Message, item: Item) -> Message | None:
    """The message without one of its items; None if nothing would be left of it."""
    others = [each for each in items_of([message]) if each["id"] != item["id"]]
    if not others:
        return None
    if item["type"] == "message":
        message.content = ""
    elif item["type"] == "reasoning":
        message.reasoning, message.thoughts = "", None
    else:
        place = [each["id"] for each in items_of([message]) if each["type"].endswith("_call")].index(item["id"])
        message.tool_calls = [call for at, call in enumerate(message.tool_calls or ()) if at != place] or None
    return message
