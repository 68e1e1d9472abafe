"""What agents do by chat platforms besides messages, each as its protocol has it: buttons, edits, reactions, files."""

import asyncio
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from conversations.attachments.parts import SentFile
from conversations.channel_models import Channel
from conversations.channels.registry import platform_of
from conversations.engine import lease, outgoing
from conversations.engine.deliveries.deliverer import Deliverer
from conversations.engine.deliveries.typing_marks import TypingMarks
from conversations.models import Conversation, Delivery, DeliveryStatus, Turn, Worker
from conversations.question_models import Question, QuestionState
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.chat_platforms import (
    SECRETS,
    DingTalkServer,
    DiscordServer,
    FeishuServer,
    MailHouse,
    MatrixServer,
    QQServer,
    SlackServer,
    TelegramServer,
    WhatsAppServer,
)
from tests.support.delivering import deliver
from tests.support.scripts import script
from tests.support.wait import wait_until
from tests.support.working import advance, run_call, settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def peer(request, settings, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    running = request.param(settings)
    yield running
    running.close()


def of(*kinds):
    return pytest.mark.parametrize("peer", kinds, indirect=True, ids=lambda each: each.kind)


def all_delivered() -> list[Delivery]:
    found = []
    while waiting := list(Delivery.objects.open().order_by("number")[:1]):
        found += deliver(*waiting)
        assert found[-1].status == DeliveryStatus.DELIVERED, found[-1].error
    return found


ALL = (
    TelegramServer,
    SlackServer,
    MatrixServer,
    MailHouse,
    DiscordServer,
    WhatsAppServer,
    FeishuServer,
    DingTalkServer,
)


@of(*ALL, QQServer)
def test_a_question_has_buttons_or_numbers_and_is_reworded(peer, owner, tool_settings):
    tool_settings("ask")
    peer.channel(owner)
    ask = {"name": "ask", "arguments": {"question": "Which?", "options": ["Red", "Blue"]}}
    peer.tells(script({"call": [ask]}, {"say": "Done."}))
    (turn,) = Turn.objects.all()
    advance(turn)
    for call in ToolCall.objects.filter(status=CallStatus.QUEUED):
        run_call(call)
    (put,) = all_delivered()
    if hasattr(peer, "presses"):
        _, blue = peer.shown_buttons()
        peer.presses(blue, sender="bert")
        assert Question.objects.get().state == QuestionState.PENDING
        peer.presses(blue)
    else:
        assert "2. Blue" in peer.sent[-1].text
        peer.tells("2", **({"References": put.external_id} if peer.kind == "email" else {}))
    question = Question.objects.get()
    if peer.kind != "email":  # whose answers are in a thread of their own, unless they are replies
        assert (question.state, question.answer) == (QuestionState.ANSWERED, "Blue")
        settle([turn])
        all_delivered()
        if platform_of(peer.kind).capabilities.edits:
            assert ("edit", put.external_id, "Which?\n\n→ Blue") in peer.did()
    if peer.kind == "telegram":
        assert len(peer.called("answerCallbackQuery")) == 2


@of(TelegramServer, MatrixServer)
def test_a_sticker_is_a_picture_or_a_link(peer, owner):
    peer.channel(owner)
    peer.tells("Hello")
    (turn,) = settle(Turn.objects.all())
    addresses = [f"https://example.org/a.{kind}" for kind in ("webp", "gif", "png")]
    for address in addresses:
        conversation = Conversation.objects.get()
        outgoing.show_sticker(conversation, "hooray", address, destination="origin", turn_id=turn.pk)
    all_delivered()
    assert Delivery.objects.filter(kind="sticker").exclude(external_id="").count() == 3
    if peer.kind == "telegram":
        shown = [(each.path[-1], each.said) for each in peer.asked if each.path[-1] in peer.STICKERS]
        fields = [said[peer.STICKERS[method]] for method, said in shown]
        assert [method for method, _ in shown] == ["sendSticker", "sendAnimation", "sendPhoto"]
    else:
        fields = [each.text for each in peer.sent[1:]]
        addresses = [f"[hooray]({each})" for each in addresses]
    assert fields == addresses


@of(*ALL)
def test_edits_reactions_and_files(peer, owner):
    peer.channel(owner)
    peer.tells("Hello")
    (turn,) = settle(Turn.objects.all())
    (answer,) = all_delivered()
    conversation, turn_id = Conversation.objects.get(), turn.pk
    file = SentFile(name="may.txt", data=b"The figures\r\n--boundary")
    outgoing.send_file(conversation, file, "Here it is", destination="origin", turn_id=turn_id)
    can = platform_of(peer.kind).capabilities
    if not can.edits:
        all_delivered()
        if peer.kind == "email":
            (_, message) = peer.post.received[-1]
            assert [part.get_filename() for part in message.iter_attachments()] == ["may.txt"]
        else:
            (sent,) = peer.files_sent()
            assert file.data in sent
        with pytest.raises(ValueError, match="cannot be changed"):
            outgoing.edit(conversation, answer.number, "New", destination="origin", turn_id=turn_id)
        return
    outgoing.edit(conversation, answer.number, "New", destination="origin", turn_id=turn_id)
    outgoing.react(conversation, "👍", turn_id=turn_id)
    all_delivered()
    edit, react = peer.did()
    assert edit == ("edit", answer.external_id, "New")
    assert (react[0], react[2].lower()) in (("react", "👍"), ("react", "thumbsup"))
    assert can.captions or "Here it is" in [each.text for each in peer.sent]
    (sent,) = peer.files_sent()
    assert file.data in sent


# --- typing marks ------------------------------------------------------------------------------------------------


@pytest.fixture
def talking(peer, owner):
    """A chat whose turn goes on, and the workers that could show that."""
    peer.channel(owner)
    peer.tells("Hello")
    lease.claim(Turn.objects.get().pk, worker="worker-1")
    for name in ("worker-1", "worker-2"):
        Worker.objects.create(name=name, queues="deliveries", turns_most=0, heartbeat_at=Now())
    return peer


@pytest.fixture
def marks_of():
    """``marks_of("worker-1")``: what a worker sends marks with."""
    threads = DatabaseThreads(1)
    yield lambda worker: TypingMarks(worker=worker, database=threads)
    threads.close()


@of(TelegramServer, DiscordServer, MatrixServer, WhatsAppServer)
def test_while_a_turn_goes_on_its_chat_shows_that_somebody_writes(talking, marks_of):
    marks = marks_of("worker-1")
    asyncio.run(marks.send())
    assert len(talking.typed()) == 1
    asyncio.run(marks_of("worker-2").send())  # one worker is enough
    Channel.objects.update(typing=False)
    asyncio.run(marks.send())
    Channel.objects.update(typing=True, held_until=Now() + timedelta(hours=1))
    asyncio.run(marks.send())
    Channel.objects.update(held_until=None)
    Turn.objects.update(status=TurnStatus.WAITING, waiting_for=WaitingFor.ANSWER)
    asyncio.run(marks.send())
    assert len(talking.typed()) == 1
    Turn.objects.update(waiting_for=WaitingFor.TOOLS)
    asyncio.run(marks.send())
    assert len(talking.typed()) == 2
    assert talking.typed()[0] == talking.typed()[1]
    Turn.objects.update(status=TurnStatus.SUCCEEDED, waiting_for="")
    asyncio.run(marks.send())
    assert len(talking.typed()) == 2


@of(TelegramServer)
def test_a_channel_that_takes_no_marks_is_left_alone(talking, marks_of, monkeypatch):
    monkeypatch.delenv("CHANNEL_SECRET_TOKEN")
    marks = marks_of("worker-1")
    asyncio.run(marks.send())
    monkeypatch.setenv("CHANNEL_SECRET_TOKEN", SECRETS["CHANNEL_SECRET_TOKEN"])
    asyncio.run(marks.send())
    assert not talking.typed()
    assert not Channel.objects.get().error


@of(TelegramServer)
def test_a_worker_sends_them_beside_its_deliveries(talking):
    async def watch() -> None:
        threads = DatabaseThreads(1)
        deliverer = Deliverer(worker="worker-1", database=threads)
        for _ in range(3):
            await deliverer.watch()
        assert not talking.typed()  # nothing has waited for it
        await asyncio.to_thread(wait_until, talking.typed)
        await deliverer.watch()  # the next one is not due yet
        await deliverer.stop()
        threads.close()

    asyncio.run(watch())
    assert len(talking.typed()) == 1
