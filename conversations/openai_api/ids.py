"""Ids as OpenAI's APIs show them, told from those of rows: nothing is kept of them."""

import re
from dataclasses import dataclass
from uuid import UUID

CONVERSATION, RESPONSE, COMPACTION = "conv", "resp", "cmp"
# Of items: what somebody said, what the model thought before, a call of a tool of the caller's, what that gave, and a
# call of one of the host's. Those of calls end in their place in their message.
MESSAGE, REASONING, FUNCTION_CALL, FUNCTION_OUTPUT, HOSTS_CALL = "msg", "rs", "fc", "fco", "mcp"

_ID = re.compile(r"([a-z]{2,4})_([0-9a-f]{32})([0-9a-f]{2})?(?:_[0-9]{1,6})?")


def shown(kind: str, row_id: UUID, place: int | None = None) -> str:
    """An id. ``place``: of a call in its message."""
    return f"{kind}_{row_id.hex}" + ("" if place is None else f"{place:02x}")


@dataclass(frozen=True, kw_only=True)
class Told:
    """An id, read. ``place``: of a call in its message."""

    kind: str
    row_id: UUID
    place: int | None = None


def read(told: object) -> Told | None:
    """What an id stands for; None if it is none of ours. A stream that has begun an item anew has numbered it, which
    changes nothing."""
    found = _ID.fullmatch(told) if isinstance(told, str) else None
    if found is None:
        return None
    return Told(kind=found[1], row_id=UUID(found[2]), place=int(found[3], 16) if found[3] else None)


def row_of(told: object, kind: str) -> UUID | None:
    """The row of an id of this kind; ids as ``/api/v1`` shows them stand for the same."""
    if isinstance(told, str) and (found := read(told)):
        return found.row_id if found.kind == kind and found.place is None else None
    try:
        return UUID(told) if isinstance(told, str) and len(told) <= 40 else None
    except ValueError:
        return None
