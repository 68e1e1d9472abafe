"""Questions of agents to people: asked by the tool `ask`, answered once, in the chat, on a page or by the API.

The answer is stored in one transaction with the end of the call that asked: whoever dies before has answered nothing,
and a platform that tells of it again finds it answered. Locks are taken in the order conversation, turn, call.
"""

import json
from typing import Any
from uuid import UUID

from django.db import transaction

from conversations import events
from conversations.channel_models import Channel, ChannelEvent, Chat, Sender
from conversations.channels.base import Event
from conversations.deliveries import outbox
from conversations.engine import doorbell, outgoing
from conversations.engine.consent import resuming
from conversations.engine.incoming import Incoming
from conversations.errors import NotAsked, QuestionClosed
from conversations.held import held
from conversations.kinds import TURNS
from conversations.models import Conversation, Turn
from conversations.question_models import Question, QuestionState
from nanohost.accounts import holds
from nanohost.lib import clock
from nanohost.lib.clock import Now, from_now
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.redaction import redact
from nanohost.lib.statements import Rows
from nanohost.lib.text import clip, storable
from tools import gate
from tools.calls import Outcome
from tools.models import CallStatus, ToolCall
from tools.registry import ORIGIN, Caller

MAX_OPTIONS, MAX_OPTION = 10, 60
# A week, in minutes.
MAX_MINUTES = 7 * 24 * 60
# Found by one sweep, and deleted in one go.
MANY = 100

# What a button gives back begins with it; then come the question's id and the option's number.
BUTTON = "q"


def ask(caller: Caller, text: str, options: list[str], *, minutes: int) -> Question:
    """Put a question, in the transaction of the call that asks; its turn waits from then on. Raises ``ValueError``."""
    text, options = storable(redact(text.strip())), [storable(redact(" ".join(each.split()))) for each in options]
    _check(text, options, minutes)
    conversation = Conversation.objects.select_for_update(of=("self",)).filter(pk=caller.conversation_id).first()
    if conversation is None:
        raise ValueError("The conversation was deleted.")
    if conversation.is_transient:
        raise ValueError("This conversation is kept for one request only, so nobody could answer. Ask in your reply.")
    if Question.objects.filter(conversation=conversation, state=QuestionState.PENDING).exists():
        raise ValueError("Another question waits for its answer: ask one at a time.")
    list(Turn.objects.select_for_update().filter(pk=caller.turn_id).values_list("pk"))
    chat = outgoing.destinations(conversation).get(ORIGIN)
    question = Question.objects.create(
        conversation=conversation,
        turn_id=caller.turn_id,
        call_id=caller.call_id,
        owner_id=caller.owner_id,
        agent=caller.agent,
        text=text,
        options=options,
        chat=chat,
        sender_id=_person(caller.turn_id, conversation) if chat else "",
        expires_at=from_now(minutes * 60),
    )
    question.refresh_from_db(fields=["asked_at", "expires_at"])
    if chat:
        buttons = [(label, f"{BUTTON}{question.pk.hex}.{number}") for number, label in enumerate(options)]
        whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": caller.turn_id}
        question.delivery_id = outgoing.put_question(chat, text, buttons, **whose).pk
        question.save(update_fields=["delivery_id"])
    resuming.wait_for_answer(caller.turn_id)
    call = ToolCall.objects.get(pk=caller.call_id)
    events.publish_after_commit(caller.turn_id, *events.question_asked(question, call))
    return question


def _check(text: str, options: list[str], minutes: int) -> None:
    if not text or len(text) > Question.MAX_TEXT:
        raise ValueError(f"Give a question of 1 to {Question.MAX_TEXT} characters.")
    if len(options) > MAX_OPTIONS or any(not each or len(each) > MAX_OPTION for each in options):
        raise ValueError(f"Give {MAX_OPTIONS} options at most, each of 1 to {MAX_OPTION} characters.")
    if len({each.casefold() for each in options}) < len(options):
        raise ValueError("Two options are the same.")
    if not 1 <= minutes <= MAX_MINUTES:
        raise ValueError(f"Wait 1 to {MAX_MINUTES} minutes.")


