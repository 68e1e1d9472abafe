"""What a message says: a text, or parts. Files and pictures among them are read as ``/api/v1`` reads them."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings

from agent.loop import ChatMessage
from conversations.attachments import parts
from conversations.attachments.parts import OF_FILES, SentFile
from conversations.openai_api.errors import InvalidValue, UnsupportedContent
from conversations.openai_api.values import as_list, as_object, as_text
from nanohost.lib.errors import BodyTooLarge, InvalidRequest

MAX_PARTS = 1000
# Of a request, which may bring a history that has some with many messages.
MAX_FILES = 100

_TEXTS = ("text", "input_text", "output_text")
_REFUSAL = "refusal"


def text_of(content: Any, param: str, *, but: Sequence[str] = ()) -> str:
    """The text of a message's content; raises for a part of another kind, which is never dropped in silence. ``but``:
    kinds that are read elsewhere."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(as_list(content, param, most=MAX_PARTS)):
        where = f"{param}[{index}]"
        kind = as_object(part, where).get("type")
        if kind in _TEXTS:
            texts.append(as_text(part.get("text"), f"{where}.text"))
        elif kind == _REFUSAL:
            texts.append(as_text(part.get("refusal"), f"{where}.refusal"))
        elif not isinstance(kind, str):
            raise InvalidValue(f"{where}.type has to be a string.", param=f"{where}.type")
        elif kind not in but:
            only = "only users send pictures and files" if kind in OF_FILES else "it is not supported here"
            raise UnsupportedContent(f"{where} is of the type {kind[:64]}; {only}.", param=where)
    return "\n".join(texts)


def said_by_user(content: Any, param: str) -> ChatMessage:
    """A user's message; with the ``files`` that it brings, if it does. Raises for one that is blank."""
    said: ChatMessage = {"role": "user", "content": text_of(content, param, but=OF_FILES)}
    if isinstance(content, list) and any(part["type"] in OF_FILES for part in content):
        said["files"] = _files(content, param)
    elif not said["content"].strip():
        raise InvalidValue(f"{param} may not be blank.", param=param)
    return said


def _files(content: list[Any], param: str) -> Sequence[SentFile]:
    try:
        most, max_bytes = settings.ATTACHMENTS_MAX, settings.ATTACHMENTS_MAX_BYTES
        return parts.parse(content, most=most, max_bytes=max_bytes, at=param).files
    except InvalidRequest as error:
        # Its words begin with what they are about.
        raise InvalidValue(error.detail, param=error.detail.partition(":")[0]) from None


def refuse_too_much(messages: Iterable[ChatMessage], *, body_bytes: int, param: str) -> None:
    """Raise for files that are too many, and for a body that is longer than it may be without them. ``body_bytes``: of
    the whole of it."""
    files = [file for each in messages for file in each.get("files", ())]
    if body_bytes - sum(-(-len(file.data) // 3) * 4 for file in files) > settings.MAX_BODY_BYTES:
        raise BodyTooLarge(f"Without its files, the body may have {settings.MAX_BODY_BYTES} bytes.")
    if len(files) > MAX_FILES:
        raise InvalidValue(f"{MAX_FILES} files are the most of a request.", param=param)
