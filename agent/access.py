"""Which agents an API key may name, and whose conversations it opens."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from agent.models import Agent
from nanohost.accounts.models import EVERY_AGENT, ApiKey
from nanohost.lib.statements import Given, Rows

ModelT = TypeVar("ModelT", bound=Model)

# What is told of an agent that there is not, and of one that a key may not name: the one cannot be told from the other.
UNKNOWN = "There is no agent named {!r}, or this key may not name it."


_named = Rows(lambda: Agent.objects.filter(name=Given("name")))


def agent_named(name: str) -> Agent | None:
    """The agent of that name."""
    return next(iter(_named(name=name)), None) if "\x00" not in name else None


def admits(key: ApiKey, agent: Agent) -> bool:
    """Whether a key may name an agent."""
    return key.admits(agent.name, is_public=agent.is_public)


def admits_all(key: ApiKey) -> bool:
    """Whether it may name each of them."""
    return EVERY_AGENT in key.agent_names


def admitted(rows: "QuerySet[ModelT]", key: ApiKey, *, agent: str = "agent") -> "QuerySet[ModelT]":
    """Those of the rows whose agent a key may name. ``agent``: the way from a row to it."""
    if admits_all(key):
        return rows
    named = {f"{agent}__name__in": key.agent_names} if key.agent_names else {f"{agent}__is_public": True}
    return rows.filter(**named)


def agent_of_key(key: ApiKey, name: str) -> Agent | None:
    """The agent of that name, if the key may name it."""
    agent = agent_named(name)
    return agent if agent and admits(key, agent) else None
