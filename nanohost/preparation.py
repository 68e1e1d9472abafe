"""Bringing the database up to date, and refusing what would only fail later."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import (
    DatabaseError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    transaction,
)
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from nanohost.accounts import audit, keys
from nanohost.accounts.errors import MalformedKey
from nanohost.accounts.models import WIDE, ApiKey
from nanohost.checks import SANDBOX_MISSING, WEB
from nanohost.console import tasks
from nanohost.foreign_keys import follow_deletes
from nanohost.lib import env
from nanohost.lib.left_out import left_out
from nanohost.lib.redaction import redact
from scheduler.system_jobs import SYSTEM_JOBS, sync_system_jobs
from tools import registry
from tools.changes import follow_setting
from tools.mcp import configured
from tools.models import sync_settings

logger = logging.getLogger(__name__)

# Any number will do, as long as every version takes the same one.
_PREPARING = 7_262_646_867

# Seconds a process waits for a database that is started beside it, or for the next migration that is done there.
DATABASE_PATIENCE = 60
# How often a table is asked for that nodes work with: tries, and not seconds, since long migrations may lie between.
LOCK_TRIES = 100
# PostgreSQL's SQLSTATEs: a lock was not granted in time, and a deadlock.
_LOCKED = ("55P03", "40P01")


def refuse_bad_configuration(*, of_a_web_node: bool = False, runs_tools: bool = False) -> None:
    """What Django's system checks call an error, in one line; warnings are for ``manage.py check``. The sandbox that is
    demanded has to be there where tools run."""
    with left_out():  # before the checks load them for some page or route
        import rest_framework.compat  # noqa: F401
        import unfold.overrides  # noqa: F401
    messages = checks.run_checks()
    if of_a_web_node:
        messages += checks.run_checks(tags=[WEB], include_deployment_checks=True)
    serious = [message for message in messages if message.is_serious() and not message.is_silenced()]
    if runs_tools:
        serious += [message for message in messages if message.id == SANDBOX_MISSING]
    if serious:
        raise CommandError("; ".join(" ".join(f"{error.msg} ({error.id})".split()) for error in serious))


def refuse_bad_tools() -> None:
    """TOOLS_ALLOWED and TOOLS_ENABLED name tools that exist: a misspelt one would silently forbid. What is to be
    enabled may be, and what MCP_SERVERS has can be servers."""
    for setting, named in (("TOOLS_ALLOWED", settings.TOOLS_ALLOWED), ("TOOLS_ENABLED", settings.TOOLS_ENABLED)):
        if unknown := sorted(set(named) - set(registry.names())):
            raise CommandError(
                f"{setting} names no tool: {', '.join(unknown)}; there are: {', '.join(registry.names())}."
            )
    for name in settings.TOOLS_ENABLED:
        if settings.TOOLS_ALLOWED and name not in settings.TOOLS_ALLOWED:
            raise CommandError(f"TOOLS_ENABLED names {name}, which is outside TOOLS_ALLOWED.")
        if beyond := sorted(set(registry.get(name).permissions) - set(settings.PERMISSIONS_GRANTED)):
            raise CommandError(
                f"TOOLS_ENABLED names {name}, which needs {', '.join(beyond)}: that is outside PERMISSIONS_GRANTED."
            )
    try:
        configured.check()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What came of it: the admin's password and the API key, each if it was made now; ``told``: sentences on the keys
    that NANOHOST_API_KEY named before."""

    password: str | None
    key: str | None
    told: list[str]


def prepare_database() -> Prepared:
    """Bring the database up to date.

    Any number of nodes may do so at once: it is done once.
    """
    from nanohost.console.roles import sync_roles  # it loads the theme, which workers do not need

    try:
        with _one_at_a_time():
            refuse_newer_database()
            _beside_nodes(lambda: call_command("migrate", verbosity=0, interactive=False))
            _beside_nodes(follow_deletes)
            audit.guard()
            sync_settings()
            follow_setting()
            configured.follow_setting()
            sync_system_jobs((*SYSTEM_JOBS, *tasks.SYSTEM_JOBS))
            sync_roles()
            with transaction.atomic():  # a secret is kept only if it can be shown
                password, told = make_admin(), configure_key()
                prepared = Prepared(password=password, key=make_key(), told=told)
            for sentence in told:
                logger.warning(sentence)
            return prepared
    except DatabaseError as error:
        raise CommandError(_why_unusable(error)) from None


def why_unusable(error: Error) -> str | None:
    """Why a command cannot use the database, in a sentence that says what to do; None if it could, and the fault is
    ours."""
    is_away = isinstance(error, (OperationalError, InterfaceError))
    if settings.PRODUCTION and is_away:
        return _why_unusable(error)
    try:
        missing = _missing_migrations()
    except Error:
        return _why_unusable(error)
    if missing:
        return "The database is older than this code, or was never prepared; run: manage.py prepare"
    return _why_unusable(error) if is_away else None


