"""What a worker and the keeper say to each other: JSON, behind its length. Imports neither Django nor mcp."""

import json
import struct
from typing import Any

LENGTH = struct.Struct(">I")

# Of a frame, in either direction; what a server answers is cut before.
MAX_BYTES = 16 << 20


def packed(message: dict[str, Any]) -> bytes:
    """A message as it goes over the wire."""
    payload = json.dumps(message).encode()
    return LENGTH.pack(len(payload)) + payload


def size_of(received: bytes | bytearray) -> int:
    """Bytes of the first frame, which has been received in whole."""
    return LENGTH.size + int(LENGTH.unpack_from(received)[0])


def unpacked(received: bytes | bytearray) -> dict[str, Any] | None:
    """The message that was received, or None while some of it is still to come; raises ValueError for what is none."""
    if len(received) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(received)
    if size > MAX_BYTES:
        raise ValueError("too large a frame")
    if len(received) < LENGTH.size + size:
        return None
    message = json.loads(bytes(received[LENGTH.size : LENGTH.size + size]))
    if not isinstance(message, dict):
        raise ValueError("no object")
    return message
