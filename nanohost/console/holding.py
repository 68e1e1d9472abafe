"""Legal holds, as people name what they are on; and that nothing else deletes what one keeps."""

from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models.signals import pre_delete

from agent.models import Agent
from conversations.engine import turn_control
from conversations.models import Conversation
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.accounts import holds
from nanohost.accounts.holds import Holds
from nanohost.accounts.models import LegalHold
from nanohost.lib.text import storable
from scheduler.models import Schedule
from tools.models import ToolCall

Kind = LegalHold.Kind


def subject_named(kind: str, name: str) -> dict[str, Any]:
    """What a hold is on, as :func:`nanohost.accounts.holds.place` takes it: an owner by name or number, an agent by
    name, a conversation by its id. Raises ValidationError if there is none."""
    name = storable(name.strip())
    if kind == Kind.OWNER:
        users = get_user_model().objects
        user = users.filter(username=name).first()
        if user is None and name.isascii() and name.isdigit() and len(name) < 19:
            user = users.filter(pk=int(name)).first()
        if user is None:
            raise ValidationError(f"There is no user named {name!r}.")
        return {"owner_id": user.pk}
    if kind == Kind.AGENT:
        if not Agent.objects.filter(name=name).exists():
            raise ValidationError(f"There is no agent named {name!r}.")
        return {"agent": name}
    try:
        found = Conversation.objects.select_related("agent").filter(pk=UUID(name)).first()
    except ValueError:
        found = None
    if found is None:
        raise ValidationError(f"There is no conversation with the id {name!r}.")
    return {"conversation_id": found.pk, "owner_id": found.owner_id, "agent": found.agent.name}


def on_owner(user: Any, placed: Holds) -> list[LegalHold]:
    """The holds that keep anything of somebody's: on them, on a conversation of theirs, or on an agent that has
    anything to do with them."""
    found = [hold for hold in placed.holds if hold.owner_id == user.pk]
    return found + [hold for hold in placed.holds if hold.kind == Kind.AGENT and _has_to_do(hold.agent, user)]


def _has_to_do(agent: str, user: Any) -> bool:
    by_name = (Memory, MemoryVersion, HistoryEntry)
    whose: dict[str, Any] = {"owner_id": user.pk}
    return (
        Conversation.objects.filter(agent__name=agent, **whose).exists()
        or Schedule.objects.filter(agent__name=agent, **whose).exists()
        or ToolCall.objects.filter(agent=agent, **whose).exists()
        or any(model._default_manager.filter(agent=agent, **whose).exists() for model in by_name)
    )


def on_agent(agent: Agent, placed: Holds) -> list[LegalHold]:
    """The holds that keep an agent: on it, or on a conversation with it."""
    return [hold for hold in placed.holds if hold.agent == agent.name]


def connect() -> None:
    """From now on, no code deletes a user, a conversation or an agent that a hold keeps."""
    pre_delete.connect(_before_a_user, sender=get_user_model(), weak=False)
    pre_delete.connect(_before_a_conversation, sender=Conversation, weak=False)
    pre_delete.connect(_before_an_agent, sender=Agent, weak=False)


def _before_a_user(instance: Any, **_: Any) -> None:
    holds.refuse(on_owner(instance, holds.placed_until_the_end()))


def _before_a_conversation(instance: Conversation, **_: Any) -> None:
    holds.refuse(turn_control.holds_on(instance, holds.placed_until_the_end()))


def _before_an_agent(instance: Agent, **_: Any) -> None:
    holds.refuse(on_agent(instance, holds.placed_until_the_end()))
