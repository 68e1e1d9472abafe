"""``manage.py fill``: rows to try the console with."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import models
from django.utils import timezone

from agent.models import DEFAULT_AGENT, Agent
from conversations.errors import TurnProblem
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.ids import new_id
from tools.models import CallStatus, ToolCall

# How the keys of what is made begin.
MADE = "fill:"
_MODELS = ("gpt-4.1-mini", "gpt-4.1", "llama3.2")
_OWNERS, _BATCH = 20, 500


class Command(BaseCommand):
    """Makes conversations of some turns each, over the last days; some fail, some take long, some call tools."""

    help = "Fill a database for trying the console (development only: DEBUG=true)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--conversations", type=int, default=1000)
        parser.add_argument("--turns", type=int, default=3, help="Of each conversation.")
        parser.add_argument("--messages", type=int, default=4, help="Of each turn, its question and answer included.")
        parser.add_argument("--calls", type=int, default=2, help="Of tools, of each turn.")
        parser.add_argument("--days", type=int, default=30, help="How far back they go.")
        parser.add_argument("--force", action="store_true", help="Even if the database has conversations of users.")

    def handle(self, *args: Any, **wanted: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("fill is for development, and makes invented rows: set DEBUG=true.")
        if not wanted["force"] and Conversation.objects.exclude(key__startswith=MADE).exists():
            raise CommandError("This database has conversations of users; --force fills it anyway.")
        users = get_user_model().objects
        owners = [users.get_or_create(username=f"fill-{number}")[0].pk for number in range(_OWNERS)]
        agent, _ = Agent.objects.get_or_create(name=DEFAULT_AGENT, defaults={"every_tool": True})
        rows = _rows(wanted, owners, agent, random.Random(7))  # noqa: S311 -- nothing secret
        made = 0
        while batch := list(islice(rows, _BATCH)):
            for kind in (Conversation, Turn, Message, ToolCall):
                _store(kind, [row for several in batch for row in several if isinstance(row, kind)])
            made += len(batch)
            self.stdout.write(f"{made} conversations", ending="\r")
        self.stdout.write(f"{made} conversations are made.")


def _store(kind: type[models.Model], rows: list[Any]) -> None:
    with _times_as_given(kind):
        kind._default_manager.bulk_create(rows, batch_size=1000)


@contextmanager
def _times_as_given(kind: type[models.Model]) -> Iterator[None]:
    """Django would give each row the time at which it is stored."""
    fields = [field for field in kind._meta.fields if isinstance(field, models.DateTimeField)]
    usual = [(field, field.auto_now, field.auto_now_add) for field in fields]
    for field in fields:
        field.auto_now = field.auto_now_add = False
    try:
        yield
    finally:
        for field, auto_now, auto_now_add in usual:
            field.auto_now, field.auto_now_add = auto_now, auto_now_add


def _rows(wanted: dict[str, Any], owners: list[int], agent: Agent, dice: random.Random) -> Iterator[list[models.Model]]:
    """The rows of one conversation after the other."""
    now = timezone.now()
    for number in range(wanted["conversations"]):
        began = now - timedelta(days=wanted["days"]) * (1 - number / wanted["conversations"])
        conversation = Conversation(
            key=f"{MADE}{new_id()}",
            owner_id=dice.choice(owners),
            agent=agent,
            next_seq=wanted["turns"] * wanted["messages"] + 1,
            next_turn=wanted["turns"] + 1,
            cost=0,
            created_at=began,
            updated_at=began,
        )
        rows: list[models.Model] = [conversation]
        for turn in range(wanted["turns"]):
            at = min(began + timedelta(minutes=dice.expovariate(0.5)) * turn, now - timedelta(minutes=10))
            rows += _turn(conversation, turn, at, wanted, dice)
        yield rows


def _turn(
    conversation: Conversation, number: int, at: datetime, wanted: dict[str, Any], dice: random.Random
) -> list[models.Model]:
    status = dice.choices((TurnStatus.SUCCEEDED, TurnStatus.FAILED, TurnStatus.CANCELLED), (94, 4, 2))[0]
    took = timedelta(seconds=min(600.0, math.exp(dice.gauss(1, 0.8))))
    turn = Turn(
        conversation=conversation,
        owner_id=conversation.owner_id,
        number=number + 1,
        status=status,
        model=dice.choices(_MODELS, (7, 2, 1))[0],
        request_id=f"fill-{dice.randrange(10**12)}",
        cost=dice.randrange(100, 20_000),
        model_calls=1,
        prompt_tokens=dice.randrange(200, 6000),
        completion_tokens=dice.randrange(5, 600),
        error_code=dice.choice(list(TurnProblem.codes)) if status == TurnStatus.FAILED else "",
        fence=1,
        worker="fill:1:1",
        created_at=at,
        started_at=at,
        ended_at=at + took,
    )
    said = [
        Message(
            conversation=conversation,
            turn=turn,
            seq=number * wanted["messages"] + place + 1,
            role=Message.Role.USER if place == 0 else Message.Role.ASSISTANT,
            content=f"What is said in place {place} of turn {number + 1}. " * dice.randrange(1, 6),
            created_at=at,
        )
        for place in range(wanted["messages"])
    ]
    called = [
        ToolCall(
            conversation_id=conversation.pk,
            turn_id=turn.pk,
            owner_id=conversation.owner_id,
            agent=DEFAULT_AGENT,
            request_id=turn.request_id,
            call_id=f"call_{place}",
            position=place,
            tool_name=dice.choice(("time", "http_get", "recall")),
            arguments="{}",
            arguments_hash="0" * 64,
            effects="read",
            status=dice.choices((CallStatus.SUCCESS, CallStatus.REJECTED, CallStatus.FAILED), (90, 7, 3))[0],
            result="A result.",
            attempts=1,
            created_at=at,
            started_at=at,
            ended_at=at,
            duration_ms=dice.randrange(1, 900),
        )
        for place in range(wanted["calls"])
    ]
    return [turn, *said, *called]
