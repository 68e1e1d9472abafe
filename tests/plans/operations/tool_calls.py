"""Tool calls."""

from collections.abc import Callable

from django.db import connection

from conversations.engine import steps
from tests.plans.operations.common import operation, the_long_one
from tests.plans.operations.turns import CALLS, claimed, waits_for_tools
from tools import calls, limits
from tools.models import CallStatus, ToolCall, ToolSetting


def a_call() -> ToolCall:
    return ToolCall.objects.filter(turn_id=waits_for_tools().pk).latest("position")


def a_running_call() -> ToolCall:
    call = calls.claim(a_call().pk, worker="worker")
    assert call
    return call


def with_call(act: Callable[[ToolCall], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        call = a_running_call()
        return lambda: act(call)

    return prepare


@operation("calls.claim")
def claim_call() -> Callable[[], object]:
    call = a_call()
    return lambda: calls.claim(call.pk, worker="worker")


operation("calls.keep")(with_call(calls.keep))
operation("calls.release")(with_call(calls.release))
operation("calls.doubt_queued")(with_call(lambda call: calls.doubt_queued([call.turn_id])))
operation("calls.end")(
    with_call(lambda call: calls.end(call, calls.Outcome(status=CallStatus.SUCCESS, result="words"), duration_ms=1))
)
operation("calls.end_open")(with_call(lambda call: calls.end_open([call.turn_id], rule="cancelled", reason="")))


# A busy minute: 2,000 calls of one tool, of which the owner's are the first 100.
BUSY, OWN, ALLOWED = 2_000, 100, 75
BUSY_MINUTE = """
INSERT INTO tools_toolcall
    (id, conversation_id, turn_id, owner_id, agent, call_id, position, tool_name, arguments, arguments_hash, status,
     effects, request_id, rule, result, fence, attempts, worker, created_at)
    SELECT gen_random_uuid(), CASE WHEN n <= own THEN id ELSE gen_random_uuid() END, id,
           CASE WHEN n <= own THEN owner_id ELSE 2 + n %% 199 END, 'default', 'busy_' || n, 1000000 + n, 'time', '{}',
           repeat('0', 64), 'SUCCESS', 'read', '', '', '', 0, 0, '', now() - (busy - n) * interval '1 millisecond'
    FROM conversations_conversation, (VALUES (%s, %s)) minute (own, busy), generate_series(1, busy) n WHERE id = %s
"""


def busy_minute() -> ToolSetting:
    with connection.cursor() as cursor:
        cursor.execute(BUSY_MINUTE, [OWN, BUSY, the_long_one().pk])
        cursor.execute("ANALYZE tools_toolcall")
    ToolSetting.objects.filter(name="time").update(
        calls_per_minute_conversation=ALLOWED, calls_per_minute_owner=ALLOWED
    )
    return ToolSetting.objects.get(name="time")


@operation("steps.store_calls, within limits")
def store_limited_calls() -> Callable[[], object]:
    busy_minute()
    claim = claimed()
    return lambda: steps.store_calls(claim, CALLS, limit=None)


@operation("limits.exceeding")
def exceeding() -> Callable[[], object]:
    busy_minute()
    conversation = the_long_one()
    call = ToolCall(tool_name="time", conversation_id=conversation.pk, owner_id=conversation.owner_id)
    call.rate_limited = True

    def look() -> None:
        assert [limit.rule for _, limit, _ in limits.exceeding([call])]

    return look


@operation("limits.exceeded_by")
def exceeded_by() -> Callable[[], object]:
    setting = busy_minute()
    conversation = the_long_one()
    call = ToolCall(tool_name="time", conversation_id=conversation.pk, owner_id=conversation.owner_id)

    def look() -> None:
        assert limits.exceeded_by(call, setting)

    return look


@operation("limits.exceeded_at_start")
def exceeded_at_start() -> Callable[[], object]:
    setting = busy_minute()
    call = ToolCall.objects.filter(owner_id=the_long_one().owner_id).latest("created_at", "pk")

    def look() -> None:
        assert limits.exceeded_at_start(call, setting)

    return look
