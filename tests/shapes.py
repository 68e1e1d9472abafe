"""The two shapes the suite runs on: ``python -m tests.shapes`` runs it on each there is, and says at the end which.

The embedded shape needs nothing. Production needs PostgreSQL and Redis: those that ``TEST_DATABASE_URL`` and
``TEST_REDIS_URL`` name, or those that answer on this machine's standard ports. ``TEST_SHAPE=production pytest …`` runs
some tests on it. Where the tests work there, and what they leave alone, is told in :mod:`tests.support.servers`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from tests.support.browser import chromium

EMBEDDED, PRODUCTION = "embedded", "production"

LOCAL_DATABASE = "postgresql://postgres@127.0.0.1:5432/postgres"
LOCAL_REDIS = "redis://127.0.0.1:6379/15"


class ServerMissing(Exception):
    """A server that the tests need does not answer; says which, and what it answered instead."""


@dataclass(frozen=True)
class Servers:
    """Where production's servers are; the URLs may hold passwords."""

    database_url: str
    redis_url: str


def shape() -> str:
    """The shape this process tests."""
    wanted = os.environ.get("TEST_SHAPE") or EMBEDDED
    if wanted not in (EMBEDDED, PRODUCTION):
        raise ValueError(f"TEST_SHAPE={wanted!r}: it is {EMBEDDED} or {PRODUCTION}")
    return wanted


def named_servers() -> Servers:
    """The servers the environment names, or else this machine's own."""
    return Servers(
        database_url=os.environ.get("TEST_DATABASE_URL") or LOCAL_DATABASE,
        redis_url=os.environ.get("TEST_REDIS_URL") or LOCAL_REDIS,
    )


def find_servers() -> Servers:
    """The servers, after seeing that both answer; raises :class:`ServerMissing`."""
    found = named_servers()
    try:
        with psycopg.connect(found.database_url, connect_timeout=3) as database:
            (may_create,) = database.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone() or (False,)
    except psycopg.Error as error:
        raise ServerMissing(f"PostgreSQL (TEST_DATABASE_URL): {' '.join(str(error).split())}") from None
    if not may_create:
        raise ServerMissing("PostgreSQL (TEST_DATABASE_URL): its user may not create databases")
    try:
        with redis.Redis.from_url(found.redis_url, socket_connect_timeout=3, socket_timeout=3) as broker:
            broker.ping()
    except (redis.RedisError, OSError) as error:
        raise ServerMissing(f"Redis (TEST_REDIS_URL): {' '.join(str(error).split())}") from None
    return found


def run_suite(wanted: str, arguments: list[str]) -> bool:
    """Run the suite on a shape; whether it passed."""
    print(f"\n--- shape: {wanted} ---", flush=True)  # noqa: T201 -- a command
    pytest = [sys.executable, "-m", "pytest", *arguments]
    # Compiled once, also where that is not wanted in general: each process imports all tests, on each shape.
    own = {"TEST_SHAPE": wanted, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(pytest, env=os.environ | own).returncode == 0


def note_sandbox(mode: str, untried: Collection[str] = ()) -> None:
    """Have it told at the end of the suite that hostile tools were tried in a sandbox, and which were not."""
    if noted := os.environ.get("TEST_SANDBOXES"):
        with Path(noted).open("a") as file:
            file.write(" without ".join([mode, *sorted(untried)]) + "\n")


def sandboxes_tried(noted: str) -> str:
    """What is told of what :func:`note_sandbox` wrote."""
    tried = sorted(set(noted.splitlines()) - {"none"})
    return f"hostile tools tried in: {', '.join(tried) or 'no sandbox: install bubblewrap'}"


def main(arguments: list[str]) -> int:
    """Run the suite on every shape there is; the last line names them. 0 if all passed."""
    noted = tempfile.NamedTemporaryFile(mode="r")  # noqa: SIM115 -- it goes with this process
    os.environ["TEST_SANDBOXES"] = noted.name
    passed = [run_suite(EMBEDDED, arguments)]
    ran = [EMBEDDED]
    try:
        find_servers()
    except ServerMissing as missing:
        print(f"\nproduction is not tested, a server does not answer. {missing}", flush=True)  # noqa: T201 -- a command
        # One that was named is wanted; on a machine without servers, their tests are no failure.
        passed.append(not (os.environ.get("TEST_DATABASE_URL") or os.environ.get("TEST_REDIS_URL")))
    else:
        passed.append(run_suite(PRODUCTION, arguments))
        ran.append(PRODUCTION)
    pages = chromium() or "not tested: install Debian's chromium, or set CHROMIUM to one"
    print(f"\npages in a browser: {pages}", flush=True)  # noqa: T201 -- a command
    print(sandboxes_tried(noted.read()), flush=True)  # noqa: T201 -- a command
    if not all(passed):
        print("\nfailed", flush=True)  # noqa: T201 -- a command
    print(f"shapes run: {', '.join(ran)}", flush=True)  # noqa: T201 -- a command
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
