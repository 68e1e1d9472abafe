"""Check-ins: every so many minutes an agent is asked to do what its document HEARTBEAT says, if it says anything.

Beat runs it each minute; any number of looks may run at once. Time is cut into pieces of the agent's minutes, or of
HEARTBEAT_MINUTES, and an agent has one row in each at most, by a constraint; by another it has one at a time that has
not ended. So neither a second beat nor a slow model has it asked twice; nor does a change of the minutes, by which a
piece may hold what began in another.

It is asked on behalf of the owner its profile names, in a conversation of the two of their own, anew each time: what it
said before costs nothing. What it has to tell is delivered to another conversation of theirs, which has nothing else.
"""

import logging
from datetime import UTC, date, datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from agent.answer_schemas import PLAIN_TEXT
from agent.check_in import has_nothing_to_tell, has_something_to_do, question
from agent.models import HEARTBEAT, Agent
from conversations.engine import inbox, outgoing, transcript
from conversations.engine.incoming import Incoming
from conversations.errors import UnknownDestination
from conversations.models import Conversation, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.ids import new_id
from scheduler.models import CheckIn, CheckInState
from scheduler.runs import BY_CHECK_IN, MANY

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ask_agents(*, now: datetime) -> int:
    """See what has ended, then look after each agent that has the document; returns how many turns were made."""
    settle(now=now)
    made = 0
    for agent in Agent.objects.filter(documents__has_key=HEARTBEAT).select_related("check_in_owner"):
        try:
            made += _look_after(agent, now=now)
        except Exception:
            logger.exception("the check-in of %s failed, and is tried again at the next run", agent)
    return made


def tokens_of(agent: Agent, day: date) -> int:
    """What its check-ins of a day have used, those that have ended."""
    of_day = CheckIn.objects.filter(agent=agent, day=day)
    return int(of_day.aggregate(used=Sum("tokens"))["used"] or 0)


# --- looking after an agent --------------------------------------------------------------------------------------


def _look_after(agent: Agent, *, now: datetime) -> bool:
    every = timedelta(minutes=agent.check_in_minutes or settings.HEARTBEAT_MINUTES)
    slot = _EPOCH + (now - _EPOCH) // every * every
    if CheckIn.objects.filter(agent=agent, slot__gte=slot, slot__lt=slot + every).exists():
        return False
    owner = agent.check_in_owner
    row = CheckIn(agent=agent, owner=owner, slot=slot, day=timezone.localdate(now))
    if not has_something_to_do(agent.documents[HEARTBEAT]):
        return _write_down(row, CheckInState.NOTHING, now=now)
    if owner is None or not owner.is_active:
        why = "Its owner is not active." if owner else "It has no owner: its agent's page names none."
        return _write_down(row, CheckInState.SKIPPED, why, now=now)
    if (used := tokens_of(agent, row.day)) >= settings.HEARTBEAT_TOKENS_A_DAY:
        why = f"Its check-ins have used {used} tokens on this day, of {settings.HEARTBEAT_TOKENS_A_DAY}."
        if not CheckIn.objects.filter(agent=agent, day=row.day, state=CheckInState.CAPPED).exists():
            logger.warning("agent %s is asked nothing more by check-ins on this day: %s", agent, why)
            told = f"{why} {agent} is asked again on the next day."
            if not inbox.note(conversation_id=_told_in(row).pk, content=told):
                return False  # somebody speaks there just now; at the next run
        return _write_down(row, CheckInState.CAPPED, why, now=now)
    try:
        _ask(row)
    except IntegrityError:  # the one before it is open; or this one is already there, and then it is left alone
        return _write_down(row, CheckInState.SKIPPED, "The one before it had not ended.", now=now)
    return True


def _write_down(row: CheckIn, state: CheckInState, why: str = "", *, now: datetime) -> bool:
    row.state, row.error, row.ended_at = state, why, now
    row.conversation_id = row.turn_id = None
    CheckIn.objects.bulk_create([row], ignore_conflicts=True)
    return False


