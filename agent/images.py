"""Pictures in messages, as the loop sees them: plain references. Their bytes are fetched when a model is asked.

A user's message may have ``attachments``, a list of references: ``name``, ``type``, ``sha256``, ``size``, ``path``, and
of a picture ``width`` and ``height``. Its ``content`` is text all the same, in which each file is named.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.loop import ChatMessage

Reference = Mapping[str, Any]

# Pictures that one request may have, and their bytes together: as base64 they stay below Anthropic's 32 MB a request.
MAX_IMAGES, MAX_BYTES = 20, 20_000_000

_BLIND = "[The picture {name} was sent here; the model that is asked cannot see it.]"
_TOO_MANY = "[The picture {name} was sent here; it is left out, since newer ones take the room.]"


def images_of(message: ChatMessage) -> list[Reference]:
    """The pictures of a message."""
    return [each for each in message.get("attachments") or () if each["type"].startswith("image/")]


def images_in(messages: Iterable[ChatMessage]) -> Iterator[Reference]:
    """Those of several, in order."""
    for message in messages:
        if "attachments" in message:
            yield from images_of(message)


def tokens_of(image: Reference) -> int:
    """What a picture counts for: the larger of what Anthropic documents (pixels / 750, 1600 at most) and OpenAI
    (85, and 170 for each tile of 512 pixels a side, once it fits into 2048 and its shorter side into 768)."""
    width, height = max(image.get("width") or 1, 1), max(image.get("height") or 1, 1)
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height)) if min(width, height) * scale > 768 else scale
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return max(85 + 170 * tiles, min(width * height // 750, 1600))


def shown(messages: Sequence[ChatMessage], *, sees: bool) -> Sequence[ChatMessage]:
    """The messages with those pictures that are to be sent, the newest ones; of the others, words say that they were
    there. ``sees``: whether the model can see any."""
    if not any("attachments" in message for message in messages):
        return messages
    left_out, made = _left_out(messages) if sees else math.inf, list(messages)
    number = 0
    for at, message in enumerate(messages):
        for image in images_of(message):
            if number < left_out:
                made[at] = _without(made[at], image, _TOO_MANY if sees else _BLIND)
            number += 1
    return made


def _left_out(messages: Iterable[ChatMessage]) -> int:
    """How many pictures, from the first on, are not sent. Of too many, half go at once, but for those of the newest
    message: were it one with each that comes, no prompt would begin as the one before did, and no cache would have it.
    """
    first = room_taken = 0
    sizes: list[int] = []
    for message in messages:
        own = [image["size"] for image in images_of(message)]
        sizes += own
        room_taken += sum(own)
        is_over = len(sizes) - first > MAX_IMAGES
        most = max(MAX_IMAGES // 2, min(len(own), MAX_IMAGES)) if is_over else MAX_IMAGES
        while len(sizes) - first > most or room_taken > MAX_BYTES:
            room_taken -= sizes[first]
            first += 1
    return first


def _without(message: ChatMessage, image: Reference, words: str) -> ChatMessage:
    others = [each for each in message["attachments"] if each is not image]
    told = {name: value for name, value in message.items() if name != "attachments"}
    told["content"] = f"{words.format(name=image['name'])}\n{message['content']}"
    return told | ({"attachments": others} if others else {})


def data_url(image: Reference, pictures: Mapping[str, str]) -> str:
    """A picture as OpenAI's APIs take it. ``pictures``: bytes in base64, by hash."""
    return f"data:{image['type']};base64,{pictures[image['sha256']]}"