def _person(turn_id: UUID, conversation: Conversation) -> str:
    """Whom the agent talks with in a chat: who has begun the turn, or who has last begun one."""
    latest = Turn.objects.filter(conversation=conversation).order_by("-number").values_list("pk", flat=True)[:20]
    begun = ChannelEvent.objects.filter(turn_id__in=[turn_id, *latest]).exclude(sender_id="")
    by_turn = {event.turn_id: event.sender_id for event in begun.order_by("created_at")}
    return next((by_turn[each] for each in (turn_id, *latest) if each in by_turn), "")


# --- who may answer ----------------------------------------------------------------------------------------------


def is_for(question: Question, user_id: int) -> bool:
    """Whether a user is the one who is asked: the owner of the conversation, or of a sender's question the user whom
    the sender was said to be."""
    if not question.chat_id:
        return question.owner_id == user_id
    if not question.sender_id:
        return question.owner_id == user_id
    chat = question.chat
    assert chat
    known = Sender.objects.filter(channel=chat.channel_id, sender_id=question.sender_id, owner=user_id)
    return known.exists()


def of_button(value: str) -> tuple[UUID, int] | None:
    """The question and the option that a button stands for; None for one of something else."""
    name, _, number = value.removeprefix(BUTTON).partition(".")
    if not value.startswith(BUTTON) or len(name) != 32 or not (number.isascii() and number.isdigit()):
        return None
    try:
        return UUID(hex=name), int(number[:3])
    except ValueError:
        return None


def asked_in(channel: Channel, event: Event, chat: Chat) -> tuple[UUID, str] | None:
    """The question that an event of a chat answers, and what it says; None if it answers none. A command to the host is
    none, nor is a message with files, nor anything that somebody else than the one who is asked does."""
    waiting = Question.objects.filter(chat=chat, state=QuestionState.PENDING, sender_id=event.sender_id)
    if event.kind == "choice":
        pressed = of_button(event.text)
        question = waiting.filter(pk=pressed[0]).first() if pressed else None
        if question is None or pressed is None or pressed[1] >= len(question.options):
            return None
        return question.pk, question.options[pressed[1]]
    if event.kind != "message" or event.files or event.fetch or not event.text.strip() or Incoming(event.text).command:
        return None
    found = waiting.order_by("asked_at").values_list("pk", flat=True).first()
    return (found, event.text) if found else None


def answer_as(user_id: int, name: str, question_id: UUID, said: str) -> Question:
    """Answer as a user of the host. Raises :class:`NotFound`, :class:`NotAsked` and :class:`QuestionClosed`."""
    question = Question.objects.select_related("chat").filter(pk=question_id).first()
    if question is None:
        raise NotFound("There is no question with that id, or it is not yours.")
    if not is_for(question, user_id):
        raise NotAsked
    return answer(question_id, said, by=name)


# --- the end of a question ---------------------------------------------------------------------------------------


def answer(question_id: UUID, said: str, *, by: str, tainted_by: str = "") -> Question:
    """Have a question answered, once, and its turn go on. ``said``: an option, its number, or other words. The same
    answer by the same person again changes nothing. Raises :class:`NotFound` and :class:`QuestionClosed`."""
    if not said.strip():
        raise InvalidRequest("answer: something has to be said.")
    with transaction.atomic():
        question = _locked(question_id)
        number, words = _chosen(question, said)
        if question.state == QuestionState.ANSWERED and (question.answer, question.answered_by) == (words, by[:150]):
            return question
        if question.state != QuestionState.PENDING:
            raise QuestionClosed
        is_late = question.expires_at <= clock.read()
        if is_late:
            _expire(question)
        else:
            result = json.dumps({"answer": words, "option": number}, ensure_ascii=False)
            ended = Outcome(status=CallStatus.SUCCESS, result=result, tainted_by=tainted_by)
            _close(question, QuestionState.ANSWERED, ended, answer=words, by=by)
    if is_late:
        raise QuestionClosed("It has expired: the agent continues without an answer.")
    return question


