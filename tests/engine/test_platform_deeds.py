"""What agents do by chat platforms besides messages, each as its protocol has it: buttons, edits, reactions, files."""

import pytest

from conversations.attachments.parts import SentFile
from conversations.channels.registry import platform_of
from conversations.engine import outgoing
from conversations.models import Conversation, Delivery, DeliveryStatus, Turn
from conversations.question_models import Question, QuestionState
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
