"""The shapes of the API's bodies: what comes in is held against them, what goes out is documented by them."""

import math
from typing import Any

from django.conf import settings
from django.core.validators import RegexValidator
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from agent import answer_schemas
from agent.spending.models import MICRO
from agent.spending.money import as_money
from conversations import sharing
from conversations.attachments import parts
from conversations.attachments.store import told
from conversations.feedback_models import Rating
from conversations.models import (
    MAX_REASON,
    CompactionKind,
    Conversation,
    DeferredMessage,
    DeferredState,
    Message,
    Share,
    calls_in,
)
from conversations.statuses import CHOICES
from nanohost.lib.api import Flag, NullIfEmpty, Strict, Text
from nanohost.lib.errors import InvalidRequest
from tools.models import CallStatus

# The specification's names.
# ruff: noqa: N815


# The parts of OpenAI's Responses.
_OF_RESPONSES = ("input_text", "input_image", "input_file")

# A chat's id may hold colons itself, as Matrix's do.
CONVERSATION_KEY = r"^[A-Za-z0-9_.-]{1,64}:[!-9;-~]([!-~]*[!-9;-~])?\Z"


class NewConversation(Strict):
    """Body of POST /conversations."""

    agent = Text(
        required=False, min_length=1, max_length=64, help_text="Name of the agent; the default one if missing."
    )
    key = Text(
        required=False,
        max_length=255,
        validators=[RegexValidator(CONVERSATION_KEY, "A key is channel:chat_id or channel:chat_id:thread.")],
        help_text="channel:chat_id or channel:chat_id:thread, ASCII without spaces. The conversation with this key"
        " is returned; it is created if there is none.",
    )
    metadata = serializers.DictField(required=False, help_text="Yours; kept with a new conversation.")


