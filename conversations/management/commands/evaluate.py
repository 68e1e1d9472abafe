"""``manage.py evaluate NAME [--filter NAME=VALUE … | --cases FILE] [changes] [graders] [--min-passed SHARE]``."""

import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.engine.replaying import grading, replay_sets
from conversations.engine.replaying.replayer import Replayer
from conversations.errors import CannotReplay
from conversations.kinds import REPLAYS
from conversations.management.commands.replay import add_changes, changes_of
from conversations.management.working import see_through
from conversations.models import Replay, ReplayRun, ReplaySet
from conversations.replay_models import OPEN_REPLAY
from nanohost.accounts import audit

# What a turn can be found by here, of what GET /turns has.
TEXTS = ("status", "error", "agent", "model", "key", "tool", "rule", "tag", "feedback", "words")


def wanted(text: str) -> tuple[str, str]:
    """``name=value``."""
    name, _, value = text.partition("=")
    if name not in TEXTS or not value:
        raise ArgumentTypeError(f"name=value is needed, with one of {', '.join(TEXTS)}")
    return name, value


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ArgumentTypeError("a number from 0 to 1 is needed")
    return found


class Command(BaseCommand):
    """Replays a set of stored turns, grades the answers, and reports; ends with 1 where a bound is broken."""

    help = "Replay a set of stored turns, grade the answers, and compare them with the run before."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="Of a stored set, or of the turns named here; runs of one name are compared.")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--filter", action="append", type=wanted, metavar="NAME=VALUE", help=f"Turns by {', '.join(TEXTS)}."
        )
        which.add_argument(
            "--cases",
            type=Path,
            help='A file of JSON lines: {"turn": id}, with "expected" words and texts to "contain", if there are any.',
        )
        parser.add_argument("--limit", type=int, default=200, help="So many turns at most, the newest; %(default)s.")
        add_changes(parser)
        parser.add_argument("--exact", action="store_true", help="Grade: the words are those expected.")
        parser.add_argument("--contains", action="append", metavar="TEXT", help="Grade: the words contain this.")
        parser.add_argument("--schema", type=Path, help="Grade: the answer fits the JSON Schema of this file.")
        parser.add_argument("--judge", metavar="MODEL", help="Grade: this model says whether it is good.")
        parser.add_argument("--judge-prompt", default="", help="The instructions of the judge.")
        parser.add_argument("--max-tokens", type=int, help="Tokens that the run may use; the set's own if missing.")
        parser.add_argument(
            "--min-passed", type=share, help="The share that has to pass, from 0 to 1; that of a stored set if missing."
        )
        parser.add_argument("--no-worse", action="store_true", help="None may fail that passed in the run before.")
        parser.add_argument("--export", type=Path, help="Write each replay with its original there, as JSON lines.")
        parser.add_argument("--seconds", type=float, default=3600.0, help="Wait for so long at most; %(default)s.")

    def handle(self, *args: Any, name: str, seconds: float, **options: Any) -> None:
        if not 0 < options["limit"] <= grading.MAX_CASES:
            raise CommandError(f"--limit is a number from 1 to {grading.MAX_CASES}.")
        try:
            run = self._begin(name[:100], options)
        except CannotReplay as error:
            raise CommandError(str(error)) from None
        rows = Replay.objects.filter(run=run)
        see_through(
            list(rows.order_by("pk").values_list("pk", flat=True)),
            runner=Replayer,
            at_once=REPLAYS.places(),
            find_open=lambda: list(rows.filter(status__in=OPEN_REPLAY).values_list("pk", flat=True)),
            seconds=seconds,
        )
        self._report(run, options)

    def _begin(self, name: str, options: dict[str, Any]) -> ReplayRun:
        changes, most = changes_of(options), options["max_tokens"]
        if most is not None and most < 1:
            raise CommandError("--max-tokens is a number from 1.")
        if not options["cases"] and not options["filter"]:
            of_set = ReplaySet.objects.filter(name=name).first()
            if of_set is None:
                raise CommandError(f"There is no set named {name}: name its turns by --filter or --cases.")
            if _graders(options):
                raise CommandError(f"The set {name} has graders of its own; change them in the console.")
            return replay_sets.start(of_set, changes, by="manage.py", max_tokens=most)
        if options["cases"]:
            try:
                cases = replay_sets.read(_text_of(options["cases"]))
            except CannotReplay as error:
                raise CommandError(f"{options['cases']}: {error}") from None
            if not cases:
                raise CommandError(f"{options['cases']}: there are no cases in it.")
        else:
            cases = replay_sets.found(dict(options["filter"]), limit=options["limit"])
            if not cases:
                raise CommandError("No turn that has ended matches.")
        return grading.begin(name, cases, changes, _graders(options), by="manage.py", max_tokens=most)

    def _report(self, run: ReplayRun, options: dict[str, Any]) -> None:
        run.refresh_from_db()
        told = grading.told(run)
        self.stdout.write(json.dumps(told, indent=2))
        if options["export"]:
            audit.record("evaluation.exported", about=run, after={"cases": told["cases"]})
            with options["export"].open("w") as file:
                file.writelines(f"{json.dumps(line, ensure_ascii=False)}\n" for line in grading.lines(run))
        least = options["min_passed"]
        if least is None and run.of_set:
            least = run.of_set.min_passed
        if told["open"]:
            raise CommandError(f"{told['open']} replays have not ended yet.")
        if least is not None and told["passed"] < least * told["cases"]:
            raise CommandError(f"{told['passed']} of {told['cases']} passed; {least:g} of them have to.")
        if options["no_worse"] and told["worse"]:
            raise CommandError(f"{len(told['worse'])} passed in the run before, and not in this one.")


def _graders(options: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if options["exact"]:
        found.append({"kind": grading.EXACT})
    if options["contains"] or options["cases"]:
        found.append({"kind": grading.CONTAINS, "texts": options["contains"] or []})
    if options["schema"]:
        found.append({"kind": grading.SCHEMA, "schema": _text_of(options["schema"])})
    if options["judge"]:
        found.append({"kind": grading.JUDGE, "model": options["judge"], "prompt": options["judge_prompt"]})
    return found


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
