"""``manage.py serve``: web, workers and beat in one process, on a SQLite file, with no server beside it."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from nanohost import preparation, serving
from nanohost.announcement import announcement
from nanohost.data_dir import close_secrets, keep_database, keep_secret_key, lock_data_dir
from nanohost.hardening import harden
from tools.sandbox.modes import in_force


class Command(BaseCommand):
    """Starts the embedded host; see the module. If it cannot start, it says why in one line."""

    help = "Start nanohost as one process: web, workers and beat."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        harden()
        if settings.PRODUCTION:
            raise CommandError(
                "DATABASE_URL and REDIS_URL are set: web, workers and beat are processes of their own then"
                " (docs/operations.md). Unset them to have one process, or try: make stack"
            )
        serving.obey_signals()
        lock = lock_data_dir(settings.DATA_DIR)
        listener = serving.bind(settings.HOST, settings.PORT)
        keep_secret_key(settings.DATA_DIR)
        close_secrets(settings.DATA_DIR)
        keep_database(settings.DATA_DIR / "nanohost.sqlite3")
        preparation.refuse_bad_configuration(runs_tools=True)
        preparation.refuse_bad_tools()
        prepared = preparation.prepare_database()
        address = serving.address_of(listener)
        self.stdout.write(
            announcement(
                address,
                password=prepared.password,
                key=prepared.key,
                sandbox=in_force().sentence,
                told=prepared.told,
            )
        )
        self.stdout.flush()
        connection.close()
        settings.EMBEDDED = True
        serving.serve(listener)
        lock.close()
