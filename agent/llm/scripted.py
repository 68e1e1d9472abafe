"""The scripted model, which does what a message tells it to: the embedded default, and the tests' model. Deterministic,
offline, without a key.

It answers the newest user message. A message that is a JSON object with a ``script`` is followed step by step, one
step a call; the step is found by counting what the model has answered since, so the client keeps no state and goes on
after a crash:

    {"script": [
        {"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]},    one assistant message with tool calls
        {"sleep": 2, "say": "Done."},                                      an answer, after 2 s (600 at most)
        {"think": "Tea or coffee?", "say": "Tea.", "pace": 0.1},           word by word, 0.1 s (600 at most) apart
        {"fail": "rate_limited", "times": 2, "retryAfter": 1, "say": "…"}  fails twice, then answers
        {"fail": "unavailable", "after": 2, "say": "1 2 3", "pace": 0}     fails when two pieces are handed over
        {"obey": true, "say": "Nobody asks me to."}                        does what others ask for; see below
    ]}

An answer that is streamed is handed over in pieces: what it thinks, then what it says. Each is one piece, or with a
``pace`` (0 too) as many as it has words. Not streamed, it takes the same time and fails the same.

With ``obey`` it is taken in, as models are: it makes the calls that stand, as ``{"call": [...]}``, in what its user did
not say. The result of a tool, the long-term memory or a summary may hold some; the last one counts.

``fail`` is one of auth, rate_limited, timeout, context_too_long, content_filter, unavailable, bad_response,
request_refused. An answer that was not in the form that was asked for counts as one: the next step is the second
try. How often a step has failed is the one thing it remembers, in memory. A ``say`` may hold ``{results}``
once: the tool results so far. ``arguments`` that are text are passed on as they are, JSON or not. A step that makes no
sense is answered with a sentence that says so.
A check-in is answered HEARTBEAT_OK, or by the first line of the document that is a script.
A tool that it has to call it calls, with no arguments.
Without a script: a question for the time calls ``time`` if it is offered, and "Remind me tomorrow at 8 to …" calls
``schedule``; everything else is echoed, where a JSON Schema is given as the texts of the least JSON of that form. Asked
to put a part of a conversation into memory, it quotes what the users said, and keeps what one asked it to remember.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, NoReturn

from agent import errors
from agent.answer_schemas import WRONG
from agent.check_in import HEAD, HEARTBEAT_OK
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, ModelRequest, OnDelta, Usage, tool_call
from agent.llm.providers import Access
from agent.loop import ChatMessage
from agent.prompt import is_last_word, unmarked, unsent
from agent.tokens import BYTES_A_TOKEN
from memory.consolidation import LINES_HEAD, MEMORY_HEAD, SUMMARY_HEAD, TOOL_NAME
from nanohost.lib.text import storable

LONGEST_SLEEP = 600.0

_FAILURES: dict[str, type[errors.LlmError]] = {
    "auth": errors.LlmAuthError,
    "rate_limited": errors.LlmRateLimited,
    "timeout": errors.LlmTimeout,
    "context_too_long": errors.LlmContextTooLong,
    "content_filter": errors.LlmContentFiltered,
    "unavailable": errors.LlmUnavailable,
    "bad_response": errors.LlmBadResponse,
    "request_refused": errors.LlmRequestRefused,
}


class ScriptedClient:
    """See the module."""

    def __init__(self, access: Access | None = None) -> None:
        self._failures: Counter[int] = Counter()

    async def list_models(self) -> list[str]:
        """It answers by whatever name it is asked."""
        return []

    async def close(self) -> None:
        """There is nothing to close."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        """Do the script's next step, or answer in the way of the module's last paragraph."""
        asked = max((index for index, message in enumerate(request.messages) if _is_question(message)), default=0)
        said, since = str(request.messages[asked]["content"]), request.messages[asked + 1 :]
        question = unsent(said)
        is_summing_up = request.tool_choice and LINES_HEAD in question
        script = [_consolidated(question, request.tool_choice)] if is_summing_up else _script(question)
        step_number = sum(1 for message in since if message["role"] == "assistant")
        if script is None:
            step = _improvise(question, since, request, sent=said.removeprefix(question))
            if request.answer and "say" in step:
                step = {"say": json.dumps(_least(request.answer.schema or {}, step["say"]), ensure_ascii=False)}
        elif step_number < len(script):
            step = _checked(script[step_number], step_number)
        else:
            step = {"say": "The script has ended."}
        if step.get("obey") and (calls := _asked_by_others(request.messages)):
            step = {"call": calls}
        await asyncio.sleep(min(step.get("sleep", 0), LONGEST_SLEEP))
        failure = self._failure(step, this_step=hash((question, step_number)))
        answer = _answer(step, step_number, request, since)
        pieces = _pieces(answer, step)
        for number, piece in enumerate(pieces):
            if failure and number >= step.get("after", 0):
                break
            if number:
                await asyncio.sleep(min(step.get("pace", 0), LONGEST_SLEEP))
            if on_delta:
                on_delta(piece)
        if failure:
            raise failure
        return answer

    def _failure(self, step: dict[str, Any], *, this_step: int) -> errors.LlmError | None:
        """How the step fails this time."""
        if not (kind := step.get("fail")):
            return None
        self._failures[this_step] += 1
        if self._failures[this_step] > step.get("times", math.inf):
            return None
        return _FAILURES[kind]("as scripted", retry_after=step.get("retryAfter"))


def _pieces(answer: Completion, step: dict[str, Any]) -> list[Delta]:
    """What is handed over, in order."""
    cut = re.compile(r"\S+\s*|\s+").findall if "pace" in step else lambda text: [text] if text else []
    thought = [Delta(reasoning=piece) for piece in cut(answer.reasoning)]
    return thought + [Delta(content=piece) for piece in cut(answer.content)]


def _answer(step: dict[str, Any], step_number: int, request: ModelRequest, since: Sequence[ChatMessage]) -> Completion:
    results = "; ".join(unmarked(str(message["content"])) for message in since if message["role"] == "tool")
    content = storable(str(step.get("say", "")).replace("{results}", results, 1))
    # Asked for its best answer without tools, a model that does as it is told gives one.
    calls = () if is_last_word(request.messages) else step.get("call", ())
    if not content and not calls:
        content = "I would need tools for that." if step.get("call") else "There is nothing to say."
    reasoning = storable(step.get("think", ""))
    length = len(reasoning) + len(content)
    if request.max_tokens is not None:
        reasoning = reasoning[: BYTES_A_TOKEN * (request.max_tokens - 1)]
        content = content[: BYTES_A_TOKEN * (request.max_tokens - 1) - len(reasoning)]
    return Completion(
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(
            tool_call(f"call_{step_number}_{index}", call["name"], _json(call.get("arguments", {})))
            for index, call in enumerate(calls)
        ),
        model=request.model,
        usage=Usage(
            prompt_tokens=sum(len(str(message.get("content") or "")) for message in request.messages) // BYTES_A_TOKEN
            + 1,
            completion_tokens=(len(reasoning) + len(content)) // BYTES_A_TOKEN + 1,
        ),
        is_cut=len(reasoning) + len(content) < length,
    )


def _is_question(message: ChatMessage) -> bool:
    """Whether its user asks something; not that an answer was not in the form that was asked for."""
    return message["role"] == "user" and not str(message["content"]).startswith(WRONG)


def _script(question: str) -> list[Any] | None:
    """The script, if the question is one."""
    if question.startswith(HEAD):
        scripts = (_script(line) for line in question.removeprefix(HEAD).splitlines())
        return next((script for script in scripts if script), [{"say": HEARTBEAT_OK}])
    try:
        script = json.loads(question, parse_constant=_no_constants)["script"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return script if isinstance(script, list) else None


# Of a text that is no user's, so many places are looked at, the last ones: each may be read to its end.
_MAX_PLACES = 8


def _asked_by_others(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The calls that a text asks for which the user did not say: the last of them."""
    for message in reversed(messages):
        if message["role"] == "user":
            continue
        # A tool's result may be JSON itself, with the quotation marks of its texts escaped.
        text = str(message["content"] or "").replace('\\"', '"')
        end = len(text)
        for _ in range(_MAX_PLACES):
            if (end := text.rfind('{"call"', 0, end)) < 0:
                break
            with suppress(ValueError, RecursionError):
                found = json.JSONDecoder().raw_decode(text, end)[0]["call"]
                if found and not _complaint_about_calls(found):
                    calls: list[dict[str, Any]] = found
                    return calls
    return []


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _checked(step: Any, step_number: int) -> dict[str, Any]:
    """The step, or one that says what is wrong with it."""
    if wrong := _complaint(step):
        return {"say": f"Step {step_number + 1} of the script is not valid: {wrong}."}
    checked: dict[str, Any] = step
    return checked


