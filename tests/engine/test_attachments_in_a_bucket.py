"""Files of messages in a bucket: what is asked of S3, and what becomes of a message while it is away."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from botocore.config import Config

from conversations.attachments import serving, store
from conversations.attachments.parts import SentFile
from conversations.models import Attachment, AttachmentUse, Message, Turn
from tests.support import files
from tests.support.s3_server import BUCKET, KEY, S3Server
from tests.support.working import advance, settle
from tools.documents.reading import NotReadNow

pytestmark = pytest.mark.django_db(transaction=True)

CAT = SentFile(name="cat.png", data=files.picture())


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    running = S3Server()
    yield running
    running.close()


@pytest.fixture
def s3(server: S3Server, settings: Any) -> S3Server:
    server.objects, server.refused, server.is_away = {}, [], False
    _stored_in(settings, server.options())
    return server


def _stored_in(settings: Any, options: dict[str, Any]) -> None:
    once = Config(retries={"total_max_attempts": 1})  # it would wait between its tries
    made = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options | {"client_config": once}}
    settings.STORAGES = settings.STORAGES | {"attachments": made}


def test_a_file_is_kept_read_handed_out_and_deleted(s3, say, model):
    (turn,) = settle([say("What is this?", files=[CAT])])
    row = Attachment.objects.get()
    assert (turn.status, set(s3.objects)) == ("succeeded", {row.path, store.thumbnail_of(row)})
    assert s3.objects[row.path][0] == CAT.data
    assert "data:image/png;base64," in str(model.requests[-1].body)
    assert b"".join(serving.download(row, "cat.png")) == CAT.data
    say("And again?", files=[CAT])
    assert len(s3.objects) == 2, "the same content is stored once"
    Message.objects.all().delete()
    AttachmentUse.objects.all().delete()
    assert (store.collect(grace=timedelta(0)), s3.objects) == (1, {})
    assert s3.refused == []


def test_who_has_another_key_is_refused_and_told_so_by_name(s3, say, settings, caplog):
    _stored_in(settings, s3.options() | {"secret_key": "another"})
    with pytest.raises(NotReadNow) as raised:
        say("Look", files=[CAT])
    assert set(s3.refused) == {"the signature does not match"}
    assert not Turn.objects.exists()
    told = f"{raised.value.detail} {caplog.text}"
    assert "stored" in told
    for secret in (BUCKET, KEY, s3.url, "Signature"):
        assert secret not in told


def test_while_it_is_away_a_message_is_refused_for_now_and_a_turn_waits(s3, say, settings):
    turn = say("Look", files=[CAT])
    s3.is_away = True
    with pytest.raises(NotReadNow):
        say("Look", files=[SentFile(name="dog.png", data=files.picture(colour=(1, 1, 1)))])
    with pytest.raises(NotReadNow):
        serving.download(Attachment.objects.get(is_stored=True), "cat.png")
    turn = advance(turn)
    assert (turn.status, turn.retry_code) == ("waiting", "attachment_unavailable")
    s3.is_away = False
    assert store.collect(grace=timedelta(0)) == 1, "the row of what could not be stored goes"
    assert len(s3.objects) == 2
