"""Responses of the ``openai`` package, held against its models."""

from typing import Any

from tests.support.openai_client import strictly

# What strict clients of the Responses API want to be told, and the package's model has no fields for.
MORE = frozenset({"presence_penalty", "frequency_penalty", "store"})


def whole(response: Any) -> Any:
    """A response, after its JSON was held against the package's model."""
    return strictly(response, but=MORE)


def told(stream: Any) -> list[Any]:
    """The events of a stream, each held against its model; and their numbers in order."""
    events = [strictly(event, but=MORE) for event in stream]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers
    return events


def kinds(events: list[Any]) -> list[str]:
    """Of events, without those that repeat: pieces of a text."""
    found: list[str] = []
    for event in events:
        kind = event.type.removeprefix("response.")
        if not found or found[-1] != kind:
            found.append(kind)
    return found
