"""Strict servers of the dialects that providers speak, on loopback: one server, told apart by the address it is asked.

Chat Completions are held against the rules of :mod:`tests.support.openai_server`, and what a provider adds to them
against its own row here; Azure's come with its addresses and headers; Anthropic's Messages are held against the rules
of its API. Each refuses what it does not know, as the real ones do.
"""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from tests.support.openai_server import (
    DATA_URL,
    EVENT_STREAM,
    Broken,
    OpenAIServer,
    Reply,
    Request,
    as_json,
    check_json_schema,
    check_request,
    failure,
)

# What a provider takes in a request beside what all do, and in an assistant's message.
BESIDES: dict[str, set[str]] = {
    "reasoning_effort": {"custom", "openrouter", "aihubmix", "openai", "gemini", "vllm", "groq", "github_copilot"},
    "thinking": {"volcengine", "deepseek", "zhipu", "moonshot"},
    "enable_thinking": {"siliconflow", "dashscope"},
    "reasoning_split": {"minimax"},
}
BESIDES["reasoning_effort"] |= {"azure"}
# Who takes the form of an answer in a request; Claude has one of its own, and so has Codex.
TAKES_FORMS = {"openrouter", "aihubmix", "volcengine", "openai", "gemini", "moonshot", "vllm", "groq", "azure"}
SENT_BACK = {"deepseek": "reasoning_content", "moonshot": "reasoning_content"}
SENT_BACK |= {"openrouter": "reasoning_details", "minimax": "reasoning_details"}


class Dialects(OpenAIServer):
    """A server of every dialect. ``http://…/<provider>/v1`` is the address of a provider that speaks OpenAI's,
    ``/anthropic`` Anthropic's, ``/azure`` Azure's. It answers as it is told; untold, it refuses."""

    # Those of which every request is answered with 503, whatever is told.
    down: Collection[str] = ()

    def url_of(self, provider: str) -> str:
        root = self.url.removesuffix("/v1")
        return f"{root}/{provider}" + ("" if provider in ("anthropic", "azure") else "/v1")

    async def _choose(self, request: Request) -> Reply:
        try:
            provider, refusal = self._provider_of(request), None
            if self.key and self._given(request, provider) != self.key:
                return refused(provider, 401)
            refusal = self._held(request, provider)
        except Broken as broken:
            request.broken = str(broken)
            return refused(request.path.split("/")[1], 400, str(broken))
        if refusal:
            return refusal
        if provider in self.down:
            return refused(provider, 503)
        return self._replies.popleft() if self._replies else refused(provider, 400, "nothing was told")

    def _provider_of(self, request: Request) -> str:
        path, _, query = request.path.partition("?")
        first, *rest = path.strip("/").split("/")
        if first == "anthropic":
            _need("/".join(rest) == "v1/messages", f"no such address: {path}")
        elif first == "azure":
            deployment = request.body["model"] if isinstance(request.body, dict) else ""
            _need("/".join(rest) == f"openai/deployments/{deployment}/chat/completions", f"no such address: {path}")
            _need(re.fullmatch(r"api-version=\d{4}-\d\d-\d\d(-preview)?", query), "api-version is missing")
        elif first == "openai_codex":
            _need("/".join(rest) == "v1/responses", f"no such address: {path}")
        else:
            _need("/".join(rest) == "v1/chat/completions", f"no such address: {path}")
        return first

    @staticmethod
    def _given(request: Request, provider: str) -> str:
        """The key, where this provider looks for it."""
        if provider == "azure":
            return request.headers.get("api-key", "")
        return request.headers.get("authorization", "").removeprefix("Bearer ")

    @staticmethod
    def _held(request: Request, provider: str) -> None:
        if provider == "anthropic":
            version = request.headers.get("anthropic-version", "")
            _need(re.fullmatch(r"\d{4}-\d\d-\d\d", version), "anthropic-version is missing")
            check_message_request(request.body)
            return
        if provider == "openai_codex":
            check_response_request(request.body)
            return
        body = dict(request.body)
        for name, providers in BESIDES.items():
            if provider in providers:
                body.pop(name, None)
        if provider == "azure" and "max_completion_tokens" in body:
            body["max_tokens"] = body.pop("max_completion_tokens")
        _need("response_format" not in body or provider in TAKES_FORMS, "response_format is not supported")
        field = SENT_BACK.get(provider)
        body["messages"] = [_without(each, field) for each in body["messages"]]
        check_request(body)


