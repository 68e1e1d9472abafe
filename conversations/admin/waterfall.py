"""A turn over time, drawn from its own rows: waits, model calls, tool calls, approvals, deliveries."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from conversations.models import Delivery, Message, Turn
from conversations.statuses import WaitingFor
from nanohost.lib import clock
from nanohost.lib.admin import shown
from nanohost.lib.text import duration
from tools.models import Approval, ToolCall

# Rows of each kind that are drawn, and deliveries of that time that are looked through for those that tell of the turn.
MAX_ROWS, MAX_DELIVERIES = 100, 500
# What is told of a turn is stored as it happens, by another process's clock at most.
_CLOCKS_DIFFER = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Something that took time. ``kind``: for its colour; ``ended`` None: it goes on. ``state``: how it ended."""

    kind: str
    name: str
    began: datetime
    ended: datetime | None
    state: str = ""
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A bar where it stands: ``left`` and ``width`` in hundredths of the whole time."""

    bar: Bar
    left: str
    width: str
    after: str
    took: str


def drawn(turn: Turn) -> dict[str, Any]:
    """What the page shows."""
    now = clock.read()
    bars = sorted(_bars(turn), key=lambda each: each.began)
    begins = min([turn.created_at, *(each.began for each in bars)])
    ends = max([turn.ended_at or now, *(each.ended or now for each in bars)])
    whole = max((ends - begins).total_seconds(), 0.001)

    def place(bar: Bar) -> Drawn:
        left = 100 * (bar.began - begins).total_seconds() / whole
        seconds = max(0.0, ((bar.ended or now) - bar.began).total_seconds())
        width = min(100 * seconds / whole, 100 - left)
        took = duration(seconds) if bar.ended else f"{duration(seconds)} so far"
        return Drawn(
            bar=bar,
            left=f"{left:.2f}",
            width=f"{width:.2f}",
            after=duration((bar.began - begins).total_seconds()),
            took=took,
        )

    return {"turn": turn, "bars": [place(each) for each in bars], "whole": duration(whole)}


def _bars(turn: Turn) -> Iterator[Bar]:
    if turn.started_at is None:
        yield Bar(kind="wait", name="waits in the queue", began=turn.created_at, ended=turn.ended_at)
    elif turn.started_at > turn.created_at:
        yield Bar(kind="wait", name="waits in the queue", began=turn.created_at, ended=turn.started_at)
    calls = list(ToolCall.objects.filter(turn_id=turn.pk).order_by("position")[:MAX_ROWS])
    yield from _of_models(turn, calls)
    yield from _of_calls(calls)
    yield from _of_approvals(turn)
    yield from _of_deliveries(turn)


def _of_models(turn: Turn, calls: list[ToolCall]) -> Iterator[Bar]:
    """A model is asked when what came before has ended: the calls of the answer before, or the turn's start."""
    if turn.started_at is None:
        return
    answers = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False).order_by("seq")
    began = turn.started_at
    for answer in answers.defer("content", "reasoning")[:MAX_ROWS]:
        before = [call.ended_at for call in calls if call.ended_at and call.ended_at <= answer.created_at]
        began = min(max([began, *before]), answer.created_at)
        usage = answer.usage or {}
        told = f"{usage.get('model') or turn.model}: answers" if not answer.tool_calls else "asks for tools"
        name = told if not answer.tool_calls else f"{usage.get('model') or turn.model}: {told}"
        address = reverse("admin:conversations_message_change", args=[answer.pk])
        yield Bar(kind="model", name=shown(name), began=began, ended=answer.created_at, address=address)
        began = answer.created_at
    if turn.waiting_for == WaitingFor.RETRY and not turn.ended:
        yield Bar(kind="wait", name="waits to try again", began=began, ended=None, state=turn.retry_code)
    elif turn.waiting_for == WaitingFor.CALLER and not turn.ended:
        yield Bar(kind="wait", name="waits for its caller's tools", began=began, ended=None)
    elif not turn.ended and not turn.waiting_for:
        since = max([began, *(call.ended_at for call in calls if call.ended_at)])
        yield Bar(kind="model", name=shown(f"{turn.model}: is asked"), began=since, ended=None)
    elif turn.ended_at and turn.error_code and turn.ended_at > began:
        yield Bar(kind="model", name="no answer", began=began, ended=turn.ended_at, state=turn.error_code)


def _of_calls(calls: list[ToolCall]) -> Iterator[Bar]:
    for call in calls:
        address = reverse("admin:tools_toolcall_change", args=[call.pk])
        name = shown(call.tool_name)
        if not call.started_at:
            state = shown(call.rule or str(call.status))
            told = f"{name}: did not run" if call.ended_at else f"{name}: waits"
            yield Bar(kind="wait", name=told, began=call.created_at, ended=call.ended_at, state=state)
            continue
        if not call.consent and call.started_at > call.created_at:
            yield Bar(kind="wait", name=f"{name}: waits", began=call.created_at, ended=call.started_at)
        status = str(call.status) + (f", {call.rule}" if call.rule else "")
        yield Bar(
            kind="tool", name=name, began=call.started_at, ended=call.ended_at, state=shown(status), address=address
        )


def _of_approvals(turn: Turn) -> Iterator[Bar]:
    for asked in Approval.objects.filter(turn_id=turn.pk).order_by("requested_at")[:MAX_ROWS]:
        yield Bar(
            kind="approval",
            name=f"{shown(asked.tool_name)}: waits for consent",
            began=asked.requested_at,
            ended=asked.decided_at,
            state=str(asked.state),
            address=reverse("admin:tools_approval_change", args=[asked.pk]),
        )


def _of_deliveries(turn: Turn) -> Iterator[Bar]:
    """Those that say what the turn has said, and those that tell of it: they are stored while it runs or as it ends."""
    until = (turn.ended_at or clock.read()) + _CLOCKS_DIFFER
    then = Delivery.objects.filter(created_at__gte=turn.created_at - _CLOCKS_DIFFER, created_at__lte=until)
    for row in then.order_by("-created_at")[:MAX_DELIVERIES]:
        told = row.data.get("turnId") if isinstance(row.data, dict) else None
        if row.turn_id != turn.pk and told != str(turn.pk):
            continue
        yield Bar(
            kind="delivery",
            name=f"{row.channel}: {shown(row.kind)}",
            began=row.created_at,
            ended=row.ended_at,
            state=str(row.status),
            address=reverse("admin:conversations_delivery_change", args=[row.pk]),
        )
