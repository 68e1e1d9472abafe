"""Approvals in chats: a call that waits for consent is told of in the chat of its conversation, where the channel says
so, and decided there by people who may: senders who were said to be a user of this host who decides approvals.

What is decided is what was shown: a button and a code are bound to the hash of the arguments. Who decides, and that two
have to where two are needed, is looked at as everywhere (:mod:`conversations.engine.consent.approvals`).
"""

import re
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction

from conversations.channel_models import ApprovalNotice, Channel, Sender, SenderState
from conversations.channels.base import Event
from conversations.engine import outgoing
from conversations.engine.consent import approvals
from conversations.engine.consent.approval_notices import BUTTON
from nanohost.lib.errors import Problem
from tools.approvals import APPROVE, DECIDERS, DENY, Decision, Voter, wanted_hash
from tools.errors import AlreadyDecided
from tools.models import Approval, ApprovalState

_BY_CODE = re.compile(r"(approve|deny) ([0-9a-f]{8})(?:\s(.*))?", re.DOTALL | re.IGNORECASE)


def take(channel: Channel, event: Event) -> bool:
    """Decide as an event of a chat says, in the caller's transaction; False if it decides nothing, or if its sender may
    not decide."""
    found = _meant(channel, event) if channel.approvals else None
    voter = _voter(channel, event) if found else None
    if found is None or voter is None:
        return False
    notice, decision, reason = found
    chat = notice.chat
    approval = Approval.objects.filter(pk=notice.approval_id).first()
    if approval is None:
        return False
    try:
        if decision == APPROVE and wanted_hash(approval) != notice.arguments_hash:
            words = "Not decided: the arguments were changed meanwhile. They are decided on in the console."
            outgoing.tell(chat, words, conversation_id=approval.conversation_id)
            return True
        with transaction.atomic():
            seen = notice.arguments_hash if decision == APPROVE else ""
            decided = approvals.decide(
                approval.pk,
                by=voter,
                decision=decision,
                seen=seen,
                reason=reason,
                still=partial(_check, channel, event),
            )
        if decided.state == ApprovalState.PENDING:
            words = f"Approved by {voter.name}; somebody else has to approve it as well."
            outgoing.tell(chat, words, conversation_id=approval.conversation_id)
    except Problem as error:
        outgoing.tell(chat, f"Not decided: {error.detail}", conversation_id=approval.conversation_id)
    return True


def _meant(channel: Channel, event: Event) -> tuple[ApprovalNotice, Decision, str] | None:
    """What an event decides on, how, and why."""
    # Whoever decides may have a conversation of their own in the same chat.
    there = {"chat__channel": channel, "chat__chat_id": event.chat_id, "chat__thread": event.thread}
    of_chat = ApprovalNotice.objects.select_related("chat__channel").filter(**there)
    if event.kind == "choice":
        name, _, word = event.text.removeprefix(BUTTON).partition(".")
        if not event.text.startswith(BUTTON) or len(name) != 32 or word not in ("y", "n"):
            return None
        try:
            notice = of_chat.filter(pk=UUID(hex=name)).first()
        except ValueError:
            return None
        return (notice, APPROVE if word == "y" else DENY, "") if notice else None
    said = _BY_CODE.fullmatch(event.text.strip()) if event.kind == "message" and len(event.text) < 600 else None
    if said is None:
        return None
    notice = next((each for each in of_chat.order_by("-pk")[:100] if each.code == said[2].lower()), None)
    decision: Decision = APPROVE if said[1].lower() == "approve" else DENY
    return (notice, decision, (said[3] or "").strip()) if notice else None


def _check(channel: Channel, event: Event) -> None:
    """Raise :class:`AlreadyDecided` for who may decide no more."""
    if _voter(channel, event) is None:
        raise AlreadyDecided("You may decide no more; nothing was decided.")


def _voter(channel: Channel, event: Event) -> Voter | None:
    """The user that a sender was said to be, who decides approvals; None for anybody else, and where nobody vouches for
    who has sent it."""
    if not event.is_proven:
        return None
    known = Sender.objects.filter(channel=channel, sender_id=event.sender_id).exclude(state=SenderState.BLOCKED)
    owner_id = known.values_list("owner_id", flat=True).first()
    user: Any = get_user_model().objects.filter(pk=owner_id or 0, is_active=True, is_staff=True).first()
    return Voter(pk=user.pk, name=user.get_username()) if user and user.has_perm(DECIDERS) else None
