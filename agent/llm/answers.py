"""Answers in the format of OpenAI's Chat Completions, whole or in chunks, as values of ours; pure.

A streamed answer is put together to the whole one that would have been sent otherwise, and then read by the same rules.
What the provider says about an error is read for its code and then dropped, since it may quote the key or the prompt.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent import errors
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, OnDelta, Usage, tool_call
from agent.llm.sse import EventParser
from nanohost.lib.text import UNSTORABLE, storable

# A count of tokens above this is no count; the sum of a turn's must fit a 32-bit column.
MAX_TOKENS = 10_000_000

# The codes of errors that are worth a name. Others are left out: they are the provider's own words.
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached"}
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_FILTERED = {"content_filter", "content_policy_violation"}
_NAMED = _NO_QUOTA | _TOO_LONG | _FILTERED | {"invalid_api_key", "model_not_found", "rate_limit_exceeded"}

# Servers other than OpenAI's say it in words only (vLLM, llama.cpp, Anthropic's).
_TOO_LONG_IN_WORDS = re.compile(r"context (length|window|size)|(prompt|input) is too long", re.IGNORECASE)

# An error within an answer has no status of HTTP. vLLM and OpenRouter give it as the code; OpenAI and those that pass
# on Anthropic's errors give names. What is not here is the provider's fault.
_STATUSES = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
}

# What malformed answers raise where they are read as if they were well formed.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


def parsed(body: bytes) -> Any:
    """The JSON, whatever its Content-Type says; some servers have it wrong."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise errors.LlmBadResponse("not JSON") from None


def completion_of(answer: Any) -> Completion:
    """A whole answer; raises :class:`agent.errors.LlmError`."""
    _raise_reported(answer)
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content = message.get("content") or message.get("refusal") or ""
        if not isinstance(content, str):
            raise TypeError("content is not text")
        asked_for = message.get("tool_calls") or ()
        calls = tuple(
            tool_call(str(call.get("id") or ""), call["function"]["name"], _arguments(call["function"]))
            for call in asked_for
        )
        usage = given if isinstance(given := answer.get("usage"), dict) else {}
        counted = _counted(usage)
        finish_reason, model = choice.get("finish_reason"), str(answer.get("model") or "")
        reasoning, thoughts = _reasoning(message), _details(message)
        if isinstance(content, str):
            thought, content = split_thoughts(content)
            reasoning = reasoning or thought
    except MALFORMED as error:
        raise errors.LlmBadResponse(f"not a completion ({type(error).__name__})") from None
    if finish_reason == "content_filter":
        raise errors.LlmContentFiltered("the answer was cut by the content filter")
    if finish_reason == "error":  # OpenRouter: of the model behind it
        raise errors.LlmUnavailable("the model failed in the middle of its answer")
    if len(calls) > MAX_TOOL_CALLS:
        raise too_many_calls()
    return Completion(
        content=storable(content),
        reasoning=storable(reasoning),
        thoughts=thoughts,
        tool_calls=calls,
        model=storable(model)[:128],
        usage=counted,
        is_cut=finish_reason == "length",
    )


def error_of(*, status: int | None, codes: set[str], words: str, retry_after: float | None = None) -> errors.LlmError:
    """An error as one of ours. ``status``: as HTTP has it; None for an error within an answer that names none.
    ``codes``: what the provider calls it. ``words``: what it says about it. ``retry_after``: seconds."""
    detail = " ".join([f"HTTP {status}" if status else "in mid-answer", *sorted(codes & _NAMED)])
    # Out of quota is a bill to pay, not a wait.
    if status in (401, 402, 403) or codes & _NO_QUOTA:
        return errors.LlmAuthError(detail)
    if status == 429:
        return errors.LlmRateLimited(detail, retry_after=retry_after)
    if codes & _TOO_LONG or status == 413 or (status in (400, None) and _TOO_LONG_IN_WORDS.search(words)):
        return errors.LlmContextTooLong(detail)
    if codes & _FILTERED:
        return errors.LlmContentFiltered(detail)
    if status in (408, 504):
        return errors.LlmTimeout(detail, retry_after=retry_after)
    if status is None or status in (409, 425) or status >= 500:
        return errors.LlmUnavailable(detail, retry_after=retry_after)
    return errors.LlmRequestRefused(detail)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds; its other form, a date, is rare enough to be answered with our own backoff, and so is
    less than a second, which would use up all retries at once."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if seconds >= 1 and math.isfinite(seconds) else None


