"""What a request for a response asks, read: its input, what it goes on from, its tools and parameters."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rest_framework.request import Request

from conversations.engine.inbox import OnBusy
from conversations.openai_api import caller_tools, input_items
from conversations.openai_api.errors import InvalidValue, UnsupportedParameter
from conversations.openai_api.input_items import Given
from conversations.openai_api.models import AsModel, model_of
from conversations.openai_api.parameters import PASSED_ON, answer_format
from conversations.openai_api.parts import refuse_too_much
from conversations.openai_api.shapes import MAX_ID
from conversations.openai_api.values import (
    as_flag,
    as_list,
    as_object,
    as_one_of,
    as_text,
    as_whole,
    metadata_of,
    or_else,
)
from conversations.options import Options
from nanohost.accounts.authentication import key_of

ON_BUSY = ("enqueue", "reject", "interrupt")
# How calls of the host's tools are shown, which metadata.tool_items says.
MCP_CALL, PAIRS = "mcp_call", "function_call"

# Refused, since nothing here would heed them, unless they say what is so without them.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "prompt": (),
    "moderation": (),
    "top_logprobs": (0,),
    "logprobs": (False,),
    "modalities": (["text"],),
}
_LOGPROBS = "message.output_text.logprobs"

# Passed on with each model call, by the name that Chat Completions have for it.
_PASSED_ON = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "parallel_tool_calls": "parallel_tool_calls",
    "max_output_tokens": "max_tokens",
}
# Told again, and nothing else: as texts of so many characters.
_TOLD_AGAIN = {"user": 512, "safety_identifier": 512, "prompt_cache_key": 512}
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, read. ``asked``: what its response tells again; ``system``: what its input has for the system, which
    goes on with what follows, as instructions do not."""

    model: AsModel
    given: Given
    options: Options
    asked: dict[str, Any]
    conversation: object = None
    previous: str = ""
    system: str = ""
    instructions: str = ""
    response_format: str = ""
    is_stored: bool = True
    is_background: bool = False
    streams: bool = False
    on_busy: OnBusy = "enqueue"
    body_hash: str = field(default="", repr=False)


def read(request: Request) -> Asked:
    """Read a request's body; raises what is wrong with it."""
    body = as_object(request.data, None)
    key = key_of(request)
    model = model_of(key, as_text(body.get("model"), "model", least=1, most=128))
    _refuse(body)
    conversation, previous = body.get("conversation"), body.get("previous_response_id")
    if conversation is not None and previous is not None:
        raise InvalidValue("Give conversation or previous_response_id, not both.", param="previous_response_id")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    if conversation is not None:
        as_text(conversation, "conversation", least=1, most=MAX_ID)
    is_stored = as_flag(or_else(body.get("store"), True), "store")
    is_background = as_flag(or_else(body.get("background"), False), "background")
    if is_background and not is_stored:
        raise InvalidValue("A response in the background has to be stored.", param="store")
    given = input_items.items_of(or_else(body.get("input"), []), "input")
    asked = json.dumps(["responses", body], ensure_ascii=False, sort_keys=True).encode()
    refuse_too_much(given.messages(), body_bytes=len(asked), param="input")
    tools = caller_tools.functions_of(body.get("tools"), is_flat=True)
    wanted = body.get("tool_choice")
    if isinstance(wanted, dict) and wanted.get("type") != "function":
        raise UnsupportedParameter("tool_choice may name a function, and no other tools.", param="tool_choice")
    choice, is_named = caller_tools.choice_of(body, wanted.get("name") if isinstance(wanted, dict) else wanted)
    if not model.is_plain:
        caller_tools.refuse_own_names(tools, model.agent, owner_id=key.owner_id)
    if is_named:
        allowed = model.agent.allowed_tools(owner_id=key.owner_id)
        caller_tools.refuse_unknown_choice(choice, tools, allowed, is_plain=model.is_plain)
    metadata = metadata_of(body)
    as_one_of(metadata.get("tool_items", MCP_CALL), "metadata.tool_items", (MCP_CALL, PAIRS))
    parameters, told = _parameters(body)
    instructions = as_text(or_else(body.get("instructions"), ""), "instructions")
    return Asked(
        model=model,
        given=given,
        response_format=_answer_format(body),
        options=Options(
            tools=tools,
            tool_choice=choice,
            is_named_choice=is_named,
            is_plain=model.is_plain,
            parameters=parameters,
            metadata=metadata,
        ),
        asked={
            "model": model.name,
            **told,
            **({"instructions": instructions} if instructions else {}),
            **({"metadata": metadata} if metadata else {}),
            **({"tools": [_as_told(each["function"]) for each in tools]} if tools else {}),
            **({"tool_choice": _choice(choice, is_named)} if choice else {}),
        },
        conversation=conversation,
        previous="" if previous is None else as_text(previous, "previous_response_id", least=1, most=MAX_ID),
        system=given.instructions,
        instructions=instructions,
        is_stored=is_stored,
        is_background=is_background,
        streams=as_flag(or_else(body.get("stream"), False), "stream"),
        on_busy=as_one_of(metadata.get("on_busy", "enqueue"), "metadata.on_busy", ON_BUSY),  # type: ignore[arg-type]
        body_hash=hashlib.sha256(asked).hexdigest(),
    )


