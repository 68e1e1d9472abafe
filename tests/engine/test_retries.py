"""A provider's outage: what is tried again, for how long, and what is said of it meanwhile. Rows are moved in time."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from agent import llm
from conversations.engine import inbox, turn_control
from conversations.engine import turns as turns_module
from conversations.events import answers
from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from tests.support.openai_server import OpenAIServer, Reply, as_json, completion, failure
from tests.support.retrying import let_pass
from tests.support.scripts import script
from tests.support.working import advance

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(settings) -> Any:
    running = OpenAIServer(key="sk-test-0123456789abcdef").start()
    settings.LLM_PROVIDER, settings.LLM_BASE_URL, settings.OPENAI_API_KEY = "openai", running.url, running.key
    yield running
    running.stop()
    llm.forget_clients()


def tries(turn: Turn, *, until: float) -> list[float]:
    """The waits between a turn's tries, until it ends or so many seconds have passed."""
    waits: list[float] = []
    while sum(waits) < until and not advance(turn).ended:
        waits.append(let_pass(turn))
        assert len(waits) < 100, "asked without end"
    return waits


RATE_LIMITED = failure(429, "rate_limit_exceeded")
OUTAGES = {
    "500": failure(500),
    "503": Reply(status=503, body=b"<html>Down</html>"),
    "429": RATE_LIMITED,
    "429 and Retry-After": failure(429, headers={"Retry-After": "20"}),
    "429 and next to no Retry-After": failure(429, headers={"Retry-After": "0.01"}),
    "reset": Reply(hang_up=True),
    "its own timeout": failure(504),
    "overloaded in mid-answer": as_json({"error": {"message": "overloaded", "code": None}}),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES.keys())
def test_an_outage_of_five_minutes_loses_no_answer(server, say, outage):
    turn = say("Hello")
    server.answer(*[outage] * 60)
    waits = tries(turn, until=300)
    assert sum(waits) >= 300, f"it has ended after {sum(waits):.0f} s: {Turn.objects.get().error_code}"
    assert max(waits) <= turns_module.RETRY_MAX
    assert len(waits) < 25, "it was asked too often"
    server.forget()
    server.answer(completion("Here I am."))
    assert advance(turn).status == TurnStatus.SUCCEEDED
    turn.refresh_from_db()
    assert (turn.retries, turn.retry_code, turn.retry_detail, turn.retrying_since) == (0, "", "", None)


def test_nobody_listens_for_minutes(server, say, settings):
    settings.LLM_BASE_URL = "http://127.0.0.1:9/v1"
    turn = say("Hello")
    assert sum(tries(turn, until=120)) >= 120
    settings.LLM_BASE_URL = server.url
    assert advance(turn).status == TurnStatus.SUCCEEDED


def test_past_the_turns_time_it_fails_and_none_of_that_is_wasted(server, say, settings):
    turn = say("Hello")
    server.answer(*[failure(500)] * 100)
    waits = tries(turn, until=10_000)
    turn.refresh_from_db()
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "llm_unavailable")
    assert 0.98 < sum(waits) / settings.TURN_TIMEOUT_SECONDS < 1
    assert f"HTTP 500; tried {len(waits) + 1} times in " in turn.error_detail


def test_past_the_setting_it_fails(server, say, settings):
    settings.LLM_RETRY_SECONDS = 100
    turn = say("Hello")
    server.answer(*[failure(500)] * 100)
    assert 0.9 < sum(tries(turn, until=10_000)) / 100 <= 1
    turn.refresh_from_db()
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "llm_unavailable")


def test_a_wait_that_is_asked_for_is_kept_and_not_shortened(server, say):
    turn = say("Hello")
    server.answer(failure(429, headers={"Retry-After": "150"}))
    assert advance(turn).status == TurnStatus.WAITING
    assert 149 < let_pass(turn) <= 165.1


