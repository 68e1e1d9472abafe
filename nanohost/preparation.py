"""Bringing the database up to date, and refusing what would only fail later."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader
from psycopg_pool import PoolTimeout

from nanohost.accounts.errors import MalformedKey
from nanohost.accounts.models import ApiKey
from nanohost.checks import WEB
from nanohost.console import tasks
from nanohost.console.roles import sync_roles
from nanohost.lib import env
from nanohost.lib.redaction import redact
from scheduler.house import HOUSE_JOBS, sync_house_jobs
from tools import registry
from tools.models import sync_settings

# Any number will do, as long as every version takes the same one.
_PREPARING = 7_262_646_867

# Seconds a process waits for a database that is started, or migrated, beside it.
DATABASE_PATIENCE = 60


def refuse_bad_configuration(*, of_a_web_node: bool = False) -> None:
    """What Django's system checks call an error, in one line; warnings are for ``manage.py check``."""
    messages = checks.run_checks()
    if of_a_web_node:
        messages += checks.run_checks(tags=[WEB], include_deployment_checks=True)
    serious = [message for message in messages if message.is_serious() and not message.is_silenced()]
    if serious:
        raise CommandError("; ".join(" ".join(f"{error.msg} ({error.id})".split()) for error in serious))


def refuse_unknown_tools() -> None:
    """TOOLS_ALLOWED names tools that exist: a misspelt one would silently forbid."""
    if unknown := sorted(set(settings.TOOLS_ALLOWED) - set(registry.names())):
        raise CommandError(
            f"TOOLS_ALLOWED names no tool: {', '.join(unknown)}; there are: {', '.join(registry.names())}."
        )


def prepare_database() -> tuple[str | None, str | None]:
    """Bring the database up to date; returns the admin's password and the API key, each if it was made now.

    Any number of nodes may do so at once: it is done once.
    """
    try:
        with _one_at_a_time():
            refuse_newer_database()
            call_command("migrate", verbosity=0, interactive=False)
            sync_settings()
            sync_house_jobs((*HOUSE_JOBS, *tasks.HOUSE_JOBS))
            sync_roles()
            with transaction.atomic():  # a secret is kept only if it can be shown
                return make_admin(), make_key()
    except DatabaseError as error:
        which = "DATABASE_URL names" if settings.PRODUCTION else f"DATA_DIR {settings.DATA_DIR} holds"
        raise CommandError(f"The database that {which} cannot be used: {_reason(error)}") from None


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


def await_database() -> None:
    """Return once the database answers and has every migration this code needs; CommandError if it does not in time.

    Nodes of a new version may thereby start while one of them, or a job, still prepares it. A database that is newer is
    taken: the previous version works beside the next.
    """
    until = time.monotonic() + DATABASE_PATIENCE
    while True:
        try:
            missing = _missing_migrations()
            problem = f"it lacks {', '.join(missing)}; run: manage.py prepare"
        except DatabaseError as error:
            missing, problem = ["all"], f"it cannot be used: {_reason(error)}"
        finally:
            connection.close()
        if not missing:
            return
        if time.monotonic() > until:
            raise CommandError(f"The database is not ready after {DATABASE_PATIENCE} s: {' '.join(problem.split())}")
        time.sleep(0.5)


def _reason(error: DatabaseError) -> str:
    """In one line. A pool that gave up waiting for a connection does not say why it got none: connecting does."""
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
    wanted = env.secret("NANOHOST_API_KEY")
    if not wanted:
        return None if ApiKey.objects.exists() else ApiKey.objects.issue(owner=admin)[1]
    if ApiKey.objects.recognise(wanted):
        return None
    try:
        with transaction.atomic():
            ApiKey.objects.register(wanted, owner=admin)
    except MalformedKey as error:
        raise CommandError(f"NANOHOST_API_KEY makes no sense: {error}") from None
    except IntegrityError:  # a key that was revoked does not come back with a restart
        raise CommandError(
            "NANOHOST_API_KEY has the prefix of a key that was revoked, has expired or is another; choose a new one."
        ) from None
    return None
