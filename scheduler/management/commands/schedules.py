"""``manage.py schedules add --owner NAME --prompt TEXT --cron EXPRESSION | list | preview | remove ID``."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nanohost.lib.errors import Problem
from scheduler import series, times
from scheduler.models import Missed, Schedule


class Command(BaseCommand):
    """Makes, lists, previews and cancels schedules."""

    help = "Make, list, preview and cancel schedules."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser("add", help="Have an agent spoken to by the clock; shows the schedule's id.")
        add.add_argument("--owner", required=True, help="A user's name.")
        add.add_argument("--prompt", required=True, help="The message to the agent.")
        add.add_argument("--description", help="What it is for.")
        add.add_argument("--agent", default="", help="Who is spoken to. Default: the default agent.")
        add.add_argument("--conversation", type=UUID, help="Where. Default: in a new conversation each time.")
        _add_times(add, required=True)
        add.add_argument("--missed", choices=Missed.values, help="The rule for missed times. Default: once.")
        add.add_argument("--missed-most", type=int, metavar="N", help="How many of them are made up for, with all.")
        listing = actions.add_parser("list", help="List the schedules, those that are due first.")
        listing.add_argument("--owner", help="Only this user's.")
        preview = actions.add_parser("preview", help="Show the next ten times of a schedule, or of times.")
        preview.add_argument("id", nargs="?", type=UUID)
        _add_times(preview, required=False)
        remove = actions.add_parser("remove", help="Cancel a schedule for good.")
        remove.add_argument("id", type=UUID)

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        try:
            {"add": self._add, "list": self._list, "remove": self._remove, "preview": self._preview}[action](options)
        except Problem as problem:
            raise CommandError(problem.detail) from None

    def _add(self, options: dict[str, Any]) -> None:
        schedule = series.create(
            owner_id=_owner(options["owner"]),
            agent=options["agent"],
            conversation_id=options["conversation"],
            **_wishes(options, "prompt", "description", "missed", "missed_most"),
        )
        self.stdout.write(str(schedule.pk))
        self.stderr.write(f"It runs next at {_shown(schedule.comes_at, schedule)}.")

    def _list(self, options: dict[str, Any]) -> None:
        rows = Schedule.objects.kept().select_related("owner").order_by("-active", "next_at")
        if options["owner"]:
            rows = rows.filter(owner=_owner(options["owner"]))
        for schedule in rows.iterator():
            state = schedule.paused_because if schedule.state == "paused" else schedule.state
            when = f"next {_shown(schedule.comes_at, schedule)}" if schedule.comes_at else state
            cells = (schedule.pk, schedule.owner, schedule.told_times, when, schedule)
            self.stdout.write("\t".join(map(str, cells)))

    def _preview(self, options: dict[str, Any]) -> None:
        schedule = _known(options["id"]) if options["id"] else series.draft(**_wishes(options))
        for each in series.upcoming(schedule):
            self.stdout.write("\t".join(filter(None, (_shown(each.at, schedule), each.note))))

    def _remove(self, options: dict[str, Any]) -> None:
        schedule = _known(options["id"])
        series.cancel(schedule)
        self.stdout.write(f"{schedule.pk} is cancelled.")


def _add_times(parser: CommandParser, *, required: bool) -> None:
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--cron", metavar="EXPRESSION", help=f"Five fields: {times.FIELDS}.")
    which.add_argument("--every", type=int, dest="every_seconds", metavar="SECONDS", help="Again after so long.")
    which.add_argument("--at", metavar="TIME", help="Once: 2030-12-31T09:00, in the zone unless it names an offset.")
    parser.add_argument("--zone", help="Whose clock is meant, such as Europe/Berlin. Default: TIME_ZONE.")
    parser.add_argument("--ends-at", metavar="TIME", help="It does not run after that.")
    parser.add_argument("--max-runs", type=int, metavar="N", help="It ends when it has run so often.")


def _wishes(options: dict[str, Any], *more: str) -> Any:
    names = ("cron", "every_seconds", "at", "zone", "ends_at", "max_runs", *more)
    return {name: options[name] for name in names if options[name] is not None}


def _shown(moment: datetime | None, schedule: Schedule) -> str:
    assert moment
    return f"{moment.astimezone(times.zone_of(schedule.zone)):%Y-%m-%d %H:%M:%S %z} ({schedule.zone})"


def _owner(name: str) -> int:
    owner = get_user_model().objects.filter(username=name).first()
    if owner is None:
        raise CommandError(f"There is no user named {name!r}.")
    return owner.pk


def _known(schedule_id: UUID) -> Schedule:
    schedule = Schedule.objects.kept().filter(pk=schedule_id).first()
    if schedule is None:
        raise CommandError(f"There is no schedule {schedule_id}; `manage.py schedules list` lists them.")
    return schedule
