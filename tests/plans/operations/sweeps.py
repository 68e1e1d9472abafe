"""Sweeps, ends, and system jobs."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.utils import timezone

from conversations.engine import deadlines, inbox, intake, retention, spawned, sweeper, turn_control, worker
from conversations.kinds import COMPACTIONS, DELIVERIES, TOOLS, TURNS
from conversations.models import Conversation, Turn
from conversations.statuses import TurnStatus
from conversations.web import gateway
from nanohost.lib.clock import Now, from_now
from nanohost.lib.erasing import MAX_ROWS, Erased
from nanohost.lib.ids import new_id
from tests.plans.operations.api import a_deferred_one
from tests.plans.operations.common import (
    A_PAGE,
    BATCH,
    PROMPT,
    READING,
    SWEEP,
    WHOLE,
    a_turn,
    a_usual_one,
    operation,
    say,
    the_long_one,
)
from tests.plans.operations.turns import claimed, waits_for_tools
from tests.support.saying import said
from tools import retention as of_calls
from tools.models import ToolCall


@operation("sweeper.find, turns", SWEEP)
def find_turns() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(TURNS)) == sweeper.MAX_FOUND

    return sweep


@operation("deadlines.end_overdue_calls", SWEEP)
def overdue_calls() -> Callable[[], object]:
    overdue = Turn.objects.filter(status=TurnStatus.WAITING, waiting_for="tools").values_list("pk", flat=True)[:3]
    Turn.objects.filter(pk__in=list(overdue)).update(deadline="2020-01-01T00:00Z")
    return deadlines.end_overdue_calls


@operation("sweeper.find, calls", SWEEP)
def find_calls() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(TOOLS)) == 40

    return sweep


@operation("sweeper.find, compactions", SWEEP)
def find_compactions() -> Callable[[], object]:
    return lambda: sweeper.find(COMPACTIONS, wanted=10)


@operation("sweeper.find, deliveries", SWEEP)
def find_deliveries() -> Callable[[], object]:
    def sweep() -> None:
        assert len(sweeper.find(DELIVERIES)) == sweeper.MAX_FOUND

    return sweep


@operation("inbox.note")
def note() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.note(conversation_id=conversation.pk, content="words")


@operation("turn_control.cancel_turn, queued")
def cancel_queued() -> Callable[[], object]:
    turn = say()
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, waiting")
def cancel_waiting() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, running")
def cancel_running() -> Callable[[], object]:
    turn = Turn.objects.get(pk=claimed().turn_id)
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.cancel_turn, ended")
def cancel_ended() -> Callable[[], object]:
    turn = the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).latest("number")
    return lambda: turn_control.cancel_turn(turn)


@operation("turn_control.fail_turn")
def fail_turn() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.fail_turn(turn, reason="words")


@operation("turn_control.requeue_turn, running")
def requeue_running() -> Callable[[], object]:
    turn = Turn.objects.get(pk=claimed().turn_id)
    return lambda: turn_control.requeue_turn(turn)


@operation("turn_control.requeue_turn, waiting")
def requeue_waiting() -> Callable[[], object]:
    turn = waits_for_tools()
    return lambda: turn_control.requeue_turn(turn)


@operation("sweeper.overlooked", SWEEP)
def overlooked() -> Callable[[], object]:
    def look() -> None:
        assert len(sweeper.overlooked()[TURNS]) == sweeper.MAX_FOUND

    return look


@operation("sweeper.notify_again", SWEEP)
def notify_again() -> Callable[[], object]:
    return sweeper.notify_again


def paused() -> None:
    assert intake.pause(by="boss", because="words")


@operation("intake.pause")
def pause() -> Callable[[], object]:
    return paused


@operation("intake.resume", SWEEP)
def resume() -> Callable[[], object]:
    paused()
    return lambda: intake.resume(by="boss")


@operation("intake.current_pause")
def current_pause() -> Callable[[], object]:
    return intake.current_pause


@operation("intake.left", SWEEP)
def left() -> Callable[[], object]:
    return intake.left


@operation("inbox.receive, while the intake is paused")
def receive_paused() -> Callable[[], object]:
    paused()
    return say


@operation("turn_control.count_open")
def count_open() -> Callable[[], object]:
    say()
    return turn_control.count_open


# By hand, once, of all that is open.
@operation("turn_control.end_restored", SWEEP)
def end_restored() -> Callable[[], object]:
    waits_for_tools()
    return turn_control.end_restored


def a_sub_agent() -> Conversation:
    """Of a call in the long conversation; its turn is open."""
    turn = a_turn()
    call = ToolCall.objects.filter(turn_id=turn.pk).order_by("position")[0]
    ToolCall.objects.filter(pk=call.pk).update(tool_name=spawned.TOOL, owner_id=turn.owner_id)
    made_for = new_id()
    key = f"{spawned.CHANNEL}{made_for}"
    whose: dict[str, Any] = {"owner_id": turn.owner_id, "agent": turn.conversation.agent, "spawned_by": call.pk}
    whose["spawned_in"] = turn.conversation_id
    made = Conversation.objects.create(id=made_for, key=key, name="words", cost=0, **whose)
    said("words", conversation=made, request_id="r")
    return made


@operation("turn_control.cancel_spawned")
def cancel_spawned() -> Callable[[], object]:
    above = a_sub_agent().spawned_in
    return lambda: turn_control.cancel_spawned(above)


@operation("turn_control.cancel_turn of one with sub-agents")
def cancel_turn_with_sub_agents() -> Callable[[], object]:
    above = Turn.objects.get(pk=ToolCall.objects.get(pk=a_sub_agent().spawned_by).turn_id)
    Turn.objects.filter(pk=above.pk).update(status=TurnStatus.QUEUED, ended_at=None)
    return lambda: turn_control.cancel_turn(above)


@operation("spawned.report")
def report_of_a_sub_agent() -> Callable[[], object]:
    turn = Turn.objects.select_related("conversation").get(conversation=a_sub_agent())
    whose: dict[str, Any] = {"owner_id": turn.owner_id, "conversation_id": turn.conversation_id, "turn_id": turn.pk}
    return lambda: spawned.report(key=turn.conversation.key, **whose, status="succeeded", text="words")


@operation("spawned.is_report")
def is_a_report() -> Callable[[], object]:
    turn, made_of = a_turn(), a_deferred_one()
    turn.idempotency_key = f"later {made_of.pk} 1"
    return lambda: spawned.is_report(turn)


@operation("turn_control.delete_conversation")
def delete_conversation() -> Callable[[], object]:
    conversation = a_usual_one()
    return lambda: turn_control.delete_conversation(conversation.pk)


def ripe(before: datetime | None = None) -> dict[str, Any]:
    """The oldest half of a year is old enough."""
    return {"before": before or timezone.now() - timedelta(days=180)}


@operation("retention.page", A_PAGE)
def retention_page() -> Callable[[], object]:
    agent = the_long_one().agent_id
    return lambda: [retention.page(agent, what, **ripe(), after=None) for what in retention.WHAT]


@operation("retention.page, behind others", A_PAGE)
def retention_page_behind() -> Callable[[], object]:
    agent, after = the_long_one().agent_id, a_usual_one().pk
    return lambda: [retention.page(agent, what, **ripe(), after=after) for what in retention.WHAT]


def erasing(erase: Callable[..., object], conversation: Conversation) -> Callable[[], object]:
    return lambda: erase(conversation.pk, **ripe(), rows=MAX_ROWS, erased=Erased())


@operation("retention.erase_messages", WHOLE)
def erase_messages() -> Callable[[], object]:
    return erasing(retention.erase_messages, the_long_one())


@operation("retention.erase_sent", WHOLE)
def erase_sent() -> Callable[[], object]:
    return erasing(retention.erase_sent, the_long_one())


@operation("retention.erase_results", WHOLE)
def erase_results() -> Callable[[], object]:
    return erasing(retention.erase_results, the_long_one())


@operation("retention.erase_messages, of a usual one", BATCH)
def erase_usual_messages() -> Callable[[], object]:
    return erasing(retention.erase_messages, a_usual_one())


@operation("retention.erase_sent, of a usual one", BATCH)
def erase_usual_sent() -> Callable[[], object]:
    return erasing(retention.erase_sent, a_usual_one())


@operation("retention.erase_results, of a usual one", BATCH)
def erase_usual_results() -> Callable[[], object]:
    return erasing(retention.erase_results, a_usual_one())


@operation("retention.count_messages", WHOLE)
def count_messages() -> Callable[[], object]:
    return lambda: retention.count_messages(the_long_one().pk, **ripe())


@operation("retention.count_sent", WHOLE)
def count_sent() -> Callable[[], object]:
    return lambda: retention.count_sent(the_long_one().pk, **ripe())


@operation("retention.count_results", WHOLE)
def count_results() -> Callable[[], object]:
    return lambda: retention.count_results(the_long_one().pk, **ripe())


@operation("retention.forget_transient", BATCH)
def forget_transient() -> Callable[[], object]:
    return lambda: retention.forget_transient(seconds=0)


@operation("retention.forget_transient, dropped", BATCH)
def forget_dropped() -> Callable[[], object]:
    Conversation.objects.filter(is_transient=True).update(created_at=Now())
    made = inbox.start_conversation(owner_id=a_turn().owner_id, metadata={})
    Conversation.objects.filter(pk=made.pk).update(is_dropped=True, created_at=from_now(-86_400))

    def forget() -> None:
        assert retention.forget_transient(seconds=60) == 1

    return forget


@operation("of_calls.page", PROMPT)
def page_of_calls() -> Callable[[], object]:
    return lambda: of_calls.page("default", **ripe(), after=None)


@operation("of_calls.page, behind others", PROMPT)
def page_of_calls_behind() -> Callable[[], object]:
    (first, *_) = of_calls.page("default", **ripe(), after=None)
    return lambda: of_calls.page("default", **ripe(), after=(first.created_at, first.id))


@operation("of_calls.erase", BATCH)
def erase_calls() -> Callable[[], object]:
    found = [each.id for each in of_calls.page("default", **ripe(), after=None)]
    return lambda: of_calls.erase(found, erased=Erased())


@operation("of_calls.of_conversation")
def calls_of_a_conversation() -> Callable[[], object]:
    return lambda: of_calls.of_conversation(a_usual_one().pk).count()


@operation("of_calls.of_owner", READING)
def calls_of_an_owner() -> Callable[[], object]:
    return lambda: list(of_calls.of_owner(7)[:MAX_ROWS])


@operation("an owner is deleted", WHOLE)
def delete_owner() -> Callable[[], object]:
    owner = get_user_model().objects.get(username="owner-7")
    return lambda: owner.delete()


@operation("worker.forget_dead_workers")
def forget_dead_workers() -> Callable[[], object]:
    return worker.forget_dead_workers


@operation("the gateway looks")
def what_the_gateway_waits_for() -> Callable[[], object]:
    waited_for = list(Turn.objects.order_by("-created_at").values_list("pk", flat=True)[:20])
    return lambda: gateway.still_open(waited_for)
