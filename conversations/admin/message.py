"""Messages, in the admin."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from conversations.models import Compaction, Message
from nanohost.lib.admin import MAX_LISTED, GrowingAdmin, excerpt, link_to
from nanohost.lib.redaction import redact_known


@admin.register(Message)
class MessageAdmin(GrowingAdmin):
    """The transcripts, message by message."""

    nothing_yet = "Messages appear here as soon as somebody writes to an agent."
    list_display = ["created_at", "conversation", "seq", "role", "type", "kind", "content_begins", "tool_name"]
    list_prefetch_related = ["conversation"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id", "conversation__id", "turn__id"]
    search_help_text = "An id (or its beginning) of a message, conversation or turn; in a conversation's list, words."
    more_lookups = ["turn__exact"]
    readonly_fields = ["its_conversation", "its_turn", "made_of"]
    fields = ["id", "its_conversation", "its_turn", "seq", "role", "type", "kind", "made_of", "content"]
    fields += ["reasoning", "tool_calls", "tool_call_id", "tool_name", "tainted_by", "metadata", "created_at"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """Within one conversation: by words. In everything that was ever said, they would take a look at each."""
        if "conversation__exact" not in request.GET:
            return super().get_search_results(request, queryset, search_term)
        words = search_term.split()
        for word in words:
            queryset = queryset.filter(content__icontains=word)
        if not words:
            return queryset, False
        # No page shows the secrets that stand in a message, and none is found by them, or by parts of them.
        latest = queryset.order_by("-pk").values_list("pk", "content")[:MAX_LISTED]
        found = [
            pk
            for pk, content in latest.iterator(chunk_size=20)
            if all(word.lower() in redact_known(content).lower() for word in words)
        ]
        return queryset.filter(pk__in=found), False

    @admin.display(description="content")
    def content_begins(self, message: Message) -> str:
        return excerpt(message.content)

    @admin.display(description="conversation")
    def its_conversation(self, message: Message) -> str:
        return link_to("conversations_conversation", message.conversation_id, str(message.conversation))

    @admin.display(description="turn")
    def its_turn(self, message: Message) -> str:
        return link_to("conversations_turn", message.turn_id, str(message.turn)) if message.turn_id else "–"

    @admin.display(description="made of")
    def made_of(self, message: Message) -> str:
        """Of a summary, the messages it covers."""
        if message.type != Message.Type.SUMMARY:
            return "–"
        found = Compaction.objects.filter(conversation=message.conversation_id, summary_seq=message.seq).first()
        return link_to("conversations_compaction", found.pk, str(found)) if found else "–"
