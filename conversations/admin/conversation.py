"""Conversations, in the admin: the transcript, what is done to it, and its files."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet, Subquery, Sum, Value
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST

from agent import files
from agent.spending.money import told_money
from conversations import pins, search, summaries
from conversations.access import READERS
from conversations.admin import bulk_actions, export, reading, sub_agents
from conversations.admin.pages import check_readers, number, page_link
from conversations.attachments import serving
from conversations.engine import inbox, turn_control
from conversations.models import MAX_REASON, MAX_SEQ, AttachmentUse, Conversation, Message, Turn
from conversations.statuses import TURN_STATUSES
from conversations.web.gateway import PARTS_HEADER
from nanohost.accounts import audit, holds
from nanohost.accounts.errors import UnderLegalHold
from nanohost.lib.admin import (
    MAX_LISTED,
    PIN,
    UNDO,
    GrowingAdmin,
    KnownValues,
    excerpt,
    link_to,
    link_to_list,
    reason_in,
    shown,
    table,
)
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.ids import request_id
from nanohost.lib.moments import number as number_of
from nanohost.lib.moments import when


class TaintedFilter(KnownValues):
    """By whether untrusted text has entered since it last began anew."""

    title, parameter_name = "tainted", "tainted"

    def values(self) -> Sequence[str]:
        return ("yes",)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tainted_at_seq__isnull=False) if self.value() == "yes" else queryset


@admin.register(Conversation)
class ConversationAdmin(GrowingAdmin):
    """A transcript with one owner and one agent."""

    list_display = ["first_words", "last_message", "its_turns", "status", "tokens", "paid", "owner", "agent"]
    list_display += ["is_tainted", "details"]
    list_display_links = None
    list_filter = ["created_at", "agent", "owner", TaintedFilter, "is_transient"]
    list_prefetch_related = ["owner", "agent"]
    search_fields = ["id", "key"]
    search_help_text = "Words of messages; an id (or its beginning), a key."
    actions = ["cancel", "ask_again"]
    fieldsets: ClassVar = [
        (None, {"fields": ["rows", "owner", "agent", "paid", "created_at", "updated_at", "summary", "pins", "kept"]}),
        ("Untrusted text", {"fields": ["tainted_at_seq", "tainted_by"]}),
        (
            "Internals",
            {
                "classes": ["collapse"],
                "fields": [
                    *("id", "key", "consolidated_through", "starts_at_seq", "is_transient", "metadata"),
                    *("next_seq", "next_turn"),
                ],
            },
        ),
    ]
    readonly_fields = ["rows", "summary", "kept", "paid"]
    labels: ClassVar = {
        "starts_at_seq": "context starts at message",
        "consolidated_through": "summarised up to message",
        "tainted_at_seq": "tainted since message",
        "next_seq": "next message",
    }
    nothing_yet = "A conversation begins with a message: in the chat, or with an API key by POST /conversations."

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Conversation], search_term: str
    ) -> tuple[QuerySet[Conversation], bool]:
        """By id and key; for those who may read them, also by the words of messages."""
        by_name, _ = super().get_search_results(request, queryset, search_term)
        if not search_term.strip() or not request.user.has_perms(READERS):
            return by_name, False
        found = [*by_name.order_by("-created_at").values_list("pk", flat=True)[:MAX_LISTED], *search.find(search_term)]
        return queryset.filter(pk__in=found), False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """With what is told of each conversation of the page, looked up for all of them at once."""
        listed = super().get_changelist_instance(request)
        listed.result_list = list(listed.result_list)
        look_up(listed.result_list, with_words=request.user.has_perms(READERS))
        return listed

    @admin.display(description="first words")
    def first_words(self, conversation: Any) -> str:
        return page_link("transcript", conversation.pk, excerpt(conversation.told["title"] or conversation.key, 70))

    @admin.display(description="last message")
    def last_message(self, conversation: Any) -> str:
        return when(conversation.told["last_at"])

    @admin.display(description="turns")
    def its_turns(self, conversation: Any) -> str:
        told = number_of(conversation.next_turn - 1)
        return link_to_list("conversations_turn", told, conversation=conversation.pk)

    @admin.display(description="status", empty_value="–")
    def status(self, conversation: Any) -> str | None:
        status = conversation.told["status"]
        return TURN_STATUSES[status].label if status else None

    @admin.display(description="tokens")
    def tokens(self, conversation: Any) -> str:
        return number_of(conversation.told["tokens"] or 0)

    @admin.display(description="details")
    def details(self, conversation: Conversation) -> str:
        return link_to("conversations_conversation", conversation.pk, "View")

    def get_urls(self) -> list[Any]:
        pages: dict[str, tuple[str, Any]] = {
            "transcript": ("<uuid:pk>/transcript/", self.transcript_view),
            "json": ("<uuid:pk>/export.json", self.json_view),
            "jsonl": ("<uuid:pk>/export.jsonl", self.json_lines_view),
            "attachment": ("<uuid:pk>/attachments/<uuid:attachment>/", self.attachment_view),
            "thumbnail": ("<uuid:pk>/attachments/<uuid:attachment>/thumbnail/", self.thumbnail_view),
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

    def name_of(self, conversation: Conversation) -> str:
        """Its first words."""
        return name_of(conversation)

    def transcript_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """What was said, as people read it."""
        conversation = self._readable(request, pk)
        page = reading.read(conversation, before=number(request, "before"), after=number(request, "after"))
        told: dict[str, Any] = {"conversation": conversation, "page": page, "key": shown(conversation.key)}
        told |= {"may_cancel": self.has_cancel_turn_permission(request)}
        told |= {"may_ask": self.has_requeue_turn_permission(request)}
        told |= {"may_pin": self._may(request, PIN), "may_undo": self._may(request, UNDO)}
        told |= {"tainted_by": shown(conversation.tainted_by), "taint_policy": conversation.agent.taint}
        told |= {"may_delete": self.has_delete_permission(request)}
        told |= {"owner": shown(conversation.owner.get_username()), "title": name_of(conversation), "opts": self.opts}
        told |= {"cost": told_money(conversation.cost, settings.CURRENCY)} | sub_agents.around(conversation)
        if request.user.has_perms(files.READERS):
            told["files"] = files.address_of(agent_id=conversation.agent_id, owner_id=conversation.owner_id)
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/transcript.html", context)

    def _exported(self, request: HttpRequest, pk: UUID) -> Conversation:
        conversation = self._readable(request, pk)
        audit.record("conversation.exported", about=conversation, name=str(conversation.pk))
        return conversation

    def json_view(self, request: HttpRequest, pk: UUID) -> StreamingHttpResponse:
        """All of it as one object of JSON."""
        conversation = self._exported(request, pk)
        return _as_file(export.as_json(conversation), f"conversation-{pk}.json", "application/json")

    def json_lines_view(self, request: HttpRequest, pk: UUID) -> StreamingHttpResponse:
        """All of it as JSON, a line each."""
        conversation = self._exported(request, pk)
        return _as_file(export.as_json_lines(conversation), f"conversation-{pk}.jsonl", "application/jsonl")

    def attachment_view(self, request: HttpRequest, pk: UUID, attachment: UUID) -> HttpResponse:
        """A file that came with a message, as a download."""
        use = self._use(request, pk, attachment)
        return serving.download(use.attachment, use.name)

    def thumbnail_view(self, request: HttpRequest, pk: UUID, attachment: UUID) -> HttpResponse:
        """A small picture of it."""
        try:
            return serving.thumbnail(self._use(request, pk, attachment).attachment)
        except NotFound:
            raise Http404 from None

    def _use(self, request: HttpRequest, pk: UUID, attachment: UUID) -> AttachmentUse:
        conversation = self._readable(request, pk)
        uses = AttachmentUse.objects.filter(conversation=conversation, attachment=attachment)
        use = uses.select_related("attachment").order_by("-pk").first()
        if use is None:
            raise Http404
        return use

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
        self.message_user(request, f"Message {seq} is no longer pinned.", messages.SUCCESS)
        return self._back_to(pk)

    @method_decorator(csrf_protect)
    def undo_view(self, request: HttpRequest, pk: UUID, seq: int) -> HttpResponse:
        """Ask whether a summary is to be undone, and why; or do it, once that is answered."""
        message = self._message(request, pk, seq, UNDO)
        reason = reason_in(request)
        if request.POST.get("confirmed") != "yes" or not reason:
            is_missing = "confirmed" in request.POST
            told: dict[str, Any] = {"seq": seq, "text": reading.cut(message.content), "opts": self.opts}
            told |= {"title": "Undo a summary?", "is_missing": is_missing, "most_reason": MAX_REASON}
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
        message = found.filter(conversation=pk, seq=min(seq, MAX_SEQ)).first()
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

    @admin.action(description="Cancel the open turns of the selected conversations", permissions=["cancel_turn"])
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
            try:
                with transaction.atomic():
                    self.log_deletions(request, Conversation.objects.filter(pk=conversation.pk))
                    turn_control.delete_conversation(conversation.pk)
            except UnderLegalHold as held:
                self.message_user(request, held.detail, messages.ERROR)
                return self._back_to(conversation.pk)
            self.message_user(request, f"The conversation {conversation} is deleted.", messages.SUCCESS)
            return redirect("admin:conversations_conversation_changelist")
        told = {"conversation": conversation, "key": shown(conversation.key), "opts": self.opts}
        told |= {"owner": shown(conversation.owner.get_username()), "title": "Delete a conversation"}
        told |= {"messages_made": conversation.next_seq - 1, "turns_made": conversation.next_turn - 1}
        told["held"] = [holds.told(each) for each in turn_control.holds_on(conversation, holds.placed())]
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/delete.html", context)

    def _readable(self, request: HttpRequest, pk: UUID) -> Conversation:
        """The conversation, with its agent and owner."""
        check_readers(request)
        found = Conversation.objects.select_related("agent", "owner").filter(pk=pk).first()
        if found is None:
            raise Http404("There is no such conversation; perhaps it was deleted.")
        return found

    @admin.display(description="cost")
    def paid(self, conversation: Conversation) -> str:
        return told_money(conversation.cost, settings.CURRENCY)

    @admin.display(description="tainted")
    def is_tainted(self, conversation: Conversation) -> str:
        return "tainted" if conversation.tainted_at_seq is not None else "–"

    @admin.display(description="related")
    def rows(self, conversation: Conversation) -> str:
        return format_html(
            "{} · {} · {} · {} · {} · {} · {}",
            page_link("transcript", conversation.pk, "transcript"),
            page_link("json", conversation.pk, "as JSON"),
            page_link("jsonl", conversation.pk, "as JSON lines"),
            link_to_list("conversations_turn", "turns", conversation=conversation.pk),
            link_to_list("conversations_compaction", "compactions", conversation=conversation.pk),
            link_to_list("conversations_message", "messages", conversation=conversation.pk),
            link_to_list("tools_toolcall", "tool calls", conversation_id=conversation.pk),
        )

    @admin.display(description="state", empty_value="–")
    def kept(self, conversation: Conversation) -> str | None:
        rows = ((shown(key), shown(_as_text(value)), when(at)) for key, (value, at) in conversation.kept().items())
        return table(["Key", "Value", "Since"], rows) or None

    @admin.display(description="summary")
    def summary(self, conversation: Conversation) -> str:
        latest = Message.objects.filter(conversation=conversation, seq=conversation.summary_seq).first()
        return latest.content if latest and conversation.summary_seq else "–"


def look_up(conversations: Sequence[Any], *, with_words: bool) -> None:
    """Put into each, as ``told``, its first words, its last message's time, its last turn's status, and its tokens."""
    each = OuterRef("pk")
    latest = Message.objects.filter(conversation=each, seq__isnull=False).order_by("-seq").values("created_at")[:1]
    last = Turn.objects.filter(conversation=each).order_by("-number").values("status")[:1]
    used = Turn.objects.filter(conversation=each).order_by().values("conversation")
    tokens = used.annotate(used=Sum(F("prompt_tokens") + F("completion_tokens"))).values("used")
    rows: Any = Conversation.objects.filter(pk__in=[each.pk for each in conversations]).order_by()
    rows = rows.with_title() if with_words else rows.annotate(title=Value(""))
    rows = rows.annotate(last_at=Subquery(latest), status=Subquery(last), tokens=Subquery(tokens))
    told = {row.pop("pk"): row for row in rows.values("pk", "title", "last_at", "status", "tokens")}
    for conversation in conversations:
        conversation.told = told.get(conversation.pk, dict.fromkeys(("title", "last_at", "status", "tokens")))


def name_of(conversation: Conversation) -> str:
    """What people call a conversation: its first words, or its key while there are none."""
    titled: Any = Conversation.objects.with_title().get(pk=conversation.pk)
    return excerpt(titled.title or "", 60) or excerpt(conversation.key)


def _as_text(value: object) -> str:
    """Tools keep texts; a file that was taken in may have held anything."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_file(parts: Iterator[bytes], name: str, content_type: str) -> StreamingHttpResponse:
    """What a browser stores as a file, while it is made."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store", PARTS_HEADER: "1"}
    return StreamingHttpResponse(parts, content_type=content_type, headers=headers)
