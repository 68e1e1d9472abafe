"""``manage.py serve``: web, workers and beat in one process, on a SQLite file, with no server beside it."""

import fcntl
import os
import resource
import secrets
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import uvicorn
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader

from nanohost.accounts.errors import MalformedKey
from nanohost.accounts.models import ApiKey
from nanohost.lib import env
from nanohost.lib.http import BoundedHeads
from scheduler.house import sync_house_jobs
from tools import registry
from tools.models import sync_settings


class Command(BaseCommand):
    """Starts the embedded host; see the module. What keeps it from starting is told in one line."""

    help = "Start nanohost as one process: web, workers and beat."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        for asked_to_stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked_to_stop, leave)
        lock = lock_data_dir(settings.DATA_DIR)
        listener = bind(settings.HOST, settings.PORT)
        keep_secret_key(settings.DATA_DIR)
        refuse_bad_configuration()
        refuse_unknown_tools()
        password, key = prepare_database()
        self.stdout.write(announcement(address_of(listener), password=password, key=key))
        self.stdout.flush()
        connection.close()
        settings.EMBEDDED = True
        with suppress(SystemExit):  # uvicorn raises the signal again that it has obeyed
            serve(listener)
        leave_soon()
        lock.close()


def announcement(address: str, *, password: str | None, key: str | None) -> str:
    """What a user is told at the start; ``password`` and ``key`` if they were made now, and are shown this once."""
    manage = ".venv/bin/python manage.py"
    if password:
        how_to_log_in = f"{password}  (shown this once)"
    elif env.string("NANOHOST_ADMIN_PASSWORD"):
        how_to_log_in = "as NANOHOST_ADMIN_PASSWORD says"
    else:
        how_to_log_in = f"as before; to set another: {manage} changepassword admin"
    if key:
        how_to_call = f"{key}  (shown this once)"
    elif env.string("NANOHOST_API_KEY"):
        how_to_call = "as NANOHOST_API_KEY says"
    else:
        how_to_call = f"as before; to make another: {manage} keys create --owner admin"
    return f"""
  Admin     {address}/admin/
  API docs  {address}/api/docs
  Health    {address}/health/ready

  Name      admin
  Password  {how_to_log_in}
  API key   {how_to_call}

  Try it{"" if key else ", with your key in NANOHOST_API_KEY"}:
  {curl_line(address, key or "$NANOHOST_API_KEY")}

  Ctrl-C stops it.
"""


def curl_line(address: str, key: str) -> str:
    """A line for a shell: starts a conversation, asks for the time in it, and prints the answer."""
    conversations = f"{address}/api/v1/conversations"
    curl = f'curl -sS -H "Authorization: Bearer {key}"'
    find_id = """sed 's/.*"conversationId":"\\([^"]*\\).*/\\1/'"""
    body = """-H 'Content-Type: application/json' -d '{"message": "What time is it?"}' -w '\\n'"""
    return f"{curl} {conversations}/$({curl} -X POST {conversations} | {find_id})/chat {body}"


def address_of(listener: socket.socket) -> str:
    """Where the host is reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared with, not bound to
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Hold DATA_DIR: a second process on one SQLite file would mean two sweepers of one memory."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("a")
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CommandError(f"DATA_DIR {data_dir} is in use by another nanohost; stop it, or set another.") from None
    return lock


def bind(host: str, port: int) -> socket.socket:
    """The listening socket, taken before anything else is made."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio switches Nagle's delay off only for sockets that say they are TCP's: 40 ms an answer otherwise.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such address"
        raise CommandError(f"Cannot listen on HOST={host} PORT={port}: {reason}.") from None


def keep_secret_key(data_dir: Path) -> None:
    """Django's SECRET_KEY lives in DATA_DIR, so that sessions outlast a restart. The settings have read it if it is."""
    kept = data_dir / "secret_key"
    try:
        if env.string("SECRET_KEY") or (kept.exists() and kept.read_text().strip()):
            return
        # Complete or not there: half a file would be half a secret.
        half = data_dir / "secret_key.new"
        half.touch(mode=0o600)
        half.write_text(settings.SECRET_KEY)
        half.replace(kept)
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None


def refuse_bad_configuration() -> None:
    """What Django's system checks call an error, in one line; warnings are for ``manage.py check``."""
    serious = [message for message in checks.run_checks() if message.is_serious() and not message.is_silenced()]
    if serious:
        raise CommandError("; ".join(" ".join(f"{error.msg} ({error.id})".split()) for error in serious))


def refuse_unknown_tools() -> None:
    """TOOLS_ALLOWED names tools that exist: a misspelt one would silently forbid."""
    if unknown := sorted(set(settings.TOOLS_ALLOWED) - set(registry.names())):
        raise CommandError(
            f"TOOLS_ALLOWED names no tool: {', '.join(unknown)}; there are: {', '.join(registry.names())}."
        )


def prepare_database() -> tuple[str | None, str | None]:
    """Bring the database up to date; returns the admin's password and the API key, each if it was made now."""
    try:
        refuse_newer_database()
        call_command("migrate", verbosity=0, interactive=False)
        sync_settings()
        sync_house_jobs()
        with transaction.atomic():  # a secret is kept only if it can be shown
            return make_admin(), make_key()
    except DatabaseError as error:
        raise CommandError(f"The database in DATA_DIR {settings.DATA_DIR} cannot be used: {error}.") from None


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
    wanted = env.string("NANOHOST_ADMIN_PASSWORD")
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
    wanted = env.string("NANOHOST_API_KEY")
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


def leave(*_: Any) -> NoReturn:
    """Asked to stop before the server took the signals over, or after: uvicorn raises them again when it has ended."""
    sys.exit(0)


class _Server(uvicorn.Server):
    """Lets those who wait go as soon as it is asked to stop; uvicorn would wait for them."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        from nanohost.asgi import waiting_room

        if self.config.loaded:
            waiting_room.drain()
        super().handle_exit(sig, frame)


def leave_soon() -> None:
    """See to the end of the process, though a thread may still wait for a database that hangs."""
    ending = threading.Timer(1.0, os._exit, args=(0,))
    ending.daemon = True
    ending.start()


def allow_many_connections() -> None:
    """Raise the bound of open files as far as the system lets us: each waiting client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; the lifespan starts and stops the workers."""
    config = uvicorn.Config(
        "nanohost.asgi:application",
        http=BoundedHeads,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
        # asyncio accepts as often as this in a row, and logs each time that it has no file left for one.
        backlog=128,
    )
    allow_many_connections()
    server = _Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise CommandError("nanohost could not start; the reason is above.")