class StreamedAnswer:
    """An answer that arrives as an event stream, a chunk an event."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._events = EventParser()
        self._is_done = False
        self._content, self._refusal, self._reasoning = _Text(), _Text(), _Text()
        self._details: list[dict[str, Any]] = []
        self._cut = ThoughtsCut()
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._finish_reason: Any = None
        self._usage: Any = None
        self._model: Any = None

    @property
    def is_finished(self) -> bool:
        """Whether the model has said that it is; its usage may still follow."""
        return self._finish_reason is not None

    def feed(self, part: bytes) -> bool:
        """Take some bytes, cut anywhere, and hand over what they hold, as one piece: of what has arrived together, each
        word alone would cost all who follow as much. Returns whether the stream says that nothing follows. Raises
        :class:`agent.errors.LlmError`."""
        pieces: list[Delta] = []
        try:
            for data in self._events.feed(part):
                if data.startswith(b"[DONE]"):
                    self._is_done = True
                    break
                if delta := self._add(parsed(data)):
                    pieces.append(delta)
        finally:
            if pieces:
                self._on_delta(_joined(pieces))
        return self._is_done

    def take_whole(self, body: bytes) -> Completion:
        """The body of a server that has not streamed; raises :class:`agent.errors.LlmError`."""
        completion = completion_of(parsed(body))
        if completion.content or completion.reasoning:
            self._on_delta(Delta(content=completion.content, reasoning=completion.reasoning))
        return completion

    def finish(self) -> Completion:
        """The whole, when the stream has ended; raises :class:`agent.errors.LlmError`."""
        if not (self._is_done or self.is_finished):
            raise errors.LlmUnavailable("broke off")
        thought, said = self._cut.end()
        if thought or said:
            self._on_delta(Delta(content=said, reasoning=thought))
        message = {
            "content": self._content.whole(),
            "refusal": self._refusal.whole(),
            "reasoning": self._reasoning.whole(),
            "reasoning_details": self._details,
            "tool_calls": [call.as_sent() for call in sorted(self._calls, key=lambda call: call.place)],
        }
        choice = {"message": message, "finish_reason": self._finish_reason}
        return completion_of({"choices": [choice], "usage": self._usage, "model": self._model})

    def _add(self, chunk: Any) -> Delta | None:
        """What of a chunk's text can be shown, if anything."""
        _raise_reported(chunk)
        try:
            # Some servers send a usage with each chunk: the last one counts.
            self._usage = chunk.get("usage") or self._usage
            self._model = chunk.get("model") or self._model
            choices = chunk.get("choices")
            if not choices:  # the usage, at the end; Azure's view of the prompt, at the start
                return None
            choice = choices[0]
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            return self._add_delta(choice.get("delta") or {})
        except MALFORMED as error:
            raise errors.LlmBadResponse(f"not a chunk of a completion ({type(error).__name__})") from None

    def _add_delta(self, delta: dict[str, Any]) -> Delta | None:
        if calls := delta.get("tool_calls"):
            for piece in calls:
                self._add_call(piece)
        content, reasoning = "", ""
        if said := delta.get("content"):
            thought, said = self._cut.add(self._content.add(said))
            content, reasoning = said, thought
        elif refused := delta.get("refusal"):
            content = self._refusal.add(refused)
        if details := delta.get("reasoning_details"):
            self._add_details(details)
        if thought := _reasoning(delta):
            reasoning += self._reasoning.add(thought)
        return Delta(content=content, reasoning=reasoning) if content or reasoning else None

    def _add_details(self, details: Any) -> None:
        """OpenRouter's and MiniMax's form of what is thought, in pieces: one goes on with the last of its kind and
        place. MiniMax sends with each piece all that came before."""
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            last = self._details[-1] if self._details else None
            if last and (last.get("type"), last.get("index")) == (detail.get("type"), detail.get("index")):
                _join(last, detail)
            else:
                self._details.append(dict(detail))

    def _add_call(self, piece: dict[str, Any]) -> None:
        index, call_id, function = piece.get("index"), str(piece.get("id") or ""), piece.get("function") or {}
        call = self._call_of(index, call_id, function.get("name"))
        if call is None:
            if len(self._calls) == MAX_TOOL_CALLS:
                raise too_many_calls()
            call = _Call(place=index if isinstance(index, int) else 0)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.add(call_id, function)

    def _call_of(self, index: Any, call_id: str, name: Any) -> "_Call | None":
        """The call that a piece goes on with; None if it begins one.

        OpenAI's pieces have an index each, and the first of a call brings its id and its name. Of the others, some give
        no index, some one that means nothing (0 for all, or another with each piece), some repeat the name and the id
        with each piece, and some make a new id for each.
        """
        newest = self._calls[-1] if self._calls else None
        if index is None:
            if call_id:
                return next((call for call in self._calls if call.id == call_id), None)
            return newest if newest and (not name or newest.name is None) else None
        call = self._by_index.get(index)
        if call is None:
            return None if call_id or name else newest
        return None if name and call.is_other_than(call_id, name) else call