def test_turns_that_fail_together_do_not_come_back_together(server, say, owner):
    turns = [say("Hello", conversation=inbox.start_conversation(owner_id=owner.pk, metadata={})) for _ in range(8)]
    server.answer(*[failure(429, headers={"Retry-After": "100"})] * 8)
    for turn in turns:
        advance(turn)
    waits = [(turn.run_after - turn.retrying_since).total_seconds() for turn in Turn.objects.all()]
    assert max(waits) - min(waits) > 0.5


def test_what_makes_no_sense_is_paid_for_and_so_tried_a_few_times_only(server, say, settings):
    server.answer(*[as_json({})] * 100)
    assert len(tries(say("Hello"), until=10_000)) == settings.TURN_MAX_ATTEMPTS
    assert Turn.objects.get().error_code == "llm_bad_response"


def test_an_outage_is_not_counted_against_an_answer_that_makes_no_sense(server, say):
    turn = say("Hello")
    server.answer(*[failure(500)] * 8, as_json({}), completion("At last."))
    assert len(tries(turn, until=10_000)) == 9
    turn.refresh_from_db()
    assert turn.status == TurnStatus.SUCCEEDED


def test_a_failure_of_another_kind_begins_a_time_of_its_own(server, say, settings):
    turn = say("Hello")
    server.answer(failure(500), as_json({}), failure(500), completion("At last."))
    while not advance(turn).ended:
        let_pass(turn)
        Turn.objects.update(retrying_since=F("retrying_since") - timedelta(seconds=settings.LLM_RETRY_SECONDS - 0.1))
    turn.refresh_from_db()
    assert turn.status == TurnStatus.SUCCEEDED


def test_what_cannot_help_is_not_tried_again(server, say):
    server.answer(failure(401, "invalid_api_key"))
    assert tries(say("Hello"), until=10) == []


def test_a_stored_step_ends_the_count(server, say):
    """Each of a turn's model calls may meet an outage of its own."""
    turn = say(script({"call": [{"name": "nothing"}]}, {"say": "Done."}))
    server.answer(*[failure(500)] * 3)
    tries(turn, until=2)
    server.forget()
    assert advance(turn).status == TurnStatus.SUCCEEDED
    assert Turn.objects.get().retries == 0


# --- what is said of it ----------------------------------------------------------------------------------------------


def test_the_row_says_what_failed_how_often_and_when_it_is_tried_next(server, say):
    turn = say("Hello")
    limited = failure(429, "rate_limit_exceeded", message=f"{server.key} Hello", headers={"Retry-After": "20"})
    server.answer(failure(500), limited)
    advance(turn)
    let_pass(turn)
    turn = advance(turn)
    assert (turn.status, turn.waiting_for, turn.retries) == (TurnStatus.WAITING, WaitingFor.RETRY, 2)
    assert turn.retry_code == "llm_rate_limited"
    assert turn.retry_detail == "HTTP 429 rate_limit_exceeded; it asks to wait 20 s"
    assert turn.retrying_since < turn.run_after


def test_the_api_says_so_without_the_providers_words(server, say):
    turn = say("Hello")
    server.answer(failure(503, message="Words of the provider"))
    turn = advance(turn)
    (told,) = answers.turns_as_json([turn])
    assert told["retry"] == {
        "code": "llm_unavailable",
        "message": "The model's provider cannot be reached, or fails.",
        "tries": 1,
        "since": turn.retrying_since,
        "nextTryAt": turn.run_after,
    }
    assert told["error"] is None
    let_pass(turn)
    (told,) = answers.turns_as_json([advance(turn)])
    assert told["status"] == TurnStatus.SUCCEEDED
    assert told["retry"] is None


def test_a_turn_that_is_requeued_begins_anew(server, say):
    turn = say("Hello")
    server.answer(failure(500), failure(500))
    advance(turn)
    assert turn_control.requeue_turn(turn)
    turn = advance(turn)
    assert (turn.status, turn.retries) == (TurnStatus.WAITING, 1)
