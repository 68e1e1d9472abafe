"""``manage.py worker``: a Celery worker of the production shape. ``celery -A nanohost worker`` starts the same, with
more options, and holds 9 MiB more: Celery's command line loads a shell of its own."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.kinds import KINDS

_TOGETHER = ",".join(kind.queue for kind in KINDS if not kind.is_alone)


class Command(BaseCommand):
    """Works on what the queues tell of until SIGTERM, SIGINT or SIGHUP. If it cannot start, it says why in one line."""

    help = "Start a worker of turns and what comes with them, or of tools: --queues tools."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queues", default=_TOGETHER, help=f"Names with commas between. Default: {_TOGETHER}")

    def handle(self, *args: Any, queues: str, **options: Any) -> None:
        if not settings.PRODUCTION:
            raise CommandError("A worker needs DATABASE_URL and REDIS_URL. Without servers: manage.py serve")
        from nanohost.celery import app

        names = [name.strip() for name in queues.split(",") if name.strip()]
        if not names:  # Celery would take all of them
            raise CommandError(f"--queues names no queue; there are: {', '.join(kind.queue for kind in KINDS)}.")
        # Workers need nothing of one another, and would wait a second for it at each start. Quiet: no banner.
        worker: Any = app.Worker(queues=names, without_mingle=True, without_gossip=True, quiet=True)
        worker.start()
        raise SystemExit(worker.exitcode)
