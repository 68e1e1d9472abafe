"""How models are told of the files of a message: by name, and by what they say."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from agent.loop import ChatMessage
from agent.prompt import mark_untrusted
from conversations.attachments.store import Reference
from conversations.models import Attachment

# Of a file, by its id: what it says, and why that is not all.
Texts = Mapping[str, tuple[str, str]]


def texts_of(attachments: Iterable[Sequence[Reference]]) -> Texts:
    """What the files of messages say; of pictures nothing is looked up."""
    ids = {UUID(each["id"]) for several in attachments for each in several if not each["type"].startswith("image/")}
    if not ids:
        return {}
    rows = Attachment.objects.filter(pk__in=ids).values_list("pk", "text", "problem")
    return {str(pk): (text, problem) for pk, text, problem in rows}


def with_texts(chat: ChatMessage, texts: Texts) -> ChatMessage:
    """A message whose content tells of its files too. What they say is marked as data, as tools' results are."""
    if "attachments" not in chat:
        return chat
    told = [_told(each, texts) for each in chat["attachments"]]
    return chat | {"content": "\n\n".join([chat["content"], *told]).strip()}


def _told(file: Reference, texts: Texts) -> str:
    if file["type"].startswith("image/"):
        return f"[picture: {file['name']}, {file['width']} x {file['height']} pixels]"
    text, problem = texts.get(file["id"], ("", "it is gone"))
    head = f"[file: {file['name']}, {file['type']}, {file['size']} bytes{f'; {problem}' if problem else ''}]"
    return f"{head}\n{mark_untrusted(text)}" if text else head