def _join(last: dict[str, Any], detail: dict[str, Any]) -> None:
    for name, value in detail.items():
        before = last.get(name)
        if name in ("text", "summary", "data") and isinstance(value, str) and isinstance(before, str):
            last[name] = value if before and value.startswith(before) else before + value
        elif value is not None:
            last[name] = value


_BEGIN, _END = "<think>", "</think>"


def split_thoughts(content: str) -> tuple[str, str]:
    """What a model has put between <think> and </think> at the beginning of its answer, and the answer. Servers that
    know their model have it apart already."""
    cut = ThoughtsCut()
    thought, said = cut.add(content)
    more_thought, more_said = cut.end()
    return (thought + more_thought).strip(), said + more_said


class ThoughtsCut:
    """The same of an answer that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._state = "begin"

    def add(self, piece: str) -> tuple[str, str]:
        """What of it is thought, and what is said; what may yet be a mark is held."""
        if self._state == "said":
            return "", piece
        text = self._held + piece
        self._held = ""
        if self._state == "begin":
            begun = text.lstrip()
            if len(begun) < len(_BEGIN) and _BEGIN.startswith(begun):
                self._held = text
                return "", ""
            if not begun.startswith(_BEGIN):
                self._state = "said"
                return "", text
            self._state, text = "thought", begun[len(_BEGIN) :]
        thought, mark, said = text.partition(_END)
        if mark:
            self._state = "answer"
            return thought, self._answer(said)
        if self._state == "answer":
            return "", self._answer(text)
        self._held = _end_of(thought)
        return thought[: len(thought) - len(self._held)], ""

    def _answer(self, said: str) -> str:
        """Without the blank lines between."""
        if said := said.lstrip():
            self._state = "said"
        return said

    def end(self) -> tuple[str, str]:
        """What was held, when nothing follows."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thought" else ("", held)


def _end_of(text: str) -> str:
    """Of a text's end, what may be the beginning of the mark that ends thoughts."""
    return next((_END[:size] for size in range(len(_END) - 1, 0, -1) if text.endswith(_END[:size])), "")


def _joined(pieces: Sequence[Delta]) -> Delta:
    return Delta(content="".join(each.content for each in pieces), reasoning="".join(each.reasoning for each in pieces))


