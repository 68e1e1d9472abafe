"""The kinds of work there are: one row each, which settings, doorbell, sweeper, worker, health and console read.

A new kind is a row here, a model with a lease (:mod:`nanohost.lib.lease`), and a runner
(:class:`conversations.engine.worker.Runner`). This module imports without Django being configured, since the settings
read it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of work.

    ``queue``: of the broker, and what a worker's ``--queues`` names. ``task``: Celery's name of the task that is sent
    to it. ``model``: of its rows, as Django labels it. ``runner``: the class that works on them. ``capacity``: how many
    a process works on at a time, or the setting that says so. ``noun``: one of them, for people; ``nouns``: several,
    unless an s behind it says that. ``check``: what ``/health/ready`` calls its workers; empty where a host is ready
    without them. ``is_alone``: whether its workers work on nothing else. ``is_waited_for``: whether a worker without
    room hears no more notifications until it has, and so leaves them to others; what is not waited for is left to a
    sweep.
    """

    queue: str
    task: str
    model: str
    runner: str
    capacity: int | str
    noun: str
    nouns: str = ""
    check: str = ""
    is_alone: bool = False
    is_waited_for: bool = True

    @property
    def rows(self) -> Any:
        """Its rows' manager, a :class:`nanohost.lib.lease.LeaseQuerySet`."""
        from django.apps import apps

        return apps.get_model(self.model)._default_manager

    def places(self) -> int:
        """How many a process works on at a time."""
        from django.conf import settings

        return self.capacity if isinstance(self.capacity, int) else getattr(settings, self.capacity)


TURNS = Kind(
    queue="turns",
    task="conversations.tasks.advance_turn",
    model="conversations.Turn",
    runner="conversations.engine.turns.TurnRunner",
    capacity="WORKER_MAX_TURNS",
    noun="turn",
    check="worker",
)
# Turns are model calls, and tools hold no key: so tools have workers of their own.
TOOLS = Kind(
    queue="tools",
    task="conversations.tasks.run_tool_call",
    model="tools.ToolCall",
    runner="conversations.engine.tool_calls.CallRunner",
    capacity="TOOL_CONCURRENCY",
    noun="tool call",
    check="toolbox",
    is_alone=True,
)
COMPACTIONS = Kind(
    queue="compaction",
    task="conversations.tasks.compact",
    model="conversations.Compaction",
    runner="conversations.engine.compacting.compactor.Compactor",
    # Few: a model's provider is asked for replies first.
    capacity=4,
    noun="compaction",
    # Its notifications are heard by the thread that hears those of turns.
    is_waited_for=False,
)
# What goes out to others, such as webhooks.
DELIVERIES = Kind(
    queue="deliveries",
    task="conversations.tasks.deliver",
    model="conversations.Delivery",
    runner="conversations.engine.deliveries.deliverer.Deliverer",
    # Each has a thread of its own while it is sent.
    capacity=16,
    noun="delivery",
    nouns="deliveries",
    is_waited_for=False,
)
# Platforms that are asked for what is new: one worker asks an account, for as long as it lives.
LISTENERS = Kind(
    queue="listeners",
    task="conversations.tasks.listen",
    model="conversations.Listener",
    runner="conversations.engine.channels.listener.ListenerRunner",
    # Each has a thread of its own while its platform is asked.
    capacity=32,
    noun="listener",
    is_waited_for=False,
)
# Stored turns that are asked again, which nobody waits for.
REPLAYS = Kind(
    queue="replays",
    task="conversations.tasks.replay",
    model="conversations.Replay",
    runner="conversations.engine.replaying.replayer.Replayer",
    # Few: a model's provider is asked for replies first.
    capacity=4,
    noun="replay",
    is_waited_for=False,
)
KINDS = (TURNS, TOOLS, COMPACTIONS, DELIVERIES, LISTENERS, REPLAYS)
BY_QUEUE = {kind.queue: kind for kind in KINDS}