def _why_unusable(error: Error) -> str:
    if not settings.PRODUCTION and not settings.DATA_DIR.is_dir():
        return (
            f"There is no folder {settings.DATA_DIR}, where by DATA_DIR the database is: set DATA_DIR to that of your"
            " host, or start one with manage.py serve, which makes it."
        )
    which = "DATABASE_URL names" if settings.PRODUCTION else f"DATA_DIR {settings.DATA_DIR} holds"
    return f"The database that {which} cannot be used: {_reason(error)}"


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """On PostgreSQL, whoever prepares second waits, and then finds it done; on SQLite the lock on DATA_DIR is held."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        # A table of history may take long to change. Waiting for a lock others hold would keep them all waiting.
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
        cursor.execute("SET lock_timeout = 0")
        cursor.execute("SELECT pg_advisory_lock(%s)", [_PREPARING])
        cursor.execute("SET lock_timeout = '10s'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_PREPARING])
        connection.close()


def _beside_nodes(change: Callable[[], object]) -> None:
    """Change tables that nodes work with; what is done bit by bit goes on where it was given up.

    On PostgreSQL it waits for a lock for far less than ``deadlock_timeout``, since it may hold one that the other waits
    for: the other, a node in the middle of a turn, goes on as soon as this gives way, and is hardly ever the one that
    PostgreSQL ends.
    """
    if connection.vendor != "postgresql":
        change()
        return
    for left in reversed(range(LOCK_TRIES)):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '100ms'")
            change()
            break
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", "") not in _LOCKED or not left:
                raise
            time.sleep(0.2)  # noqa: TID251 -- until whoever holds the table has let go of it, which nobody tells
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")


def await_database() -> None:
    """Return once the database answers and has every migration this code needs; CommandError if it does not in time.

    Nodes of a new version may thereby start while one of them, or a job, still prepares it: each migration that is done
    meanwhile gives it as long again. A database that is newer is taken: the previous version works beside the next.
    """
    until, fewest = time.monotonic() + DATABASE_PATIENCE, math.inf
    while True:
        try:
            missing = _missing_migrations()
            left, problem = float(len(missing)), f"it lacks {', '.join(missing)}; run: manage.py prepare"
        except DatabaseError as error:
            left, problem = math.inf, f"it cannot be used: {_reason(error)}"
        finally:
            connection.close()
        if left == 0:
            return
        if left < fewest:
            until, fewest = time.monotonic() + DATABASE_PATIENCE, left
        if time.monotonic() > until:
            raise CommandError(f"The database is not ready after {DATABASE_PATIENCE} s: {' '.join(problem.split())}")
        time.sleep(0.5)  # noqa: TID251 -- a server is away


def _reason(error: Error) -> str:
    """In one line. A pool that gave up waiting for a connection does not say why it got none: connecting does."""
    if connection.vendor == "postgresql":
        import psycopg  # a host on SQLite loads no PostgreSQL driver
        from psycopg_pool import PoolTimeout

        if isinstance(error.__cause__, PoolTimeout):
            try:
                psycopg.connect(**connection.get_connection_params()).close()
            except psycopg.Error as refused:
                return redact(" ".join(str(refused).split()))
    return redact(" ".join(str(error).split()))


def _missing_migrations() -> list[str]:
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    return sorted(f"{app}.{name}" for app, name in set(loader.disk_migrations) - set(loader.applied_migrations))


def refuse_newer_database() -> None:
    """A database that newer code has migrated is left alone: this code does not know its tables."""
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    ours = {app for app, _ in loader.disk_migrations}
    unknown = set(loader.applied_migrations) - set(loader.disk_migrations)
    newer = sorted(f"{app}.{name}" for app, name in unknown if app in ours)
    if newer:
        raise CommandError(f"The database is newer than this code (it has {', '.join(newer)}); run the newer version.")


def make_admin() -> str | None:
    """See that there is an admin; the password if it was made now."""
    users = get_user_model()
    wanted = env.secret("NANOHOST_ADMIN_PASSWORD")
    admin = users.objects.filter(username="admin").first()
    if admin is None:
        password = wanted or secrets.token_urlsafe(12)
        users.objects.create_superuser("admin", password=password)
        return None if wanted else password
    if wanted and not admin.check_password(wanted):
        admin.set_password(wanted)
        admin.save()
    return None


def make_key() -> str | None:
    """See that there is an API key; the key if it was made now."""
    admin = get_user_model().objects.get(username="admin")
    return None if ApiKey.objects.exists() else keys.make(owner=admin, **WIDE)[1]


def configure_key() -> list[str]:
    """See that NANOHOST_API_KEY, if it is set, is a key, and the one it named before is none: a sentence each. If it is
    not set, that one stays, and is told of: a start that was handed no key by mistake would lock everybody out."""
    admin = get_user_model().objects.get(username="admin")
    wanted = env.secret("NANOHOST_API_KEY")
    if not wanted:
        return [
            f"NANOHOST_API_KEY is not set; the key {key}, which it named before, still opens the API. To end it:"
            f" manage.py keys revoke {key.prefix}"
            for key in ApiKey.objects.active().filter(is_configured=True).order_by("pk")
        ]
    perhaps = [] if ApiKey.objects.recognise(wanted) else _perhaps_configured()
    try:
        with transaction.atomic():
            former = keys.configure(wanted, owner=admin)
    except MalformedKey as error:
        raise CommandError(f"NANOHOST_API_KEY is not valid: {error}") from None
    except IntegrityError:  # a key that was revoked does not come back with a restart
        raise CommandError(
            "NANOHOST_API_KEY has the prefix of a key that was revoked, has expired or is another; choose a new one."
        ) from None
    told = [f"NANOHOST_API_KEY has changed: the former key {key} is revoked." for key in former]
    if perhaps:
        told.append(
            "If NANOHOST_API_KEY named another key before, no record was kept of which. It may be one of these, which"
            f" still open the API: {', '.join(map(str, perhaps))}. To end one: manage.py keys revoke PREFIX"
        )
    return told


def _perhaps_configured() -> list[ApiKey]:
    """What NANOHOST_API_KEY may have named before this database had a column to record it in."""
    recorded = MigrationRecorder(connection).migration_qs.get(app="accounts", name="0002_configured_keys")
    return list(ApiKey.objects.perhaps_configured(recorded_since=recorded.applied))
