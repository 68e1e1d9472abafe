"""``manage.py serve``: web, workers and beat in one process, on a SQLite file, with no server beside it."""

import fcntl
import os
import secrets
import socket
from pathlib import Path
from typing import IO, Any

import uvicorn
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from nanohost.accounts.errors import MalformedKey
from nanohost.accounts.models import ApiKey
from nanohost.lib import env
from scheduler.house import sync_house_jobs
from tools import registry
from tools.models import sync_settings


class Command(BaseCommand):
    """Starts the embedded host; see the module."""

    help = "Start nanohost as one process: web, workers and beat."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        lock = lock_data_dir(settings.DATA_DIR)
        listener = bind(settings.HOST, settings.PORT)
        keep_secret_key(settings.DATA_DIR)
        refuse_newer_database()
        refuse_unknown_tools()
        call_command("check", verbosity=0)
        call_command("migrate", verbosity=0, interactive=False)
        sync_settings()
        sync_house_jobs()
        password, key = make_admin(), make_key()
        host, port = listener.getsockname()[:2]
        self._announce(f"http://{host}:{port}", password, key)
        os.environ["NANOHOST_EMBEDDED"] = "1"
        settings.EMBEDDED = True
        connection.close()
        serve(listener)
        lock.close()

    def _announce(self, address: str, password: str | None, key: str | None) -> None:
        authorization = f'-H "Authorization: Bearer {key or "$NANOHOST_API_KEY"}"'
        conversations = f"{address}/api/v1/conversations"
        find_id = 'sed \'s/.*"conversationId":"\\([^"]*\\)".*/\\1/\''
        body = '{"message": "What time is it?"}'
        curl = (
            f"curl -s {conversations}/$(curl -s -X POST {conversations} {authorization} | {find_id})/chat"
            f" {authorization} -H \"Content-Type: application/json\" -d '{body}'"
        )
        password = f"{password}  (shown this once)" if password else "set before; manage.py changepassword admin"
        key = f"{key}  (shown this once)" if key else "set before; manage.py keys create --owner admin"
        lines = [
            "",
            f"  Admin     {address}/admin/",
            f"  API docs  {address}/api/docs",
            f"  Health    {address}/health/ready",
            "",
            "  Name      admin",
            f"  Password  {password}",
            f"  API key   {key}",
            "",
            "  Try it:",
            f"  {curl}",
            "",
        ]
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Hold DATA_DIR: a second process on one SQLite file would mean two sweepers of one memory."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
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
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no port"
        raise CommandError(f"Cannot listen on HOST={host} PORT={port}: {reason}.") from None


def keep_secret_key(data_dir: Path) -> None:
    """Django's SECRET_KEY lives in DATA_DIR, so that sessions outlast a restart."""
    kept = data_dir / "secret_key"
    if not kept.exists() and not env.string("SECRET_KEY"):
        kept.touch(mode=0o600)
        kept.write_text(secrets.token_urlsafe(48))
        settings.SECRET_KEY = kept.read_text()


def refuse_newer_database() -> None:
    """A database that newer code has migrated is left alone: this code does not know its tables."""
    try:
        loader = MigrationExecutor(connection).loader
    except Exception as error:
        raise CommandError(f"The database cannot be opened: {error}.") from None
    own = {app for app, _ in loader.disk_migrations}
    newer = sorted(
        f"{app}.{name}" for app, name in set(loader.applied_migrations) - set(loader.disk_migrations) if app in own
    )
    if newer:
        raise CommandError(f"The database is newer than this code (it has {', '.join(newer)}); run the newer version.")


def refuse_unknown_tools() -> None:
    """TOOLS_ALLOWED names tools that exist: a misspelt one would silently forbid."""
    if unknown := sorted(set(settings.TOOLS_ALLOWED) - set(registry.names())):
        raise CommandError(
            f"TOOLS_ALLOWED names no tool: {', '.join(unknown)}; there are: {', '.join(registry.names())}."
        )


def make_admin() -> str | None:
    """See that there is an admin; the password if it was made now, to be shown once."""
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
    """See that there is an API key; the key if it was made now, to be shown once."""
    admin = get_user_model().objects.get(username="admin")
    wanted = env.string("NANOHOST_API_KEY")
    if wanted:
        if ApiKey.objects.recognise(wanted) is None:
            try:
                ApiKey.objects.filter(prefix=wanted.split("_")[1:2][0] if "_" in wanted else "").delete()
                ApiKey.objects.register(wanted, owner=admin)
            except MalformedKey as error:
                raise CommandError(f"NANOHOST_API_KEY makes no sense: {error}") from None
        return None
    if ApiKey.objects.exists():
        return None
    return ApiKey.objects.issue(owner=admin)[1]


class _Server(uvicorn.Server):
    """Lets those who wait go as soon as it is asked to stop; uvicorn would wait for them."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        from nanohost.asgi import waiting_room

        if self.config.loaded:
            waiting_room.drain()
        super().handle_exit(sig, frame)


def serve(listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; the lifespan starts and stops the workers."""
    config = uvicorn.Config(
        "nanohost.asgi:application",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        ws="none",
    )
    server = _Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise CommandError("nanohost could not start; the reason is above.")
