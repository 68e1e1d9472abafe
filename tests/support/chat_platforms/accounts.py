"""Accounts of platforms of chats, and asking them for what is new."""

from collections.abc import Mapping
from typing import Any

from agent.models import DEFAULT_AGENT, Agent
from conversations.channel_models import Channel, Listener
from conversations.channels import accounts
from conversations.engine import listener

TOKEN = "CHANNEL_SECRET_TOKEN"
SECRETS = {TOKEN: "tok-4711-of-the-bot-anna-runs", "CHANNEL_SECRET_SIGNING": "signing-secret-0815-of-the-app"}


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
        listener.hand_back(hold)


def make_channel(owner: Any, kind: str, settings: Mapping[str, Any], **values: Any) -> Channel:
    """An account of a platform, by which anna may write."""
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    given: dict[str, Any] = {"name": "shop", "kind": kind, "agent": agent, "owner": owner, "allow_from": ["anna"]}
    made, _ = accounts.make(**given | {"settings": dict(settings)} | values)
    return made
