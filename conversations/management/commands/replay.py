"""``manage.py replay TURN [--model M] [--temperature T] [--agent-version N] [--tools A,B] [--unrecorded HOW]``."""

import json
from argparse import ArgumentTypeError
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from agent.spending.money import told_money
from conversations.engine.replaying import frozen, replays
from conversations.engine.replaying.frozen import Changes
from conversations.engine.replaying.replayer import Replayer
from conversations.errors import CannotReplay
from conversations.kinds import REPLAYS
from conversations.management.working import see_through
from conversations.models import Replay, Turn
from conversations.replay_models import OPEN_REPLAY, ReplayStatus, Unrecorded


def temperature(text: str) -> float:
    """A number from 0 to 2."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 2:
        raise ArgumentTypeError("a number from 0 to 2 is needed")
    return found


def add_changes(parser: CommandParser) -> None:
    """What may be other than in the turns."""
    parser.add_argument("--model", help="The model to use; the turn's own if missing.")
    parser.add_argument("--temperature", type=temperature, help="From 0 to 2; as it was if missing.")
    parser.add_argument("--agent-version", type=int, help="A version of the agent: its prompt, documents and limits.")
    parser.add_argument("--tools", help="Names of the offered tools, separated by commas; as it was if missing.")
    parser.add_argument(
        "--unrecorded",
        choices=Unrecorded.values,
        default=Unrecorded.REFUSE.value,
        help="What a tool call is answered that the turn did not make: it is refused, or simulated; it never runs.",
    )


def changes_of(options: dict[str, Any]) -> Changes:
    """Those that were asked for."""
    names = options["tools"]
    return Changes(
        model=options["model"] or None,
        temperature=options["temperature"],
        version=options["agent_version"],
        tools=None if names is None else Changes.names_in(names),
        unrecorded=options["unrecorded"],
    )


class Command(BaseCommand):
    """Asks a stored turn again, and prints what came of it beside what the turn was answered."""

    help = "Ask a stored turn again, without any effect, and show both answers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("turn", type=UUID, help="The turn's id.")
        add_changes(parser)
        parser.add_argument("--json", action="store_true", help="Print it as JSON.")
        parser.add_argument("--seconds", type=float, default=600.0, help="Wait for so long at most; %(default)s.")

    def handle(self, *args: Any, turn: UUID, seconds: float, **options: Any) -> None:
        found = Turn.objects.select_related("conversation__agent").filter(pk=turn).first()
        if found is None:
            raise CommandError(f"There is no turn {turn}.")
        try:
            with transaction.atomic():
                row = replays.request(found, changes_of(options), by="manage.py")
        except CannotReplay as error:
            raise CommandError(str(error)) from None
        mine = Replay.objects.filter(pk=row.pk)
        see_through(
            [row.pk],
            runner=Replayer,
            at_once=REPLAYS.places(),
            find_open=lambda: list(mine.filter(status__in=OPEN_REPLAY).values_list("pk", flat=True)),
            seconds=seconds,
        )
        row.refresh_from_db()
        if not row.ended:
            raise CommandError(f"The replay {row.pk} has not ended yet; it is {row.status}.")
        if row.status != ReplayStatus.SUCCEEDED:
            raise CommandError(f"The replay {row.pk} has failed: {row.error_code}: {row.error_detail}")
        self._tell(found, row, as_json=options["json"])

    def _tell(self, turn: Turn, row: Replay, *, as_json: bool) -> None:
        original = frozen.original_of(turn) | {"model": turn.model}
        again = (row.result or {}) | {"model": row.model}
        if as_json:
            self.stdout.write(json.dumps({"replayId": str(row.pk), "original": original, "replay": again}, indent=2))
            return
        for title, side in (("Original", original), ("Replay", again)):
            tokens = side["promptTokens"] + side["completionTokens"]
            cost = told_money(side["cost"], settings.CURRENCY)
            self.stdout.write(f"{title}: {side['model']}, {tokens} tokens, {cost}, {side['ms']} ms")
            for call in side["calls"]:
                self.stdout.write(f"  {call['name']} {call['arguments']}")
            self.stdout.write(f"  {side['words']}")
        for doubt in again["doubts"]:
            self.stdout.write(f"Not surely what the turn was asked: {doubt}.")
