"""The tools that ship with nanohost."""

from datetime import datetime
from zoneinfo import ZoneInfo

from tools.registry import tool


@tool(effects="read")
def time(timezone: str = "UTC") -> str:
    """Return the current time in ISO 8601, and its timezone.

    Args:
        timezone: IANA name of a timezone, such as Europe/Berlin.
    """
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{timezone!r} is not the name of a timezone; use an IANA name such as Europe/Berlin."
        ) from None
    return f"{datetime.now(zone).isoformat(timespec='seconds')} {timezone}"
