"""Approvals, in the admin: the inbox of calls that wait for consent, and the decisions on them."""

from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from agent.models import Agent
from conversations.access import READERS
from conversations.admin.pages import page_link
from conversations.engine.consent import approvals
from conversations.models import Conversation, Message
from nanohost.lib.admin import DECIDE, GrowingAdmin, KnownValues, excerpt, link_to, reason_in, shown, table
from nanohost.lib.errors import Problem
from tools.admin import ToolFilter
from tools.approvals import APPROVE, DECIDERS, DENY, MAX_REASON, Voter, wanted_hash
from tools.models import Approval, ApprovalState

# Of the transcript, the latest messages stand on the page.
MAX_MESSAGES = 20

# So many at a time: each is a transaction of its own, and somebody waits for the page.
MAX_AT_ONCE = 200


class AgentFilter(KnownValues):
    """By the agent that asks."""

    title, parameter_name = "agent", "agent"

    def values(self) -> Any:
        return Agent.objects.values_list("name", flat=True)


class RuleFilter(KnownValues):
    """By the rule that wants consent."""

    title, parameter_name = "rule", "rule"

    def values(self) -> tuple[str, ...]:
        return ("consent:always", "consent:tainted")


@admin.register(Approval)
class ApprovalAdmin(GrowingAdmin):
    """Calls of tools that wait for somebody's consent, and what was decided."""

    list_display = ["requested_at", "state", "tool_name", "agent", "wanted", "rule", "expires_at", "decided_by"]
    list_filter = ["state", ToolFilter, AgentFilter, RuleFilter]
    search_fields = ["id", "call_id", "turn_id"]
    search_help_text = "An id (or its beginning) of an approval, call or turn."
    list_prefetch_related = ["votes"]
    nothing_yet = "Calls of tools that need consent wait here. Which do is set on each tool, and on each agent."
    actions = ["deny"]
    readonly_fields = ["asks", "what", "would_run", "so_far", "transcript", "call", "turn", "conversation"]
    fieldsets = [
        (None, {"fields": ["state", "asks", "what", "rule", "would_run", "so_far", "expires_at"]}),
        ("Transcript so far", {"fields": ["transcript"]}),
        ("Decision", {"fields": ["decided_by", "decided_at", "reason", "approved_hash"]}),
        ("Related", {"fields": ["call", "turn", "conversation", "request_id", "requested_at", "arguments_hash"]}),
    ]
    change_form_outer_after_template = "admin/conversations/decide.html"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(require_POST(self.decide_view))
        return [path("<uuid:pk>/decide/", view, name="conversations_approval_decide"), *super().get_urls()]

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        approval = self.get_object(request, unquote(object_id)) if object_id else None
        told: dict[str, Any] = {}
        if approval and approval.state == ApprovalState.PENDING:
            told = {
                "pending": approval,
                "may_decide": self.has_decide_permission(request),
                "is_own": approval.four_eyes and approval.owner_id == request.user.pk,
                "wanted": approval.proposed or approval.arguments,
                "seen": wanted_hash(approval),
                "most_reason": MAX_REASON,
            }
        return super().changeform_view(request, object_id, form_url, {**told, **(extra_context or {})})

    def decide_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Decide, once; whoever was second is told who was first."""
        if not self.has_decide_permission(request):
            raise PermissionDenied
        decision = APPROVE if request.POST.get("decision") == APPROVE else DENY
        wanted, shown_ones = (request.POST.get(name, "").replace("\r\n", "\n") for name in ("arguments", "shown"))
        try:
            approval = approvals.decide(
                pk,
                by=_voter(request),
                decision=decision,
                arguments=wanted if decision == APPROVE and wanted.strip() != shown_ones.strip() else None,
                seen=request.POST.get("seen", ""),
                reason=reason_in(request)[:MAX_REASON],
                still=partial(_refuse_who_may_no_more, request),
            )
        except Problem as error:
            messages.error(request, error.detail)
        else:
            messages.success(request, _told(approval))
        return redirect("../change/")

    @admin.action(description="Deny the selected approvals", permissions=[DECIDE])
    def deny(self, request: HttpRequest, queryset: QuerySet[Approval]) -> HttpResponse:
        pending = list(queryset.filter(state=ApprovalState.PENDING).order_by("pk")[: MAX_AT_ONCE + 1])
        back = request.get_full_path()
        if not pending or len(pending) > MAX_AT_ONCE:
            said = f"choose {MAX_AT_ONCE} at most at a time" if pending else "none of them waits for a decision"
            messages.warning(request, f"Nothing was done: {said}.")
            return HttpResponseRedirect(back)
        reason = reason_in(request)[:MAX_REASON]
        if request.POST.get("confirmed") != "yes" or not reason:
            return self._ask(request, pending, back, is_missing="confirmed" in request.POST)
        denied = 0
        for approval in pending:
            try:
                still = partial(_refuse_who_may_no_more, request)
                approvals.decide(approval.pk, by=_voter(request), decision=DENY, reason=reason, still=still)
                denied += 1
            except Problem as error:
                messages.warning(request, f"{approval}: {error.detail}")
        messages.success(request, f"Denied: {denied}.")
        return HttpResponseRedirect(back)

    def _ask(self, request: HttpRequest, pending: list[Approval], back: str, *, is_missing: bool) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"Deny {len(pending)} call{'' if len(pending) == 1 else 's'}?",
            "pending": pending,
            "back": back,
            "is_missing": is_missing,
            "checkbox": ACTION_CHECKBOX_NAME,
            "most_reason": MAX_REASON,
        }
        template = "admin/conversations/deny.html"
        return TemplateResponse(request, template, context, status=400 if is_missing else 200)

    @admin.display(description="arguments")
    def wanted(self, approval: Approval) -> str:
        return excerpt(approval.proposed or approval.arguments)

    @admin.display(description="asked by")
    def asks(self, approval: Approval) -> str:
        owner = get_user_model().objects.filter(pk=approval.owner_id or 0).first()
        whose = owner.get_username() if owner else "somebody who was deleted"
        return f"The agent {approval.agent}, in a conversation of {whose}"

    @admin.display(description="call")
    def what(self, approval: Approval) -> str:
        return format_html('{} <pre class="code">{}</pre>', approval.tool_name, shown(approval.arguments))

    @admin.display(description="changed arguments", empty_value="–")
    def would_run(self, approval: Approval) -> str | None:
        """Those that somebody would approve instead, or has."""
        return format_html('<pre class="code">{}</pre>', shown(approval.proposed)) if approval.proposed else None

    @admin.display(description="approved by")
    def so_far(self, approval: Approval) -> str:
        voters = ", ".join(vote.voter for vote in approval.votes.all()) or "nobody"
        return f"{voters}; two people are needed, neither of them the owner" if approval.four_eyes else voters

    @admin.display(description="the latest messages")
    def transcript(self, approval: Approval) -> str:
        latest = Message.objects.filter(conversation_id=approval.conversation_id, seq__isnull=False).order_by("-seq")
        rows = list(latest[:MAX_MESSAGES])[::-1]
        cells = [
            (each.seq, each.role, shown(each.content[:2000]) or excerpt(str(each.tool_calls), 500)) for each in rows
        ]
        if not cells:
            return "The conversation was deleted."
        whole = page_link("transcript", approval.conversation_id, "the whole transcript")
        return format_html("{} {}", table(("seq", "role", "content"), cells), whole)

    @admin.display(description="record")
    def call(self, approval: Approval) -> str:
        return link_to("tools_toolcall", approval.call_id, str(approval.call_id))

    @admin.display(description="turn")
    def turn(self, approval: Approval) -> str:
        return link_to("conversations_turn", approval.turn_id, str(approval.turn_id))

    @admin.display(description="conversation")
    def conversation(self, approval: Approval) -> str:
        found = Conversation.objects.filter(pk=approval.conversation_id).first()
        return link_to("conversations_conversation", found.pk, str(found)) if found else "deleted"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Without the transcript for whoever may not read those."""
        fieldsets: Any = super().get_fieldsets(request, obj)
        if request.user.has_perms(READERS):
            return fieldsets
        return [each for each in fieldsets if "transcript" not in each[1]["fields"]]


def _voter(request: HttpRequest) -> Voter:
    assert request.user.pk is not None
    return Voter(pk=request.user.pk, name=request.user.get_username())


def _refuse_who_may_no_more(request: HttpRequest) -> None:
    """Raise if what let somebody decide was taken away since the request came."""
    now = get_user_model().objects.filter(pk=_voter(request).pk, is_active=True, is_staff=True).first()
    if now is None or not now.has_perm(DECIDERS):
        raise PermissionDenied


def _told(approval: Approval) -> str:
    if approval.state == ApprovalState.PENDING:
        return "Approved; somebody else has to approve it as well before it runs."
    return f"{str(approval.state).capitalize()}."


def waiting() -> int:
    """How many wait for a decision; counted to 100."""
    return Approval.objects.filter(state=ApprovalState.PENDING)[:100].count()
