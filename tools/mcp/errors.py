"""Errors of MCP servers."""


class NotStarted(Exception):
    """A server cannot be asked from here; the text says why. Nothing was sent to it."""