def _refuse(body: Mapping[str, Any]) -> None:
    for name, neutral in REFUSED.items():
        if body.get(name) is not None and not any(body[name] == each for each in neutral):
            raise UnsupportedParameter(f"{name} is not supported here; leave it out.", param=name)
    if _LOGPROBS in as_list(or_else(body.get("include"), []), "include", most=100):
        raise UnsupportedParameter("Log probabilities are not supported here.", param="include")


def _parameters(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is passed on with each model call, and what is told again."""
    parameters, told = {}, {}
    for name, theirs in _PASSED_ON.items():
        if body.get(name) is not None:
            told[name] = parameters[theirs] = PASSED_ON[theirs](body[name], name)
    reasoning = as_object(or_else(body.get("reasoning"), {}), "reasoning")
    if (effort := reasoning.get("effort")) is not None:
        parameters["reasoning_effort"] = PASSED_ON["reasoning_effort"](effort, "reasoning.effort")
        told["reasoning"] = {"effort": effort}
    text = as_object(or_else(body.get("text"), {}), "text")
    if (verbosity := text.get("verbosity")) is not None:
        parameters["verbosity"] = PASSED_ON["verbosity"](verbosity, "text.verbosity")
    if text:
        form = {"format": or_else(text.get("format"), {"type": "text"})}
        told["text"] = form | ({"verbosity": verbosity} if verbosity is not None else {})
    for name, most in _TOLD_AGAIN.items():
        if body.get(name) is not None:
            told[name] = as_text(body[name], name, most=most)
    if body.get("max_tool_calls") is not None:
        told["max_tool_calls"] = as_whole(body["max_tool_calls"], "max_tool_calls", least=1)
    if body.get("truncation") is not None:
        told["truncation"] = as_one_of(body["truncation"], "truncation", ("auto", "disabled"))
    if body.get("service_tier") is not None:
        as_one_of(body["service_tier"], "service_tier", _TIERS)
    return parameters, told


def _answer_format(body: Mapping[str, Any]) -> str:
    """The form of the answer, as turns keep it: Responses have it flat."""
    form = as_object(or_else(body.get("text"), {}), "text").get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        told = {name: value for name, value in form.items() if name != "type" and value is not None}
        return answer_format({"type": "json_schema", "json_schema": told}, "text.format")
    return answer_format(form, "text.format")


def _as_told(function: Mapping[str, Any]) -> dict[str, Any]:
    about = {name: function.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", **about, "strict": function.get("strict", False)}


def _choice(choice: str, is_named: bool) -> Any:
    return {"type": "function", "name": choice} if is_named else choice
