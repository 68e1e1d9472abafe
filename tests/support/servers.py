"""The tests' own corner of the production shape's servers, made at the start of a run and gone at its end.

Nothing else on the servers is touched. In PostgreSQL a run makes databases named ``test_nanohost_<run>_…``: one that is
migrated, and from it, by ``CREATE DATABASE … TEMPLATE``, one for each process of tests and for each host. In Redis the
same names begin the keys. A run holds an advisory lock as long as it lives; what a killed run left is known by its lock
being free, and removed by the next.
"""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import redis
from psycopg import sql

from tests import shapes
from tests.support import warm

PREFIX = "test_nanohost_"
# The first half of each run's advisory lock; any number will do.
LOCKS = 1_852_663_411
ROOT = Path(__file__).resolve().parents[2]


def name_of(thing: str) -> str:
    """The name of a database of this run, which also begins its keys in Redis."""
    return f"{PREFIX}{os.environ['TEST_RUN']}_{thing}"


def url_of(database: str) -> str:
    """The URL of a database on the tests' server."""
    parts = urlsplit(shapes.named_servers().database_url)
    return f"{parts.scheme}://{parts.netloc}/{database}{'?' if parts.query else ''}{parts.query}"


def connect(database: str | None = None) -> psycopg.Connection:
    """A connection to the database, or to the one the server's URL names; each statement commits."""
    url = url_of(database) if database else shapes.named_servers().database_url
    return psycopg.connect(url, autocommit=True, connect_timeout=10)


def create(database: str, *, template: str) -> None:
    """Make a database from another, unless there is one already."""
    with connect() as server:
        if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone():
            return
        server.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(database), sql.Identifier(template))
        )


def database_of(data_dir: Path) -> str:
    """The name of the database of the host that lives in a folder."""
    return name_of(f"host_{hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]}")


class Run:
    """A run's corner of the servers: made by the process that starts the tests, for itself and those it starts."""

    def __init__(self, prepared_with: dict[str, str]) -> None:
        """``prepared_with``: the environment of hosts, whose admin and key the template of hosts then has."""
        shapes.find_servers()
        self._lock = connect()
        assert self.claim_and_load(os.environ["TEST_RUN"])
        self._sweep_the_dead()
        try:
            self._make_templates(prepared_with)
        except BaseException:
            self.end()
            raise

    def _make_templates(self, prepared_with: dict[str, str]) -> None:
        with self._lock.cursor() as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name_of("migrated"))))
        manage("migrate", "--verbosity=0", database=name_of("migrated"), environment=prepared_with)
        create(name_of("prepared"), template=name_of("migrated"))
        manage("prepare", database=name_of("prepared"), environment=prepared_with)

    def end(self) -> None:
        """Remove everything."""
        remove(os.environ["TEST_RUN"], self._lock)
        self._lock.close()

    def claim_and_load(self, run: str) -> bool:
        taken = self._lock.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCKS, int(run, 16)]).fetchone()
        return bool(taken and taken[0])

    def _sweep_the_dead(self) -> None:
        databases = [name for (name,) in self._lock.execute("SELECT datname FROM pg_database").fetchall()]
        with broker() as keys:
            databases += [key.decode() for key in keys.scan_iter(match=f"{PREFIX}*", count=1000)]
        for run in {found[1] for name in databases if (found := re.match(rf"{PREFIX}([0-7][0-9a-f]{{7}})_", name))}:
            if run != os.environ["TEST_RUN"] and self.claim_and_load(run):
                remove(run, self._lock)
                self._lock.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCKS, int(run, 16)])


# Bounds a hang only: a database is given all its tables.
PREPARES_SECONDS = 300


def manage(*arguments: str, database: str, environment: dict[str, str]) -> None:
    """Run ``manage.py`` on a database."""
    where = {"DATABASE_URL": url_of(database), "REDIS_URL": shapes.named_servers().redis_url}
    ran = warm.run("manage.py", *arguments, env=environment | where, timeout=PREPARES_SECONDS)
    assert ran.returncode == 0, ran.stderr


def broker() -> redis.Redis:
    """The Redis server, where everything of ours begins with a database's name."""
    return redis.Redis.from_url(shapes.named_servers().redis_url, socket_connect_timeout=3, socket_timeout=10)


def remove(run: str, server: psycopg.Connection) -> None:
    """Drop a run's databases and delete its keys, whoever may still be connected."""
    found = server.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [f"{PREFIX}{run}_"])
    for (database,) in found.fetchall():
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
    with broker() as keys:
        for key in keys.scan_iter(match=f"{PREFIX}{run}_*", count=1000):
            keys.unlink(key)
