"""A transcript as people read it: page by page, turn by turn, each tool call with what became of it.

A page costs as many statements in a conversation of 100,000 messages as in one of ten, and each goes by index.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models.functions import Left, Length
from django.utils.safestring import SafeString

from agent import answer_schemas
from agent.models import AgentVersion
from agent.spending.money import told_money
from conversations import pins
from conversations.engine import inbox
from conversations.engine.model_request import build_again, calls_of
from conversations.errors import TurnProblem
from conversations.models import Compaction, Conversation, Message, Turn, calls_in
from conversations.statuses import OPEN
from memory.models import MemoryVersion
from nanohost.lib.admin import excerpt, shown
from nanohost.lib.text import duration
from tools.models import ToolCall

# Messages of a page, and of the inbox that are shown below the last one, of either kind.
A_PAGE, MAX_WAITING = 100, 50

# Characters of one text; its own page has the rest.
MAX_CHARS = 20_000

_KINDS = {
    Message.Kind.ROLLING: "Summary, for the prompts from here on",
    Message.Kind.DAILY: "Summary of a day, for people",
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to show, and how many of its characters are left out."""

    html: SafeString
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call. ``row``: its record, unless that is of an import. ``result`` None: there is none yet.
    ``seq``: of the message that is its result."""

    name: Text
    arguments: Text
    result: Text | None
    row: Any = None
    seq: int | None = None

    @property
    def tainted_by(self) -> SafeString:
        """From where untrusted text in its result came."""
        return shown(self.row.tainted_by if self.row else "")

    @property
    def rule(self) -> SafeString:
        """The rule that refused it, or what ended it."""
        return shown(self.row.rule if self.row else "")

    @property
    def took(self) -> str:
        """How long it ran."""
        return duration(self.row.duration_ms / 1000) if self.row and self.row.duration_ms is not None else ""


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """A message. ``label`` says who speaks, or what else it is. ``counts``: it is the summary that prompts have.
    ``undone``: by whom, of a summary that was. ``tainted_by``: from where untrusted text came that entered with it.
    ``reasoning``: what its model thought before."""

    message: Any
    label: str
    text: Text
    calls: Sequence[Call] = ()
    is_pinned: bool = False
    may_be_pinned: bool = False
    counts: bool = False
    undone: str = ""
    tainted_by: str = ""
    reasoning: Text | None = None

    @property
    def files(self) -> list[dict[str, Any]]:
        """Those that came with it; a client has named them."""
        of_image = {"is_image": True}
        return [
            {**each, "name": shown(each["name"]), **(of_image if each["type"].startswith("image/") else {})}
            for each in self.message.attachments or ()
        ]

    @property
    def paid(self) -> str:
        """Of an answer, its tokens and what it has cost."""
        return told_usage(self.message.usage)

    @property
    def looks(self) -> str:
        """Its class in the page's style."""
        return "summary" if self.message.type == Message.Type.SUMMARY else self.message.kind or self.message.role


