"""The shapes of the API's bodies: what comes in is held against them, what goes out is documented by them."""

from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from conversations.models import Conversation, Message, TurnStatus
from tools.models import CallStatus


class Text(serializers.CharField):
    """A JSON string, taken as it is: DRF's own field makes one of a number, and trims it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        value: str = super().to_internal_value(data)
        return value


class Strict(serializers.Serializer[Any]):
    """Refuses keys it does not know: a misspelt option is an error, not a default."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError({name: ["There is no such field."] for name in unknown})
        return super().to_internal_value(data)


class NewConversation(Strict):
    """Body of POST /conversations."""

    agent = Text(
        required=False, min_length=1, max_length=64, help_text="Name of the agent; the default one if missing."
    )
    metadata = serializers.DictField(required=False, help_text="Yours; kept with the conversation.")


class ConversationCreated(serializers.Serializer[Any]):
    conversationId = serializers.UUIDField(source="pk")  # noqa: N815 -- the specification's name


class ConversationView(serializers.ModelSerializer[Conversation]):
    conversationId = serializers.UUIDField(source="pk")  # noqa: N815
    agent = serializers.CharField(source="agent.name")
    metadata = serializers.DictField()
    createdAt = serializers.DateTimeField(source="created_at")  # noqa: N815
    updatedAt = serializers.DateTimeField(source="updated_at")  # noqa: N815

    class Meta:
        model = Conversation
        fields = ["conversationId", "agent", "metadata", "createdAt", "updatedAt"]


class ChatMessageIn(Strict):
    """Body of POST /conversations/{id}/chat."""

    message = Text(validators=[RegexValidator(r"\S", "This field may not be blank.")], help_text="What the user says.")
    model = Text(required=False, min_length=1, max_length=128, help_text="The model to ask; the agent's if missing.")


class UsageView(serializers.Serializer[Any]):
    promptTokens = serializers.IntegerField()  # noqa: N815
    completionTokens = serializers.IntegerField()  # noqa: N815
    totalTokens = serializers.IntegerField()  # noqa: N815


class ToolCallView(serializers.Serializer[Any]):
    toolName = serializers.CharField()  # noqa: N815
    status = serializers.ChoiceField(CallStatus.choices)
    result = serializers.CharField(help_text="What the model was told.")


class ChatAnswer(serializers.Serializer[Any]):
    conversationId = serializers.UUIDField()  # noqa: N815
    turnId = serializers.UUIDField()  # noqa: N815
    assistantMessage = serializers.CharField()  # noqa: N815
    toolCalls = ToolCallView(many=True)  # noqa: N815
    usage = UsageView()


class ChatPending(serializers.Serializer[Any]):
    turnId = serializers.UUIDField()  # noqa: N815
    conversationId = serializers.UUIDField()  # noqa: N815
    status = serializers.ChoiceField(TurnStatus.choices)


class TurnErrorView(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()


class TurnView(serializers.Serializer[Any]):
    turnId = serializers.UUIDField()  # noqa: N815
    conversationId = serializers.UUIDField()  # noqa: N815
    status = serializers.ChoiceField(TurnStatus.choices)
    assistantMessage = serializers.CharField(allow_null=True)  # noqa: N815
    toolCalls = ToolCallView(many=True)  # noqa: N815
    usage = UsageView()
    error = TurnErrorView(allow_null=True)
    createdAt = serializers.DateTimeField()  # noqa: N815
    startedAt = serializers.DateTimeField(allow_null=True)  # noqa: N815
    endedAt = serializers.DateTimeField(allow_null=True)  # noqa: N815


class MessageView(serializers.ModelSerializer[Message]):
    conversationId = serializers.UUIDField(source="conversation_id")  # noqa: N815
    role = serializers.SerializerMethodField(help_text="SYSTEM, USER, ASSISTANT or TOOL")
    toolName = serializers.CharField(source="tool_name", allow_null=True)  # noqa: N815
    toolCallId = serializers.CharField(source="tool_call_id", allow_null=True)  # noqa: N815
    turnId = serializers.UUIDField(source="turn_id", allow_null=True)  # noqa: N815
    createdAt = serializers.DateTimeField(source="created_at")  # noqa: N815

    class Meta:
        model = Message
        fields = [
            "id",
            "conversationId",
            "seq",
            "role",
            "type",
            "content",
            "toolName",
            "toolCallId",
            "turnId",
            "createdAt",
        ]

    def get_role(self, message: Message) -> str:
        return message.role.upper()


class ToolView(serializers.Serializer[Any]):
    name = serializers.CharField()
    description = serializers.CharField()
    schema = serializers.DictField(help_text="JSON Schema of the arguments.")
    permissions = serializers.ListField(child=serializers.CharField())
    allowed = serializers.BooleanField(help_text="Whether the agent may use it now.")
    forbiddenBy = serializers.CharField(allow_null=True, help_text="The rule that forbids it.")  # noqa: N815


class ProblemView(serializers.Serializer[Any]):
    """RFC 9457, with a stable code and the request's id."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    requestId = serializers.CharField()  # noqa: N815
