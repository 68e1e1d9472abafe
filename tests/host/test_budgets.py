"""Budgets of a running host: many turns at once, and a host that is killed while a model is asked."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import start
from tests.support.hosts import Host
from tests.support.openai_server import OpenAIServer
from tests.support.scripts import script
from tests.support.wait import wait_until

MAKE = """
INSERT INTO agent_budget (name, whose, measure, every, amount, is_on, created_at)
VALUES ('house', 'host', 'tokens', 'month', ?, ?, '2026-01-01 00:00:00+00:00')
"""


def make_budget(host: Host, amount: int) -> None:
    host.sql("DELETE FROM agent_reservation")
    host.sql("DELETE FROM agent_budgetperiod")
    host.sql("DELETE FROM agent_budget")
    host.sql(MAKE, amount, True)


def spent(host: Host) -> int:
    return sum(row["spent"] for row in host.sql("SELECT spent FROM agent_budgetperiod"))


def reserved(host: Host) -> int:
    return len(host.sql("SELECT id FROM agent_reservation"))


def ended(host: Host) -> list[dict[str, Any]]:
    return host.sql(
        "SELECT status, error_code, prompt_tokens + completion_tokens AS used FROM conversations_turn"
        " WHERE status IN ('succeeded', 'failed', 'cancelled')"
    )


@pytest.fixture
def house(tmp_path: Path):
    running = Host(tmp_path, LLM_OUTPUT_RESERVE="128").start()
    yield running
    running.kill()


def test_of_200_turns_at_once_a_budget_for_50_lets_no_more_than_that_be_used(house: Host):
    message = script({"sleep": 0.3, "say": "Fine."})
    with house.client() as api:
        answer = api.post(f"/conversations/{start(api)}/chat", json={"message": message}).json()
        each = answer["usage"]["totalTokens"]
        talks = [start(api) for _ in range(200)]
        make_budget(house, 50 * each)
        wait_until(lambda: _counts(api, house, message), seconds=20)
        before = sum(row["used"] for row in ended(house)) - spent(house)  # until the host had heard of the budget

        def ask(some: list[str]) -> None:
            with house.client() as own:
                for talk in some:
                    own.post(f"/conversations/{talk}/turns", json={"message": message})

        threads = [threading.Thread(target=ask, args=(talks[at::8],)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    asked = len(house.sql("SELECT id FROM conversations_turn"))
    wait_until(lambda: len(ended(house)) == asked, seconds=60)
    outcomes = ended(house)
    assert {row["error_code"] for row in outcomes if row["status"] == "failed"} == {"budget_exceeded"}
    counted = sum(row["used"] for row in outcomes) - before
    assert counted == spent(house) <= 50 * each
    assert spent(house) > 10 * each, "some were let through"
    assert reserved(house) == 0


def _counts(api: Any, house: Host, message: str) -> bool:
    """Whether each process of the host has heard of the budget."""
    api.post(f"/conversations/{start(api)}/chat", json={"message": message})
    return spent(house) > 0


def test_what_a_killed_host_had_reserved_comes_back_with_its_lease(tmp_path):
    """The model never answers the first time: the host is killed between the reservation and the settlement."""
    model = OpenAIServer().start()
    host = Host(
        tmp_path,
        LLM_BASE_URL=model.url,
        OPENAI_API_KEY="sk-test",
        LLM_TIMEOUT_SECONDS="3",
        TURN_LEASE_SECONDS="1",
        SWEEP_SECONDS="0.3",
        LLM_OUTPUT_RESERVE="128",
    )
    host.have_database()
    make_budget(host, 700)  # for one call at a time
    try:
        host.start()
        with host.client() as api:
            talk = start(api)
            api.post(f"/conversations/{talk}/turns", json={"message": script({"sleep": 60, "say": "Late"})})
        wait_until(lambda: reserved(host) == 1, seconds=20)
        host.kill()
        assert (reserved(host), spent(host)) == (1, 0)
        host.sql("UPDATE conversations_turn SET status = 'cancelled', lease_until = NULL, ended_at = created_at")
        host.start()

        def is_let_in() -> bool:
            with host.client() as api:
                answer = api.post(f"/conversations/{start(api)}/chat", json={"message": "Hello"})
            assert answer.status_code in (200, 402), answer.text
            return answer.status_code == 200

        wait_until(is_let_in, seconds=20)
        assert spent(host) <= 700
        live = host.sql("SELECT amount FROM agent_reservation")
        assert len(live) == 1, "what died is left, and counts no more"
    finally:
        host.kill()
        model.stop()