@dataclass(frozen=True, kw_only=True)
class Part:
    """Messages of one turn, or (None) of no turn. ``begins``: the page has nothing of the turn before them.
    ``again``: the turn in which a failed one was asked once more."""

    turn: Turn | None
    bubbles: Sequence[Bubble]
    begins: bool = True
    version: AgentVersion | None = None
    again: Turn | None = None
    may_be_asked_again: bool = False

    @property
    def model(self) -> SafeString:
        """The model it asks; a client may name any."""
        return shown(self.turn.model if self.turn else "")

    @property
    def fallback(self) -> SafeString:
        """The model that was asked in its place."""
        return shown(self.turn.fallback_model if self.turn else "")

    @property
    def fallback_reason(self) -> SafeString:
        """Why."""
        return shown(self.turn.fallback_reason if self.turn else "")

    @property
    def problem(self) -> SafeString:
        """Why there is no answer, in plain words."""
        return shown(problem_of(self.turn) if self.turn else "")

    @property
    def may_be_cancelled(self) -> bool:
        """Whether there is something left to cancel."""
        return self.turn is not None and may_be_cancelled(self.turn)

    @property
    def cost(self) -> str:
        """Of its model calls together."""
        return told_money(self.turn.cost, settings.CURRENCY) if self.turn and self.turn.model_calls else ""

    @property
    def waited(self) -> str:
        """From the question until a worker took it."""
        turn = self.turn
        return duration((turn.started_at - turn.created_at).total_seconds()) if turn and turn.started_at else ""

    @property
    def took(self) -> str:
        """From there to the end."""
        seconds = self.turn.run_seconds if self.turn else None
        return "" if seconds is None else duration(seconds)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some messages in a row. ``older`` and ``newer``: the number of the message there is more before, or after.

    ``waiting`` and ``never_begun`` have no number: their turn has not begun yet, or ended before it did.
    """

    parts: Sequence[Part]
    older: int | None = None
    newer: int | None = None
    waiting: Sequence[Part] = field(default_factory=list)
    never_begun: Sequence[Part] = field(default_factory=list)


_OF_CACHE = {"cached": "cached", "written": "written to the cache"}


def told_usage(usage: dict[str, Any] | None) -> str:
    """What a model call has used and cost, in a few words; empty where nothing was kept of it."""
    if not usage:
        return ""
    counts = [f"{usage[name]} {word}" for name, word in _OF_CACHE.items() if usage.get(name)]
    cached = f" ({', '.join(counts)})" if counts else ""
    cost = told_money(usage["cost"], settings.CURRENCY)
    by = f", of {usage['provider']} ({usage['why']})" if usage.get("provider") else ""
    return f"{usage['prompt']}{cached} + {usage['completion']} tokens, cost {cost}{by}"


def problem_of(turn: Turn) -> str:
    """Why a turn has no answer, in plain words; empty if it has one, or may yet."""
    if not turn.error_code:
        return ""
    _, words = TurnProblem.codes.get(turn.error_code, ("", f"It ended with the code {turn.error_code}."))
    return f"{words} {turn.error_detail}".strip()


def read(conversation: Conversation, *, before: int | None = None, after: int | None = None) -> Page:
    """The last messages; or the last ones ``before`` a message, or the first ones ``after`` it."""
    end = conversation.next_seq
    if after is not None:
        first = min(max(after, conversation.erased_through) + 1, end)
        last = min(first + A_PAGE, end) - 1
    else:
        last = min(end if before is None else before, end) - 1
        first = max(last - A_PAGE + 1, conversation.erased_through + 1)
    # By a range, in which no number is left out: PostgreSQL may plan "the last so many" without looking at whose they
    # are, and then sorts all of them.
    messages = list(_cut(Message.objects.filter(conversation=conversation, seq__range=(first, last)).order_by("seq")))
    more_before, more_after = first > conversation.erased_through + 1, last < end - 1
    waiting: list[Any] = []
    never_begun: list[Any] = []
    if not more_after:
        inbox = _cut(Message.objects.filter(conversation=conversation, seq=None).order_by("pk"))
        waiting = list(inbox.filter(turn__status__in=OPEN)[:MAX_WAITING])
        never_begun = list(inbox.exclude(turn__status__in=OPEN).order_by("-pk")[:MAX_WAITING])[::-1]
    look_up = _LookUp(conversation, [*messages, *waiting, *never_begun])
    return Page(
        parts=list(look_up.parts(messages)),
        older=first if more_before else None,
        newer=last if more_after else None,
        waiting=list(look_up.parts(waiting)),
        never_begun=list(look_up.parts(never_begun)),
    )


def _cut(rows: Any) -> Any:
    """Messages with the beginnings of their contents: a page of whole ones might have 100 MB."""
    rows = rows.defer("content", "reasoning", "thoughts")
    return rows.annotate(
        begins=Left("content", MAX_CHARS),
        chars=Length("content"),
        thought=Left("reasoning", MAX_CHARS),
        thought_chars=Length("reasoning"),
    )


class _LookUp:
    """What belongs to the messages of a page, each looked up once."""

    def __init__(self, conversation: Conversation, messages: Sequence[Any]) -> None:
        turns = {message.turn_id for message in messages if message.turn_id}
        self._turns = Turn.objects.defer("body_hash").in_bulk(turns)
        asked = {call_id for message in messages for call_id, _, _ in calls_in(message.tool_calls)}
        calls = ToolCall.objects.filter(turn_id__in=turns, call_id__in=asked)
        calls = calls.defer("arguments", "private_arguments", "result").annotate(
            begins=Left("result", MAX_CHARS), chars=Length("result")
        )
        self._calls = {(call.turn_id, call.call_id): call for call in calls}
        # An import has no record of its calls: their results are messages.
        self._results = {(each.turn_id, each.tool_call_id): each for each in messages if each.role == Message.Role.TOOL}
        self._asked = {(each.turn_id, call_id) for each in messages for call_id, _, _ in calls_in(each.tool_calls)}
        numbers = {turn.agent_version for turn in self._turns.values() if turn.agent_version}
        versions = AgentVersion.objects.filter(agent=conversation.agent_id, number__in=numbers).defer("profile")
        self._versions = {version.number: version for version in versions}
        self._again = inbox.asked_again(list(self._turns.values()))
        self._pinned = set(pins.seqs_of(conversation.pins))
        self._summary = conversation.summary_seq
        summaries = [message.seq for message in messages if message.type == Message.Type.SUMMARY]
        undone = Compaction.objects.filter(conversation=conversation, summary_seq__in=summaries).exclude(undone_at=None)
        rows = undone.values_list("summary_seq", "undone_by", "undone_because") if summaries else ()
        self._undone = {seq: f"{by}: {why}" if why else by for seq, by, why in rows}

    def parts(self, messages: Sequence[Any]) -> Iterable[Part]:
        """The messages, turn by turn. A summary may stand in the midst of a turn."""
        begun: set[UUID] = set()
        for turn_id, several in groupby(messages, key=lambda message: message.turn_id):
            bubbles = [self._bubble(each) for each in several if not self._is_folded(each)]
            turn = self._turns.get(turn_id)
            if bubbles:
                version = self._versions.get(turn.agent_version) if turn and turn.agent_version else None
                yield Part(
                    turn=turn,
                    bubbles=bubbles,
                    begins=turn_id not in begun,
                    version=version,
                    again=self._again.get(turn_id),
                    may_be_asked_again=turn is not None and inbox.may_be_asked_again(turn, self._again),
                )
                begun.add(turn_id)

    def _is_folded(self, message: Any) -> bool:
        """Whether it is the result of a call that the page shows."""
        return message.role == Message.Role.TOOL and (message.turn_id, message.tool_call_id) in self._asked

    def _bubble(self, message: Any) -> Bubble:
        calls = [self._call(message, *call) for call in calls_in(message.tool_calls)]
        return Bubble(
            message=message,
            label=_label(message),
            text=_text(message),
            calls=calls,
            is_pinned=message.seq in self._pinned,
            may_be_pinned=message.chars > 0 and pins.is_said(message),
            counts=message.seq is not None and message.seq == self._summary,
            undone=shown(self._undone.get(message.seq, "")),
            tainted_by=shown(message.tainted_by or ""),
            reasoning=_thought(message) if message.thought else None,
        )

    def _call(self, message: Any, call_id: str, name: str, arguments: str) -> Call:
        row, told = self._calls.get((message.turn_id, call_id)), self._results.get((message.turn_id, call_id))
        result = _text(told) if told else _text(row) if row and row.ended else None
        return Call(name=cut(name), arguments=cut(as_read(arguments)), result=result, row=row, seq=told and told.seq)


def _label(message: Any) -> str:
    if message.type == Message.Type.SUMMARY:
        return _KINDS.get(message.kind, "Summary")
    if message.kind == Message.Kind.COMMAND:
        return "Command to the host" if message.role == Message.Role.USER else "The host"
    return f"Result of {message.tool_name}".strip() if message.role == Message.Role.TOOL else message.role.capitalize()


def _text(row: Any) -> Text:
    """What a row's text begins with."""
    return Text(html=shown(row.begins), missing=max(row.chars - MAX_CHARS, 0))


