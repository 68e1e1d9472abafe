"""A broker that answers, and answers with errors: what it does to workers that are listening to it."""

from pathlib import Path

import httpx2
import pytest

from tests import servers
from tests.faults.servers import Redis, missing_binaries
from tests.host import Host
from tests.http import chat, start
from tests.wait import wait_until

pytestmark = [
    pytest.mark.production(reason="there is no broker to answer"),
    pytest.mark.skipif("redis-server" in missing_binaries(), reason="needs redis-server"),
]


def test_workers_outlive_an_error_of_the_broker_and_go_on_by_sweeping(tmp_path: Path):
    """Such as READONLY from a replica that was demoted, or WRONGTYPE where somebody else's key is."""
    redis = Redis(tmp_path / "redis")
    redis.start()
    host = Host(tmp_path, REDIS_URL=redis.url, SWEEP_SECONDS="0.5").start()
    try:
        with host.client() as client, redis.connect() as keys:
            conversation = start(client)
            assert answered(client, conversation)
            for queue in ("turns", "tools"):
                keys.set(f"{servers.database_of(tmp_path)}:{queue}", "not a list")
            wait_until(lambda: host.log_text().count("ResponseError") >= 4)
            assert answered(client, conversation)
            assert [name for name, process in host.processes.items() if process.poll() is not None] == []
            keys.flushall()
            assert answered(client, conversation)
    finally:
        host.kill()
        redis.stop()


def answered(client: httpx2.Client, conversation: str) -> bool:
    return chat(client, conversation, "What time is it?").status_code == 200
