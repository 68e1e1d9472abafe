"""What can go wrong with memory."""

from nanohost.lib.errors import Problem


class MemoryChanged(Problem):
    """Somebody else has rewritten the memory since: read it again, and begin again."""

    code, status, title = "memory_changed", 409, "The memory was rewritten in between; read it again."


class MemoryTooLong(Problem):
    """What a person wrote is longer than a memory may be."""

    code, status, title = "memory_too_long", 422, "The memory would be longer than twice MEMORY_MAX_CHARS."
