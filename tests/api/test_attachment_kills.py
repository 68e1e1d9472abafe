"""kill -9 while a message with files is received, stored and asked: sent again, it is there once, with every byte."""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support import files
from tests.support.api_client import connect, eventually, raw, start, turns_of
from tests.support.files import file_part, image_part, text_part
from tests.support.hosts import KEY, Host
from tests.support.wait import wait_until

SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))
# Once at each moment, or again and again a little later than each.
DOSES = pytest.mark.parametrize(
    "kills", [1, pytest.param(12, marks=[pytest.mark.faults, pytest.mark.timeout(1200)])], ids=["one", "many"]
)


class Sent:
    """A message with three files, as bytes of a request that can be sent again."""

    def __init__(self, host: Host, number: int) -> None:
        with host.client() as client:
            self.conversation = start(client)
        self.host = host
        # Of its own content each, so that nothing of it is stored already.
        self.files = [files.picture(colour=(7, 7, number), size=(64, 64)), files.pdf(f"It is {self.conversation}")]
        self.files.append(self.conversation.encode() * 2_000)
        parts = [
            text_part("Look"),
            image_part(self.files[0]),
            file_part(self.files[1], "a.pdf"),
            file_part(self.files[2], "a.txt"),
        ]
        body = json.dumps({"content": parts}).encode()
        self.request = b"\r\n".join(
            [
                f"POST /api/v1/conversations/{self.conversation}/chat HTTP/1.1".encode(),
                b"Host: localhost",
                f"Authorization: Bearer {KEY}".encode(),
                b"Content-Type: application/json",
                f"Idempotency-Key: {self.conversation}".encode(),
                b"Content-Length: %d" % len(body),
                b"Prefer: respond-async",
                b"Connection: close",
                b"",
                body,
            ]
        )

    def is_stored(self) -> bool:
        """Whether the first of its files is."""
        name = hashlib.sha256(self.files[0]).hexdigest()
        return any((self.host.data_dir / "attachments").glob(f"*/{name}-*"))

    def is_asked(self) -> bool:
        """Whether its turn is there."""
        return bool(turns_of(self.host, self.conversation))

    def judge(self) -> None:
        """Sent again, it is one message, with its files, and one answer."""
        status, _, body = raw(self.host, self.request)
        assert status in (200, 202), body
        (turn,) = eventually(lambda: [t for t in turns_of(self.host, self.conversation) if t["ended_at"]], seconds=60)
        assert turn["status"] == "succeeded", turn
        with self.host.client() as client:
            asked, answer = client.get(f"/conversations/{self.conversation}/messages").json()["results"]
            assert (asked["role"], asked["content"], answer["role"]) == ("USER", "Look", "ASSISTANT")
            assert f"It is {self.conversation}" in answer["content"]
            kept = [client.get(f"/attachments/{each['id']}").content for each in asked["attachments"]]
        assert kept == self.files


def killed(host: Host, name: str, until: Callable[[Sent], bool] | None, dice: random.Random, kills: int) -> None:
    """Kill while a message is on its way: halfway, or as soon as something holds; and judge what is left."""
    for number in range(kills):
        sent = Sent(host, dice.randrange(256))
        with connect(host) as connection, suppress(OSError):
            connection.sendall(sent.request if until else sent.request[: len(sent.request) // 2])
            if until:
                wait_until(lambda: until(sent))  # noqa: B023 -- called at once
            time.sleep(dice.random() / 5 if number else 0)  # noqa: TID251 -- not a wait: further kills come at moments of their own
            host.kill(name)
        host.start()
        sent.judge()


@DOSES
@pytest.mark.parametrize("until", [None, Sent.is_stored, Sent.is_asked], ids=["halfway", "stored", "asked"])
def test_a_killed_web_node_costs_no_file(mortal: Host, kills: int, until: Callable[[Sent], bool] | None) -> None:
    print(f"FAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    killed(mortal, "web", until, random.Random(SEED), kills)


@pytest.mark.production(reason="an embedded host is one process")
@DOSES
def test_a_killed_worker_costs_no_file(mortal: Host, kills: int) -> None:
    print(f"FAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    killed(mortal, "worker", Sent.is_asked, random.Random(SEED), kills)
