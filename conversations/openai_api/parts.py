"""What a message says: a text, or parts. The one place where parts that are no text would be read."""

from typing import Any

from conversations.openai_api.errors import InvalidValue, UnsupportedContent
from conversations.openai_api.values import as_list, as_object, as_text

MAX_PARTS = 1000

_TEXTS = ("text", "input_text", "output_text")
_REFUSAL = "refusal"


def text_of(content: Any, param: str) -> str:
    """The text of a message's content; raises for a part of another kind, which is never dropped in silence."""
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
        else:
            raise UnsupportedContent(f"{where} is of the type {kind[:64]}; only text is supported here.", param=where)
    return "\n".join(texts)
