"""Feedback on answers, in the admin."""

from django.contrib import admin

from conversations.feedback_models import Feedback
from nanohost.lib.admin import GrowingAdmin, link_to


@admin.register(Feedback)
class FeedbackAdmin(GrowingAdmin):
    """What people think of answers."""

    nothing_yet = "Thumbs and comments on answers appear here: from the chat page, the API, and reactions in chats."
    list_per_page = 50
    list_display = ["created_at", "rating", "turn", "by", "comment"]
    list_filter = ["created_at", "rating"]
    list_prefetch_related = ["turn"]
    search_fields = ["id", "turn__id"]
    search_help_text = "An id (or its beginning) of feedback or of its turn."
    fields = ["id", "rating", "comment", "by", "its_turn", "created_at", "updated_at"]
    readonly_fields = ["its_turn"]

    @admin.display(description="turn")
    def its_turn(self, row: Feedback) -> str:
        return link_to("conversations_turn", row.turn_id, str(row.turn))
