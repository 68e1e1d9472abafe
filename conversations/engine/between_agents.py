"""Agents that write to each other: a destination may be an agent. What is said to one is a turn of its own, in a
conversation that belongs to the two and to where the first was spoken to; its answer comes back as a message there, as
a sub-agent's result does (:mod:`conversations.engine.spawned`).

No two go on for ever: a message knows through how many it came, and there is an end to that, as to how many an owner's
agents send in a minute. Each agent's own budget pays for what it answers; a destination may have one besides.
"""

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import F, Min, Sum

from agent.models import Agent
from conversations.channel_models import Destination
from conversations.engine import inbox, spawned
from conversations.engine.incoming import Incoming
from conversations.models import Conversation, Turn
from memory import documents
from nanohost.accounts.models import ApiKey
from nanohost.lib.clock import from_now
from tools.registry import Caller

# Seconds that a destination's tokens are counted over.
DAY = 24 * 3600
# A message that came through so many is answered, and no agent is written to because of it; and so many a minute.
MAX_HOPS, MAX_PER_MINUTE = 6, 20


def named(agent: Agent, destination: str) -> Agent | None:
    """The agent that a destination of an agent's is; None if it is none."""
    found = Destination.objects.select_related("to_agent").filter(agent=agent, name=destination).first()
    return found.to_agent if found else None


def send(caller: Caller, parent: Conversation, target: Agent, text: str) -> Conversation:
    """Have an agent told something by another, in the transaction of the call; the conversation of the two. Raises
    ``ValueError``."""
    turn = Turn.objects.get(pk=caller.turn_id)
    hops = hops_of(turn) + 1
    _check(parent, text, hops)
    _check_budget(parent, target)
    key = f"{spawned.CHANNEL}agent:{parent.pk}:{target.name}"
    made = {
        "agent": target,
        "name": f"{parent.agent.name} → {target.name}"[: Conversation.TITLE_CHARS],
        "spawned_by": caller.call_id,
        "spawned_in": parent.pk,
        "metadata": {"spawnedIn": str(parent.pk), "from": parent.agent.name},
        "cost": 0,
    }
    child, _ = Conversation.objects.get_or_create(owner_id=caller.owner_id, key=key, defaults=made)
    source = documents.learnt_in(parent.pk, caller.tainted_by)
    inbox.receive(
        Incoming(text, tainted_by=source),
        conversation=child,
        request_id=caller.request_id,
        idempotency_key=f"{spawned.OF_AGENT}{caller.call_id} {hops}",
        body_hash=caller.call_id.hex,
        key=ApiKey.objects.filter(pk=turn.api_key_id).first() if turn.api_key_id else None,
    )
    return child


def hops_of(turn: Turn) -> int:
    """Through how many messages between agents a turn came about."""
    hops = spawned.hops_in(turn.idempotency_key or "")
    answered = spawned.reported_on(turn) if hops is None else None
    if answered is not None:
        hops = spawned.hops_in(answered.idempotency_key or "")
    return hops or 0


def _check(parent: Conversation, text: str, hops: int) -> None:
    if not text.strip():
        raise ValueError("Give a content: what is said to the agent.")
    if Incoming(text).command:
        raise ValueError("This is a command to the host, which only people give. Say what is wanted instead.")
    if parent.is_transient:
        raise ValueError("This conversation is kept for one request only: no answer could come back to it.")
    if hops > MAX_HOPS:
        raise ValueError(
            f"Agents have written to each other {MAX_HOPS} times because of this, which is as often as they may: do"
            " the rest yourself, or tell the user what there is to do."
        )
    # Calls of one round run side by side: they are counted one after the other.
    get_user_model().objects.select_for_update(no_key=True).get(pk=parent.owner_id)
    theirs = Conversation.objects.filter(owner_id=parent.owner_id, spawned_by__isnull=False).values("pk")
    turns = Turn.objects.filter(conversation__in=theirs)
    if turns.filter(created_at__gt=from_now(-60)).count() >= MAX_PER_MINUTE:
        raise ValueError("Agents have written to each other too often in the last minute: go on without, or later.")
    if turns.open().count() >= settings.SPAWN_MAX_OPEN:
        raise ValueError(f"{settings.SPAWN_MAX_OPEN} agents are at work for you already: wait for their answers.")


def _check_budget(parent: Conversation, target: Agent) -> None:
    """Raise ``ValueError`` if the other has used up what it may for this agent. Its answers are counted once they are
    there: the last one may take more."""
    given = Destination.objects.filter(agent=parent.agent, to_agent=target, tokens_a_day__isnull=False)
    most = given.aggregate(most=Min("tokens_a_day"))["most"]
    if most is None:
        return
    between = Conversation.objects.filter(
        owner_id=parent.owner_id, agent=target, spawned_by__isnull=False, metadata__from=parent.agent.name
    )
    turns = Turn.objects.filter(conversation__in=between.values("pk"), created_at__gt=from_now(-DAY))
    used = turns.aggregate(used=Sum(F("prompt_tokens") + F("completion_tokens")))["used"] or 0
    if used >= most:
        raise ValueError(
            f"The agent {target.name} has used up the {most} tokens that it may take for you within 24 hours: do the"
            " rest yourself, or tell the user what there is to do."
        )