def _thought(message: Any) -> Text:
    return Text(html=shown(message.thought), missing=max(message.thought_chars - MAX_CHARS, 0))


def cut(text: str) -> Text:
    """A text, its end left out if it is long."""
    return Text(html=shown(text[:MAX_CHARS]), missing=max(len(text) - MAX_CHARS, 0))


def as_read(text: str) -> str:
    """JSON on lines of its own; other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def may_be_cancelled(turn: Turn) -> bool:
    """Whether there is something left to cancel."""
    return not turn.ended and not turn.cancel_requested


def sent(turn: Turn, *, number: int | None) -> dict[str, Any]:
    """What the model was sent in one of a turn's calls, counted from 1; the last if there is none of that number."""
    calls = calls_of(turn)
    number = number if number and number <= len(calls) else len(calls)
    call = calls[number - 1] if calls else None
    told = {"turn": turn, "model": shown(turn.model), "calls": calls, "number": number, "call": call}
    invalid = (call and call.invalid) or {}
    told["paid"] = told_usage(call.answer.usage if call.answer else invalid.get("usage")) if call else ""
    told["wrong"], told["invalid"] = shown(invalid.get("wrong", "")), Text(html=shown(invalid.get("content", "")))
    through = turn.conversation.sent_erased_through
    told["is_erased"] = through > 0 and (call is None or bool(call.answer and (call.answer.seq or 0) <= through))
    if call is None or not call.record:
        return told
    conversation, kept = turn.conversation, call.record
    again = build_again(conversation, turn.model, kept, turn=turn)
    whose: dict[str, Any] = {"owner_id": conversation.owner_id, "agent": conversation.agent.name}
    versions = AgentVersion.objects.filter(agent=conversation.agent_id, number=kept["agent"])
    memories = MemoryVersion.objects.filter(**whose, number=kept.get("memory", 0))
    told |= {
        "sent": again,
        "version": versions.values_list("pk", flat=True).first(),
        "memory": memories.values_list("pk", flat=True).first(),
    }
    if again.request is None:
        return told
    messages, tools = again.request.messages, again.request.tools
    body: dict[str, Any] = {"model": turn.model, "messages": messages} | ({"tools": tools} if tools else {})
    if again.request.answer:
        body["response_format"] = answer_schemas.as_response_format(again.request.answer)
    return told | {
        "chosen": len(messages) - 1,
        # The theme shows what is called `messages` as its own, at the top of the page.
        "prompt": [_as_sent(each) for each in messages],
        "tools": [{"name": shown(each["function"]["name"]), "json": _as_json(each)} for each in tools],
        "whole": _as_json(body),
    }


def _as_sent(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    text = message["content"] or ""
    return {
        "role": message["role"],
        "begins": shown(excerpt(text)),
        "text": Text(html=shown(text)),
        "calls": [{"name": shown(each["name"]), "arguments": shown(as_read(each["arguments"]))} for each in calls],
    }


def _as_json(value: Any) -> SafeString:
    return shown(json.dumps(value, indent=2, ensure_ascii=False))
