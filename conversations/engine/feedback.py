"""Feedback on answers: from the API and the chat page by whoever asked, and in channels by reactions."""

from typing import Any

from conversations.channel_models import Channel
from conversations.channels.base import Event
from conversations.errors import TurnNotEnded
from conversations.feedback_models import Feedback, Rating
from conversations.models import Delivery, Turn

# How the reactions begin that are a thumb, in any colour: as themselves, and by platforms' names for them.
_THUMBS = {
    Rating.UP: ("👍", ":+1:", ":thumbsup:"),
    Rating.DOWN: ("👎", ":-1:", ":thumbsdown:"),
}


def give(turn: Turn, *, by: str, rating: str, comment: str = "") -> Feedback:
    """Store what somebody thinks of a turn's answer, in the place of what they thought before. Raises
    :class:`TurnNotEnded`."""
    if not turn.ended:
        raise TurnNotEnded
    given: dict[str, Any] = {"rating": rating, "comment": comment}
    row, _ = Feedback.objects.update_or_create(turn=turn, by=by, defaults=given)
    return row


def withdraw(turn: Turn, *, by: str) -> None:
    """Forget what somebody thought of it, if they have said so."""
    Feedback.objects.filter(turn=turn, by=by).delete()


def react(channel: Channel, event: Event) -> None:
    """Take a reaction to an answer as feedback, if it is a thumb; another reaction says nothing of it."""
    said = event.text.strip().casefold()
    rating = next((rating for rating, thumbs in _THUMBS.items() if said.startswith(thumbs)), None)
    if rating is None or not event.message_id:
        return
    sent = Delivery.objects.filter(account=channel, external_id=event.message_id, chat__chat_id=event.chat_id)
    about = sent.exclude(turn_id=None).order_by("-pk").values_list("turn_id", flat=True).first()
    turn = Turn.objects.filter(pk=about).first() if about else None
    if turn is not None and turn.ended:
        give(turn, by=f"{channel.name}:{event.sender_id}"[:300], rating=rating)
