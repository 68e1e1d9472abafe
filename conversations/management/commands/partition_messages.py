"""``manage.py partition_messages``: for a transcript of more than some ten million messages, on PostgreSQL."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from conversations.models import Message, Worker
from nanohost.lib.postgresql.partitioning import CannotBePartitioned, partition_by_hash

MAX_PARTS = 256


class Command(BaseCommand):
    """All messages of a conversation are in one part: every query of a turn names the conversation."""

    help = (
        "With everything stopped, divide the table of messages by conversation into parts. It is done in one"
        " transaction; the disk needs room for the table a second time. There is no way back but a dump."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--parts", type=int, default=16, help="How many (16); a million or more messages each.")

    def handle(self, *args: Any, parts: int, **_: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("Only PostgreSQL has tables in parts; this host's database is SQLite.")
        if not 2 <= parts <= MAX_PARTS:
            raise CommandError(f"--parts is 2 to {MAX_PARTS}.")
        if working := sorted(Worker.objects.alive().values_list("name", flat=True)):
            raise CommandError(
                f"Stop the workers first, or wait until they are known to be gone: {', '.join(working)}."
            )
        try:
            done = partition_by_hash(Message._meta.db_table, "conversation_id", parts=parts)
        except CannotBePartitioned as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{done.rows} messages are in {done.parts} parts.")
