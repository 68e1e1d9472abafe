"""What operations are, what each may read, and what several of them begin with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conversations.models import Compaction, Conversation, DeferredMessage, Delivery, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.accounts.models import AuditEntry
from tests.support.saying import said
from tools.models import Approval, ToolCall

GROW = {
    model._meta.db_table
    for model in (
        *(Conversation, Turn, Message, ToolCall, Compaction, DeferredMessage, Approval, Delivery, AuditEntry),
    )
}


@dataclass(frozen=True)
class Bound:
    """What one statement may read: rows in one step of its plan, and blocks of 8 kB in all."""

    rows: int
    blocks: int


# What was undone before counts as well, until PostgreSQL has cleaned up after it; hence the room.
HOT = Bound(rows=1_000, blocks=500)
# And the messages that no summary covers yet, 500 of them at most, each in a block of its own.
PROMPT = Bound(rows=1_000, blocks=1_000)
# What is compacted at once: 2,000 messages.
READING = Bound(rows=3_000, blocks=3_000)
# Of a day, which has 576 turns here.
DAILY = Bound(rows=20_000, blocks=20_000)
# Of all that is open, which is 500 turns here, a sweep takes 200 and marks each: 50 blocks a row, with its indexes.
SWEEP = Bound(rows=3_000, blocks=15_000)
# A list of the console counts to 500. PostgreSQL walks by time until it has them, or goes by another index, whichever
# is less: of n rows, some multiple of the root of 500 n.
CONSOLE = Bound(rows=60_000, blocks=11_000)
# Of what is deleted by its age, a batch: its rows, and the blocks of the indexes that each stands in.
BATCH = Bound(rows=3_000, blocks=40_000)
# Of so many conversations, the deferred messages; the long one has 5,000.
A_PAGE = Bound(rows=15_000, blocks=20_000)
# As long as the conversation is: of one with 100,000 messages, what is searched; of others, what is deleted.
WHOLE = Bound(rows=150_000, blocks=150_000)


@dataclass(frozen=True)
class Operation:
    """``prepare`` is not looked at; what it returns is."""

    prepare: Callable[[], Callable[[], object]]
    bound: Bound


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, bound: Bound = HOT
) -> Callable[[Callable[[], Callable[[], object]]], Callable[[], Callable[[], object]]]:
    """Names what is measured: ``module.function``, ``METHOD path``, and a remark behind a comma."""

    def add(prepare: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object]]:
        assert name not in OPERATIONS
        OPERATIONS[name] = Operation(prepare, bound)
        return prepare

    return add


def the_long_one() -> Conversation:
    return Conversation.objects.select_related("agent").get(key="api:1")


def a_usual_one() -> Conversation:
    return Conversation.objects.select_related("agent").get(key="api:77")


def say(**options: Any) -> Turn:
    return said("words", conversation=the_long_one(), request_id="request", **options)


def a_turn() -> Turn:
    return the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).order_by("number")[1000]
