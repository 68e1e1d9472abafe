"""``manage.py stack``: the production shape on this machine, by docker-compose.yml's own commands."""

import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent.llm.providers import PROVIDERS
from nanohost import serving
from nanohost.data_dir import close_secrets, keep_secret_key, lock_data_dir, make_data_dir
from nanohost.hardening import harden
from nanohost.lib import env
from nanohost.stack import LOCAL_DATABASE_URL, LOCAL_REDIS_URL, Machine, Stack, reach_servers


class Command(BaseCommand):
    """Starts migrate, web, worker, toolbox and beat, as :mod:`nanohost.stack` says, until SIGTERM or SIGINT."""

    help = "Start the production shape as processes of this machine; needs PostgreSQL and Redis."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--workers", type=int, default=1, metavar="N", help="how many of each worker (1)")

    def handle(self, *args: Any, workers: int, **options: Any) -> None:
        harden()
        if not 1 <= workers <= 100:
            raise CommandError("--workers takes a number from 1 to 100.")
        make_data_dir(settings.DATA_DIR)
        folder = settings.DATA_DIR / "stack"
        lock = lock_data_dir(folder)
        database_url, redis_url = settings.DATABASE_URL or LOCAL_DATABASE_URL, settings.REDIS_URL or LOCAL_REDIS_URL
        listener = serving.bind(settings.HOST, settings.PORT)
        address, port = serving.address_of(listener), listener.getsockname()[1]
        listener.close()
        reach_servers(database_url, redis_url)
        keep_secret_key(settings.DATA_DIR)
        close_secrets(settings.DATA_DIR)
        machine = Machine(folder=folder, database_url=database_url, redis_url=redis_url, host=settings.HOST, port=port)
        machine.write_secrets(
            secret_key=settings.SECRET_KEY,
            webhook_key=settings.WEBHOOK_KEY or env.derived(settings.SECRET_KEY, "webhooks"),
            attachments_bucket_key=settings.ATTACHMENTS_BUCKET_KEY,
            email_host_password=settings.EMAIL_HOST_PASSWORD,
            oidc_client_secret=settings.OIDC_CLIENT_SECRET,
            llm_headers=json.dumps(settings.LLM_HEADERS) if settings.LLM_HEADERS else "",
            **{each.key.lower(): getattr(settings, each.key) for each in PROVIDERS.values()},
        )
        Stack(machine, several=workers, address=address, write=self._write).run()
        lock.close()

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
