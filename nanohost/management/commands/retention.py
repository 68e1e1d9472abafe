"""``manage.py retention [--dry-run] [--agent NAME]``."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent.models import Agent, DeletedAgent
from nanohost.lib import clock
from nanohost.lib.text import storable
from scheduler import retention


class Command(BaseCommand):
    """Deletes what is older than its agent keeps it, or counts it."""

    help = "Delete what is older than its agent keeps it; the job data_retention does so day by day."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Count what would go, and delete nothing.")
        parser.add_argument("--agent", default="", help="Only of this agent, which may be deleted.")

    def handle(self, *args: Any, dry_run: bool, agent: str, **options: Any) -> None:
        agent, now = storable(agent), clock.read()
        if agent and not any(model.objects.filter(name=agent).exists() for model in (Agent, DeletedAgent)):
            raise CommandError(f"There is no agent named {agent!r}.")
        found = retention.rules(now=now, agent=agent)
        if not found:
            self.stdout.write("Everything is kept for ever: no agent says otherwise.")
            return
        if dry_run:
            for rule in found:
                self._tell(retention.count(rule))
            return
        erased, _ = retention.run(now=now, agent=agent)
        for rule in found:
            rows = erased[rule.agent.name, rule.kind]
            self.stdout.write(f"{rule.agent.name}\t{rule.kind}\t{rule.days} days\t{rows} rows deleted")

    def _tell(self, counted: retention.Count) -> None:
        rule, tables = counted.rule, ", ".join(f"{table} {rows}" for table, rows in sorted(counted.rows.items()))
        said = [rule.agent.name, rule.kind, f"{rule.days} days", f"{counted.rows.total()} rows would go"]
        said += [tables] if tables else []
        said += [f"{counted.held} kept by a legal hold"] if counted.held else []
        self.stdout.write("\t".join(said))