_WORDS = ("say", "think", "call", "obey", "sleep", "pace", "fail", "after", "times", "retryAfter")


def _complaint(step: Any) -> str:
    if not isinstance(step, dict):
        return "it is no object"
    if unknown := sorted(set(step) - {*_WORDS}):
        return f"there is no {unknown[0]}"
    for name in ("sleep", "pace", "after", "times", "retryAfter"):
        if name in step and not _is_count(step[name]):
            return f"{name} is no number"
    for name in ("say", "think"):
        if not isinstance(step.get(name, ""), str):
            return f"{name} is no text"
    if "fail" in step and step["fail"] not in list(_FAILURES):
        return f"fail is not one of {', '.join(_FAILURES)}"
    return _complaint_about_calls(step.get("call", []))


def _complaint_about_calls(calls: Any) -> str:
    if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
        return f"call is no list of {MAX_TOOL_CALLS} calls at most"
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return "a call has no name"
    try:
        for call in calls:
            _json(call.get("arguments", {}))
    except RecursionError:
        return "a call's arguments are too deep"
    return ""


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


_REMINDER = re.compile(r"remind me tomorrow at (\d\d?)(?::(\d\d))?(?: to (.+?))?\.?", re.IGNORECASE)


def _improvise(question: str, since: Sequence[ChatMessage], request: ModelRequest, *, sent: str) -> dict[str, Any]:
    offered = {tool["function"]["name"]: tool for tool in request.tools}
    if forced := request.tool_choice or (next(iter(offered), "") if request.must_call else ""):
        return {"call": [{"name": forced}]}
    if since and since[-1]["role"] == "tool":
        return {"say": "The tool says: {results}"}
    day = re.search(r"\d{4}-\d\d-\d\d", sent)
    if "schedule" in offered and day and (wanted := _REMINDER.fullmatch(question.strip())):
        hour, minute, what = wanted.groups(default="")
        tomorrow = date.fromisoformat(day[0]) + timedelta(days=1)
        prompt = f"Remind the user to {what}." if what else "Remind the user."
        arguments = {"action": "create", "prompt": prompt, "at": f"{tomorrow}T{hour:0>2}:{minute or '00'}"}
        return {"call": [{"name": "schedule", "arguments": arguments}]}
    if "time" in offered and re.search(r"\btime\b", question, re.IGNORECASE):
        return {"call": [{"name": "time"}]}
    return {"say": f"You said: {question}"}


