"""While the database cannot be reached, whoever asks is told so, soon, and told to try again; then all goes on."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
import psycopg
import pytest
from psycopg import sql

from tests.support import servers
from tests.support.api_client import chat, eventually, problem, start, turns_of
from tests.support.hosts import PLAIN, Host
from tests.support.scripts import script
from tests.support.ways import Way

pytestmark = pytest.mark.production(reason="no file goes away; what a locked one does is in test_serve.py")


@pytest.fixture(scope="module")
def way() -> Iterator[Way]:
    made = Way(servers.url_of("any"))
    yield made
    made.cut()


@pytest.fixture(scope="module")
def own(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host whose way to its database can be cut."""
    folder = tmp_path_factory.mktemp("host")
    direct = urlsplit(servers.url_of(servers.database_of(folder)))
    user = direct.netloc.rpartition("@")[0]
    through = direct._replace(netloc=f"{user}@127.0.0.1:{way.port}").geturl()
    made = Host(folder, DATABASE_URL=through, SWEEP_SECONDS="0.5")
    yield made.start()
    made.kill()


def asked(host: Host, method: str, path: str) -> tuple[httpx2.Response, float]:
    """The answer to a request, and how many seconds it took."""
    with host.client() as client:
        began = time.monotonic()
        answer = client.request(method, f"{host.address}{path}", json={"message": "meanwhile"})
        return answer, time.monotonic() - began


def test_whoever_asks_is_told_soon_and_afterwards_all_goes_on(way: Way, own: Host) -> None:
    with own.client() as client:
        conversation_id = start(client)
        assert chat(client, conversation_id, "before").status_code == 200
        way.cut()
        told = "/api/v1/conversations", f"/api/v1/conversations/{conversation_id}/chat", "/health/ready"
        with ThreadPoolExecutor() as threads:
            *answers, ready = threads.map(asked, [own] * 3, ["GET", "POST", "GET"], told)
        for answer, seconds in answers:
            problem(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert seconds < 5
        page = client.get(f"{own.address}/admin/", headers={"Cookie": f"sessionid={'a' * 32}"})
        assert (page.status_code, page.headers["retry-after"]) == (503, "1")
        assert (ready[0].status_code, ready[0].json()["checks"]["database"]) == (503, "unavailable")
        assert ready[1] < 5
        assert httpx2.get(f"{own.address}/health/live").status_code == 200
        way.mend()
        eventually(lambda: client.get("/conversations").status_code == 200, seconds=60)
        assert eventually(lambda: chat(client, conversation_id, "after")).status_code == 200
        # Nothing was stored of what was refused.
        assert [turn["status"] for turn in turns_of(own, conversation_id)] == ["succeeded", "succeeded"]


@contextmanager
def taking_no_writes(host: Host) -> Iterator[None]:
    """As a primary that was demoted: every session is cut, and those that follow may only read."""
    name = sql.Identifier(servers.database_of(host.data_dir))
    with servers.connect() as server:
        server.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        cut_sessions(server, host)
        try:
            yield
        finally:
            server.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))


def cut_sessions(server: psycopg.Connection, host: Host) -> None:
    cut = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
    server.execute(cut, [servers.database_of(host.data_dir)])


def test_a_database_that_takes_no_writes_is_away_too(own: Host) -> None:
    with own.client() as client, ThreadPoolExecutor(1) as threads:
        conversation_id, other = start(client), start(client)
        answering = threads.submit(chat, client, conversation_id, script({"sleep": 1, "say": "kept meanwhile"}))
        eventually(lambda: [turn["status"] for turn in turns_of(own, conversation_id)] == ["running"])
        before = len(own.log_lines())
        with taking_no_writes(own):
            # The first who looks is told: nothing is remembered of when writes were taken.
            assert httpx2.get(f"{own.address}/health/ready", timeout=30, verify=PLAIN).status_code == 503
            refused = asked(own, "POST", f"/api/v1/conversations/{other}/chat")[0]
            eventually(lambda: own.log_text().count("what became of a turn: the database is away") == 1)
        problem(refused, 503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert answering.result(60).json()["assistantMessage"] == "kept meanwhile"
        eventually(lambda: httpx2.get(f"{own.address}/health/ready", verify=PLAIN).status_code == 200, seconds=60)
        assert chat(client, other, "after").status_code == 200
    said = own.log_lines()[before:]
    # The model was asked once, and nothing of ours was at fault.
    assert [line["logger"] for line in said].count("nanohost.model") == 2
    faults = [line for line in said if "exception" in line or line["level"] == "error"]
    assert {line["event"] for line in faults} <= {"Service Unavailable: /health/ready"}


AT_ONCE = 8


def test_after_all_sessions_are_cut_whoever_asks_first_is_answered(own: Host) -> None:
    """Nobody waits for a second look at a dead connection, or is turned away by one: each is dropped when met."""
    everybody = [own] * AT_ONCE, ["GET"] * AT_ONCE, ["/api/v1/conversations"] * AT_ONCE
    with ThreadPoolExecutor(AT_ONCE) as threads, servers.connect() as server:
        eventually(lambda: all(answer.status_code == 200 for answer, _ in threads.map(asked, *everybody)), seconds=60)
        usual = max(seconds for _, seconds in threads.map(asked, *everybody))
        slowest = []
        for _ in range(3):
            cut_sessions(server, own)
            answers = list(threads.map(asked, *everybody))
            assert [answer.status_code for answer, _ in answers] == [200] * AT_ONCE
            slowest.append(max(seconds for _, seconds in answers))
        # Of several times the quickest, as the machine may have other work.
        assert min(slowest) < usual + 1


def test_once_the_database_is_back_whoever_asks_is_answered_within_a_second(way: Way, own: Host) -> None:
    """Though it was away for so long that whoever looks for it waits longer between two looks."""
    took = []
    with own.client() as client:
        usual = max(asked(own, "GET", "/api/v1/conversations")[1] for _ in range(3))
        for _ in range(3):
            way.cut()
            problem(client.get("/conversations"), 503, "unavailable")
            way.mend()
            began = time.monotonic()
            eventually(lambda: client.get("/conversations").status_code == 200)
            took.append(time.monotonic() - began)
    assert min(took) < usual + 1
