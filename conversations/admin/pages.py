"""What the pages of conversations share."""

from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from conversations.access import READERS

# A page shows so many of a turn's tool calls; the list of tool calls has the rest.
MAX_CALLS = 200


def check_readers(request: HttpRequest) -> None:
    """Let those pass who may see all that the pages of a conversation show."""
    if not request.user.has_perms(READERS):
        raise PermissionDenied


def number(request: HttpRequest, name: str) -> int | None:
    """A message's number out of the address; None for what is none."""
    given = request.GET.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None


def page_link(page: str, conversation_id: UUID, text: str) -> str:
    return format_html('<a href="{}">{}</a>', page_address(page, conversation_id), text)


def page_address(page: str, conversation_id: UUID) -> str:
    return reverse(f"admin:conversations_conversation_{page}", args=[conversation_id])