def _ask(row: CheckIn) -> None:
    """Store the row and its turn; raises :class:`IntegrityError` if the agent has one in this time, or an open one."""
    conversation = _asked_in(row)
    with transaction.atomic():
        inbox.begin_anew(conversation_id=conversation.pk)  # and with it the conversation's lock
        row.state, row.conversation_id, row.turn_id = CheckInState.OPEN, conversation.pk, new_id()
        row.save(force_insert=True)
        inbox.receive(
            # Plain text, whatever form the agent's other answers have.
            Incoming(question(row.agent.documents[HEARTBEAT]), response_format=PLAIN_TEXT),
            conversation=conversation,
            request_id=f"{BY_CHECK_IN}{row.pk}",
            turn_id=row.turn_id,
        )


def _asked_in(row: CheckIn) -> Conversation:
    return _conversation(row, f"heartbeat:{row.agent.name}:asked", {"heartbeat": "asked"})


def _told_in(row: CheckIn) -> Conversation:
    return _conversation(row, f"heartbeat:{row.agent.name}", {"heartbeat": "told"})


def _conversation(row: CheckIn, key: str, metadata: dict[str, str]) -> Conversation:
    """Made when it is needed first; clients know it by its metadata."""
    fresh = {"agent": row.agent, "metadata": metadata, "cost": 0}
    return Conversation.objects.get_or_create(owner_id=row.owner_id, key=key, defaults=fresh)[0]


# --- what came of it ---------------------------------------------------------------------------------------------


def settle(*, now: datetime) -> None:
    """See which turns have ended, and deliver what they have to tell."""
    for row in CheckIn.objects.filter(ended_at=None).select_related("agent")[:MANY]:
        turn = Turn.objects.filter(pk=row.turn_id).first() if row.turn_id else None
        if turn is None or turn.ended:
            try:
                _settle(row, turn, now=now)
            except Exception:
                logger.exception("the outcome of a check-in could not be stored, and is looked at again: %s", row.pk)


def _settle(row: CheckIn, turn: Turn | None, *, now: datetime) -> None:
    answer = transcript.answer_of(turn) if turn and turn.status == TurnStatus.SUCCEEDED else None
    if answer is None:
        row.state = CheckInState.FAILED
        row.error = turn.error_code if turn else "The conversation was deleted."
    else:
        row.state = CheckInState.OK if has_nothing_to_tell(answer) else CheckInState.TOLD
    row.tokens = turn.prompt_tokens + turn.completion_tokens if turn else 0
    with transaction.atomic():
        changed = {"state": row.state, "error": row.error, "tokens": row.tokens, "ended_at": now}
        if CheckIn.objects.filter(pk=row.pk, ended_at=None).update(**changed) != 1:
            return  # somebody else was first
        if row.state == CheckInState.TOLD and not _tell(row, answer or ""):
            transaction.set_rollback(True)  # somebody speaks there just now; at the next run


def _tell(row: CheckIn, answer: str) -> bool:
    told_in = _told_in(row)
    if not inbox.note(conversation_id=told_in.pk, content=answer, by_agent=True, tainted_by=_taint_of(row)):
        return False
    if problem := _send_on(row, told_in, answer):
        CheckIn.objects.filter(pk=row.pk).update(error=problem)
    return True


def _taint_of(row: CheckIn) -> str:
    """From where untrusted text has entered the conversation in which it was asked; that begins anew only when the
    next one asks."""
    asked = Conversation.objects.filter(pk__in=[row.conversation_id], tainted_at_seq__isnull=False)
    return f"a check-in, asked in conversation {row.conversation_id}" if asked.exists() else ""


def _send_on(row: CheckIn, told_in: Conversation, answer: str) -> str:
    """Have what is told sent to where its agent says as well; returns why not, if that is no destination of its."""
    if not (destination := row.agent.check_in_deliver_to):
        return ""
    try:
        outgoing.pass_on(told_in, answer, destination=destination, turn_id=row.turn_id)
    except UnknownDestination as error:
        return f"Its report was not delivered. {error.detail}"
    return ""
