"""Errors of tools."""

from nanohost.lib.errors import Problem


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


class AlreadyDecided(Problem):
    """Somebody else was first, or the call has ended."""

    code, status, title = "already_decided", 409, "This was already decided, or no longer needs a decision."


class OwnConversation(Problem):
    """Two strangers have to approve."""

    code, status = "own_conversation", 403
    title = "Two other people have to decide on this: it is about a conversation of your own."


class ArgumentsRefused(Problem):
    """The gate would not let a call with these arguments run."""

    code, status, title = "arguments_refused", 422, "The gate refuses a call with these arguments."


class ToolExists(ValueError):
    """There is something of that name already; the message says where."""


class WorkspaceFull(Problem):
    """A file is larger than one may be, or the workspace or its disk has no room for it."""

    code, status = "workspace_full", 422
    title = "The file is too large, or the workspace has no room for it; the detail says which."


class FileProtected(Problem):
    """WORKSPACE_PROTECTED_PATHS names it."""

    code, status, title = "file_protected", 403, "This file can be read, but not changed."
