"""A broker that answers, and answers with errors or with junk: what it does to workers that are listening to it."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from conversations.kinds import KINDS
from tests.faults.servers import Redis, free_port, missing_binaries
from tests.support import servers
from tests.support.api_client import chat, start
from tests.support.hosts import Host
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.production(reason="there is no broker to answer"),
    pytest.mark.skipif("redis-server" in missing_binaries(), reason="needs redis-server"),
]

NOWHERE = "7d1b3e0e-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def own(redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"), REDIS_URL=redis.url, SWEEP_SECONDS="0.5")
    yield made.start()
    made.kill()


def answered(client: httpx2.Client, conversation: str) -> bool:
    return chat(client, conversation, "What time is it?").status_code == 200


def all_live(host: Host) -> bool:
    return all(process.poll() is None for process in host.processes.values())


@pytest.mark.parametrize("refusing", ["somebody else's key", "a replica"])
def test_workers_outlive_a_broker_that_refuses_and_go_on_by_sweeping(own: Host, redis: Redis, refusing: str) -> None:
    """WRONGTYPE, where somebody else's key is; and READONLY, from a primary that was demoted."""
    with own.client() as client, redis.connect() as keys:
        conversation = start(client)
        assert answered(client, conversation)
        before = len(own.log_lines())
        if refusing == "a replica":
            keys.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        else:
            for queue in ("turns", "tools"):
                keys.set(f"{servers.database_of(own.data_dir)}:{queue}", "not a list")
        wait_until(lambda: refusals(own, before) >= 2)
        assert answered(client, conversation)
        said = refusals(own, before)
        assert said <= 4, "each says it once, and once that it was a replica now"
        assert answered(client, conversation)
        assert refusals(own, before) == said
        assert all_live(own)
        assert [line["event"] for line in own.log_lines()[before:] if "exception" in line] == []
        if refusing == "a replica":
            keys.execute_command("REPLICAOF", "NO", "ONE")
        keys.flushall()
        assert answered(client, conversation)


# A second: what connects once for each second that it waits is far from it, what connects for each answer is past it.
MAX_CONNECTIONS = 2.0


def test_a_replica_is_left_alone_between_two_looks_at_it(own: Host, redis: Redis) -> None:
    """By the server's own clock and count; a process that is slow only makes fewer."""
    with own.client() as client, redis.connect() as keys:
        assert answered(client, start(client))
        before = len(own.log_lines())
        keys.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        try:
            wait_until(lambda: refusals(own, before) >= 2)
            began, had = keys.time()[0], connections_of(keys)
            wait_until(lambda: keys.time()[0] >= began + 5)
            made, seconds = connections_of(keys) - had, keys.time()[0] + 1 - began
        finally:
            keys.execute_command("REPLICAOF", "NO", "ONE")
        listening = [name for name in own.processes if name in ("worker", "toolbox")]
        assert made / seconds / len(listening) < MAX_CONNECTIONS


def connections_of(keys: Any) -> int:
    """How many it has taken since it started."""
    return int(keys.info("stats")["total_connections_received"])


def refusals(host: Host, since: int) -> int:
    return sum("refuses to be read" in line["event"] for line in host.log_lines()[since:])


def notification(
    task: str = "conversations.tasks.advance_turn",
    *,
    body: object = ((NOWHERE,), {}, {}),
    encoded: str = "",
    **changed: object,
) -> str:
    """A notification as Celery writes it, but for what is changed."""
    made = {
        "body": encoded or base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": NOWHERE, "root_id": NOWHERE, "parent_id": None, "group": None},
        "properties": {
            "correlation_id": NOWHERE,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "turns"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": NOWHERE,
        },
    }
    return json.dumps(made | changed)


JUNK = {
    "no JSON": "{",
    "no text": b"\xff\xfe\x00",
    "nothing": "",
    "a number": "7",
    "an empty object": "{}",
    "a list": "[1, 2]",
    "no base64": notification(encoded="!"),
    "a body that is no JSON": notification(encoded="e30x"),
    "an unknown task": notification("os.system"),
    "no arguments": notification(body=((), {}, {})),
    "no id": notification(body=(("no id",), {}, {})),
    "too many arguments": notification(body=((NOWHERE, NOWHERE), {}, {})),
    "arguments that are none": notification(body=7),
    "a pickle": notification(**{"content-type": "application/x-python-serialize"}),
    "an unknown content type": notification(**{"content-type": "application/x-unknown"}),
    "no headers": notification(headers=None),
    "no properties": notification(properties={}),
    "an unknown encoding": notification(**{"content-encoding": "klingon"}),
}


def test_workers_outlive_whatever_stands_in_their_queues(own: Host, redis: Redis) -> None:
    with own.client() as client, redis.connect() as keys:
        conversation = start(client)
        assert answered(client, conversation)
        queues = [f"{servers.database_of(own.data_dir)}:{kind.queue}" for kind in KINDS]
        for queue in queues:
            keys.lpush(queue, *JUNK.values())
        wait_until(lambda: not keys.exists(*queues))
        for _ in range(3):
            assert answered(client, conversation)
        assert all_live(own)
