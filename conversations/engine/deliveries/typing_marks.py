"""Typing marks: while a turn of a chat goes on, its platform shows there that somebody writes.

One worker of the queue ``deliveries`` sends them, beside the deliveries: nothing waits for a mark, none is sent again,
and a channel that takes none is left alone for a while.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from django.db import OperationalError
from django.db.models import Q

from conversations.channel_models import Channel, ChannelEvent, Chat
from conversations.channels import accounts
from conversations.channels.base import OutgoingMessage
from conversations.channels.registry import NoSuchPlatform, platform_of
from conversations.engine.own_thread import in_own_thread
from conversations.kinds import DELIVERIES
from conversations.models import Turn, Worker
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now
from nanohost.lib.database_threads import DatabaseThreads

# Telegram shows a mark for five seconds, others for longer.
EVERY_SECONDS = 4.0
# Of a channel that has not taken one.
LEFT_ALONE_SECONDS = 60.0
# So many chats are told at a time: where there are more turns, those that began first.
MANY = 20

Mark = tuple[Channel, OutgoingMessage]


class TypingMarks:
    """What one process sends. Lives on an event loop."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        self._worker, self._database = worker, database
        self._round: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._left_alone: dict[int, float] = {}

    def go_on(self) -> None:
        """Begin a round if it is time for one and the last one is over; returns at once."""
        now = time.monotonic()
        if now >= self._next_at and (self._round is None or self._round.done()):
            self._next_at = now + EVERY_SECONDS
            self._round = asyncio.create_task(self.send())

    async def stop(self) -> None:
        """Send no more."""
        self._next_at = float("inf")
        if self._round:
            self._round.cancel()
            await asyncio.wait([self._round])

    async def send(self) -> None:
        """A mark to each chat that wants one."""
        marks: Sequence[Mark] = ()
        with suppress(OperationalError):  # there is another round
            marks = await self._database(wanted, self._worker)
        now = time.monotonic()
        ready = [(channel, mark) for channel, mark in marks if self._left_alone.get(channel.pk, 0.0) <= now]
        sending = (in_own_thread(partial(_send, *each)) for each in ready)
        said = await asyncio.gather(*sending, return_exceptions=True)
        for (channel, _), error in zip(ready, said, strict=True):
            if isinstance(error, Exception):
                self._left_alone[channel.pk] = time.monotonic() + LEFT_ALONE_SECONDS


def wanted(worker: str) -> Sequence[Mark]:
    """The marks that this worker sends now: none, if another one does."""
    if not accounts.names() or _first_worker() != worker:
        return ()
    going_on = Q(status=TurnStatus.RUNNING) | Q(status=TurnStatus.WAITING, waiting_for=WaitingFor.TOOLS)
    active = Turn.objects.filter(going_on).order_by("created_at")
    turns = {
        (owner_id, key): turn_id
        for turn_id, owner_id, key in active.values_list("pk", "conversation__owner_id", "conversation__key")
        if accounts.is_of_a_channel(key)
    }
    if not turns:
        return ()
    owners, keys = {owner_id for owner_id, _ in turns}, {key for _, key in turns}
    chats = Chat.objects.filter(owner__in=owners, key__in=keys, channel__is_active=True, channel__typing=True)
    rested = chats.filter(Q(channel__held_until=None) | Q(channel__held_until__lte=Now()))
    there = {(each.owner_id, each.key): each for each in rested.select_related("channel")}
    found = {turns[place]: there[place] for place in turns if place in there and _can(there[place].channel.kind)}
    first = dict(list(found.items())[:MANY])
    began = dict(ChannelEvent.objects.filter(turn_id__in=first).values_list("turn_id", "message_id"))
    return [(chat.channel, _mark(chat, began.get(turn_id, ""))) for turn_id, chat in first.items()]


def _first_worker() -> str:
    alive = Worker.objects.alive().working_on(DELIVERIES).order_by("name")
    return alive.values_list("name", flat=True).first() or ""


def _can(kind: str) -> bool:
    try:
        return platform_of(kind).capabilities.typing
    except NoSuchPlatform:
        return False


def _mark(chat: Chat, began_by: str) -> OutgoingMessage:
    return OutgoingMessage(chat_id=chat.chat_id, thread=chat.thread, text="", began_by=began_by)


def _send(channel: Channel, mark: OutgoingMessage) -> None:
    accounts.platform(channel).show_typing(mark)
