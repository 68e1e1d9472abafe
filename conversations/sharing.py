"""Links by which others read a conversation: made, found by their token, revoked.

A token is shown once, when its link is made; only its hash is kept. It is shaped as keys are, so that whatever takes
secrets out of logs knows it.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from conversations.models import Conversation, Message, Share
from nanohost.accounts import audit
from nanohost.lib.clock import Now

MAX_DAYS = 365
_TOKEN = re.compile(r"nh_share_[A-Za-z0-9_-]{32}")


def share(conversation: Conversation, *, days: int, with_tools: bool) -> tuple[Share, str]:
    """A link to what there is of a conversation by now, and its token, which is told this once."""
    token = f"nh_share_{secrets.token_urlsafe(24)}"
    with transaction.atomic():
        made = Share.objects.create(
            conversation=conversation,
            owner_id=conversation.owner_id,
            digest=_digest(token),
            through_seq=Conversation.objects.values_list("next_seq", flat=True).get(pk=conversation.pk) - 1,
            with_tools=with_tools,
            expires_at=timezone.now() + timedelta(days=days),
        )
        told = {"conversation": str(conversation.pk), "expires_at": made.expires_at, "with_tools": with_tools}
        audit.record("share.made", about=made, name=str(conversation.pk), after=told)
    return made, token


def revoke(link: Share) -> bool:
    """Have it open nothing from now on; False if it was revoked before."""
    with transaction.atomic():
        if not Share.objects.filter(pk=link.pk, revoked_at=None).update(revoked_at=Now()):
            return False
        audit.record("share.revoked", about=link, name=str(link.conversation_id))
    return True


def find(token: str) -> Share | None:
    """The link of a token, if it opens something: whose it is may still sign in, and has not revoked it."""
    if not _TOKEN.fullmatch(token):
        return None
    rows = Share.objects.select_related("conversation__agent").filter(digest=_digest(token), owner__is_active=True)
    found = rows.first()
    return found if found and found.state == "active" else None


def read(link: Share, *, after: int, most: int) -> Sequence[Message]:
    """The next messages that it shows, behind a number: what was said, and of tools only what its owner chose."""
    rows = Message.objects.transcript().filter(conversation=link.conversation_id, seq__gt=after)
    rows = rows.filter(seq__lte=link.through_seq, type=Message.Type.NORMAL, kind=Message.Kind.SAID)
    shown = [Message.Role.USER, Message.Role.ASSISTANT]
    return list(rows.filter(role__in=[*shown, Message.Role.TOOL] if link.with_tools else shown)[:most])


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
