"""Saying something, with whatever options a test has."""

from dataclasses import fields
from typing import Any

from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.models import Turn

OF_MESSAGE = {each.name for each in fields(Incoming)}


def said(content: str, **options: Any) -> Turn:
    """The turn of a message; ``options`` are the message's own, and those of :func:`inbox.receive`."""
    own = {name: value for name, value in options.items() if name in OF_MESSAGE}
    others = {name: value for name, value in options.items() if name not in OF_MESSAGE}
    return inbox.receive(Incoming(content, **own), **others)
