"""Conversations that legal holds keep."""

from django.db.models import Q, QuerySet

from conversations.models import Conversation
from nanohost.accounts.holds import Holds, Kind


def held(placed: Holds) -> QuerySet[Conversation]:
    """Those that one of these holds is on, or on their owner or agent."""
    on = {kind: [hold.subject for hold in placed.holds if hold.kind == kind] for kind in Kind}
    return Conversation.objects.filter(
        Q(owner__in=on[Kind.OWNER]) | Q(agent__name__in=on[Kind.AGENT]) | Q(pk__in=on[Kind.CONVERSATION])
    ).order_by()
