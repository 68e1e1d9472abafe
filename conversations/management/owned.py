"""What the commands share that are about one user and one agent."""

from collections import Counter
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from agent.models import DEFAULT_AGENT, Agent
from nanohost.lib.text import storable


def add_arguments(parser: CommandParser, *, agent_default: str | None = DEFAULT_AGENT) -> None:
    """Whom a command is about."""
    parser.add_argument("--owner", required=True, help="A user's name.")
    parser.add_argument("--agent", default=agent_default, help=f"An agent's name; {DEFAULT_AGENT} if missing.")


def owner_named(name: str) -> Any:
    """The user of that name."""
    user = get_user_model().objects.filter(username=storable(name)).first()
    if user is None:
        raise CommandError(f"There is no user named {name!r}.")
    return user


def agent_named(name: str) -> Agent:
    """The agent of that name."""
    agent = Agent.objects.filter(name=storable(name)).first()
    if agent is None:
        raise CommandError(f"There is no agent named {name!r}.")
    return agent


def told(counts: Counter[str]) -> str:
    """How many there were of what, in words."""
    return ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()) if count) or "nothing"
