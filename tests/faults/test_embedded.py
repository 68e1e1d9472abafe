"""What happens to workers, on the shape that has one process: stopped past its lease, or killed by its own turn."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.ledger import Ledger
from tests.support.api_client import start
from tests.support.hosts import Host
from tests.support.wait import wait_until

pytestmark = pytest.mark.embedded(reason="one process; tests/faults/test_production.py does the same to many")

# Asynchronous: a client is told 202 almost at once.
# In no sandbox: tools kill what they run for, and write to its ledger.
SETTINGS = {
    "NANOHOST_EXTRA_APPS": "tests.toolbox,tests.faults",
    "CHAT_WAIT_SECONDS": "0.02",
    "TOOL_SANDBOX": "none",
}


def ask(client: httpx2.Client, name: str, *script: dict[str, Any], **more: Any) -> str:
    """Ask in a conversation of its own; returns the turn's id."""
    message = json.dumps({"question": name, "script": script, **more})
    response = client.post(f"/conversations/{start(client)}/chat", json={"message": message})
    assert response.status_code == 202, response.text
    return str(response.json()["turnId"])


def turn(host: Host, turn_id: str) -> dict[str, Any]:
    with host.client() as client:
        return dict(client.get(f"/turns/{turn_id}").json())


def test_a_host_that_was_stopped_past_its_lease_goes_on_and_answers_once(tmp_path: Path):
    lease = 1.0
    host = Host(tmp_path, TURN_LEASE_SECONDS=str(lease), SWEEP_SECONDS="0.2", **SETTINGS).start()
    try:
        with host.client() as client:
            asked = ask(client, "slow", {"sleep": 1, "say": "here I am"})
        wait_until(lambda: turn(host, asked)["status"] == "running")
        assert host.process
        os.kill(host.process.pid, signal.SIGSTOP)
        time.sleep(3 * lease)  # what is tested is time that passes
        os.kill(host.process.pid, signal.SIGCONT)
        wait_until(lambda: turn(host, asked)["endedAt"])
        assert turn(host, asked)["status"] == "succeeded"
        answers = host.sql("SELECT content FROM conversations_message WHERE role = 'assistant'")
        assert answers == [{"content": "here I am"}]
    finally:
        host.kill()


@pytest.mark.faults
def test_a_turn_that_kills_its_host_each_time_fails_at_its_bound_and_its_neighbours_do_not(tmp_path: Path):
    ledger = Ledger(tmp_path)
    host = Host(tmp_path, TURN_MAX_ATTEMPTS="3", FAULT_LEDGER="1", **SETTINGS).start()
    deaths = 0
    try:
        with host.client() as client:
            neighbours = [ask(client, f"neighbour-{number}", {"sleep": 1.5, "say": "well"}) for number in range(3)]
            killer = ask(client, "killer", {"say": "never"}, killsAfter=0.5)
        while True:
            wait_until(lambda: host.process.poll() is not None or turn_has_ended(host, killer), seconds=60)
            if host.process.poll() is None:
                break
            deaths += 1
            assert deaths <= 10
            host.start()
        wait_until(lambda: all(turn(host, each)["endedAt"] for each in neighbours), seconds=60)
        assert (turn(host, killer)["status"], turn(host, killer)["error"]["code"]) == ("failed", "turn_crashed")
        assert [turn(host, each)["status"] for each in neighbours] == ["succeeded"] * 3
        assert deaths == 4, "the first, and one for each attempt"
    finally:
        host.kill()
        ledger.close()


def turn_has_ended(host: Host, turn_id: str) -> bool:
    try:
        return turn(host, turn_id)["endedAt"] is not None
    except httpx2.TransportError:
        return False
