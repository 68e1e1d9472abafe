"""What happened, in the admin: conversations, turns, messages and workers, to be read and not to be changed."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST

from agent.models import AgentVersion
from conversations import pins, summaries, waits
from conversations.admin import bulk_actions, export, reading
from conversations.engine import inbox, intake, turn_control
from conversations.errors import TurnProblem
from conversations.models import (
    MOST_REASON,
    MOST_SEQ,
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
from conversations.web.gateway import PARTS_HEADER
from memory.admin import HistoryEntryAdmin, MemoryVersionAdmin
from memory.models import HistoryEntry, MemoryVersion
from nanohost.lib import clock
from nanohost.lib.admin import (
    CANCEL,
    FAIL,
    MOST_LISTED,
    PIN,
    REQUEUE,
    UNDO,
    GrowingAdmin,
    KnownValues,
    ReadOnlyAdmin,
    ReadOnlyInline,
    excerpt,
    link_to,
    link_to_list,
    shown,
    table,
)
from nanohost.lib.errors import Problem
from nanohost.lib.ids import request_id
from nanohost.lib.redaction import redact_known
from tools.admin import ToolCallAdmin
from tools.models import ToolCall

T = TypeVar("T")

# What the pages of a conversation show, whoever reads one has to be allowed to see.
READERS = [
    *("conversations.view_conversation", "conversations.view_message", "conversations.view_turn"),
    *("tools.view_toolcall", "agent.view_agentversion", "memory.view_memoryversion"),
]

# A page shows so many of a turn's tool calls; the list of tool calls has the rest.
MOST_CALLS = 200


@admin.register(Conversation)
class ConversationAdmin(GrowingAdmin):
    """A transcript with one owner and one agent."""

    list_display = ["created_at", "key", "owner", "agent", "updated_at", "transcript"]
    list_filter = ["created_at", "agent", "owner"]
    list_prefetch_related = ["owner", "agent"]
    search_fields = ["id", "key"]
    search_help_text = "An id (or its beginning), a key."
    actions = ["cancel", "ask_again"]
    fields = ["id", "key", "owner", "agent", "rows", "summary", "consolidated_through", "starts_at_seq", "pins", "kept"]
    fields += ["metadata", "next_seq", "next_turn", "created_at", "updated_at"]
    readonly_fields = ["rows", "summary", "kept"]

    def get_urls(self) -> list[Any]:
        pages: dict[str, tuple[str, Any]] = {
            "transcript": ("<uuid:pk>/transcript/", self.transcript_view),
            "json": ("<uuid:pk>/export.json", self.json_view),
            "jsonl": ("<uuid:pk>/export.jsonl", self.json_lines_view),
            "cancel_turn": ("<uuid:pk>/turns/<int:number>/cancel/", require_POST(self.cancel_view)),
            "ask_again": ("<uuid:pk>/turns/<int:number>/ask-again/", require_POST(self.ask_again_view)),
            "pin": ("<uuid:pk>/messages/<int:seq>/pin/", require_POST(self.pin_view)),
            "unpin": ("<uuid:pk>/messages/<int:seq>/unpin/", require_POST(self.unpin_view)),
            "undo": ("<uuid:pk>/summaries/<int:seq>/undo/", self.undo_view),
        }
        return [
            path(address, self.admin_site.admin_view(view), name=f"conversations_conversation_{name}")
            for name, (address, view) in pages.items()
        ] + super().get_urls()

    def get_actions(self, request: HttpRequest) -> Any:
        """Without Django's way to delete several, which would read every message there is."""
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return request.user.has_perm("conversations.delete_conversation")

    def has_cancel_turn_permission(self, request: HttpRequest) -> bool:
        """Turns are acted on here as in their own list."""
        return request.user.has_perm("conversations.cancel_turn")

    def has_requeue_turn_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("conversations.requeue_turn")

    def transcript_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """What was said, as people read it."""
        conversation = self._readable(request, pk)
        page = reading.read(conversation, before=_number(request, "before"), after=_number(request, "after"))
        told: dict[str, Any] = {"conversation": conversation, "page": page, "key": shown(conversation.key)}
        told |= {"may_cancel": self.has_cancel_turn_permission(request)}
        told |= {"may_ask": self.has_requeue_turn_permission(request)}
        told |= {"may_pin": self._may(request, PIN), "may_undo": self._may(request, UNDO)}
        told |= {"may_delete": self.has_delete_permission(request)}
        told |= {"owner": shown(conversation.owner.get_username()), "title": "Transcript", "opts": self.opts}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/transcript.html", context)

    def json_view(self, request: HttpRequest, pk: UUID) -> StreamingHttpResponse:
        """All of it as one object of JSON."""
        conversation = self._readable(request, pk)
        return _as_file(export.as_json(conversation), f"conversation-{pk}.json", "application/json")

    def json_lines_view(self, request: HttpRequest, pk: UUID) -> StreamingHttpResponse:
        """All of it as JSON, a line each."""
        conversation = self._readable(request, pk)
        return _as_file(export.as_json_lines(conversation), f"conversation-{pk}.jsonl", "application/jsonl")

    def cancel_view(self, request: HttpRequest, pk: UUID, number: int) -> HttpResponse:
        """Cancel a turn, as its client might."""
        if not self.has_cancel_turn_permission(request):
            raise PermissionDenied
        turn = self._turn(pk, number)
        if reading.may_be_cancelled(turn) and turn_control.cancel_turn(turn):
            self.log_change(request, turn.conversation, f"Cancelled turn {number}.")
            self.message_user(request, f"Turn {number} is cancelled, or will be in a moment.", messages.SUCCESS)
        else:
            self.message_user(request, f"Turn {number} has ended already.", messages.WARNING)
        return self._back_to(pk)

    def ask_again_view(self, request: HttpRequest, pk: UUID, number: int) -> HttpResponse:
        """Ask a failed turn once more, in a new one."""
        if not self.has_requeue_turn_permission(request):
            raise PermissionDenied
        self._ask_again(request, self._turn(pk, number))
        return self._back_to(pk)

    def _ask_again(self, request: HttpRequest, turn: Turn) -> None:
        if before := inbox.asked_again([turn]).get(turn.pk):
            told = f"Turn {turn.number} was asked again already, as turn {before.number}."
            self.message_user(request, told, messages.WARNING)
            return
        try:
            again = inbox.ask_again(turn, request_id=request_id(request.headers.get("X-Request-ID")))
        except Problem as problem:
            self.message_user(request, f"Turn {turn.number}: {problem.title} {problem.detail}", messages.ERROR)
            return
        self.log_change(request, turn.conversation, f"Asked turn {turn.number} again, as turn {again.number}.")
        self.message_user(request, f"Turn {turn.number} is asked again, as turn {again.number}.", messages.SUCCESS)

    def pin_view(self, request: HttpRequest, pk: UUID, seq: int) -> HttpResponse:
        """Have a message in every prompt."""
        message = self._message(request, pk, seq, PIN)
        try:
            pins.pin(pk, message.pk, by=request.user.get_username())
        except Problem as problem:
            self.message_user(request, f"Message {seq} is not pinned. {problem.detail}", messages.ERROR)
        else:
            self.log_change(request, message.conversation, f"Pinned message {seq}.")
            self.message_user(request, f"Message {seq} is in every prompt from now on.", messages.SUCCESS)
        return self._back_to(pk)

    def unpin_view(self, request: HttpRequest, pk: UUID, seq: int) -> HttpResponse:
        """Have a message in prompts as others are."""
        message = self._message(request, pk, seq, PIN)
        if pins.unpin(pk, message.pk):
            self.log_change(request, message.conversation, f"Unpinned message {seq}.")
        self.message_user(request, f"Message {seq} is not pinned any more.", messages.SUCCESS)
        return self._back_to(pk)

    @method_decorator(csrf_protect)
    def undo_view(self, request: HttpRequest, pk: UUID, seq: int) -> HttpResponse:
        """Ask whether a summary is to be undone, and why; or do it, once that is answered."""
        message = self._message(request, pk, seq, UNDO)
        reason = request.POST.get("reason", "").replace("\x00", "").strip()
        if request.POST.get("confirmed") != "yes" or not reason:
            is_missing = "confirmed" in request.POST
            told: dict[str, Any] = {"seq": seq, "text": reading.cut(message.content), "opts": self.opts}
            told |= {"title": "Undo a summary?", "is_missing": is_missing, "most_reason": MOST_REASON}
            told |= {"back": reverse("admin:conversations_conversation_transcript", args=[pk])}
            context = self.admin_site.each_context(request) | told
            status = 400 if is_missing else 200
            return TemplateResponse(request, "admin/conversations/undo.html", context, status=status)
        try:
            undone = summaries.undo(pk, seq, by=request.user.get_username(), reason=reason)
        except Problem as problem:
            self.message_user(request, f"Summary {seq} stays. {problem.detail}", messages.ERROR)
        else:
            self.log_change(request, message.conversation, f"Undid summary {seq}: {undone.undone_because}")
            self.message_user(request, f"Summary {seq} is undone.", messages.SUCCESS)
        return self._back_to(pk)

    def _message(self, request: HttpRequest, pk: UUID, seq: int, act: str) -> Message:
        """The message to act on, for those who may."""
        if not self._may(request, act):
            raise PermissionDenied
        self._readable(request, pk)
        found = Message.objects.select_related("conversation")
        message = found.filter(conversation=pk, seq=min(seq, MOST_SEQ)).first()
        if message is None:
            raise Http404("There is no such message; perhaps its conversation was deleted.")
        return message

    def _turn(self, pk: UUID, number: int) -> Turn:
        found = Turn.objects.select_related("conversation__agent").filter(conversation=pk, number=number).first()
        if found is None:
            raise Http404("There is no such turn; perhaps its conversation was deleted.")
        return found

    def _back_to(self, pk: UUID) -> HttpResponse:
        return redirect("admin:conversations_conversation_transcript", pk)

    @admin.action(description="Cancel what is under way in the selected conversations", permissions=["cancel_turn"])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Conversation]) -> None:
        count = 0
        # The last first, so that none starts when one before it ends.
        for turn in Turn.objects.open().filter(conversation__in=list(chosen)).order_by("conversation_id", "-number"):
            if turn_control.cancel_turn(turn):
                self.log_change(request, turn.conversation, f"Cancelled turn {turn.number}.")
                count += 1
        self.message_user(request, f"{count} turns are cancelled, or will be in a moment.", messages.SUCCESS)

    @admin.action(
        description="Ask the last turn of the selected conversations again, if it failed", permissions=["requeue_turn"]
    )
    def ask_again(self, request: HttpRequest, chosen: QuerySet[Conversation]) -> HttpResponse:
        later = Turn.objects.filter(conversation=OuterRef("conversation"), number__gt=OuterRef("number"))
        last = Turn.objects.filter(~Exists(later), conversation__in=list(chosen))
        turns, page = reverse("admin:conversations_turn_changelist"), request.get_full_path()
        return bulk_actions.steer(request, bulk_actions.ACTS["ask_again"], last, page=page, confirm_at=turns)

    @method_decorator(csrf_protect)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """What goes and what stays; then it is deleted."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        conversation = self.get_object(request, unquote(object_id))
        if conversation is None:
            raise Http404("There is no such conversation; perhaps it was deleted.")
        if request.method == "POST":
            self.log_deletions(request, Conversation.objects.filter(pk=conversation.pk))
            turn_control.delete_conversation(conversation.pk)
            self.message_user(request, f"The conversation {conversation} is deleted.", messages.SUCCESS)
            return redirect("admin:conversations_conversation_changelist")
        told = {"conversation": conversation, "key": shown(conversation.key), "opts": self.opts}
        told |= {"owner": shown(conversation.owner.get_username()), "title": "Delete a conversation"}
        told |= {"messages_made": conversation.next_seq - 1, "turns_made": conversation.next_turn - 1}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/delete.html", context)

    def _readable(self, request: HttpRequest, pk: UUID) -> Conversation:
        """The conversation, with its agent and owner."""
        check_readers(request)
        found = Conversation.objects.select_related("agent", "owner").filter(pk=pk).first()
        if found is None:
            raise Http404("There is no such conversation; perhaps it was deleted.")
        return found

    @admin.display(description="transcript")
    def transcript(self, conversation: Conversation) -> str:
        return _page_link("transcript", conversation.pk, "read")

    @admin.display(description="its rows")
    def rows(self, conversation: Conversation) -> str:
        return format_html(
            "{} · {} · {} · {} · {} · {} · {}",
            _page_link("transcript", conversation.pk, "transcript"),
            _page_link("json", conversation.pk, "as JSON"),
            _page_link("jsonl", conversation.pk, "as JSON lines"),
            link_to_list("conversations_turn", "turns", conversation=conversation.pk),
            link_to_list("conversations_compaction", "compactions", conversation=conversation.pk),
            link_to_list("conversations_message", "messages", conversation=conversation.pk),
            link_to_list("tools_toolcall", "tool calls", conversation_id=conversation.pk),
        )

    @admin.display(description="state", empty_value="–")
    def kept(self, conversation: Conversation) -> str | None:
        rows = ((shown(key), shown(_as_text(value)), _when(at)) for key, (value, at) in conversation.kept().items())
        return table(["Key", "Value", "Kept at"], rows) or None

    @admin.display(description="its summary")
    def summary(self, conversation: Conversation) -> str:
        latest = Message.objects.filter(conversation=conversation, seq=conversation.summary_seq).first()
        return latest.content if latest and conversation.summary_seq else "–"


def _as_text(value: object) -> str:
    """Tools keep texts; a file that was taken in may have held anything."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _when(at: datetime | None) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %z}" if at else "–"


