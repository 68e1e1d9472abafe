"""What a message brings: its words and files, how it is to be answered, and what is stored around it."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from uuid import UUID

from django.utils import timezone

from agent.loop import ChatMessage
from conversations.attachments import intake, store
from conversations.attachments.parts import Said, SentFile
from conversations.attachments.store import Reference
from conversations.models import Conversation, Message
from conversations.options import Options
from nanohost.accounts.models import ApiKey
from nanohost.lib.errors import InvalidRequest
from nanohost.lib.statements import Insert

_insert_conversation = Insert(
    Conversation,
    *("id", "key", "owner_id", "agent_id", "metadata", "next_seq", "tainted_at_seq", "tainted_by", "is_dropped"),
    *("created_at", "updated_at", "pins", "state", "state_times", "state_tainted"),
    is_transient=True,
    cost=0,
)

STOP = "stop"

_COMMAND = re.compile(r"\s*/([A-Za-z][A-Za-z0-9_-]{0,31})(?:@\S+)?(?:\s|\Z)")


def command_in(content: str) -> str:
    """The command that a message is, in lower case, known or not; empty for what is said to the agent."""
    found = _COMMAND.match(content)
    return found[1].lower() if found else ""


@dataclass(frozen=True)
class Incoming:
    """A user's message, as it is asked to be taken in.

    ``content``: its words. ``files``: what came with it; they are fetched, read and stored before the message is, and
    they are untrusted. ``attachments``: those that are stored already. ``tainted_by``: from where it came, if it is
    untrusted text: it then taints the conversation once its turn begins.

    ``model``: the agent's own or one of LLM_MODELS. ``response_format``: of the answer, as JSON of what
    :func:`agent.answer_schemas.read` takes; empty: as the agent says. ``options``: what it is asked with besides words;
    then the words are no command to the host, since a program says them.

    What is stored with it, in the chat format, each with ``files``, ``attachments`` and ``tainted_by`` of its own.
    ``history``: what a conversation begins with that is made for it. ``precedes``: the turn's own before the message.
    ``follows``: and behind it: what was called for it before, and what that gave.
    """

    content: str
    _: KW_ONLY
    files: Sequence[SentFile] = ()
    attachments: Sequence[Reference] = ()
    tainted_by: str = ""
    model: str = ""
    response_format: str = ""
    options: Options | None = None
    history: Sequence[ChatMessage] = ()
    precedes: Sequence[ChatMessage] = ()
    follows: Sequence[ChatMessage] = ()

    @property
    def command(self) -> str:
        """The command to the host that it is; empty for what is said to the agent."""
        return command_in(self.content) if self.options is None else ""

    @property
    def source(self) -> str:
        """From where its untrusted text came, in a few words; empty if it has none."""
        with_it = next((each["tainted_by"] for each in self.others if each.get("tainted_by")), "")
        return self.tainted_by or with_it or intake.brought_by(self.all_attachments)

    @property
    def others(self) -> list[ChatMessage]:
        """All that is stored with it."""
        return [*self.history, *self.precedes, *self.follows]

    @property
    def all_attachments(self) -> list[Reference]:
        """Its files and those of all that is stored with it, as far as they are stored already."""
        return [*self.attachments, *(file for each in self.others for file in each.get("attachments", ()))]

    def digest(self) -> str:
        """A hash over its files as they were sent; empty if there are none."""
        return Said(text=self.content, files=self.files).digest()

    def with_files_stored(self, owner_id: int, key: ApiKey | None) -> "Incoming":
        """The same, once its files are fetched, read and stored. ``key``: what it was asked with. Outside of any
        transaction; raises what :func:`conversations.attachments.intake.take_in` raises."""
        if self.files and self.command:
            raise InvalidRequest("A command to the host takes no files.")
        if not self.files and not any("files" in each for each in self.others):
            return self
        own: ChatMessage = {"files": self.files, "attachments": self.attachments}
        own, *others = intake.with_references(owner_id, [own, *self.others], key)
        first, second = len(self.history), len(self.history) + len(self.precedes)
        return replace(
            self,
            files=(),
            attachments=own["attachments"],
            history=others[:first],
            precedes=others[first:second],
            follows=others[second:],
        )

    def begin(self, conversation: Conversation) -> None:
        """Store a conversation that is made for it, with its history."""
        conversation.next_seq = len(self.history) + 1
        _insert(conversation)
        if not self.history:
            return
        rows = [message_of(message, conversation, seq=seq) for seq, message in enumerate(self.history, start=1)]
        refer_all(Message.objects.bulk_create(rows))


def _insert(conversation: Conversation) -> None:
    """What ``save`` does, for one that is made for a request."""
    assert conversation.is_transient
    conversation.created_at = conversation.updated_at = timezone.now()
    _insert_conversation(
        id=conversation.pk,
        key=conversation.key,
        owner_id=conversation.owner_id,
        agent_id=conversation.agent_id,
        metadata=conversation.metadata,
        next_seq=conversation.next_seq,
        tainted_at_seq=conversation.tainted_at_seq,
        tainted_by=conversation.tainted_by,
        is_dropped=conversation.is_dropped,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
        pins=[],
        state={},
        state_times={},
        state_tainted={},
    )
    conversation._state.adding = False


def message_of(
    message: ChatMessage, conversation: Conversation, *, turn_id: UUID | None = None, seq: int | None
) -> Message:
    """A message in the chat format that somebody else says was said. Its files are to be referred to."""
    attachments = list(message.get("attachments", ()))
    return Message(
        conversation=conversation,
        turn_id=turn_id,
        seq=seq,
        role=message["role"],
        content=message.get("content") or "",
        tool_calls=message.get("tool_calls"),
        tool_call_id=message.get("tool_call_id", ""),
        tool_name=message.get("name", "")[:128],
        attachments=attachments or None,
        tainted_by=message.get("tainted_by") or intake.brought_by(attachments) or None,
    )


def refer_all(messages: Sequence[Message]) -> None:
    """Say that these refer to their files; in the transaction that stores them."""
    for each in messages:
        store.refer(each.conversation_id, each.pk, each.attachments or ())