def _chosen(question: Question, said: str) -> tuple[int | None, str]:
    """The number of the option that was chosen, from 1, and the words of the answer."""
    plain = " ".join(said.split())
    for number, option in enumerate(question.options, start=1):
        if plain.rstrip(".)") == str(number) or plain.casefold() == option.casefold():
            return number, option
    return None, clip(storable(redact(said.strip())), Question.MAX_ANSWER)


_overdue = Rows(
    lambda: (
        Question.objects.filter(state=QuestionState.PENDING, expires_at__lte=Now())
        .order_by("expires_at")
        .values_list("pk", flat=True)[:MANY]
    )
)


def expire_due() -> None:
    """End what nobody has answered in time; each in a transaction of its own."""
    for question_id in _overdue():
        with transaction.atomic():
            question = _locked(question_id)
            if question.state == QuestionState.PENDING:
                _expire(question)


def withdraw(calls: list[ToolCall]) -> None:
    """Nobody has to answer any more what these calls have asked, which have ended otherwise; in the transaction that
    ends them."""
    if not calls:
        return
    asked = Question.objects.select_related("chat__channel").filter(call_id__in=[call.pk for call in calls])
    for question in asked.filter(state=QuestionState.PENDING):
        _store(question, QuestionState.WITHDRAWN)
        (call,) = (each for each in calls if each.pk == question.call_id)
        events.publish_after_commit(question.turn_id, *events.question_answered(question, call))


def _locked(question_id: UUID) -> Question:
    found = Question.objects.filter(pk=question_id).values_list("conversation_id", "turn_id").first()
    if found is None:
        raise NotFound("There is no question with that id, or it is not yours.")
    list(Conversation.objects.select_for_update().filter(pk=found[0]).values_list("pk"))
    list(Turn.objects.select_for_update().filter(pk=found[1]).values_list("pk"))
    question = Question.objects.select_for_update(of=("self",)).filter(pk=question_id).first()
    if question is None:
        raise NotFound("There is no question with that id, or it is not yours.")
    return question


def _expire(question: Question) -> None:
    said = "FAILED: nobody has answered in time. Go on without an answer, or say what you would need to know."
    _close(question, QuestionState.EXPIRED, Outcome(status=CallStatus.FAILED, result=said, rule="unanswered"))


def _close(question: Question, state: QuestionState, ended: Outcome, *, answer: str = "", by: str = "") -> None:
    call = gate.finish(question.call_id, ended)
    if call is None:
        raise QuestionClosed
    _store(question, state, answer=answer, by=by)
    resuming.after_people(question.turn_id)
    for kind, data in [events.question_answered(question, call), *events.tool_events(call)[1:]]:
        events.publish_after_commit(question.turn_id, kind, data)
    doorbell.notify(TURNS, question.turn_id)


def _store(question: Question, state: QuestionState, *, answer: str = "", by: str = "") -> None:
    question.state, question.answer, question.answered_by = state, answer, by[:150]
    question.answered_at = clock.read()
    question.save(update_fields=["state", "answer", "answered_by", "answered_at"])
    if question.delivery_id and question.chat:
        became = f"→ {answer}" if state == QuestionState.ANSWERED else "(This question is no longer open.)"
        outgoing.reword(question.chat, question.delivery_id, f"{question.text}\n\n{clip(became, 500)}")


def forget_old() -> int:
    """Delete questions that ended long ago, but for those that a legal hold keeps; returns how many. What was answered
    stands in the transcript."""
    gone = 0
    while deleted := _forget_some():
        gone += deleted
    return gone


def _forget_some() -> int:
    with transaction.atomic():
        kept = held(holds.placed_until_the_end())
        old = Question.objects.filter(asked_at__lt=from_now(-outbox.KEPT_FOR.total_seconds()))
        ended = old.exclude(state=QuestionState.PENDING).exclude(conversation__in=kept)
        found = list(ended.values_list("pk", flat=True)[:MANY])
        return Question.objects.filter(pk__in=found).delete()[0] if found else 0
