"""Questions: the turn waits without a worker, the one who is asked answers once, and the tool's result says what."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from conversations.channel_models import ChannelEvent, Sender
from conversations.channels.webhook import Webhook
from conversations.engine import turn_control
from conversations.engine.consent import questions
from conversations.errors import NotAsked, QuestionClosed
from conversations.models import Delivery, DeliveryStatus, Message, Turn
from conversations.question_models import Question, QuestionState
from conversations.statuses import TurnStatus, WaitingFor
from tests.support.delivering import deliver
from tests.support.factories import OwnerFactory
from tests.support.hosts import ROOT
from tests.support.platforms import WebhookProgram
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.working import advance, run_call, settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

ASKS = {"question": "Which colour?", "options": ["Red", "Blue"]}


@pytest.fixture
def program(settings, owner, tool_settings):
    """A chat of several people with the agent, which may ask."""
    tool_settings("ask")
    running = WebhookProgram(settings)
    running.channel(owner, allow_from=["anna", "bert"])
    yield running
    running.close()


def asking(**given) -> str:
    return script({"call": [{"name": "ask", "arguments": ASKS | given}]}, {"say": "You chose {results}"})


def asked() -> Question:
    """What the agent has asked by now, once its turn waits."""
    for turn in Turn.objects.open().order_by("created_at"):
        advance(turn)
        for call in ToolCall.objects.filter(turn_id=turn.pk, status=CallStatus.QUEUED):
            run_call(call)
    return Question.objects.get()


def ended() -> Turn:
    (turn,) = settle(Turn.objects.filter(pk=Question.objects.get().turn_id))
    return turn


def bodies(program) -> list[dict]:
    return [json.loads(each.body) for each in program.receiver.received]


def test_a_question_in_a_chat_is_answered_by_the_one_who_is_asked_once(program, owner):
    program.tell(asking())
    question = asked()
    turn, call = Turn.objects.get(), ToolCall.objects.get()
    assert (turn.status, turn.waiting_for, turn.deadline) == (TurnStatus.WAITING, WaitingFor.ANSWER, None)
    assert (turn.lease_until, call.status, call.lease_until) == (None, CallStatus.WAITING, None)
    assert advance(turn).status == TurnStatus.WAITING
    assert run_call(call).status == CallStatus.WAITING
    deliver(*Delivery.objects.all())
    (put,) = bodies(program)
    assert (put["text"], [each["label"] for each in put["options"]]) == ("Which colour?", ["Red", "Blue"])
    blue = put["options"][1]["value"]
    bert = {"sender": {"id": "bert", "name": "Bert"}}
    # Somebody else presses, writes, and has the owner's eye: none of it answers.
    program.tell("", type="choice", value=blue, messageId="m-1", event_id="event-2", **bert)
    program.tell("2", event_id="event-3", **bert)
    program.tell("", type="choice", value="q0.1", messageId="m-1", event_id="event-4")
    program.tell("", type="choice", value=blue[:-1] + "7", messageId="m-1", event_id="event-5")
    with pytest.raises(NotAsked):
        questions.answer_as(owner.pk, "owner", question.pk, "Red")
    question.refresh_from_db()
    assert (question.state, Turn.objects.count()) == (QuestionState.PENDING, 2)
    # The one who is asked: four times at once, and told of again.
    press = {"type": "choice", "value": blue, "messageId": "m-1"}
    in_threads([lambda n=n: program.tell("", event_id=f"event-{6 + n // 2}", **press) for n in range(4)])
    program.tell("", event_id="event-6", **press)
    question.refresh_from_db()
    assert (question.state, question.answer) == (QuestionState.ANSWERED, "Blue")
    assert question.answered_by.startswith("Anna")
    (told,) = Message.objects.filter(role="tool").values_list("content", flat=True) or [ToolCall.objects.get().result]
    assert json.loads(told) == {"answer": "Blue", "option": 2}
    assert ended().status == TurnStatus.SUCCEEDED
    settle(Turn.objects.open())
    while waiting := list(Delivery.objects.open().order_by("number")[:1]):
        (row,) = deliver(*waiting)
        assert row.status == DeliveryStatus.DELIVERED, row.error
    reworded = bodies(program)[1]
    assert (reworded["type"], reworded["text"]) == ("edit", "Which colour?\n\n→ Blue")
    assert reworded["messageId"] == put["id"]
    assert "options" not in reworded
    assert bodies(program)[2]["text"].startswith("You chose ")


def test_the_pages_examples_are_what_happens(program):
    section = (ROOT / "docs" / "tools.md").read_text().split("\n## Questions\n")[1].split("\n## ")[0]
    ((arguments, chosen),) = re.findall(r"^\| `ask (\{.*\})` \| `(.*)` \|$", section, re.MULTILINE)
    (in_words,) = re.findall(r"^\| the same, answered with other words \| `(.*)` \|$", section, re.MULTILINE)
    for number, result in enumerate((chosen, in_words)):
        Question.objects.all().delete()
        program.tell(asking(**json.loads(arguments)), event_id=f"asked {number}")
        call_id = asked().call_id
        program.tell(json.loads(result)["answer"], event_id=f"answered {number}")
        assert ToolCall.objects.get(pk=call_id).result == result
        ended()


def test_words_answer_as_well_and_numbers_where_there_are_no_buttons(program, monkeypatch):
    monkeypatch.setattr(Webhook, "capabilities", replace(Webhook.capabilities, buttons=0))
    for number, (said, answer, option) in enumerate(
        [("2", "Blue", 2), (" red ", "Red", 1), ("1.", "Red", 1), ("Neither: green!", "Neither: green!", None)]
    ):
        Delivery.objects.all().delete()
        Question.objects.all().delete()
        program.tell(asking(), event_id=f"ask-{number}")
        asked()
        deliver(*Delivery.objects.filter(kind="question"))
        assert bodies(program)[-1]["text"] == "Which colour?\n\n1. Red\n2. Blue\n\nAnswer with a number."
        program.tell(said, event_id=f"answer-{number}")
        question = Question.objects.get()
        assert (question.state, question.answer) == (QuestionState.ANSWERED, answer)
        ended()
        call = ToolCall.objects.get(pk=question.call_id)
        assert (call.status, json.loads(call.result)) == (CallStatus.SUCCESS, {"answer": answer, "option": option})
    assert Turn.objects.count() == 4
    # A command is none, nor a message once nobody waits.
    Question.objects.all().delete()
    program.tell(asking(), event_id="ask-5")
    question = asked()
    program.tell("/stop", event_id="stop")
    settle(Turn.objects.open())
    question.refresh_from_db()
    assert question.state == QuestionState.WITHDRAWN
    program.tell("2", event_id="late")
    assert Turn.objects.count() >= 6


def test_what_dies_before_the_commit_has_answered_nothing_and_is_told_again(program, monkeypatch):
    program.tell(asking())
    question = asked()
    with monkeypatch.context() as patched:

        def die(turn_id):
            raise SystemExit

        patched.setattr("conversations.engine.consent.resuming.after_people", die)
        with pytest.raises(SystemExit):
            program.tell("2", event_id="answer")
    question.refresh_from_db()
    assert (question.state, ChannelEvent.objects.filter(external_id="answer").exists()) == (
        QuestionState.PENDING,
        False,
    )
    assert ToolCall.objects.get().status == CallStatus.WAITING
    for _ in range(2):
        program.tell("2", event_id="answer")
    question.refresh_from_db()
    assert (question.answer, ended().status, Turn.objects.count()) == ("Blue", TurnStatus.SUCCEEDED, 1)


def test_a_question_of_a_page_is_the_owners_and_ends_by_time_or_with_its_turn(say, tool_settings, owner):
    tool_settings("ask")
    stranger = OwnerFactory()
    turn = say(asking())
    question = asked()
    assert (question.chat, question.owner_id) == (None, owner.pk)
    with pytest.raises(NotAsked):
        questions.answer_as(stranger.pk, "stranger", question.pk, "1")
    question = questions.answer_as(owner.pk, "owner", question.pk, "1")
    assert (question.answer, questions.answer_as(owner.pk, "owner", question.pk, "Red").pk) == ("Red", question.pk)
    with pytest.raises(QuestionClosed):
        questions.answer_as(owner.pk, "owner", question.pk, "Blue")
    assert settle([turn])[0].status == TurnStatus.SUCCEEDED
    # Nobody answers in time.
    Question.objects.all().delete()
    late = say(asking(wait_minutes=5))
    question = asked()
    questions.expire_due()
    Question.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(QuestionClosed):
        questions.answer_as(owner.pk, "owner", question.pk, "1")
    questions.expire_due()
    question.refresh_from_db()
    call = ToolCall.objects.get(pk=question.call_id)
    assert (question.state, call.status, call.rule) == (QuestionState.EXPIRED, CallStatus.FAILED, "unanswered")
    assert settle([late])[0].status == TurnStatus.SUCCEEDED
    # Its turn is cancelled.
    Question.objects.all().delete()
    cancelled = say(asking())
    question = asked()
    assert turn_control.cancel_turn(cancelled)
    question.refresh_from_db()
    assert question.state == QuestionState.WITHDRAWN
    with pytest.raises(QuestionClosed):
        questions.answer_as(owner.pk, "owner", question.pk, "1")
    Question.objects.update(asked_at=timezone.now() - timedelta(days=31))
    assert questions.forget_old() == 1


def test_a_sender_who_is_a_user_answers_as_one_and_bad_questions_are_refused(program, owner):
    program.tell(asking())
    question = asked()
    anna = OwnerFactory()
    Sender.objects.create(channel=question.chat.channel, sender_id="anna", owner=anna)
    questions.answer_as(anna.pk, "anna", question.pk, "2")
    ended()
    for wrong in ({"question": " "}, {"options": ["a", "A"]}, {"options": [""]}, {"wait_minutes": 0}):
        ToolCall.objects.all().delete()
        program.tell(asking(**wrong), event_id=str(wrong))
        settle(Turn.objects.open())
        assert ToolCall.objects.get().status == CallStatus.FAILED, wrong
    assert Question.objects.count() == 1
