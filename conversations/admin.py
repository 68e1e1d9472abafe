"""What happened, in the admin: conversations, turns, messages and workers, to be read and not to be changed."""

from datetime import timedelta

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from conversations.errors import TurnProblem
from conversations.models import Conversation, Message, Turn, Worker
from nanohost.lib.admin import KnownValues, ReadOnlyAdmin, ReadOnlyInline, excerpt, link_to, link_to_list
from tools.admin import ToolCallAdmin
from tools.models import ToolCall

# A page shows so many of a turn's tool calls; the list of tool calls has the rest.
MOST_CALLS = 200


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    """A transcript with one owner and one agent."""

    list_display = ["created_at", "key", "owner", "agent", "updated_at"]
    list_filter = ["agent", "owner"]
    list_select_related = ["owner", "agent"]
    date_hierarchy = "created_at"
    search_fields = ["id__startswith", "key", "owner__username"]
    search_help_text = "An id (or its beginning), a key, an owner's name."
    fields = ["id", "key", "owner", "agent", "rows", "metadata", "next_seq", "next_turn", "created_at", "updated_at"]
    readonly_fields = ["rows"]

    @admin.display(description="its rows")
    def rows(self, conversation: Conversation) -> str:
        return format_html(
            "{} · {} · {}",
            link_to_list("conversations_turn", "turns", conversation=conversation.pk),
            link_to_list("conversations_message", "messages", conversation=conversation.pk),
            link_to_list("tools_toolcall", "tool calls", conversation_id=conversation.pk),
        )


class ErrorFilter(KnownValues):
    """By the code a failed turn shows its client."""

    title, parameter_name = "error code", "error_code"

    def values(self) -> list[str]:
        return list(TurnProblem.codes)


class MessageInline(ReadOnlyInline):
    """The turn's messages, in the order of the transcript."""

    model = Message
    fields = ["seq", "role", "content", "tool_calls", "tool_name", "created_at"]
    ordering = ["seq", "created_at"]


@admin.register(Turn)
class TurnAdmin(ReadOnlyAdmin):
    """From what a user said to its answer, or to the reason why there is none."""

    list_display = ["created_at", "status", "waiting_for", "error_code", "conversation", "number", "owner", "model"]
    list_display += ["worker", "ended_at"]
    list_filter = ["status", "waiting_for", ErrorFilter, "cancel_requested", "owner"]
    list_select_related = ["conversation", "owner"]
    date_hierarchy = "created_at"
    search_fields = ["id__startswith", "conversation__id__startswith", "request_id", "worker", "idempotency_key"]
    search_help_text = (
        "An id (or its beginning) of a turn or conversation; a request's id; a worker; an idempotency key."
    )
    inlines = [MessageInline]
    readonly_fields = ["its_conversation", "calls"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "number", "owner", "status", "waiting_for", "calls"]}),
        ("How it ended", {"fields": ["error_code", "error_detail", "cancel_requested", "ended_at"]}),
        (
            "What was asked",
            {"fields": ["model", "request_id", "idempotency_key", "prompt_tokens", "completion_tokens"]},
        ),
        (
            "How it is run",
            {"fields": ["worker", "fence", "lease_until", "deadline", "attempts", "retries", "run_after", "rung_at"]},
        ),
        ("Time", {"fields": ["created_at", "started_at"]}),
    ]

    @admin.display(description="conversation")
    def its_conversation(self, turn: Turn) -> str:
        return link_to("conversations_conversation", turn.conversation_id, str(turn.conversation))

    @admin.display(description="tool calls")
    def calls(self, turn: Turn) -> str:
        rows = ToolCall.objects.filter(turn_id=turn.pk).order_by("position")[:MOST_CALLS]
        cells = (
            (
                link_to("tools_toolcall", call.pk, call.tool_name or "(no name)"),
                call.status,
                call.rule,
                excerpt(call.arguments, 200),
                excerpt(call.result, 200),
                "" if call.duration_ms is None else f"{call.duration_ms} ms",
            )
            for call in rows
        )
        table = format_html_join("", f"<tr>{'<td>{}</td>' * 6}</tr>", cells)
        if not table:
            return "none"
        heads = ("tool", "status", "rule", "arguments", "result", "took")
        head = format_html_join("", "<th>{}</th>", ((name,) for name in heads))
        return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, table)


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """The transcripts, message by message."""

    list_display = ["created_at", "conversation", "seq", "role", "type", "content_begins", "tool_name"]
    list_filter = ["role", "type"]
    list_select_related = ["conversation"]
    date_hierarchy = "created_at"
    search_fields = ["id__startswith", "conversation__id__startswith", "turn__id__startswith", "content"]
    search_help_text = "An id (or its beginning) of a message, conversation or turn; words of the message."
    readonly_fields = ["its_conversation", "its_turn"]
    fields = ["id", "its_conversation", "its_turn", "seq", "role", "type", "content", "tool_calls", "tool_call_id"]
    fields += ["tool_name", "created_at"]

    @admin.display(description="content")
    def content_begins(self, message: Message) -> str:
        return excerpt(message.content)

    @admin.display(description="conversation")
    def its_conversation(self, message: Message) -> str:
        return link_to("conversations_conversation", message.conversation_id, str(message.conversation))

    @admin.display(description="turn")
    def its_turn(self, message: Message) -> str:
        return link_to("conversations_turn", message.turn_id, str(message.turn)) if message.turn_id else "–"


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """The worker processes: who lives, who died, and how much they hold."""

    list_display = ["name", "is_alive", "heartbeat_at", "turns_held", "turns_most", "version", "started_at", "ended_at"]
    search_fields = ["name"]
    fields = ["name", "is_alive", "version", "turns", "turns_held", "turns_most"]
    fields += ["started_at", "heartbeat_at", "ended_at"]
    readonly_fields = ["is_alive", "turns"]

    @admin.display(description="alive", boolean=True)
    def is_alive(self, worker: Worker) -> bool:
        heard_of = worker.heartbeat_at > timezone.now() - timedelta(seconds=3 * Worker.HEARTBEAT_SECONDS)
        return worker.ended_at is None and heard_of

    @admin.display(description="its turns")
    def turns(self, worker: Worker) -> str:
        return link_to_list("conversations_turn", "turns it claimed last", worker=worker.name)


# The tools' own page shows bare ids: that app knows nobody above it.
admin.site.unregister(ToolCall)


@admin.register(ToolCall)
class LinkedToolCallAdmin(ToolCallAdmin):
    """The tools' page of calls, with links to what they belong to; that may be deleted by now."""

    list_display = [*ToolCallAdmin.list_display[:-1], "turn"]
    fieldsets = [
        (None, {"fields": ["id", "tool_name", "status", "rule", "arguments", "result"]}),
        ("Belongs to", {"fields": ["turn", "conversation", "agent", "request_id", "call_id", "position"]}),
        *ToolCallAdmin.fieldsets[2:],
    ]
    readonly_fields = ["turn", "conversation"]

    @admin.display(description="turn")
    def turn(self, call: ToolCall) -> str:
        return link_to("conversations_turn", call.turn_id, str(call.turn_id))

    @admin.display(description="conversation")
    def conversation(self, call: ToolCall) -> str:
        return link_to("conversations_conversation", call.conversation_id, str(call.conversation_id))
