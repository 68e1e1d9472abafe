"""Webhooks of a running host: from the console's form to a receiver of anybody's, and a secret that stays a secret."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import httpx2
import pytest

from conversations.announced import TURN_ENDED
from tests.support.api_client import chat, start
from tests.support.exits import everything_stored, everything_the_admin_shows
from tests.support.hosts import PREPARED, ROOT, Host
from tests.support.receiver import Receiver, Says
from tests.support.wait import wait_until

KIND = TURN_ENDED["succeeded"]
(EXAMPLE,) = re.findall(r"```python\n(# receiver.py.*?)```", (ROOT / "docs/control.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def own_port() -> Iterator[int]:
    """A port that nobody else is given, and that a server which reuses addresses can listen on all the same."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, own_port: int) -> Iterator[Host]:
    running = Host(
        tmp_path_factory.mktemp("webhooks"),
        HTTP_ALLOWED_PRIVATE_CIDRS="127.0.0.1/32",
        HTTP_ALLOWED_PORTS=f"{receiver.port},{own_port}",
        SWEEP_SECONDS="0.3",
        TURN_LEASE_SECONDS="2",
    ).start()
    yield running
    running.kill()


def make_webhook(host: Host, url: str) -> str:
    """By the form of the console; returns the secret that it shows."""
    with httpx2.Client(base_url=host.address, follow_redirects=True, timeout=60) as browser:

        def post(address: str, **form: object) -> str:
            browser.get(address)
            return browser.post(address, data={"csrfmiddlewaretoken": browser.cookies["csrftoken"], **form}).text

        post("/admin/login/", username="admin", password=PREPARED["NANOHOST_ADMIN_PASSWORD"], next="/admin/")
        shown = post("/admin/conversations/webhookendpoint/add/", name="mine", url=url, kinds=[KIND])
    return re.search(r'id="secret"[^>]*>(whsec_[^<]+)<', shown)[1]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def tell(host: Host) -> str:
    """The first turn that is told of: a worker hears of a new webhook within a second."""
    turns = []
    with host.client() as client:

        def is_told() -> object:
            turns.append(chat(client, start(client), "Hello").json()["turnId"])
            return host.sql("SELECT id FROM conversations_delivery")

        wait_until(is_told)
    return turns[-1]


def test_the_receiver_of_the_documentation_prints_what_has_ended_once(started: Host, own_port: int, tmp_path):
    (tmp_path / "receiver.py").write_text(EXAMPLE)
    secret = make_webhook(started, f"http://127.0.0.1:{own_port}/")
    environment = {"PATH": os.environ["PATH"], "WEBHOOK_SECRET": secret, "PORT": str(own_port)}
    command = [sys.executable, str(tmp_path / "receiver.py")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as own:
        try:
            wait_until(lambda: listens(own_port))
            turn = tell(started)
            kind, told = own.stdout.readline().split(" ", 1)
        finally:
            own.kill()
    assert kind == KIND
    assert turn in told
    assert "Hello" not in told


def test_a_host_that_is_killed_while_it_sends_sends_again_by_the_same_id(started: Host, receiver: Receiver):
    make_webhook(started, receiver.url)
    receiver.answer(Says(hangs=True), Says())
    with started.client() as client:
        chat(client, start(client), "Hello")
    wait_until(lambda: receiver.received)
    started.kill()
    started.start()
    wait_until(lambda: len(receiver.received) >= 2, seconds=60)
    first = receiver.received[0]
    assert {each.body for each in receiver.received if each.headers["webhook-id"] == receiver.ids[0]} == {first.body}
    assert receiver.ids.count(receiver.ids[0]) == 2


def test_a_host_that_is_stopped_while_a_receiver_hangs_stops_in_time_and_sends_again(started: Host, receiver: Receiver):
    receiver.received.clear()
    receiver.answer(Says(hangs=True), Says())
    with started.client() as client:
        chat(client, start(client), "Hello")
    wait_until(lambda: receiver.received)
    assert started.stop(signal.SIGTERM, seconds=15) == 0
    delivery = UUID(receiver.ids[0].removeprefix("msg_"))
    (row,) = started.sql("SELECT status, attempts FROM conversations_delivery WHERE id = ?", delivery)
    assert (row["status"], row["attempts"]) == ("queued", 0)
    started.start()
    wait_until(lambda: receiver.ids.count(receiver.ids[0]) == 2, seconds=60)


def test_a_secret_has_left_by_no_exit(started: Host, receiver: Receiver):
    """After all that the tests above made the host sign."""
    secret = make_webhook(started, receiver.url)
    receiver.answer(Says(400, body=f"You have signed with {secret}.".encode()))
    receiver.received.clear()
    with started.client() as client:
        chat(client, start(client), "Hello")
    wait_until(lambda: started.sql("SELECT id FROM conversations_delivery WHERE last_status = 400"))
    exits = (everything_stored(started), everything_the_admin_shows(started), started.log_text())
    for text in exits:
        assert "You have signed with [redacted]." in text or "whsec_[redacted]" in text
        assert secret.removeprefix("whsec_") not in text
