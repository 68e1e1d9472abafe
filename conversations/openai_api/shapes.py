"""Shapes that the OpenAPI document has in several places."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from conversations.openai_api.parameters import EFFORTS, MAX_STOP, MAX_STOPS, VERBOSITIES
from conversations.openai_api.values import MAX_PAIRS, MAX_VALUE, MAX_WHOLE

# So many items may be added to a conversation at a time; and so long is an id.
MAX_ADDED, MAX_ID = 20, 256


class ErrorView(serializers.Serializer[Any]):
    """What is wrong."""

    message = serializers.CharField(help_text="For people.")
    type = serializers.CharField(help_text="The kind of error; OpenAI's packages distinguish only a few.")
    param = serializers.CharField(allow_null=True, help_text="What in the body it is about.")
    code = serializers.CharField(help_text="Stable; programs decide by it. docs/openai.md and docs/api.md list them.")


class ErrorBody(serializers.Serializer[Any]):
    """An error as OpenAI's API tells it."""

    error = ErrorView()


def errors(*statuses: int) -> dict[int, type[ErrorBody]]:
    """For OpenAPI: the errors a route answers with, beside those that any request may meet."""
    everywhere = (400, 401, 403, 405, 408, 413, 415, 429, 431, 500, 503)
    return dict.fromkeys(sorted({*everywhere, *statuses}), ErrorBody)


class ContentPart(serializers.Serializer[Any]):
    """A part of what a message says."""

    type = serializers.ChoiceField(choices=["text", "refusal"])
    text = serializers.CharField(required=False)
    refusal = serializers.CharField(required=False)


class CalledFunction(serializers.Serializer[Any]):
    name = serializers.CharField()
    arguments = serializers.CharField(help_text="JSON, as the model wrote it.")


class ToolCallView(serializers.Serializer[Any]):
    """A call of a tool of the caller's own."""

    id = serializers.CharField(help_text="The message of the role tool that answers it has the same.")
    type = serializers.ChoiceField(choices=["function"])
    function = CalledFunction()


_PARTS = {"type": "array", "items": {"type": "object", "required": ["type"]}}


@extend_schema_field({"oneOf": [{"type": "string"}, _PARTS], "nullable": True})
class Content(serializers.JSONField):
    """A text, or parts."""


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "enum": ["none", "auto", "required"]},
            {"type": "object", "properties": {"type": {"type": "string", "enum": ["function"]}}, "required": ["type"]},
        ],
        "nullable": True,
    }
)
class ToolChoice(serializers.JSONField):
    """Which tools a model may or has to call."""


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP}


@extend_schema_field({"oneOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}], "nullable": True})
class Stop(serializers.JSONField):
    """Where an answer ends."""


@extend_schema_field(
    {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["text", "json_object", "json_schema"]}},
        "required": ["type"],
        "nullable": True,
    }
)
class AnswerFormat(serializers.JSONField):
    """The form that an answer is to have."""


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
        "maxProperties": MAX_PAIRS,
        "nullable": True,
    }
)
class Metadata(serializers.JSONField):
    """What a client keeps with what it asks."""


def _flag(**how: Any) -> serializers.BooleanField:
    """A flag that need not be given."""
    return serializers.BooleanField(required=False, allow_null=True, **how)


def _whole(**how: Any) -> serializers.IntegerField:
    """A whole number that need not be given."""
    return serializers.IntegerField(required=False, allow_null=True, **how)


def _number(least: int, most: int) -> serializers.FloatField:
    """A number that need not be given."""
    return serializers.FloatField(required=False, allow_null=True, min_value=least, max_value=most)


def _text(**how: Any) -> serializers.CharField:
    """A text that need not be given."""
    return serializers.CharField(required=False, allow_null=True, allow_blank=True, **how)


def _choice(*choices: str, **how: Any) -> serializers.ChoiceField:
    """One of some texts, which need not be given."""
    return serializers.ChoiceField(required=False, allow_null=True, choices=choices, **how)


class ChatMessageIn(serializers.Serializer[Any]):
    """A message of the transcript."""

    role = serializers.ChoiceField(choices=["system", "developer", "user", "assistant", "tool"])
    content = Content(required=False, help_text="A text, or an array of parts.")
    tool_calls = ToolCallView(many=True, required=False, allow_null=True)
    tool_call_id = _text(help_text="Of a message of the role tool.")


class FunctionIn(serializers.Serializer[Any]):
    """A function that the caller runs."""

    name = serializers.RegexField(r"^[a-zA-Z0-9_-]{1,64}$")
    description = _text()
    parameters = serializers.DictField(required=False, allow_null=True, help_text="JSON Schema of its arguments.")
    strict = _flag()


class ToolIn(serializers.Serializer[Any]):
    type = serializers.ChoiceField(choices=["function"])
    function = FunctionIn()


