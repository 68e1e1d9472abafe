"""Identifiers: row ids that sort by time, and request ids that are safe to log."""

import re
import uuid
from datetime import datetime

from uuid_utils import compat

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


def new_id() -> uuid.UUID:
    """A version 7 UUID (RFC 9562): rows made together lie together in an index."""
    return compat.uuid7()


def first_id_at(time: datetime) -> uuid.UUID:
    """What no id that is made from then on is below: they begin with the milliseconds since 1970, before which there
    are none."""
    return uuid.UUID(int=max(0, int(time.timestamp() * 1000)) << 80)


def request_id(offered: str | None) -> str:
    """The caller's request id if it is well-formed (1 to 64 of ``A-Za-z0-9._:-``), else a new one."""
    if offered and _REQUEST_ID.fullmatch(offered):
        return offered
    return uuid.uuid4().hex
