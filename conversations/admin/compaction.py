"""Compactions, in the admin."""

from django.conf import settings
from django.contrib import admin
from django.utils.html import format_html_join

from agent.spending.money import told_money
from conversations.admin.pages import MAX_CALLS
from conversations.models import Compaction, Message
from memory.models import HistoryEntry, MemoryVersion
from nanohost.lib.admin import GrowingAdmin, link_to


@admin.register(Compaction)
class CompactionAdmin(GrowingAdmin):
    """What was put into a summary, by which model, after which turn; and what went wrong with it."""

    nothing_yet = "A long conversation is summarised by itself; each summary appears here."
    list_display = ["created_at", "conversation", "kind", "day", "status", "first_seq", "through_seq", "is_stub"]
    list_display += ["failures", "error"]
    list_filter = ["created_at", "status"]
    list_prefetch_related = ["conversation"]
    search_fields = ["id", "conversation__id"]
    search_help_text = "An id (or its beginning) of a compaction or conversation."
    readonly_fields = ["its_conversation", "its_turn", "summary", "entries", "versions", "paid"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "its_turn", "kind", "day", "status", "first_seq", "through_seq"]}),
        ("Result", {"fields": ["summary", "is_stub", "entries", "versions", "model", "fallback_reason"]}),
        ("Undone", {"fields": ["undone_at", "undone_by", "undone_because"]}),
        ("Usage", {"fields": ["prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "paid"]}),
        (
            "Internals",
            {
                "classes": ["collapse"],
                "fields": [
                    "failures",
                    "error",
                    "worker",
                    "fence",
                    "lease_until",
                    "run_after",
                    "notified_at",
                    "retries",
                    "retrying_since",
                ],
            },
        ),
        ("Time", {"fields": ["created_at", "ended_at"]}),
    ]

    @admin.display(description="cost")
    def paid(self, compaction: Compaction) -> str:
        return told_money(compaction.cost, settings.CURRENCY)

    @admin.display(description="conversation")
    def its_conversation(self, compaction: Compaction) -> str:
        return link_to("conversations_conversation", compaction.conversation_id, str(compaction.conversation))

    @admin.display(description="after the turn")
    def its_turn(self, compaction: Compaction) -> str:
        return link_to("conversations_turn", compaction.turn_id, str(compaction.turn_id)) if compaction.turn_id else "–"

    @admin.display(description="summary")
    def summary(self, compaction: Compaction) -> str:
        if compaction.summary_seq is None:
            return "–"
        made = Message.objects.filter(conversation_id=compaction.conversation_id, seq=compaction.summary_seq).first()
        return made.content if made else "–"

    @admin.display(description="history log")
    def entries(self, compaction: Compaction) -> str:
        of_conversation = HistoryEntry.objects.filter(
            owner_id=compaction.conversation.owner_id, agent=compaction.conversation.agent.name
        ).filter(conversation_id=compaction.conversation_id, first_seq__gte=compaction.first_seq or 0)
        made = of_conversation.filter(last_seq__lte=compaction.through_seq or 0).order_by("first_seq")[:MAX_CALLS]
        return format_html_join("", "<p>{}</p>", ((entry.content,) for entry in made)) or "–"

    @admin.display(description="long-term memory")
    def versions(self, compaction: Compaction) -> str:
        if compaction.memory_version is None:
            return "–"
        version = MemoryVersion.objects.filter(
            owner_id=compaction.conversation.owner_id,
            agent=compaction.conversation.agent.name,
            number=compaction.memory_version,
        ).first()
        return link_to("memory_memoryversion", version.pk, str(version)) if version else "–"
