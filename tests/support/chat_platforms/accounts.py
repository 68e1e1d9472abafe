"""Accounts of platforms of chats, and asking them for what is new."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.models import DEFAULT_AGENT, Agent
from conversations.channel_models import Channel, Listener
from conversations.channels import accounts
from conversations.channels.base import Retry
from conversations.engine.channels import listener
from tests.support.wait import rest

TOKEN = "CHANNEL_SECRET_TOKEN"
SIGNING = "CHANNEL_SECRET_SIGNING"
SECRETS = {TOKEN: "tok-4711-of-the-bot-anna-runs", SIGNING: "signing-secret-0815-of-the-app"}


# Seconds that a busy machine may take.
PATIENCE = 60.0


def hear(channel: Channel) -> None:
    """Ask a channel's platform once, as a worker does."""
    row = Listener.objects.get(channel=channel)
    Listener.objects.filter(pk=row.pk).update(run_after=None)
    hold = listener.claim(row.pk, worker="worker-1")
    assert hold
    try:
        assert hold.platform
        heard = hold.platform.ask(hold.cursor)
        assert listener.take(hold, heard)
    finally:
        listener.release(hold)


def hear_until(channel: Channel, has_heard: Callable[[], bool]) -> None:
    """Listen by a channel, as a worker does, until something is so. A connection that is lost is opened anew, as often
    as it takes: machines that are busy lose them."""
    row = Listener.objects.get(channel=channel)
    until = time.monotonic() + PATIENCE
    while True:
        Listener.objects.filter(pk=row.pk).update(run_after=None)
        hold: listener.Hold | None = listener.claim(row.pk, worker="worker-1")
        assert hold
        assert hold.platform
        platform, last = hold.platform, hold
        try:
            while hold and not has_heard():
                last = hold
                assert time.monotonic() < until, "the platform's events were not taken in"
                heard = platform.ask(hold.cursor)
                hold = listener.take(hold, heard)
                if heard.events:  # the platform may have to read first that they were taken in
                    began = time.monotonic()
                    while not has_heard() and time.monotonic() < began + 1:
                        rest(began)
            return
        except Retry:
            if time.monotonic() > until:
                raise
        finally:
            platform.close()
            listener.release(hold or last)


def make_channel(owner: Any, kind: str, settings: Mapping[str, Any], **values: Any) -> Channel:
    """An account of a platform, by which anna may write."""
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    given: dict[str, Any] = {"name": "shop", "kind": kind, "agent": agent, "owner": owner, "allow_from": ["anna"]}
    made, _ = accounts.make(**given | {"settings": dict(settings)} | values)
    return made
