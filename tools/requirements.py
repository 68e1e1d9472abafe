"""What a tool needs of the machine it runs on, by name, and why a machine does not have it."""

from collections.abc import Callable, Mapping


def _openat2() -> str:
    from tools.workspace.beneath import why_missing

    return why_missing()


# Each returns why it is missing here; "" if it is there.
KNOWN: Mapping[str, Callable[[], str]] = {"openat2": _openat2}


def why_missing(name: str) -> str:
    """Why this machine does not have it; "" if it does."""
    return KNOWN[name]()
