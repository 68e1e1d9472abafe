"""``manage.py web``: a web node of the production shape. Workers and beat are processes of their own."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from nanohost import preparation, serving
from nanohost.hardening import harden


class Command(BaseCommand):
    """Serves HTTP until SIGTERM or SIGINT. If it cannot start, it says why in one line."""

    help = "Start a web node: the API, the admin and health, on HOST and PORT."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        harden()
        if not settings.PRODUCTION:
            raise CommandError("A web node needs DATABASE_URL and REDIS_URL. Without servers: manage.py serve")
        serving.obey_signals()
        listener = serving.bind(settings.HOST, settings.PORT)
        preparation.refuse_bad_configuration(of_a_web_node=True)
        preparation.refuse_bad_tools()
        preparation.await_database()
        self.stdout.write(f"listening on {serving.address_of(listener)}")
        self.stdout.flush()
        serving.serve(listener)
