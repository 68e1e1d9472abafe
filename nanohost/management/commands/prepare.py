"""``manage.py prepare``: what a release does to the database before its nodes work on it."""

from typing import Any

from django.core.management.base import BaseCommand

from nanohost import preparation
from nanohost.announcement import made_now


class Command(BaseCommand):
    """Migrates, and sees that there are an admin, a key, the tools' rows and the house's jobs. May be run at any time,
    by any number of nodes at once."""

    help = "Bring the database up to date, and make an admin and an API key if there are none."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        preparation.refuse_bad_configuration()
        preparation.refuse_bad_tools()
        prepared = preparation.prepare_database()
        self.stdout.write("The database is up to date.")
        for line in (*prepared.told, *made_now(prepared.password, prepared.key)):
            self.stdout.write(line)