def _least(schema: Any, text: str, depth: int = 0) -> Any:
    """The least JSON of a form, as far as that is easily said; its texts are ``text``."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        known = schema.get("properties", {})
        return {name: _least(known.get(name), text, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return [_least(schema.get("items"), text, depth + 1) for _ in range(min(schema.get("minItems", 0), 9))]
    least = schema.get("minimum", 0)
    return {"string": text, "integer": least, "number": least, "boolean": False}.get(kind)


_DEEPEST = 20

# What a summary, and an entry, quote of each line, and how long they may become; in characters.
_QUOTED, _MAX_SUMMARY, _MAX_ENTRY = 160, 2000, 3000


def _consolidated(question: str, tool: str) -> dict[str, Any]:
    """The step that saves what was said in the lines of :mod:`memory.consolidation`'s prompts."""
    before, _, lines = question.partition(LINES_HEAD)
    memory, _, summary = before.partition(SUMMARY_HEAD)
    said = re.findall(r"^\[[^\]]+\] USER: (.*)", lines, re.MULTILINE)
    quotes = [words[:_QUOTED] for words in said]
    earlier = "" if summary.strip() == "(none)" else summary.strip()
    quoted = "\n".join([earlier, *(f"The user said: {quote}" for quote in quotes)]).strip()
    arguments = {"summary": quoted[-_MAX_SUMMARY:] or "Nothing was said."}
    if tool == TOOL_NAME:
        known = [line for line in memory.removeprefix(MEMORY_HEAD).strip().splitlines() if line != "(empty)"]
        kept = [f"- {words[:_QUOTED]}" for words in said if re.match("remember", words, re.IGNORECASE)]
        arguments["memory_update"] = "\n".join([*known, *(line for line in kept if line not in known)])
        arguments["history_entry"] = " / ".join(quotes)[:_MAX_ENTRY]
    return {"call": [{"name": tool, "arguments": arguments}]}


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
