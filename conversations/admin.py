"""What happened, in the admin: conversations, turns, messages and workers, to be read and not to be changed."""

from datetime import timedelta

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from conversations import steering
from conversations.errors import TurnProblem
from conversations.models import (
    OPEN,
    Compaction,
    Conversation,
    LaterMessage,
    Message,
    Turn,
    TurnStatus,
    WaitingFor,
    Worker,
)
from memory.models import HistoryEntry, MemoryVersion
from nanohost.lib.admin import (
    CANCEL,
    FAIL,
    REQUEUE,
    GrowingAdmin,
    KnownValues,
    ReadOnlyAdmin,
    ReadOnlyInline,
    excerpt,
    link_to,
    link_to_list,
)
from tools.admin import ToolCallAdmin
from tools.models import ToolCall

# A page shows so many of a turn's tool calls; the list of tool calls has the rest.
MOST_CALLS = 200


@admin.register(Conversation)
class ConversationAdmin(GrowingAdmin):
    """A transcript with one owner and one agent."""

    list_display = ["created_at", "key", "owner", "agent", "updated_at"]
    list_filter = ["created_at", "agent", "owner"]
    list_prefetch_related = ["owner", "agent"]
    search_fields = ["id", "key"]
    search_help_text = "An id (or its beginning), a key."
    fields = ["id", "key", "owner", "agent", "rows", "summary", "consolidated_through", "starts_at_seq", "state"]
    fields += ["metadata", "next_seq", "next_turn", "created_at", "updated_at"]
    readonly_fields = ["rows", "summary"]

    @admin.display(description="its rows")
    def rows(self, conversation: Conversation) -> str:
        return format_html(
            "{} · {} · {} · {}",
            link_to_list("conversations_turn", "turns", conversation=conversation.pk),
            link_to_list("conversations_compaction", "compactions", conversation=conversation.pk),
            link_to_list("conversations_message", "messages", conversation=conversation.pk),
            link_to_list("tools_toolcall", "tool calls", conversation_id=conversation.pk),
        )

    @admin.display(description="its summary")
    def summary(self, conversation: Conversation) -> str:
        latest = Message.objects.filter(conversation=conversation, seq=conversation.summary_seq).first()
        return latest.content if latest and conversation.summary_seq else "–"


class ErrorFilter(KnownValues):
    """By the code a failed turn shows its client."""

    title, parameter_name = "error code", "error_code"

    def values(self) -> list[str]:
        return list(TurnProblem.codes)


class WaitingForFilter(KnownValues):
    """By what a turn waits for. Only those that wait are looked at, which are few."""

    title, parameter_name = "waiting for", "waiting_for"

    def values(self) -> list[str]:
        return list(WaitingFor)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        return super().queryset(request, queryset.filter(status__in=OPEN) if self.value() else queryset)


class MessageInline(ReadOnlyInline):
    """The turn's messages, in the order of the transcript."""

    model = Message
    fields = ["seq", "role", "content", "tool_calls", "tool_name", "created_at"]
    ordering = ["seq", "created_at"]


@admin.register(Turn)
class TurnAdmin(GrowingAdmin):
    """From what a user said to its answer, or to the reason why there is none."""

    list_display = ["created_at", "status", "waiting_for", "error_code", "conversation", "number", "owner", "model"]
    list_display += ["worker", "ended_at"]
    list_filter = ["created_at", "status", WaitingForFilter, ErrorFilter, "owner"]
    list_prefetch_related = ["conversation", "owner"]
    search_fields = ["id", "conversation__id", "request_id"]
    search_help_text = "An id (or its beginning) of a turn or conversation; a request's id."
    actions = ["requeue_turns", "cancel_turns", "fail_turns"]
    inlines = [MessageInline]
    readonly_fields = ["its_conversation", "calls"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "number", "owner", "status", "waiting_for", "calls"]}),
        ("How it ended", {"fields": ["error_code", "error_detail", "cancel_requested", "ended_at"]}),
        (
            "What was asked",
            {
                "fields": [
                    "model",
                    "agent_version",
                    "request_id",
                    "idempotency_key",
                    "prompt_tokens",
                    "completion_tokens",
                ]
            },
        ),
        (
            "How it is run",
            {"fields": ["worker", "fence", "lease_until", "deadline", "attempts", "retries", "run_after", "rung_at"]},
        ),
        ("Time", {"fields": ["created_at", "started_at"]}),
    ]

    @admin.action(description="Requeue the selected turns", permissions=[REQUEUE])
    def requeue_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return steering.steer(request, steering.ACTS["requeue_turns"], queryset)

    @admin.action(description="Cancel the selected turns", permissions=[CANCEL])
    def cancel_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return steering.steer(request, steering.ACTS["cancel_turns"], queryset)

    @admin.action(description="Fail the selected turns", permissions=[FAIL])
    def fail_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return steering.steer(request, steering.ACTS["fail_turns"], queryset)

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
class MessageAdmin(GrowingAdmin):
    """The transcripts, message by message."""

    list_display = ["created_at", "conversation", "seq", "role", "type", "kind", "content_begins", "tool_name"]
    list_prefetch_related = ["conversation"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id", "conversation__id", "turn__id"]
    search_help_text = "An id (or its beginning) of a message, conversation or turn; in a conversation's list, words."
    readonly_fields = ["its_conversation", "its_turn"]
    fields = ["id", "its_conversation", "its_turn", "seq", "role", "type", "kind", "content", "tool_calls"]
    fields += ["tool_call_id", "tool_name", "metadata", "created_at"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """Within one conversation: by words. In everything that was ever said, they would take a look at each."""
        if "conversation__exact" not in request.GET:
            return super().get_search_results(request, queryset, search_term)
        for word in search_term.split():
            queryset = queryset.filter(content__icontains=word)
        return queryset, False

    @admin.display(description="content")
    def content_begins(self, message: Message) -> str:
        return excerpt(message.content)

    @admin.display(description="conversation")
    def its_conversation(self, message: Message) -> str:
        return link_to("conversations_conversation", message.conversation_id, str(message.conversation))

    @admin.display(description="turn")
    def its_turn(self, message: Message) -> str:
        return link_to("conversations_turn", message.turn_id, str(message.turn)) if message.turn_id else "–"


@admin.register(Compaction)
class CompactionAdmin(GrowingAdmin):
    """What was put into a summary, by which model, after which turn; and what went wrong with it."""

    list_display = ["created_at", "conversation", "status", "first_seq", "through_seq", "is_stub", "failures", "error"]
    list_filter = ["created_at", "status"]
    list_prefetch_related = ["conversation"]
    search_fields = ["id", "conversation__id"]
    search_help_text = "An id (or its beginning) of a compaction or conversation."
    readonly_fields = ["its_conversation", "its_turn", "summary", "entries", "versions"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "its_turn", "status", "first_seq", "through_seq"]}),
        ("What was made", {"fields": ["summary", "is_stub", "entries", "versions", "model"]}),
        ("Tokens", {"fields": ["prompt_tokens", "completion_tokens"]}),
        ("How it is run", {"fields": ["failures", "error", "worker", "fence", "lease_until", "run_after", "rung_at"]}),
        ("Time", {"fields": ["created_at", "ended_at"]}),
    ]

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
        made = of_conversation.filter(last_seq__lte=compaction.through_seq or 0).order_by("first_seq")[:MOST_CALLS]
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


