"""Taking messages in."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from conversations.attachments import store
from conversations.engine import inbox, turn_control
from conversations.engine.incoming import Incoming
from conversations.models import Attachment, AttachmentUse, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.ids import new_id
from tests.plans.operations.common import BATCH, WHOLE, operation, say, the_long_one
from tools.documents.reading import Read


@operation("inbox.start_conversation")
def start_conversation() -> Callable[[], object]:
    return lambda: inbox.start_conversation(owner_id=1, metadata={})


@operation("inbox.conversation_of")
def conversation_of() -> Callable[[], object]:
    key = the_long_one().key
    return lambda: inbox.conversation_of(owner_id=1, key=key, metadata={})


@operation("inbox.receive")
def receive() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.receive(Incoming("words"), conversation=conversation, request_id="request")


def a_file() -> AttachmentUse:
    """Of the first owner's, with a thumbnail."""
    read = Read(media_type="image/png", width=1, height=1, thumbnail=b"small")
    row = store.store(1, b"a picture", read)
    store.refer(the_long_one().pk, new_id(), [store.reference(row, "a name")])
    return AttachmentUse.objects.get(attachment=row)


@operation("inbox.receive, with a file")
def receive_with_file() -> Callable[[], object]:
    reference = store.reference(a_file().attachment, "a name")
    return lambda: say(attachments=[reference])


@operation("store.take")
def take_file() -> Callable[[], object]:
    sha256 = a_file().attachment.sha256
    return lambda: store.take(1, sha256)


@operation("store.store")
def store_file() -> Callable[[], object]:
    read = Read(media_type="image/png", width=1, height=1, thumbnail=b"small")
    return lambda: store.store(1, b"another picture", read)


@operation("store.forget")
def forget_file() -> Callable[[], object]:
    message_id = a_file().message_id
    return lambda: store.forget([message_id])


# Who refers to a file is asked of each that is old enough: in retention's run, once.
@operation("store.collect", WHOLE)
def collect_files() -> Callable[[], object]:
    a_file().delete()
    Attachment.objects.filter(sha256=store.hash_of(b"a picture")).update(used_at=datetime(2020, 1, 1, tzinfo=UTC))
    return store.collect


@operation("inbox.receive, with an idempotency key")
def receive_with_key() -> Callable[[], object]:
    return lambda: say(idempotency_key="fresh")


@operation("inbox.receive, again")
def receive_again() -> Callable[[], object]:
    say(idempotency_key="again")
    return lambda: say(idempotency_key="again")


@operation("inbox.ask_again")
def ask_again() -> Callable[[], object]:
    turn = the_long_one().turns.filter(status=TurnStatus.FAILED).latest("number")
    return lambda: inbox.ask_again(turn, request_id="request")


@operation("turn_control.ask_models_again", BATCH)
def ask_models_again() -> Callable[[], object]:
    waiting = {"status": TurnStatus.WAITING, "waiting_for": WaitingFor.RETRY, "retry_code": "llm_unavailable"}
    turns = Turn.objects.filter(status=TurnStatus.QUEUED).order_by("pk").values_list("pk", flat=True)[:50]
    later = timezone.now() + timedelta(hours=1)
    Turn.objects.filter(pk__in=list(turns)).update(**waiting, run_after=later)
    return turn_control.ask_models_again


@operation("inbox.asked_again")
def asked_again() -> Callable[[], object]:
    turns = list(the_long_one().turns.filter(status=TurnStatus.FAILED)[:50])
    inbox.ask_again(turns[0], request_id="request")
    return lambda: inbox.asked_again(turns)
