"""Telling chats of calls that wait for consent, where their channel says so, and of what was decided."""

from typing import Any

from conversations.channel_models import ApprovalNotice
from conversations.channels import accounts
from conversations.deliveries import outbox
from conversations.engine import outgoing
from conversations.models import Conversation
from nanohost.lib.clock import from_now
from nanohost.lib.text import clip
from tools.approvals import wanted_hash
from tools.models import Approval
from tools.registry import ORIGIN

# What a button gives back begins with it; then come the notice's id and what is decided.
BUTTON = "a"
MAX_SHOWN = 1200
MANY = 500


def tell(approval: Approval) -> None:
    """Tell of a call that waits, in the chat of its conversation, in the transaction that asks for consent; of others
    arguments that are to be approved by now, as well."""
    conversation = Conversation.objects.filter(pk=approval.conversation_id).first() if accounts.names() else None
    if conversation is None or not accounts.is_of_a_channel(conversation.key):
        return
    chat = outgoing.destinations(conversation).get(ORIGIN)
    if chat is None or not chat.channel.approvals:
        return
    notice = ApprovalNotice(approval_id=approval.pk, chat=chat, arguments_hash=wanted_hash(approval))
    arguments = clip(approval.proposed or approval.arguments, MAX_SHOWN)
    text = f"The agent {approval.agent} wants to use **{approval.tool_name}**:\n\n```\n{arguments}\n```"
    buttons = [("Approve", f"{BUTTON}{notice.pk.hex}.y"), ("Deny", f"{BUTTON}{notice.pk.hex}.n")]
    words = f"If you may decide, answer `approve {notice.code}` or `deny {notice.code}`."
    whose: dict[str, Any] = {"conversation_id": conversation.pk, "turn_id": approval.turn_id}
    notice.delivery_id = outgoing.put_question(chat, text, buttons, instead=words, **whose).pk
    notice.save()


def reword(approval: Approval) -> None:
    """Say in the chats that were told of it what has become of it, in the transaction that decides."""
    if not accounts.names():
        return
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    words = f"**{approval.tool_name}** for the agent {approval.agent}: {approval.state}{by}."
    for notice in ApprovalNotice.objects.select_related("chat__channel").filter(approval_id=approval.pk):
        outgoing.reword(notice.chat, notice.delivery_id, words)


def forget_old() -> int:
    """Delete what chats were told of long ago; returns how many."""
    old = ApprovalNotice.objects.filter(created_at__lt=from_now(-outbox.KEPT_FOR.total_seconds()))
    gone = 0
    while found := list(old.values_list("pk", flat=True)[:MANY]):
        gone += ApprovalNotice.objects.filter(pk__in=found).delete()[0]
    return gone
