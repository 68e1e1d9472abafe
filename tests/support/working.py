"""Doing a worker's work in the test's own thread: the real functions, one after the other, without a broker."""

import asyncio
from collections.abc import Iterable
from uuid import UUID

from agent import llm
from conversations.engine import model_request, step_context, tool_calls
from conversations.engine.turns import DatabaseThreads, TurnRunner, claim_and_load
from conversations.models import Turn
from tools.models import CallStatus, ToolCall


def advance(turn: Turn | UUID, *, worker: str = "worker-1") -> Turn | None:
    """Look at a turn once, as a worker does when it is notified; returns the row as it then is."""
    turn_id = turn.pk if isinstance(turn, Turn) else turn

    async def look() -> None:
        threads = DatabaseThreads(1)
        llm.forget_clients()  # they belong to one loop
        try:
            await TurnRunner(worker=worker, database=threads).advance(turn_id)
        finally:
            threads.close()
            await llm.close_clients()

    asyncio.run(look())
    return Turn.objects.filter(pk=turn_id).first()


def run_call(call: ToolCall, *, worker: str = "worker-1") -> ToolCall:
    """Look at a tool call once; returns the row as it then is."""
    tool_calls.run_call(call.pk, worker=worker)
    return ToolCall.objects.get(pk=call.pk)


def settle(turns: Iterable[Turn], *, rounds: int = 30) -> list[Turn]:
    """Work until the turns have ended, as workers would; fails if they do not."""
    ids = [turn.pk for turn in turns]
    for _ in range(rounds):
        for turn_id in Turn.objects.filter(pk__in=ids).open().order_by("created_at").values_list("pk", flat=True):
            advance(turn_id)
            for call in ToolCall.objects.filter(turn_id=turn_id, status=CallStatus.QUEUED):
                run_call(call)
        if not Turn.objects.filter(pk__in=ids).open().exists():
            return [Turn.objects.get(pk=turn_id) for turn_id in ids]
    raise AssertionError(f"not settled: {list(Turn.objects.filter(pk__in=ids).open().values())}")


def prompt_of(turn: Turn) -> list[str]:
    """What its model would be sent, without the system prompt; each text's first line."""
    claim, context = claim_and_load(turn.pk, worker="worker-1")
    request = model_request.Asking(context, None).request
    assert step_context.load(claim).snapshot == context.snapshot
    return [message["content"].split("\n")[0] for message in request.messages[1:]]
