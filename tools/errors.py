"""What can go wrong with tools."""


class ToolDefinitionError(TypeError):
    """A function cannot be a tool; the message says what to change."""


class UnknownTool(LookupError):
    """No tool of that name is registered."""


class CallLost(Exception):
    """The call was ended or taken over by somebody else while it ran: what it did no longer counts."""


class Interrupted(Exception):
    """A call was stopped, by a shutdown or a database that is away, and may be run again; or it had not begun."""


class UnfitName(ValueError):
    """What was named cannot be a tool, or an app to write one into; the message says why."""


class ToolExists(ValueError):
    """There is something of that name already; the message says where."""
