"""Turns, in the admin: what became of each, what its model was sent, and what people do about it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html

from agent.models import AgentVersion
from agent.spending.money import told_money
from conversations import turn_search, waits
from conversations.admin import bulk_actions, reading, replaying, waterfall
from conversations.admin.conversation import name_of
from conversations.admin.pages import MAX_CALLS, check_readers, number, page_link
from conversations.engine import inbox
from conversations.errors import TurnProblem
from conversations.feedback_models import Rating
from conversations.models import Message, Turn
from conversations.statuses import OPEN, WaitingFor
from nanohost.accounts.models import ApiKey
from nanohost.lib import clock, traces
from nanohost.lib.admin import (
    CANCEL,
    FAIL,
    REPLAY,
    REQUEUE,
    GrowingAdmin,
    KnownValues,
    ReadOnlyInline,
    excerpt,
    link_to,
    link_to_list,
    shown,
    table,
)
from tools.models import ToolCall

T = TypeVar("T")


def _once(turn: Turn, name: str, find: Callable[[], T]) -> T:
    """What is found out for a page; the theme asks for a field several times."""
    known: dict[str, Any] = vars(turn)
    if name not in known:
        known[name] = find()
    found: T = known[name]
    return found


class ErrorFilter(KnownValues):
    """By the code a failed turn shows its client."""

    title, parameter_name = "error code", "error_code"

    def values(self) -> list[str]:
        return list(TurnProblem.codes)


class FeedbackFilter(KnownValues):
    """By what somebody thinks of the answer."""

    title, parameter_name = "feedback", "rated"

    def values(self) -> list[str]:
        return list(Rating)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        return turn_search.FILTERS["feedback"](queryset, self.value()) if self.value() else queryset


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
    list_filter = ["created_at", "status", WaitingForFilter, ErrorFilter, FeedbackFilter, "owner"]
    list_prefetch_related = ["conversation", "owner"]
    search_fields = ["id", "conversation__id", "request_id"]
    search_help_text = "An id (or its beginning) of a turn or conversation; a request's id."
    nothing_yet = "A turn is one question and its answer. Turns appear here as soon as somebody asks an agent."
    actions = ["requeue_turns", "cancel_turns", "fail_turns", "ask_again", "replay_turns", "collect_turns"]
    inlines = [MessageInline]
    readonly_fields = ["its_conversation", "gave_way_to", "calls", "version", "sent_to_model", "stands", "asked_again"]
    readonly_fields += ["paid", "not_valid", "its_key", "thought", "replayed", "over_time"]
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "id",
                    "its_conversation",
                    "number",
                    "owner",
                    "status",
                    "waiting_for",
                    "stands",
                    "calls",
                    "over_time",
                ]
            },
        ),
        (
            "Outcome",
            {"fields": ["error_code", "error_detail", "asked_again", "cancel_requested", "gave_way_to", "ended_at"]},
        ),
        ("Feedback and replays", {"fields": ["thought", "replayed"]}),
        (
            "Request",
            {
                "fields": [
                    "model",
                    "fallback_model",
                    "fallback_reason",
                    "response_format",
                    "not_valid",
                    "options",
                    "sent_to_model",
                    "version",
                    "request_id",
                    "its_key",
                    "prompt_tokens",
                    "completion_tokens",
                    "cached_tokens",
                    "paid",
                    "model_calls",
                    "model_ms",
                ]
            },
        ),
        ("Retries", {"fields": ["retries", "retry_code", "retry_detail", "retrying_since"]}),
        ("Time", {"fields": ["created_at", "started_at", "stepped_at", "deadline"]}),
        (
            "Internals",
            {
                "classes": ["collapse"],
                "fields": [
                    *("worker", "attempts", "fence", "lease_until", "run_after", "notified_at", "idempotency_key"),
                ],
            },
        ),
    ]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.sent_view)
        drawn = path("<uuid:pk>/time/", self.admin_site.admin_view(self.time_view), name="conversations_turn_time")
        return [path("<uuid:pk>/sent/", view, name="conversations_turn_sent"), drawn, *super().get_urls()]

    def time_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """The turn over time, as a waterfall."""
        check_readers(request)
        turn = Turn.objects.filter(pk=pk).first()
        if turn is None:
            raise Http404("There is no such turn; perhaps its conversation was deleted.")
        told = waterfall.drawn(turn) | {
            "opts": self.opts,
            "title": f"Turn {turn.number} over time",
            "trace": traces.trace_id(turn.traceparent),
        }
        page = "admin/conversations/waterfall.html"
        return TemplateResponse(request, page, self.admin_site.each_context(request) | told)

    def sent_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """What the model was sent in this turn, call by call."""
        check_readers(request)
        turn = Turn.objects.select_related("conversation__agent").filter(pk=pk).first()
        if turn is None:
            raise Http404("There is no such turn; perhaps its conversation was deleted.")
        told = reading.sent(turn, number=number(request, "call")) | {
            "opts": self.opts,
            "title": f"Prompts of turn {turn.number}",
        }
        return TemplateResponse(request, "admin/conversations/sent.html", self.admin_site.each_context(request) | told)

    def name_of(self, turn: Turn) -> str:
        return f"Turn {turn.number} of “{name_of(turn.conversation)}”"

    @admin.display(description="API key", empty_value="none: it was started in a browser, or by the host itself")
    def its_key(self, turn: Turn) -> str | None:
        """With which it was asked."""
        if turn.api_key_id is None:
            return None
        key = _once(turn, "_its_key", lambda: ApiKey.objects.filter(pk=turn.api_key_id).first())
        return link_to("accounts_apikey", key.pk, str(key)) if key else f"key {turn.api_key_id}, which was deleted"

    @admin.display(description="agent version", empty_value="–")
    def version(self, turn: Turn) -> str | None:
        """That it ran with since it was last taken up; each model call has its own."""
        number = turn.agent_version
        found = AgentVersion.objects.filter(agent=turn.conversation.agent_id, number=number).first() if number else None
        if number and not found:
            return f"version {number}, which is not kept"
        return link_to("agent_agentversion", found.pk, str(found)) if found else None

    @admin.display(description="cost")
    def paid(self, turn: Turn) -> str:
        return told_money(turn.cost, settings.CURRENCY)

    @admin.display(description="answers in another form")
    def not_valid(self, turn: Turn) -> str:
        return " / ".join(each["wrong"] for each in turn.invalid_answers or ()) or "–"

    @admin.display(description="prompts")
    def sent_to_model(self, turn: Turn) -> str:
        return format_html(
            '<a href="{}">each of its model calls</a>', reverse("admin:conversations_turn_sent", args=[turn.pk])
        )

    @admin.display(description="over time")
    def over_time(self, turn: Turn) -> str:
        return format_html('<a href="{}">its waterfall</a>', reverse("admin:conversations_turn_time", args=[turn.pk]))

    @admin.display(description="why it waits", empty_value="–")
    def stands(self, turn: Turn) -> str | None:
        if turn.ended:
            return None
        return _once(turn, "_stands", lambda: shown(waits.stands(turn, clock.read())))

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

    @admin.action(description="Replay the selected turns on another model or version", permissions=[REPLAY])
    def replay_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        check_readers(request)  # it shows what was said
        return replaying.ask_or_replay(request, queryset, page=request.get_full_path())

    @admin.action(description="Add the selected turns to a set of cases", permissions=[REPLAY])
    def collect_turns(self, request: HttpRequest, queryset: QuerySet[Turn]) -> HttpResponse:
        return replaying.ask_or_collect(request, queryset, page=request.get_full_path())

    @admin.display(description="cancelled for", empty_value="–")
    def gave_way_to(self, turn: Turn) -> str | None:
        return link_to("conversations_turn", turn.cancelled_by, str(turn.cancelled_by)) if turn.cancelled_by else None

    @admin.display(description="conversation")
    def its_conversation(self, turn: Turn) -> str:
        return format_html(
            "{} · {}",
            link_to("conversations_conversation", turn.conversation_id, str(turn.conversation)),
            page_link("transcript", turn.conversation_id, "transcript"),
        )

    @admin.display(description="feedback")
    def thought(self, turn: Turn) -> str:
        return link_to_list("conversations_feedback", "Feedback on this turn", turn=turn.pk)

    @admin.display(description="replays")
    def replayed(self, turn: Turn) -> str:
        return link_to_list("conversations_replay", "Replays of this turn", turn=turn.pk)

    @admin.display(description="tool calls")
    def calls(self, turn: Turn) -> str:
        rows = ToolCall.objects.filter(turn_id=turn.pk).order_by("position")[:MAX_CALLS]
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
