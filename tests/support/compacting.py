"""Compacting as a worker does, and what a model answers to it."""

import asyncio
import json
from typing import Any

from agent import llm
from conversations.engine.compacting import compaction
from conversations.engine.compacting.compactor import Compactor
from conversations.models import Compaction, Conversation
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.openai_server import call, completion

# Tokens: more than any conversation here has.
KEEP = 10**6


def compact(conversation: Conversation, *, times: int = 1) -> Compaction:
    """Have it compacted, as a worker does that is notified, and again when it is due again."""
    compaction.request(
        conversation.pk, conversation.turns.order_by("-number").values_list("pk", flat=True).first(), keep_tokens=KEEP
    )
    row = Compaction.objects.filter(conversation=conversation).latest("created_at")
    for _ in range(times):
        Compaction.objects.filter(pk=row.pk).update(run_after=None)
        run(row)
    row.refresh_from_db()
    return row


def run(row: Compaction) -> None:
    async def work() -> None:
        threads = DatabaseThreads(1)
        llm.forget_clients()  # they belong to one loop
        try:
            await Compactor(worker="worker-1", database=threads).advance(row.pk)
        finally:
            threads.close()
            await llm.close_clients()

    asyncio.run(work())


def rows() -> list[Compaction]:
    return list(Compaction.objects.order_by("created_at"))


def run_last() -> None:
    """Work on the compaction there is."""
    run(rows()[-1])


def saves(**arguments: Any) -> Any:
    """An answer that saves this."""
    given = {"summary": "They spoke.", "memory_update": "- likes roses", "history_entry": "Roses."} | arguments
    return completion(None, tool_calls=[call("save_memory", json.dumps(given))], finish_reason="tool_calls")
