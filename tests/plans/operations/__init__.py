"""What is measured: the operations that read and write rows, a module for each subject. Importing this package loads
all of them."""

from tests.plans.operations import (
    api,
    budgets,
    channels,
    compactions,
    console,
    deferred,
    deliveries,
    embedding,
    messages,
    sweeps,
    tool_calls,
    turns,
)

__all__ = [
    "api",
    "budgets",
    "channels",
    "compactions",
    "console",
    "deferred",
    "deliveries",
    "embedding",
    "messages",
    "sweeps",
    "tool_calls",
    "turns",
]