class _Text:
    """Text that arrives in pieces. A character that JSON writes as two (beyond U+FFFF) may have been cut in two."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def __bool__(self) -> bool:
        return bool(self._pieces or self._half)

    def add(self, piece: str) -> str:
        """Take a piece; returns what of it is whole, fit for every database."""
        if self._half:
            piece, self._half = self._half + piece, ""
        if UNSTORABLE.search(piece):
            piece = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if "\ud800" <= piece[-1] <= "\udbff":
                piece, self._half = piece[:-1], piece[-1]
            piece = storable(piece)
        self._pieces.append(piece)
        return piece

    def whole(self) -> str:
        return "".join(self._pieces) + self._half


@dataclass
class _Call:
    """A tool call that arrives in pieces."""

    place: int  # among the calls; where none is given, they stand as they have come
    id: str = ""
    name: str | None = None
    arguments: _Text = field(default_factory=_Text)

    def is_other_than(self, call_id: str, name: str) -> bool:
        """Whether a piece that has a name begins another call at the same index."""
        if self.id and call_id:
            return call_id != self.id
        return bool(self.arguments) and name != self.name

    def add(self, call_id: str, function: dict[str, Any]) -> None:
        self.id = self.id or call_id
        name, arguments = function.get("name"), function.get("arguments")
        if self.name is None:
            self.name = name
        elif name and name != self.name:  # else it is repeated
            self.name += name
        if arguments:
            self.arguments.add(json.dumps(arguments) if isinstance(arguments, dict) else arguments)

    def as_sent(self) -> dict[str, Any]:
        """As a whole answer has it."""
        return {"id": self.id, "function": {"name": self.name, "arguments": self.arguments.whole()}}


def _raise_reported(answer: Any) -> None:
    """Raise the error that an answer reports instead of going on: OpenAI's form, or that of older vLLMs."""
    if not isinstance(answer, dict):
        return
    reported = answer.get("error") or (answer if answer.get("object") == "error" else None)
    if reported:
        told = reported if isinstance(reported, dict) else {"message": reported}
        codes = {str(told.get("code")), str(told.get("type"))}
        raise error_of(status=_status(codes), codes=codes, words=str(told.get("message")))


def _status(codes: set[str]) -> int | None:
    numbers = [int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", code)]
    # Of two names the one that says more has the higher figure: the other is invalid_request_error.
    names = sorted((_STATUSES[code] for code in codes & set(_STATUSES)), reverse=True)
    return next(iter([*numbers, *names]), None)


def too_many_calls() -> errors.LlmBadResponse:
    """More than there may be."""
    return errors.LlmBadResponse(f"more than {MAX_TOOL_CALLS} tool calls at once")


def _reasoning(message: dict[str, Any]) -> str:
    """What the model thought: of DeepSeek and vLLM, or of OpenRouter and newer vLLMs; some send both, the same. An
    answer is not lost for odd thoughts."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        return thought
    return "".join(text for each in _details(message) if isinstance(text := each.get("text") or "", str))


def _details(message: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """What OpenRouter and MiniMax want back as it is."""
    details = message.get("reasoning_details")
    return tuple(each for each in details if isinstance(each, dict)) if isinstance(details, list) else ()


def _arguments(function: dict[str, Any]) -> str:
    """The arguments as JSON text; some servers send the object itself, or nothing where there are none."""
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        return json.dumps(arguments)
    return arguments or "{}"


def _counted(usage: dict[str, Any]) -> Usage:
    """What was used. What of the prompt was cached stands in its details; DeepSeek has a name of its own for it."""
    prompt_tokens = tokens_in(usage.get("prompt_tokens"))
    details = given if isinstance(given := usage.get("prompt_tokens_details"), dict) else {}
    cached = tokens_in(details.get("cached_tokens")) or tokens_in(usage.get("prompt_cache_hit_tokens"))
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens_in(usage.get("completion_tokens")),
        cached_tokens=min(cached, prompt_tokens),
    )


def tokens_in(count: Any) -> int:
    """A count of tokens; what is none counts as 0. To Python, true is an integer; to no database."""
    return count if type(count) is int and 0 <= count <= MAX_TOKENS else 0