def check_readers(request: HttpRequest) -> None:
    """Let those pass who may see all that the pages of a conversation show."""
    if not request.user.has_perms(READERS):
        raise PermissionDenied


def _number(request: HttpRequest, name: str) -> int | None:
    """A message's number out of the address; None for what is none."""
    given = request.GET.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None


def _as_file(parts: Iterator[bytes], name: str, content_type: str) -> StreamingHttpResponse:
    """What a browser stores as a file, while it is made."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store", PARTS_HEADER: "1"}
    return StreamingHttpResponse(parts, content_type=content_type, headers=headers)


def _once(turn: Turn, name: str, find: Callable[[], T]) -> T:
    """What is found out for a page; the theme asks for a field several times."""
    known: dict[str, Any] = vars(turn)
    if name not in known:
        known[name] = find()
    found: T = known[name]
    return found


def _page_link(page: str, conversation_id: UUID, text: str) -> str:
    return format_html('<a href="{}">{}</a>', _page_address(page, conversation_id), text)


def _page_address(page: str, conversation_id: UUID) -> str:
    return reverse(f"admin:conversations_conversation_{page}", args=[conversation_id])


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
    list_display += ["worker", "ended_at", "asked_again"]
    list_filter = ["created_at", "status", WaitingForFilter, ErrorFilter, "owner"]
    list_prefetch_related = ["conversation", "owner"]
    search_fields = ["id", "conversation__id", "request_id"]
    search_help_text = "An id (or its beginning) of a turn or conversation; a request's id."
    actions = ["requeue_turns", "cancel_turns", "fail_turns", "ask_again"]
    inlines = [MessageInline]
    readonly_fields = ["its_conversation", "gave_way_to", "calls", "version", "sent_to_model", "stands", "asked_again"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "number", "owner", "status", "waiting_for", "stands", "calls"]}),
        (
            "How it ended",
            {"fields": ["error_code", "error_detail", "asked_again", "cancel_requested", "gave_way_to", "ended_at"]},
        ),
        (
            "What was asked",
            {
                "fields": [
                    "model",
                    "sent_to_model",
                    "version",
                    "request_id",
                    "idempotency_key",
                    "prompt_tokens",
                    "completion_tokens",
                    "model_calls",
                    "model_ms",
                ]
            },
        ),
        (
            "How it is run",
            {"fields": ["worker", "fence", "lease_until", "deadline", "attempts", "run_after", "rung_at"]},
        ),
        ("What failed and is tried again", {"fields": ["retries", "retry_code", "retry_detail", "retrying_since"]}),
        ("Time", {"fields": ["created_at", "started_at", "stepped_at"]}),
    ]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.sent_view)
        return [path("<uuid:pk>/sent/", view, name="conversations_turn_sent"), *super().get_urls()]

    def sent_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """What the model was sent in this turn, call by call."""
        check_readers(request)
        turn = Turn.objects.select_related("conversation__agent").filter(pk=pk).first()
        if turn is None:
            raise Http404("There is no such turn; perhaps its conversation was deleted.")
        told = reading.sent(turn, number=_number(request, "call")) | {
            "opts": self.opts,
            "title": "What the model was sent",
        }
        return TemplateResponse(request, "admin/conversations/sent.html", self.admin_site.each_context(request) | told)

    @admin.display(description="version of its agent", empty_value="–")
    def version(self, turn: Turn) -> str | None:
        """That it ran with since it was last taken up; each model call has its own."""
        number = turn.agent_version
        found = AgentVersion.objects.filter(agent=turn.conversation.agent_id, number=number).first() if number else None
        if number and not found:
            return f"version {number}, which is not kept"
        return link_to("agent_agentversion", found.pk, str(found)) if found else None

    @admin.display(description="what the model was sent")
    def sent_to_model(self, turn: Turn) -> str:
        return format_html(
            '<a href="{}">each of its model calls</a>', reverse("admin:conversations_turn_sent", args=[turn.pk])
        )

    @admin.display(description="what it waits for", empty_value="–")
    def stands(self, turn: Turn) -> str | None:
        """At its model: an answer, or the next try."""
        if turn.ended:
            return None
        return _once(turn, "_stands", lambda: shown(waits.stands(turn, clock.read()))) or None

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        listed = super().get_changelist_instance(request)
        self._look_up(request, listed.result_list)
        return listed

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Turn | None:
        turn: Turn | None = super().get_object(request, object_id, from_field)
        self._look_up(request, [turn] if turn else [])
        return turn

    def _look_up(self, request: HttpRequest, turns: Sequence[Any]) -> None:
        """Of each, whether it was asked again, and whether this user may do so."""
        again, may_ask = inbox.asked_again(turns), self.has_requeue_permission(request)
        for turn in turns:
            turn.again, turn.may_ask = again.get(turn.pk), may_ask and inbox.may_be_asked_again(turn, again)

    @admin.display(description="asked again", empty_value="–")
    def asked_again(self, turn: Any) -> str | None:
        """The turn that a failed one was asked again in, or a button that does so; it is in the page's own form."""
        if turn.again:
            return link_to("conversations_turn", turn.again.pk, f"as turn {turn.again.number}")
        if not turn.may_ask:
            return None
        address = reverse("admin:conversations_conversation_ask_again", args=[turn.conversation_id, turn.number])
        return format_html('<button type="submit" class="button" formaction="{}">Ask again</button>', address)

    @admin.action(description="Ask the selected turns again, if they failed", permissions=[REQUEUE])
    def ask_again(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return bulk_actions.steer(request, bulk_actions.ACTS["ask_again"], queryset, page=request.get_full_path())

    @admin.action(description="Requeue the selected turns", permissions=[REQUEUE])
    def requeue_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return bulk_actions.steer(request, bulk_actions.ACTS["requeue_turns"], queryset, page=request.get_full_path())

    @admin.action(description="Cancel the selected turns", permissions=[CANCEL])
    def cancel_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return bulk_actions.steer(request, bulk_actions.ACTS["cancel_turns"], queryset, page=request.get_full_path())

    @admin.action(description="Fail the selected turns", permissions=[FAIL])
    def fail_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return bulk_actions.steer(request, bulk_actions.ACTS["fail_turns"], queryset, page=request.get_full_path())

    @admin.display(description="cancelled for", empty_value="–")
    def gave_way_to(self, turn: Turn) -> str | None:
        return link_to("conversations_turn", turn.cancelled_by, str(turn.cancelled_by)) if turn.cancelled_by else None

    @admin.display(description="conversation")
    def its_conversation(self, turn: Turn) -> str:
        return format_html(
            "{} · {}",
            link_to("conversations_conversation", turn.conversation_id, str(turn.conversation)),
            _page_link("transcript", turn.conversation_id, "transcript"),
        )

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
        return table(("tool", "status", "rule", "arguments", "result", "took"), cells) or "none"


@admin.register(Message)
class MessageAdmin(GrowingAdmin):
    """The transcripts, message by message."""

    list_display = ["created_at", "conversation", "seq", "role", "type", "kind", "content_begins", "tool_name"]
    list_prefetch_related = ["conversation"]
    ordering = ["-id"]  # the newest first: ids sort by time
    search_fields = ["id", "conversation__id", "turn__id"]
    search_help_text = "An id (or its beginning) of a message, conversation or turn; in a conversation's list, words."
    more_lookups = ["turn__exact"]
    readonly_fields = ["its_conversation", "its_turn", "made_of"]
    fields = ["id", "its_conversation", "its_turn", "seq", "role", "type", "kind", "made_of", "content", "tool_calls"]
    fields += ["tool_call_id", "tool_name", "metadata", "created_at"]

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
        latest = queryset.order_by("-pk").values_list("pk", "content")[:MOST_LISTED]
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


@admin.register(Compaction)
class CompactionAdmin(GrowingAdmin):
    """What was put into a summary, by which model, after which turn; and what went wrong with it."""

    list_display = ["created_at", "conversation", "kind", "day", "status", "first_seq", "through_seq", "is_stub"]
    list_display += ["failures", "error"]
    list_filter = ["created_at", "status"]
    list_prefetch_related = ["conversation"]
    search_fields = ["id", "conversation__id"]
    search_help_text = "An id (or its beginning) of a compaction or conversation."
    readonly_fields = ["its_conversation", "its_turn", "summary", "entries", "versions"]
    fieldsets = [
        (None, {"fields": ["id", "its_conversation", "its_turn", "kind", "day", "status", "first_seq", "through_seq"]}),
        ("What was made", {"fields": ["summary", "is_stub", "entries", "versions", "model"]}),
        ("Undone", {"fields": ["undone_at", "undone_by", "undone_because"]}),
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

    list_display = ["name", "is_alive", "queues", "heartbeat_at", "holds", "turns_most", "pool", "version"]
    list_display += ["started_at", "ended_at", "sandbox"]
    search_fields = ["name"]
    more_lookups = ["queues__contains"]
    fields = ["name", "is_alive", "queues", "version", "sandbox", "turns", "holds", "turns_most", "pool"]
    fields += ["started_at", "heartbeat_at", "ended_at"]
    readonly_fields = ["is_alive", "turns", "holds", "pool"]

    def get_queryset(self, request: HttpRequest) -> Any:
        rows: Any = super().get_queryset(request)
        return rows.with_life()

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """With what each of them holds, read once for all."""
        listed, left = super().get_changelist_instance(request), intake.left()
        for worker in listed.result_list:
            worker.held = left.held_by(worker.name, is_alive=worker.is_alive)
        return listed

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        worker = super().get_object(request, object_id, from_field)
        if worker:
            worker.held = intake.left().held_by(worker.name, is_alive=worker.is_alive)
        return worker

    @admin.display(description="alive", boolean=True)
    def is_alive(self, worker: Any) -> bool:
        alive: bool = worker.is_alive
        return alive

    @admin.display(description="turns held")
    def holds(self, worker: Any) -> int:
        held: int = worker.held
        return held

    @admin.display(description="database connections in use")
    def pool(self, worker: Any) -> str:
        return worker.told_pool if worker.is_alive else "–"

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
        (None, {"fields": ["id", "tool_name", "status", "rule", "why", "arguments", "result"]}),
        ("Belongs to", {"fields": ["turn", "conversation", "owner_id", "agent", "request_id", "call_id", "position"]}),
        *ToolCallAdmin.fieldsets[2:],
    ]
    readonly_fields = ["turn", "conversation", "why"]

    @admin.display(description="why?")
    def why(self, call: ToolCall) -> str:
        return format_html(
            '<a href="{}?call={}">rule by rule: what would become of it now</a>',
            reverse("admin:simulator"),
            call.pk,
        )

    @admin.display(description="turn")
    def turn(self, call: ToolCall) -> str:
        return link_to("conversations_turn", call.turn_id, str(call.turn_id))

    @admin.display(description="conversation")
    def conversation(self, call: ToolCall) -> str:
        return link_to("conversations_conversation", call.conversation_id, str(call.conversation_id))


# So do the memory's: bare ids of conversations and turns. Both may be gone; what they said is remembered all the same.
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

    fields = ["agent", "owner", "kind", "content", "day", "happened_at", "happened_until", *_ORIGIN, "created_at"]
    readonly_fields = _ORIGIN