class StreamOptions(serializers.Serializer[Any]):
    include_usage = _flag(help_text="Whether a last chunk has the token counts.")
    include_progress = _flag(
        help_text="Whether chunks report the model's reasoning and the tools that run, as reasoning_content.",
    )


class ChatCompletionRequest(serializers.Serializer[Any]):
    """Body of POST /v1/chat/completions. Fields that are not named here are ignored; docs/openai.md lists those that
    are refused."""

    model = serializers.CharField(max_length=128, help_text="An agent's name; with :plain, without the host's tools.")
    messages = ChatMessageIn(many=True)
    stream = _flag()
    stream_options = StreamOptions(required=False, allow_null=True)
    tools = ToolIn(many=True, required=False, allow_null=True)
    tool_choice = ToolChoice(required=False, help_text="none, auto, required, or a function by its name.")
    response_format = AnswerFormat(required=False, help_text="text, json_object, or json_schema with its schema.")
    parallel_tool_calls = _flag()
    temperature = _number(0, 2)
    top_p = _number(0, 1)
    presence_penalty = _number(-2, 2)
    frequency_penalty = _number(-2, 2)
    max_completion_tokens = _whole(min_value=1, max_value=MAX_WHOLE)
    max_tokens = _whole(min_value=1, max_value=MAX_WHOLE, help_text="The older name of the same.")
    stop = Stop(required=False, help_text="A text, or up to four of them.")
    seed = _whole(min_value=-(2**63), max_value=2**63 - 1)
    reasoning_effort = _choice(*EFFORTS)
    verbosity = _choice(*VERBOSITIES)
    metadata = Metadata(
        required=False,
        help_text="16 pairs at most. conversation_id names a persistent conversation; on_busy decides what happens to"
        " the request while one of its turns is open: enqueue, reject, interrupt.",
    )


class AnswerView(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=["assistant"])
    content = serializers.CharField(allow_null=True)
    refusal = serializers.CharField(allow_null=True)
    tool_calls = ToolCallView(many=True, required=False)


class ChoiceView(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    message = AnswerView()
    finish_reason = serializers.ChoiceField(choices=["stop", "length", "tool_calls"])
    logprobs = serializers.JSONField(allow_null=True)


class CachedView(serializers.Serializer[Any]):
    cached_tokens = serializers.IntegerField()


class UsageView(serializers.Serializer[Any]):
    """Tokens of all that was asked of models for this answer."""

    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()
    prompt_tokens_details = CachedView()


class ChatCompletionView(serializers.Serializer[Any]):
    """A chat completion."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["chat.completion"])
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = ChoiceView(many=True)
    usage = UsageView()


class DeltaView(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=["assistant"], required=False)
    content = serializers.CharField(required=False)
    reasoning_content = serializers.CharField(required=False)
    tool_calls = ToolCallView(many=True, required=False)


class ChunkChoiceView(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    delta = DeltaView()
    finish_reason = serializers.ChoiceField(choices=["stop", "length", "tool_calls"], allow_null=True)
    logprobs = serializers.JSONField(allow_null=True)


class ChatCompletionChunkView(serializers.Serializer[Any]):
    """One chunk of a stream; the last line is [DONE]."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["chat.completion.chunk"])
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = ChunkChoiceView(many=True)
    usage = UsageView(required=False, allow_null=True)


class ItemShown(serializers.Serializer[Any]):
    """A message, what a model thought, a call of a tool, or what one of the caller's gave; by its type, it has more."""

    id = serializers.CharField(required=False)
    type = serializers.ChoiceField(
        choices=["message", "reasoning", "function_call", "function_call_output", "mcp_call"]
    )
    status = serializers.CharField(required=False)


class ItemIn(serializers.Serializer[Any]):
    """An item that a request brings; a message may lack its type."""

    type = serializers.ChoiceField(
        required=False,
        choices=[
            "message",
            "reasoning",
            "function_call",
            "function_call_output",
            "mcp_call",
            "compaction",
            "item_reference",
        ],
    )
    id = serializers.CharField(required=False)
    role = serializers.ChoiceField(required=False, choices=["user", "assistant", "system", "developer"])
    content = Content(required=False, help_text="A text, or an array of parts.")
    call_id = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    arguments = serializers.CharField(required=False)
    output = Content(required=False, help_text="A text, or an array of parts.")
    encrypted_content = serializers.CharField(required=False, help_text="Of a compaction.")


class ItemList(serializers.Serializer[Any]):
    """A page of items."""

    object = serializers.ChoiceField(choices=["list"])
    data = ItemShown(many=True)  # type: ignore[assignment]  # a field, which is taken off the class
    first_id = serializers.CharField(allow_blank=True)
    last_id = serializers.CharField(allow_blank=True)
    has_more = serializers.BooleanField()


class ConversationShown(serializers.Serializer[Any]):
    """A conversation."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["conversation"])
    created_at = serializers.IntegerField()
    metadata = serializers.DictField()


class ConversationDeleted(serializers.Serializer[Any]):
    """That a conversation was deleted."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["conversation.deleted"])
    deleted = serializers.BooleanField()


class ConversationChange(serializers.Serializer[Any]):
    """Body of POST /v1/conversations/{id}."""

    metadata = Metadata(required=False)


class NewConversation(ConversationChange):
    """Body of POST /v1/conversations."""

    items = ItemIn(many=True, required=False, allow_null=True, help_text="20 at most.")


class NewItems(serializers.Serializer[Any]):
    """Body of POST /v1/conversations/{id}/items."""

    items = ItemIn(many=True, help_text="20 at most.")


class FlatFunctionIn(FunctionIn):
    """A function that the caller runs."""

    type = serializers.ChoiceField(choices=["function"])


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}], "nullable": True})
class Input(serializers.JSONField):
    """What a response is asked for."""


_ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID}


@extend_schema_field(
    {
        "oneOf": [_ID, {"type": "object", "properties": {"id": _ID | {"nullable": True}}}],
        "nullable": True,
    }
)
class ConversationNamed(serializers.JSONField):
    """A conversation, by its id."""


class Reasoning(serializers.Serializer[Any]):
    effort = _choice(*EFFORTS)


class AnswerText(serializers.Serializer[Any]):
    format = AnswerFormat(required=False, help_text="text, json_object, or json_schema with its schema.")
    verbosity = _choice(*VERBOSITIES)


class ResponseRequest(serializers.Serializer[Any]):
    """Body of POST /v1/responses. Fields that are not named here are ignored; docs/openai.md lists those that are
    refused."""

    model = serializers.CharField(max_length=128, help_text="An agent's name; with :plain, without the host's tools.")
    input = Input(required=False, help_text="A text, or an array of items.")
    instructions = _text(help_text="For this response alone.")
    previous_response_id = _text(max_length=MAX_ID)
    conversation = ConversationNamed(required=False, help_text="The id of a conversation, or an object with it.")
    store = _flag(default=True)
    background = _flag(default=False)
    stream = _flag(default=False)
    tools = FlatFunctionIn(many=True, required=False, allow_null=True)
    tool_choice = ToolChoice(required=False, help_text="none, auto, required, or a function by its name.")
    parallel_tool_calls = _flag()
    max_tool_calls = _whole(min_value=1, max_value=MAX_WHOLE)
    temperature = _number(0, 2)
    top_p = _number(0, 1)
    presence_penalty = _number(-2, 2)
    frequency_penalty = _number(-2, 2)
    max_output_tokens = _whole(min_value=1, max_value=MAX_WHOLE)
    reasoning = Reasoning(required=False, allow_null=True)
    text = AnswerText(required=False, allow_null=True)
    truncation = _choice("auto", "disabled")
    metadata = Metadata(
        required=False,
        help_text="16 pairs at most. on_busy says what happens to the request while a turn of its conversation is open:"
        " enqueue, reject, interrupt; tool_items how calls of the host's tools are shown: mcp_call, function_call.",
    )


class ResponseShown(serializers.Serializer[Any]):
    """A response; it has more of what it was asked with."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["response"])
    created_at = serializers.IntegerField()
    completed_at = serializers.IntegerField(allow_null=True)
    status = serializers.ChoiceField(
        choices=["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    )
    model = serializers.CharField()
    output = ItemShown(many=True)
    error = serializers.DictField(allow_null=True)
    incomplete_details = serializers.DictField(allow_null=True)
    previous_response_id = serializers.CharField(allow_null=True)
    conversation = serializers.DictField(allow_null=True)
    usage = serializers.DictField(allow_null=True)


class ResponseDeleted(serializers.Serializer[Any]):
    """That a response was deleted."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["response"])
    deleted = serializers.BooleanField()


class ResponseEvent(serializers.Serializer[Any]):
    """One event of a stream; by its type, it has more."""

    type = serializers.CharField()
    sequence_number = serializers.IntegerField()


class CompactionShown(serializers.Serializer[Any]):
    """A transcript that was summed up."""

    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["response.compaction"])
    created_at = serializers.IntegerField()
    status = serializers.ChoiceField(choices=["completed", "incomplete"])
    output = serializers.ListField(
        child=serializers.DictField(), help_text="The user's messages, and an item of the type compaction."
    )
    usage = serializers.DictField()


class InputTokensShown(serializers.Serializer[Any]):
    """How many tokens an input has."""

    object = serializers.ChoiceField(choices=["response.input_tokens"])
    input_tokens = serializers.IntegerField()
