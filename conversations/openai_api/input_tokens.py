"""How many tokens an input has: counted as prompts are, of which the host keeps an estimate; no model is asked."""

from typing import ClassVar

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agent import tokens
from agent.loop import ChatMessage
from conversations.attachments import intake
from conversations.attachments.prompts import texts_of, with_texts
from conversations.engine.model_request import background_of, prompt_of
from conversations.openai_api import shapes
from conversations.openai_api.response_request import Asked, read
from conversations.openai_api.responses import transcript_of
from conversations.openai_api.shapes import errors
from conversations.openai_api.views import KeyView
from memory import documents
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import owner_of
from tools import gate

# More than any window has room for: it is not cut.
_ROOM = 2**31


def estimated(asked: Asked, transcript: list[ChatMessage], *, instructions: str, owner_id: int) -> int:
    """Tokens of the whole prompt that a request would make: the agent's own part is in it."""
    agent = asked.model.agent
    has_tools = not (asked.options.is_plain or asked.options.offers_none)
    allowed = agent.allowed_tools(owner_id=owner_id)
    own = [each.as_function() for each in gate.offered(agent_tools=allowed)] if has_tools else []
    known = documents.background(agent=agent.name, owner_id=owner_id, today=timezone.localdate())
    background = background_of(
        {"name": agent.name, "system_prompt": agent.system_prompt, "documents": agent.documents},
        key="",
        owner_id=owner_id,
        memory=known.content,
        notes=known.notes,
        summary="",
        tools=[each["function"]["name"] for each in own],
        is_transient=True,
    )
    options = asked.options
    texts = texts_of(each["attachments"] for each in transcript if "attachments" in each)
    transcript = [with_texts(each, texts) for each in transcript]
    prompt = prompt_of(background, transcript, room=_ROOM, result_chars=settings.TOOL_RESULT_PROMPT_CHARS, limit=None)
    count = tokens.estimated_tools([*own, *options.offered()]) + sum(map(tokens.estimated_message, prompt))
    count += tokens.estimated(instructions)
    return int(count * max(tokens.correction.ratio(agent.own_model()), 1.0))


class InputTokens(KeyView):
    """Counting tokens."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="countInputTokens",
        request=shapes.ResponseRequest,
        responses={200: shapes.InputTokensShown, **errors(404)},
    )
    def post(self, request: Request) -> Response:
        """About how many tokens the model would be sent for this request."""
        asked = read(request)
        told = transcript_of(request, asked)
        # They are counted as they would be sent; nobody refers to them, and they are deleted in a while.
        messages = intake.with_references(owner_of(request), told.messages, key_of(request))
        count = estimated(asked, messages, instructions=told.instructions, owner_id=owner_of(request))
        return Response({"object": "response.input_tokens", "input_tokens": count})
