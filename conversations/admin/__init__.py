"""What happened, in the admin: conversations, turns, messages and workers, to be read and not to be changed."""

# Each registers its pages.
from conversations.admin import (
    approval,
    channels,
    compaction,
    conversation,
    deferred,
    feedback,
    memory,
    message,
    questions,
    replay,
    tool_call,
    turn,
    webhooks,
    worker,
)

__all__ = [
    "approval",
    "channels",
    "compaction",
    "conversation",
    "deferred",
    "feedback",
    "memory",
    "message",
    "questions",
    "replay",
    "tool_call",
    "turn",
    "webhooks",
    "worker",
]