@admin.register(LaterMessage)
class LaterMessageAdmin(GrowingAdmin):
    """Messages with a time, and those that ride along with the next turn: what became of each."""

    list_display = ["created_at", "conversation", "kind", "state", "run_after", "tries", "content_begins"]
    list_filter = ["created_at", "state"]
    list_prefetch_related = ["conversation"]
    search_fields = ["id", "conversation__id"]
    search_help_text = "An id (or its beginning) of a message or conversation."
    readonly_fields = ["its_conversation", "its_turn"]
    fields = ["id", "its_conversation", "kind", "content", "model", "state", "run_after", "tries", "its_turn"]
    fields += ["idempotency_key", "request_id", "created_at"]

    @admin.display(description="content")
    def content_begins(self, message: LaterMessage) -> str:
        return excerpt(message.content)

    @admin.display(description="conversation")
    def its_conversation(self, message: LaterMessage) -> str:
        return link_to("conversations_conversation", message.conversation_id, str(message.conversation))

    @admin.display(description="turn")
    def its_turn(self, message: LaterMessage) -> str:
        return link_to("conversations_turn", message.turn_id, str(message.turn_id)) if message.turn_id else "–"


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """The worker processes: who lives, who died, and how much they hold."""

    list_display = ["name", "is_alive", "queues", "heartbeat_at", "turns_held", "turns_most", "version", "started_at"]
    list_display += ["ended_at"]
    search_fields = ["name"]
    fields = ["name", "is_alive", "queues", "version", "turns", "turns_held", "turns_most"]
    fields += ["started_at", "heartbeat_at", "ended_at"]
    readonly_fields = ["is_alive", "turns"]

    @admin.display(description="alive", boolean=True)
    def is_alive(self, worker: Worker) -> bool:
        heard_of = worker.heartbeat_at > timezone.now() - timedelta(seconds=3 * Worker.HEARTBEAT_SECONDS)
        return worker.ended_at is None and heard_of

    @admin.display(description="its turns")
    def turns(self, worker: Worker) -> str:
        return link_to_list("conversations_turn", "turns it holds", worker=worker.name, status=TurnStatus.RUNNING)


# The tools' own page shows bare ids: that app knows nobody above it.
admin.site.unregister(ToolCall)


@admin.register(ToolCall)
class LinkedToolCallAdmin(ToolCallAdmin):
    """The tools' page of calls, with links to what they belong to; that may be deleted by now."""

    list_display = [*ToolCallAdmin.list_display[:-1], "turn"]
    fieldsets = [
        (None, {"fields": ["id", "tool_name", "status", "rule", "arguments", "result"]}),
        ("Belongs to", {"fields": ["turn", "conversation", "owner_id", "agent", "request_id", "call_id", "position"]}),
        *ToolCallAdmin.fieldsets[2:],
    ]
    readonly_fields = ["turn", "conversation"]

    @admin.display(description="turn")
    def turn(self, call: ToolCall) -> str:
        return link_to("conversations_turn", call.turn_id, str(call.turn_id))

    @admin.display(description="conversation")
    def conversation(self, call: ToolCall) -> str:
        return link_to("conversations_conversation", call.conversation_id, str(call.conversation_id))
