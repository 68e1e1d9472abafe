"""Memories and the history, in the admin, with links to the messages they were made of."""

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from conversations.models import Compaction, Turn
from memory.admin import HistoryEntryAdmin, MemoryVersionAdmin
from memory.models import HistoryEntry, MemoryVersion
from nanohost.lib.admin import link_to, link_to_list

# The memory's own pages show bare ids of conversations and turns. Both may be gone; what they said is remembered.
admin.site.unregister([MemoryVersion, HistoryEntry])


class _MadeOfMessages:
    """Links from what is remembered to where it came from: the turn, and the messages in the transcript."""

    @admin.display(description="conversation")
    def its_conversation(self, row: MemoryVersion | HistoryEntry) -> str:
        shown_as = row.conversation_id
        return link_to("conversations_conversation", shown_as, str(shown_as)) if shown_as else "–"

    @admin.display(description="turn")
    def its_turn(self, row: MemoryVersion | HistoryEntry) -> str:
        return link_to("conversations_turn", row.turn_id, str(row.turn_id)) if row.turn_id else "–"

    @admin.display(description="messages")
    def its_messages(self, row: MemoryVersion | HistoryEntry) -> str:
        """Those it names; what a tool wrote names its turn alone, whose messages they are."""
        if row.conversation_id and row.first_seq is not None:
            address = reverse("admin:conversations_conversation_transcript", args=[row.conversation_id])
            place = f"?after={row.first_seq - 1}#message-{row.first_seq}"
            return format_html('<a href="{}{}">{} to {}</a>', address, place, row.first_seq, row.last_seq)
        if row.turn_id is None:
            return "–"
        return link_to_list("conversations_message", "those of its turn", turn=row.turn_id)

    @admin.display(description="model")
    def its_model(self, row: MemoryVersion | HistoryEntry) -> str:
        """Of what a tool wrote, the one that called it."""
        if row.model or row.turn_id is None:
            return row.model or "–"
        asked = Turn.objects.filter(pk=row.turn_id).values_list("model", flat=True).first()
        return f"{asked}, by its turn" if asked else "–"


_ORIGIN = ["its_conversation", "its_turn", "its_messages", "its_model"]


@admin.register(MemoryVersion)
class LinkedMemoryVersionAdmin(_MadeOfMessages, MemoryVersionAdmin):
    """The memory's page of versions, with links to what each came from."""

    readonly_fields = [*MemoryVersionAdmin.readonly_fields, *_ORIGIN, "its_compaction"]
    fieldsets = [
        MemoryVersionAdmin.fieldsets[0],
        ("Where it came from", {"fields": ["source", *_ORIGIN, "its_compaction", "made_by", "created_at"]}),
        ("Untrusted", {"fields": ["tainted_by"]}),
        MemoryVersionAdmin.fieldsets[-1],
    ]

    @admin.display(description="made with the summary of")
    def its_compaction(self, version: MemoryVersion) -> str:
        if version.number is None or version.conversation_id is None or version.last_seq is None:
            return "–"
        made = Compaction.objects.filter(conversation=version.conversation_id, memory_version=version.number)
        found = made.order_by("-summary_seq").first()
        return link_to("conversations_compaction", found.pk, str(found)) if found else "–"


@admin.register(HistoryEntry)
class LinkedHistoryEntryAdmin(_MadeOfMessages, HistoryEntryAdmin):
    """The memory's page of the history log, with links to what each entry tells of."""

    fields = ["agent", "owner", "kind", "content", "day", "happened_at", "happened_until", *_ORIGIN, "tainted_by"]
    fields += ["created_at"]
    readonly_fields = _ORIGIN