def _without(message: dict[str, Any], field: str | None) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != field or message["role"] != "assistant"}


def refused(provider: str, status: int, words: str = "Words of the provider", **how: Any) -> Reply:
    """An error as a provider reports it."""
    if provider != "anthropic":
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return failure(status, code, message=words, **how)
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    error = {"type": kinds.get(status, "api_error"), "message": words}
    return as_json({"type": "error", "error": error, "request_id": "req_1"}, status, **how)


# --- the rules of Anthropic's Messages ---------------------------------------------------------------------------

_KNOWN = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "thinking", "output_config"}
_KNOWN |= {"temperature", "top_p", "stop_sequences"}
_BLOCKS = {
    "text": {"type", "text", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "image": {"type", "source", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
}
_OF = {"user": {"text", "image", "tool_result"}, "assistant": {"text", "thinking", "redacted_thinking", "tool_use"}}


def check_message_request(body: Any) -> None:
    """Hold a request against the rules of Anthropic's API; raises :class:`Broken`."""
    _need(isinstance(body, dict) and set(body) <= _KNOWN, f"unknown keys: {sorted(body)}")
    _need(isinstance(body.get("model"), str) and body["model"], "model: required")
    _need("temperature" not in body or ("thinking" not in body and body["temperature"] <= 1), "temperature")
    _need(type(body.get("max_tokens")) is int and body["max_tokens"] >= 1, "max_tokens: required")
    thinking = body.get("thinking", {"type": "disabled"})
    if thinking["type"] == "enabled":
        _need(1024 <= thinking["budget_tokens"] < body["max_tokens"], "thinking.budget_tokens: 1024 to max_tokens")
        _need("tool_choice" not in body, "tool_choice may not force a tool while thinking")
    config = body.get("output_config", {})
    _need(set(config) <= {"effort", "format"}, f"output_config: unknown keys {sorted(config)}")
    if form := config.get("format"):
        _need(set(form) == {"type", "schema"} and form["type"] == "json_schema", "output_config.format: odd keys")
        _need(form["schema"].get("additionalProperties") is False, "'additionalProperties' must be set to false")
    for block in body.get("system", ()):
        _need(set(block) <= _BLOCKS["text"] and block["text"].strip(), "system: a block of text")
    names = [_check_tool(tool) for tool in body.get("tools", ())]
    _need(len(set(names)) == len(names), "tools: names must be unique")
    _need(0 <= body.get("temperature", 0) <= 1, "temperature: 0 to 1")
    _need(not {"temperature", "top_p"} <= set(body), "temperature and top_p cannot both be specified")
    if "thinking" in body:
        _need(not {"temperature", "top_p"} & set(body), "temperature may not be set while thinking")
    if "tool_choice" in body:
        choice = {name: value for name, value in body["tool_choice"].items() if name != "disable_parallel_tool_use"}
        _need(names, "tool_choice: there are no tools")
        if choice.get("type") not in ("any", "auto"):
            _need(choice == {"type": "tool", "name": choice["name"]}, "tool_choice: odd")
            _need(choice["name"] in names, "tool_choice: no such tool")
    _check_turns(body.get("messages"), thinks=thinking["type"] == "enabled")
    marks = json.dumps(body).count('"cache_control"')
    _need(marks <= 4, f"a maximum of 4 blocks with cache_control may be provided, found {marks}")


def _check_tool(tool: dict[str, Any]) -> str:
    _need(set(tool) <= {"name", "description", "input_schema", "cache_control"}, f"tools: unknown keys {sorted(tool)}")
    _need(tool["input_schema"].get("type") == "object", "tools: input_schema.type must be object")
    name: str = tool["name"]
    _need(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name), f"tools: {name!r} is no name")
    return name


def _check_turns(messages: Any, *, thinks: bool) -> None:
    _need(isinstance(messages, list) and messages and messages[0]["role"] == "user", "messages: the user begins")
    asked: set[str] = set()
    last = max((at for at, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    for index, message in enumerate(messages):
        where, content = f"messages.{index}", message["content"]
        _need(set(message) == {"role", "content"} and message["role"] in _OF, f"{where}: odd keys or role")
        _need(index == 0 or messages[index - 1]["role"] != message["role"], f"{where}: roles must alternate")
        _need(isinstance(content, list) and content, f"{where}.content: blocks are needed")
        for block in content:
            _need(block["type"] in _OF[message["role"]], f"{where}: {block['type']} is not the {message['role']}'s")
            _need(set(block) <= _BLOCKS[block["type"]], f"{where}: unknown keys {sorted(block)}")
            _need(block["type"] != "text" or block["text"].strip(), f"{where}: text must not be blank")
            if block["type"] == "image":
                source = block["source"]
                _need(set(source) == {"type", "media_type", "data"} and source["type"] == "base64", f"{where}: source")
                _need(DATA_URL.fullmatch(f"data:{source['media_type']};base64,{source['data']}"), f"{where}: no image")
            _need(block["type"] != "thinking" or block["signature"], f"{where}: thinking without a signature")
        answered = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        _need(set(answered) == asked and len(answered) == len(asked), f"{where}: {sorted(asked)} must be answered")
        uses = [block for block in content if block["type"] == "tool_use"]
        asked = {block["id"] for block in uses}
        _need(len(asked) == len(uses), f"{where}: tool_use ids must be unique")
        for block in uses:
            _need(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]), f"{where}: {block['id']!r} is no id")
            _need(isinstance(block["input"], dict), f"{where}: input must be an object")
        if thinks and uses and index == last:
            _need(content[0]["type"].endswith("thinking"), f"{where}: a final message must start with thinking")
    _need(not asked, f"{sorted(asked)} must be answered")


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


# --- what Anthropic answers --------------------------------------------------------------------------------------


def thinking(text: str, signature: str = "c2lnbmVk") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def tool_use(name: str, arguments: dict[str, Any], call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def message(*blocks: dict[str, Any], usage: Any = None, stop_reason: str = "end_turn", **how: Any) -> Reply:
    """An answer of Anthropic's, in the events it comes in; word by word."""
    return stream(*events_of(*blocks, usage=usage, stop_reason=stop_reason), **how)


def stream(*events: Any, **how: Any) -> Reply:
    """Events, each in a part of its own; text and bytes are sent as they are."""
    return Reply(body=[_event(each) for each in events], headers=EVENT_STREAM, **how)


def _event(event: Any) -> bytes:
    if isinstance(event, bytes):
        return event
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def events_of(*blocks: dict[str, Any], usage: Any = None, stop_reason: str = "end_turn") -> list[Any]:
    used = {"input_tokens": 12, "output_tokens": 5} if usage is None else usage
    begins = {"id": "msg_1", "type": "message", "role": "assistant", "model": "model-1", "content": []}
    begins |= {"stop_reason": None, "stop_sequence": None, "usage": used}
    events: list[Any] = [{"type": "message_start", "message": begins}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        empty, deltas = _in_pieces(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": used.get("output_tokens")}})
    return [*events, {"type": "message_stop"}]


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], Iterable[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": word} for word in _words(block["text"])]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": word} for word in _words(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*deltas, signed]
        case "tool_use":
            bits = re.findall(r"(?s).{1,5}", json.dumps(block["input"]))
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": bit} for bit in bits]
    return block, []


def _words(words: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", words)


# --- the rules of OpenAI's Responses, as Codex has them ----------------------------------------------------------

_KNOWN_ITEMS = {
    "message": {"role", "content"},
    "reasoning": {"type", "id", "summary", "encrypted_content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
}


def check_response_request(body: Any) -> None:
    """Hold a request against the rules of Codex; raises :class:`Broken`."""
    known = {"model", "instructions", "input", "tools", "tool_choice", "store", "stream", "include", "reasoning"}
    known |= {"prompt_cache_key", "text"}
    _need(isinstance(body, dict) and set(body) <= known, f"unknown keys: {sorted(body)}")
    if "text" in body:
        form = body["text"]["format"]
        named = {name: value for name, value in form.items() if name != "type"}
        _need(set(body["text"]) == {"format"} and form["type"] in ("json_schema", "json_object"), "text: odd format")
        if form["type"] == "json_schema":
            check_json_schema(named)
    _need(body["store"] is False and body["stream"] is True, "store must be false, and stream true")
    _need(isinstance(body.get("input"), list) and body["input"], "input is required")
    names = [tool["name"] for tool in body.get("tools", ()) if tool["type"] == "function" and "parameters" in tool]
    _need(len(set(names)) == len(body.get("tools", ())), "a tool is no function, or there are two of a name")
    choice = body.get("tool_choice", "required")
    _need(choice == "required" or choice["name"] in names, "tool_choice: no such tool")
    _need("tool_choice" not in body or names, "tool_choice: there are no tools")
    asked: set[str] = set()
    for item in body["input"]:
        kind = item.get("type", "message")
        _need(set(item) == _KNOWN_ITEMS[kind], f"{kind} has odd keys: {sorted(item)}")
        if kind == "message":
            images = [part for part in item["content"] if part["type"] == "input_image" and item["role"] == "user"]
            _need(all(DATA_URL.fullmatch(part["image_url"]) for part in images), "an input_image is no data URL")
            wanted = {"user": "input_text", "assistant": "output_text"}[item["role"]]
            words = [part for part in item["content"] if part not in images]
            _need(all(part["type"] == wanted for part in words), f"{item['role']} says no {wanted}")
        elif kind == "function_call":
            _need(item["call_id"] not in asked and json.loads(item["arguments"]) is not None, "an odd call")
            asked.add(item["call_id"])
        elif kind == "function_call_output":
            _need(item["call_id"] in asked, "a result of no call")
            asked.discard(item["call_id"])
    _need(not asked, f"no tool output found for {sorted(asked)}")


def response(words: str, *, thought: str = "", calls: Any = (), usage: Any = None, incomplete: str = "") -> Reply:
    """An answer of Codex's, in the events it comes in."""
    events: list[Any] = [{"type": "response.created", "response": {"id": "resp_1"}}]
    if thought:
        events += [{"type": "response.reasoning_summary_text.delta", "delta": word} for word in _words(thought)]
        summary = [{"type": "summary_text", "text": thought}]
        item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "aGlkZGVu"}
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    if words:
        events += [{"type": "response.output_text.delta", "delta": word} for word in _words(words)]
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}
        events.append({"type": "response.output_item.done", "output_index": 1, "item": item})
    for number, (name, call_id) in enumerate(calls):
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": call_id, "name": name, "arguments": "{}"}
        events.append({"type": "response.output_item.done", "output_index": 2 + number, "item": item})
    used = {"input_tokens": 12, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}}
    done = {"id": "resp_1", "model": "model-1", "status": "completed", "output": [], "usage": usage or used}
    if incomplete:
        done |= {"status": "incomplete", "incomplete_details": {"reason": incomplete}}
        return stream(*events, {"type": "response.incomplete", "response": done})
    return stream(*events, {"type": "response.completed", "response": done})
