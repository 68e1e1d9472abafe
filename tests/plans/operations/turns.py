"""A turn's life, and the tools of its caller's."""

from collections.abc import Callable

from agent.llm.base import Completion, Usage, tool_call
from agent.spending import bills
from conversations.engine import caller, history, inbox, lease, snapshot, steps
from conversations.engine.lease import Claim
from conversations.engine.results import answers_of
from conversations.models import CallerRound, Turn
from conversations.openai_api import turn_parts
from conversations.options import Options
from conversations.web import gateway
from nanohost.accounts.models import ApiKey
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.plans.operations.common import PROMPT, operation, say
from tools.models import CallStatus, ToolCall

USAGE = Usage(prompt_tokens=1, completion_tokens=1)
CALLS = Completion(tool_calls=(tool_call("call_a", "time", "{}"), tool_call("call_b", "time", "{}")), usage=USAGE)


def claimed(turn: Turn | None = None) -> Claim:
    claim = lease.claim((turn or say()).pk, worker="worker")
    assert claim
    return claim


def waits_for_tools() -> Turn:
    claim = claimed()
    assert steps.store_calls(claim, CALLS, limit=None)
    return Turn.objects.get(pk=claim.turn_id)


@operation("lease.claim")
def claim_fresh() -> Callable[[], object]:
    turn = say()
    return lambda: claimed(turn)


@operation("lease.claim, after its tools")
def claim_again() -> Callable[[], object]:
    turn = waits_for_tools()
    ToolCall.objects.filter(turn_id=turn.pk).update(status=CallStatus.SUCCESS)
    return lambda: lease.claim(turn.pk, worker="worker", answers_of=answers_of)


@operation("lease.claim, not its turn")
def claim_too_early() -> Callable[[], object]:
    say()
    turn = say()
    return lambda: lease.claim(turn.pk, worker="worker")


def with_claim(act: Callable[[Claim], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        claim = claimed()
        say()  # and one is queued behind it
        return lambda: act(claim)

    return prepare


def read_twice(claim: Claim) -> None:
    """All of it, and what came since."""
    recent = history.Recent()
    for _ in range(2):
        pointers: dict[str, int] = {"starts_at": 1, "consolidated_through": 0, "window": 20, "summary_seq": 1}
        history.read(claim.conversation_id, claim.turn_id, **pointers, recent=recent)


operation("lease.renew")(with_claim(lambda claim: lease.renew([claim], worker="worker")))
operation("lease.still_held")(with_claim(lambda claim: lease.still_held([claim])))
operation("snapshot.load", PROMPT)(with_claim(snapshot.load))
operation("history.read", PROMPT)(with_claim(lambda claim: read_twice(claim)))
operation("history.said_between", PROMPT)(
    with_claim(lambda claim: history.said_between(claim.conversation_id, 1_000, 1_499))
)
operation("steps.store_calls")(with_claim(lambda claim: steps.store_calls(claim, CALLS, limit=None)))
operation("steps.finish")(with_claim(lambda claim: steps.finish(claim, Completion(usage=USAGE), reply="words")))
operation("steps.charge")(with_claim(lambda claim: steps.charge(claim, Completion(usage=USAGE), bills.NOTHING)))
operation("steps.keep_invalid")(
    with_claim(
        lambda claim: steps.keep_invalid(
            claim,
            Completion(content="x", usage=USAGE),
            earlier=(),
            wrong="It is no JSON.",
            sent=None,
            bill=bills.NOTHING,
        )
    )
)
operation("steps.fail")(with_claim(lambda claim: steps.fail(claim, code="turn_error")))
operation("steps.wait_for_retry")(with_claim(lambda claim: steps.wait_for_retry(claim, seconds=1)))
operation("steps.fall_back")(with_claim(lambda claim: steps.fall_back(claim, model="m", reason="It has failed.")))
operation("steps.reschedule")(with_claim(lambda claim: steps.reschedule(claim, seconds=1)))
operation("steps.release")(with_claim(steps.release))
operation("steps.notify_next")(with_claim(lambda claim: steps.notify_next(claim.conversation_id)))


@operation("steps.store_results")
def store_results() -> Callable[[], object]:
    turn = waits_for_tools()
    ToolCall.objects.filter(turn_id=turn.pk).update(status=CallStatus.SUCCESS)
    claim = claimed(turn)
    view = snapshot.load(claim)
    return lambda: steps.store_results(claim, view)


@operation("steps.cancel_if_asked")
def cancel_if_asked() -> Callable[[], object]:
    claim = claimed()
    Turn.objects.filter(pk=claim.turn_id).update(cancel_requested=True)
    return lambda: steps.cancel_if_asked(claim)


@operation("steps.close_round")
def close_round() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: steps.close_round(turn.conversation_id, turn.pk, rule="cancelled", reason="")


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
ASKS = Completion(tool_calls=(tool_call("call_c", "weather", "{}"),), usage=USAGE)


def waits_for_caller() -> Turn:
    """Of the long conversation."""
    claim = claimed(say(options=Options(tools=[WEATHER])))
    assert steps.store_calls(claim, ASKS, limit=None)
    return Turn.objects.get(pk=claim.turn_id)


def a_round() -> CallerRound:
    asked = CallerRound.objects.filter(turn=waits_for_caller()).select_related("turn__conversation__agent")
    return asked.get()


def with_round(act: Callable[[CallerRound], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        asked = a_round()
        return lambda: act(asked)

    return prepare


def outputs_of(asked: CallerRound) -> dict[str, str]:
    return {call["id"]: "rain" for call in asked.calls}


operation("caller.find")(with_round(lambda asked: caller.find(outputs_of(asked), owner_id=asked.turn.owner_id)))
operation("caller.pending")(with_round(lambda asked: caller.pending(asked.turn.conversation_id)))
operation("caller.answer")(
    with_round(lambda asked: caller.answer(asked, outputs_of(asked), options=Options(), request_id="request"))
)
operation("turn_parts.part_of")(with_round(lambda asked: turn_parts.part_of(asked.turn, 0)))
operation("turn_parts.is_over")(with_round(lambda asked: turn_parts.is_over(asked.turn, 0)))
operation("turn_parts.first_message")(with_round(lambda asked: turn_parts.first_message(asked.turn, 1)))


@operation("steps.store_calls, of the caller's")
def store_callers_calls() -> Callable[[], object]:
    claim = claimed(say(options=Options(tools=[WEATHER])))
    return lambda: steps.store_calls(claim, ASKS, limit=None)


@operation("steps.wait_for_caller")
def wait_for_caller() -> Callable[[], object]:
    claim, call = claimed(), {"id": CallerRound.call_id(new_id(), 0), "function": {"name": "weather", "arguments": ""}}
    return lambda: steps.wait_for_caller(claim, [call])


@operation("caller.expire_due")
def expire_callers() -> Callable[[], object]:
    Turn.objects.filter(pk=waits_for_caller().pk).update(deadline=from_now(-1))
    return caller.expire_due


@operation("inbox.retried")
def retried() -> Callable[[], object]:
    turn = say(options=Options(), key=ApiKey.objects.get(), body_hash="0" * 64)
    return lambda: inbox.retried(key=ApiKey.objects.get(), body_hash=turn.body_hash)


@operation("gateway.cancel")
def cancel_for_who_has_left() -> Callable[[], object]:
    turn = waits_for_caller()
    return lambda: gateway.cancel(turn.pk)
