"""Messages to come, in the admin."""

from django.contrib import admin

from conversations.models import DeferredMessage
from nanohost.lib.admin import GrowingAdmin, excerpt, link_to


@admin.register(DeferredMessage)
class DeferredMessageAdmin(GrowingAdmin):
    """Messages with a time, and those that ride along with the next turn: what became of each."""

    nothing_yet = "A message with a time, or one that waits for the next turn, appears here when a client sends it."
    list_display = ["created_at", "conversation", "kind", "state", "run_after", "tries", "content_begins"]
    list_filter = ["created_at", "state"]
    list_prefetch_related = ["conversation"]
    search_fields = ["id", "conversation__id"]
    search_help_text = "An id (or its beginning) of a message or conversation."
    readonly_fields = ["its_conversation", "its_turn", "files"]
    fields = ["id", "its_conversation", "kind", "content", "files", "model", "state", "run_after", "tries", "its_turn"]
    fields += ["idempotency_key", "request_id", "created_at"]

    @admin.display(description="content")
    def content_begins(self, message: DeferredMessage) -> str:
        return excerpt(message.content)

    @admin.display(description="conversation")
    def its_conversation(self, message: DeferredMessage) -> str:
        return link_to("conversations_conversation", message.conversation_id, str(message.conversation))

    @admin.display(description="files")
    def files(self, message: DeferredMessage) -> str:
        return ", ".join(f"{each['name']} ({each['type']})" for each in message.attachments or ()) or "–"

    @admin.display(description="turn")
    def its_turn(self, message: DeferredMessage) -> str:
        return link_to("conversations_turn", message.turn_id, str(message.turn_id)) if message.turn_id else "–"
