"""Tool calls, in the admin, with links to what they belong to."""

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from nanohost.lib.admin import link_to
from tools.admin import ToolCallAdmin
from tools.models import ToolCall

# The tools' own page shows bare ids: that app knows nobody above it.
admin.site.unregister(ToolCall)


@admin.register(ToolCall)
class LinkedToolCallAdmin(ToolCallAdmin):
    """The tools' page of calls, with links to what they belong to; that may be deleted by now."""

    list_display = [*ToolCallAdmin.list_display[:-1], "turn"]
    fieldsets = [
        (None, {"fields": ["id", "tool_name", "status", "rule", "why", "arguments", "result"]}),
        ("Belongs to", {"fields": ["turn", "conversation", "owner_id", "agent", "request_id", "call_id", "position"]}),
        *ToolCallAdmin.fieldsets[2:],
    ]
    readonly_fields = ["turn", "conversation", "why"]

    @admin.display(description="why?")
    def why(self, call: ToolCall) -> str:
        return format_html(
            '<a href="{}?call={}">rule by rule: what would become of it now</a>', reverse("admin:simulator"), call.pk
        )

    @admin.display(description="turn")
    def turn(self, call: ToolCall) -> str:
        return link_to("conversations_turn", call.turn_id, str(call.turn_id))

    @admin.display(description="conversation")
    def conversation(self, call: ToolCall) -> str:
        return link_to("conversations_conversation", call.conversation_id, str(call.conversation_id))