class ConversationChanges(Strict):
    """Body of PATCH /conversations/{id}: what is not named stays."""

    title = Text(
        required=False,
        allow_null=True,
        allow_blank=True,
        max_length=Conversation.TITLE_CHARS,
        source="name",
        help_text="Its title; null: the beginning of its first message.",
    )
    pinned = Flag(required=False, source="is_pinned", help_text="Whether you have it above others.")
    archived = Flag(required=False, source="is_archived", help_text="Whether you have it out of the way.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "name" in attrs:
            attrs["name"] = " ".join((attrs["name"] or "").split())
        return attrs


class NewBranch(Strict):
    """Body of POST /conversations/{id}/branches."""

    before = serializers.UUIDField(help_text="The user's message that is to be replaced.")


class NewShare(Strict):
    """Body of POST /conversations/{id}/shares."""

    days = serializers.IntegerField(
        required=False, default=30, min_value=1, max_value=sharing.MAX_DAYS, help_text="It expires after so many."
    )
    withTools = Flag(required=False, default=False, help_text="Whether calls of tools are shown, with their results.")


class ShareView(serializers.ModelSerializer[Share]):
    """A link by which others read a conversation."""

    shareId = serializers.UUIDField(source="pk")
    conversationId = serializers.UUIDField(source="conversation_id")
    state = serializers.ChoiceField(choices=["active", "expired", "revoked"])
    throughSeq = serializers.IntegerField(source="through_seq", help_text="The last message that it shows.")
    withTools = serializers.BooleanField(source="with_tools")
    createdAt = serializers.DateTimeField(source="created_at")
    expiresAt = serializers.DateTimeField(source="expires_at")
    revokedAt = serializers.DateTimeField(source="revoked_at", allow_null=True)

    class Meta:
        model = Share
        fields = [
            *("shareId", "conversationId", "state", "throughSeq", "withTools", "createdAt", "expiresAt", "revokedAt"),
        ]


class ShareMade(ShareView):
    """The one answer that has its token."""

    token = serializers.CharField(help_text="It is returned only this once.")

    class Meta(ShareView.Meta):
        fields = [*ShareView.Meta.fields, "token"]


class ConversationCreated(serializers.Serializer[Any]):
    conversationId = serializers.UUIDField(source="pk")
    key = serializers.CharField()


class Money(serializers.Field[Any, Any, Any, Any]):
    """Stored in millionths of the currency; shown as a decimal number in a string."""

    def to_representation(self, value: int) -> str | None:
        return as_money(value)


class MoneyInOpenApi(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = Money

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Any:
        return {"type": "string", "format": "decimal", "pattern": r"^\d+\.\d{6}$"}


class TaintView(serializers.Serializer[Any]):
    """What has tainted a conversation."""

    seq = serializers.IntegerField(source="tainted_at_seq", help_text="The message with which it entered.")
    by = serializers.CharField(source="tainted_by", help_text="From where it came, in a few words.")


class ConversationView(serializers.ModelSerializer[Conversation]):
    conversationId = serializers.UUIDField(source="pk")
    agent = serializers.CharField(source="agent.name")
    title = serializers.SerializerMethodField(
        help_text="Its title, or the beginning of its first message; null: it has no messages."
    )
    pinned = serializers.BooleanField(source="is_pinned", help_text="Whether its owner has pinned it above others.")
    archived = serializers.BooleanField(source="is_archived", help_text="Whether its owner has archived it.")
    branchOf = serializers.UUIDField(
        source="branch_of", allow_null=True, help_text="The conversation that it is a branch of, if it is one."
    )
    metadata = serializers.DictField()
    cost = Money(allow_null=True, help_text="Of its model calls together. null: of some of them it is not known.")
    currency = serializers.SerializerMethodField()
    tainted = serializers.SerializerMethodField(
        help_text="Untrusted text that has entered since its last restart; null: none has."
    )
    createdAt = serializers.DateTimeField(source="created_at")
    updatedAt = serializers.DateTimeField(source="updated_at")

    class Meta:
        model = Conversation
        fields = [
            *("conversationId", "key", "agent", "title", "pinned", "archived", "branchOf", "metadata", "tainted"),
            *("cost", "currency", "createdAt", "updatedAt"),
        ]

    def get_title(self, conversation: Any) -> str | None:
        if not hasattr(conversation, "title"):
            conversation = Conversation.objects.with_title().get(pk=conversation.pk)
        title: str | None = conversation.title
        return title

    def get_currency(self, conversation: Conversation) -> str:
        return str(settings.CURRENCY)

    @extend_schema_field(TaintView(allow_null=True))
    def get_tainted(self, conversation: Conversation) -> dict[str, Any] | None:
        """With which message, and from where."""
        return None if conversation.tainted_at_seq is None else dict(TaintView(conversation).data)


class ResponseFormat(serializers.JSONField):
    """The form of an answer, as OpenAI's ``response_format`` has it; read into the text that is kept of it."""

    def to_internal_value(self, data: Any) -> str:  # type: ignore[override]  # which is no JSON
        try:
            answer_schemas.read(data)
        except answer_schemas.InvalidFormat as error:
            raise serializers.ValidationError([str(error)]) from None
        return answer_schemas.as_text(data)


class ResponseFormatInOpenApi(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = ResponseFormat

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Any:
        named = {
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
            "description": {"type": "string", "maxLength": 1024},
            "schema": {"type": "object", "additionalProperties": True, "description": "JSON Schema, draft 2020-12."},
            "strict": {"type": "boolean"},
        }
        schema = {"json_schema": _closed(named, "name", "schema")}
        of_schema = {"type": {"type": "string", "enum": [answer_schemas.JSON_SCHEMA]}} | schema
        plain = {"type": {"type": "string", "enum": [answer_schemas.JSON_OBJECT, answer_schemas.TEXT]}}
        return {"oneOf": [_closed(of_schema, "type", "json_schema"), _closed(plain, "type")]}


def _closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


class PartIn(serializers.Serializer[Any]):
    """A part of a message; how its file is given stands in docs/api.md."""

    type = serializers.ChoiceField(choices=["text", "image_url", "file", "image", *_OF_RESPONSES])
    text = serializers.CharField(required=False, allow_blank=True)
    image_url = serializers.JSONField(required=False, help_text='{"url": "data:…;base64,… or https://…"}')
    file = serializers.JSONField(required=False, help_text='{"filename": "…", "file_data": "data:…;base64,…"}')


class Content(serializers.Field[Any, Any, Any, Any]):
    """A text, or a list of parts."""

    def to_internal_value(self, data: Any) -> parts.Said:
        return parts.parse(data, most=settings.ATTACHMENTS_MAX, max_bytes=settings.ATTACHMENTS_MAX_BYTES)


class ContentInOpenApi(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Tells OpenAPI of it."""

    target_class = Content

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Any:
        several = auto_schema._map_serializer_field(PartIn(many=True), direction)  # type: ignore[no-untyped-call]
        return {"oneOf": [{"type": "string"}, several | {"maxItems": parts.MAX_PARTS}]}


class Spoken(Strict):
    """What a user says: a text, or parts with images and files among them."""

    message = Text(
        required=False,
        validators=[RegexValidator(r"\S", "This field may not be blank.")],
        help_text="What the user says; or else content.",
    )
    content = Content(required=False, help_text="What the user says, as a text or as parts, with images and files.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("message" in attrs) == ("content" in attrs):
            raise serializers.ValidationError(
                {"message": ["This field is required, or content in its place; not both."]}
            )
        said: parts.Said = attrs.pop("content", None) or parts.Said(text=attrs["message"])
        if not said.text.strip() and not said.files:
            raise serializers.ValidationError({"content": ["There are neither words nor files in it."]})
        if len(said.text.encode("utf-8", "replace")) > settings.MAX_BODY_BYTES:
            raise serializers.ValidationError({"content": [f"Its text may have {settings.MAX_BODY_BYTES} bytes."]})
        return attrs | {"message": said.text, "files": said.files}


class ChatMessageIn(Spoken):
    """Body of POST /conversations/{id}/turns."""

    model = Text(required=False, min_length=1, max_length=128, help_text="The model to ask; the agent's if missing.")
    response_format = ResponseFormat(
        required=False, help_text="The format of the answer, as in OpenAI's API; the agent's if missing."
    )
    onBusy = serializers.ChoiceField(
        choices=["enqueue", "reject", "interrupt"],
        required=False,
        help_text="While turns of the conversation are open: wait behind them (the default), be refused, cancel them.",
    )


class ChatIn(ChatMessageIn):
    """Body of POST /conversations/{id}/chat."""

    stream = Flag(required=False, help_text="Answer with the turn's events, as Accept: text/event-stream does.")


class MessageIn(Spoken):
    """Body of POST /conversations/{id}/messages."""

    model = Text(required=False, min_length=1, max_length=128, help_text="The model to ask; the agent's if missing.")
    trigger = Flag(required=False, help_text="Whether it makes a turn (the default), or rides along with the next one.")
    onWake = Flag(
        required=False, help_text="A note for the agent, which rides along with the next turn and is marked as one."
    )
    runAfter = serializers.DateTimeField(required=False, help_text="Not before then; with a zone.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if attrs.get("onWake") and attrs.get("trigger"):
            raise serializers.ValidationError(
                {"onWake": ["A note makes no turn, it rides along with the next one: leave trigger out, or false."]}
            )
        return attrs


class AttachmentView(serializers.Serializer[Any]):
    """A file that came with a message; GET /attachments/{id} has it."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    type = serializers.CharField(help_text="By its content.")
    size = serializers.IntegerField(help_text="Bytes.")
    sha256 = serializers.CharField()
    width = serializers.IntegerField(required=False)
    height = serializers.IntegerField(required=False)


class StateInWords(serializers.ChoiceField):
    """Shown by its label, which is what is stored but for one that had to be shorter."""

    def to_representation(self, value: str) -> str:
        return DeferredState(value).label.lower()


# Clients that were generated from the schema know it by this name.
@extend_schema_serializer(component_name="LaterMessageView")
class DeferredMessageView(serializers.ModelSerializer[DeferredMessage]):
    messageId = serializers.UUIDField(source="pk")
    conversationId = serializers.UUIDField(source="conversation_id")
    state = StateInWords(choices=[state.label.lower() for state in DeferredState])
    message = serializers.CharField(source="content")
    attachments = serializers.SerializerMethodField(help_text="The files that came with it.")
    model = NullIfEmpty(allow_null=True, help_text="null: the agent's.")
    runAfter = serializers.DateTimeField(source="run_after", allow_null=True)
    turnId = serializers.UUIDField(
        source="turn_id", allow_null=True, help_text="The latest turn that was started for it or includes it."
    )
    createdAt = serializers.DateTimeField(source="created_at")

    class Meta:
        model = DeferredMessage
        fields = [
            *("messageId", "conversationId", "kind", "state", "message", "attachments", "model", "runAfter", "turnId"),
            "createdAt",
        ]

    @extend_schema_field(AttachmentView(many=True))
    def get_attachments(self, message: DeferredMessage) -> list[dict[str, Any]]:
        """As a message has them."""
        return told(message.attachments)


class UsageView(serializers.Serializer[Any]):
    promptTokens = serializers.IntegerField()
    completionTokens = serializers.IntegerField()
    totalTokens = serializers.IntegerField()
    cachedTokens = serializers.IntegerField(help_text="Prompt tokens that the provider had cached.")
    cost = Money(allow_null=True, help_text="null: some prices are not known.")
    currency = serializers.CharField()


class ToolCallView(serializers.Serializer[Any]):
    toolName = serializers.CharField()
    status = serializers.ChoiceField(CallStatus.choices)
    result = serializers.CharField(help_text="The result that the model received.")


class ChatAnswer(serializers.Serializer[Any]):
    conversationId = serializers.UUIDField()
    turnId = serializers.UUIDField()
    assistantMessage = serializers.CharField()
    toolCalls = ToolCallView(many=True)
    usage = UsageView()


class ChatPending(serializers.Serializer[Any]):
    turnId = serializers.UUIDField()
    conversationId = serializers.UUIDField()
    status = serializers.ChoiceField(CHOICES)


class TurnErrorView(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()


class RetryView(serializers.Serializer[Any]):
    """Of a turn that has failed and is tried again."""

    code = serializers.CharField(help_text="As an error's.")
    message = serializers.CharField(help_text="What the code means.")
    tries = serializers.IntegerField(help_text="How often it has failed in a row.")
    since = serializers.DateTimeField()
    nextTryAt = serializers.DateTimeField(allow_null=True, help_text="null: it is being tried.")


class FallbackView(serializers.Serializer[Any]):
    """Of a turn for which another model than its own is asked."""

    model = serializers.CharField(help_text="One of its agent's further models.")
    reason = serializers.CharField(help_text="What the model before it has failed with.")


class TurnView(serializers.Serializer[Any]):
    turnId = serializers.UUIDField()
    conversationId = serializers.UUIDField()
    status = serializers.ChoiceField(CHOICES)
    assistantMessage = serializers.CharField(allow_null=True)
    toolCalls = ToolCallView(many=True)
    usage = UsageView()
    error = TurnErrorView(allow_null=True)
    retry = RetryView(allow_null=True)
    model = serializers.CharField(help_text="The model it is to ask.")
    fallback = FallbackView(allow_null=True, help_text="null: the agent's own model is used.")
    createdAt = serializers.DateTimeField()
    startedAt = serializers.DateTimeField(allow_null=True)
    endedAt = serializers.DateTimeField(allow_null=True)


class Amount(serializers.FloatField):
    """A number from 0 to a billion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=0, max_value=10**9, **options)

    def to_internal_value(self, data: Any) -> float:
        found = super().to_internal_value(data)
        if math.isnan(found):  # which is neither less nor more than the bounds
            self.fail("invalid")
        return found


@extend_schema_field({"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"})
class Cursor(serializers.UUIDField):
    """A turn's id; an empty text is none."""


class TurnFilters(serializers.Serializer[Any]):
    """Query of GET /turns: what the turns have to match, all of it."""

    search = Text(required=False, max_length=1000, help_text="Words that one message of the turn has, by beginnings.")
    status = serializers.ChoiceField(CHOICES, required=False)
    error = Text(required=False, max_length=64, help_text="The code of its error.")
    agent = Text(required=False, max_length=64, help_text="The agent's name.")
    model = Text(required=False, max_length=128, help_text="The model that it called, or a fallback model.")
    tool = Text(required=False, max_length=128, help_text="A tool that was called in it.")
    rule = Text(required=False, max_length=64, help_text="The rule by which a call in it was refused.")
    feedback = serializers.ChoiceField(Rating.choices, required=False, help_text="The rating of its answer.")
    key = Text(required=False, max_length=16, help_text="The prefix of the API key that started it.")
    tag = Text(
        required=False,
        max_length=300,
        validators=[RegexValidator(r"^[^:]+:", "A tag is name:value, of the conversation's metadata.")],
        help_text="name:value, of the conversation's metadata.",
    )
    minCost = Amount(source="least_cost", required=False, help_text="In the currency.")
    minSeconds = Amount(source="least_seconds", required=False, help_text="From the request to its end.")
    to = serializers.DateTimeField(
        source="until", required=False, help_text="Before then: a time, such as 2026-11-24T17:00Z."
    )
    cursor = Cursor(required=False, help_text="From the next link of a page.")
    limit = serializers.IntegerField(
        required=False, min_value=1, default=50, help_text="How many at most; more than 200 are never given."
    )

    def get_fields(self) -> dict[str, Any]:
        """With the one that Python has another use for."""
        since = serializers.DateTimeField(
            source="since", required=False, help_text="Then or later: a time, such as 2026-11-24T17:00Z."
        )
        return {**super().get_fields(), "from": since}


def filters_of(query: dict[str, str]) -> dict[str, Any]:
    """As :func:`conversations.turn_search.find` has them, and the page's ``limit`` and ``cursor``. Raises
    :class:`InvalidRequest`, or what the fields raise."""
    if unknown := sorted(set(query) - set(TurnFilters().fields)):
        raise InvalidRequest(f"There is no filter named {unknown[0][:100]!r}.")
    given: dict[str, Any] = TurnFilters().run_validation(query)
    if "search" in given:
        given["words"] = given.pop("search")
    if "least_cost" in given:
        given["least_cost"] = round(given["least_cost"] * MICRO)
    return given


class FoundTurns(serializers.Serializer[Any]):
    next = serializers.URLField(
        allow_null=True, help_text="null: there are no further ones. A page may have few turns, or none, and a next."
    )
    results = TurnView(many=True)


class TurnPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = TurnView(many=True)


class UpperCase(serializers.ChoiceField):
    """Stored in the case of the chat format, shown in the case of the specification."""

    def to_representation(self, value: str) -> str:
        return value.upper()


class AskedCallView(serializers.Serializer[Any]):
    toolCallId = serializers.CharField(help_text="The message of role TOOL that answers it has the same.")
    toolName = serializers.CharField()
    arguments = serializers.CharField(help_text="As the model wrote them: JSON, if it wrote any.")
    status = serializers.ChoiceField(
        CallStatus.choices, allow_null=True, help_text="Its outcome; null: not known here."
    )


class SaidIfEmpty(serializers.ChoiceField):
    """Stored as an empty text where it is what was said."""

    def to_representation(self, value: str) -> str:
        return value or "said"


class MessageView(serializers.ModelSerializer[Message]):
    conversationId = serializers.UUIDField(source="conversation_id")
    role = UpperCase(choices=[role.upper() for role in Message.Role])
    kind = SaidIfEmpty(
        choices=["said", *(kind for kind in Message.Kind if kind)],
        help_text="said: an ordinary message; command: to the host, or its answer; rolling: a summary for prompts;"
        " daily: a summary for people.",
    )
    pinned = serializers.SerializerMethodField(help_text="Whether it is in every prompt.")
    reasoning = NullIfEmpty(allow_null=True, help_text="The model's reasoning; null: it returned none.")
    attachments = serializers.SerializerMethodField(help_text="The files that came with it.")
    toolCalls = serializers.SerializerMethodField(
        method_name="get_calls", help_text="The calls that it asks for; null: there are none."
    )
    toolName = NullIfEmpty(source="tool_name", allow_null=True)
    toolCallId = NullIfEmpty(source="tool_call_id", allow_null=True)
    turnId = serializers.UUIDField(source="turn_id", allow_null=True)
    feedback = serializers.SerializerMethodField(help_text="Of an answer: what you think of it; null: you did not say.")
    createdAt = serializers.DateTimeField(source="created_at")

    class Meta:
        model = Message
        fields = [
            "id",
            "conversationId",
            "seq",
            "role",
            "type",
            "kind",
            "pinned",
            "content",
            "reasoning",
            "attachments",
            "toolCalls",
            "toolName",
            "toolCallId",
            "turnId",
            "feedback",
            "createdAt",
        ]

    @extend_schema_field(serializers.ChoiceField(Rating.choices, allow_null=True))
    def get_feedback(self, message: Message) -> str | None:
        """By whoever reads it."""
        found: str | None = self.context.get("ratings", {}).get(message.turn_id)
        return found if message.role == Message.Role.ASSISTANT else None

    @extend_schema_field(AttachmentView(many=True))
    def get_attachments(self, message: Message) -> list[dict[str, Any]]:
        """By reference."""
        return told(message.attachments)

    @extend_schema_field(AskedCallView(many=True, allow_null=True))
    def get_calls(self, message: Message) -> list[dict[str, Any]] | None:
        """In their order."""
        if message.tool_calls is None:
            return None
        statuses = self.context.get("statuses", {})
        return [
            {"toolCallId": call, "toolName": name, "arguments": given, "status": statuses.get((message.turn_id, call))}
            for call, name, given in calls_in(message.tool_calls)
        ]

    def get_pinned(self, message: Message) -> bool:
        return message.seq in self.context.get("pinned", ())


class UndoIn(Strict):
    """Body of POST /conversations/{id}/summaries/{seq}/undo."""

    reason = Text(required=False, allow_blank=True, max_length=MAX_REASON, help_text="Why; kept with it.")


class SummaryView(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(
        CompactionKind.choices, help_text="rolling: for prompts. daily: of one day, for people."
    )
    day = serializers.DateField(allow_null=True, help_text="The day that a daily one is of; null: it was imported.")
    seq = serializers.IntegerField(help_text="Of the message that it is.")
    content = serializers.CharField()
    fromSeq = serializers.IntegerField(allow_null=True, help_text="null: it was imported.")
    throughSeq = serializers.IntegerField(allow_null=True, help_text="The last message it took in.")
    isStub = serializers.BooleanField(help_text="No model could summarise them; the history log has them.")
    model = serializers.CharField(allow_null=True)
    memoryVersion = serializers.IntegerField(
        allow_null=True, help_text="The version of the long-term memory that was made with it."
    )
    turnId = serializers.UUIDField(allow_null=True, help_text="The turn that triggered it.")
    createdAt = serializers.DateTimeField()
    undoneAt = serializers.DateTimeField(allow_null=True, help_text="When it was undone; null: it was not.")
    undoneBy = serializers.CharField(allow_null=True)
    undoneBecause = serializers.CharField(allow_null=True)


class SummaryPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = SummaryView(many=True)
