"""What can go wrong with tools."""


class ToolDefinitionError(TypeError):
    """A function cannot be a tool; the message says what to change."""


class UnknownTool(LookupError):
    """No tool of that name is registered."""


class CallLost(Exception):
    """The call was ended or taken over by somebody else while it ran: what it did no longer counts."""
