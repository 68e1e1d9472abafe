"""The API of approvals: calls of tools that wait for a person's consent, and the decisions on them."""

import json
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent import access
from agent.models import Agent
from conversations.access import READERS
from conversations.api.serializers import MessageView
from conversations.engine.consent import approvals
from conversations.models import Message
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.api import Pages, Strict, Text, checked, owner_of, problems
from nanohost.lib.errors import InvalidRequest, NotAuthenticated, NotFound
from nanohost.lib.text import UNSTORABLE
from tools.approvals import APPROVE, DECIDERS, DENY, MAX_REASON, Voter, wanted_hash
from tools.models import Approval, ApprovalState

# The specification's names.
# ruff: noqa: N815

# Of the transcript, the latest messages are shown to whoever decides.
MAX_MESSAGES = 20


class DecisionIn(Strict):
    """Body of POST /approvals/{id}/decide."""

    decision = serializers.ChoiceField(choices=[APPROVE, DENY])
    arguments = serializers.DictField(
        required=False, help_text="To approve: run it with these instead; the gate looks at them again."
    )
    argumentsHash = Text(
        required=False,
        max_length=64,
        help_text="The hash of the arguments that you have read; if they have changed since, 409.",
    )
    reason = Text(
        required=False,
        allow_blank=True,
        max_length=MAX_REASON,
        help_text="The reason; that of a denial is passed to the model.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "arguments" in attrs and attrs["decision"] != APPROVE:
            raise serializers.ValidationError({"arguments": ["A denied call does not run: leave them out."]})
        return attrs


class ApprovalView(serializers.Serializer[Approval]):
    approvalId = serializers.UUIDField(source="pk")
    conversationId = serializers.UUIDField(source="conversation_id")
    turnId = serializers.UUIDField(source="turn_id")
    agent = serializers.CharField(help_text="Which agent asks.")
    owner = serializers.SerializerMethodField(help_text="Whose conversation it is: a user's name.")
    toolName = serializers.CharField(source="tool_name")
    rule = serializers.CharField(help_text="The rule that requires approval.")
    arguments = serializers.CharField(help_text="JSON, as the model wrote it; secrets are masked.")
    proposedArguments = serializers.CharField(
        source="proposed", help_text="Other arguments that somebody proposes to approve, or an empty text."
    )
    argumentsHash = serializers.SerializerMethodField(help_text="SHA-256 of what would be approved, or was.")
    fourEyes = serializers.BooleanField(source="four_eyes", help_text="Two people are needed, neither the owner.")
    approvedBy = serializers.SerializerMethodField(help_text="Who would approve it so far.")
    state = serializers.ChoiceField(ApprovalState.choices)
    reason = serializers.CharField()
    decidedBy = serializers.CharField(source="decided_by")
    requestedAt = serializers.DateTimeField(source="requested_at")
    expiresAt = serializers.DateTimeField(source="expires_at", help_text="Then it is denied.")
    decidedAt = serializers.DateTimeField(source="decided_at", allow_null=True)

    def get_owner(self, approval: Approval) -> str:
        owners: dict[int | None, str] = self.context["owners"]
        return owners.get(approval.owner_id, "")

    def get_argumentsHash(self, approval: Approval) -> str:  # noqa: N802 -- the specification's
        return wanted_hash(approval)

    def get_approvedBy(self, approval: Approval) -> list[str]:  # noqa: N802 -- the specification's
        return [vote.voter for vote in approval.votes.all()]


class ApprovalDetailView(ApprovalView):
    messages = serializers.ListField(
        child=MessageView(), help_text="The latest messages of the conversation; none if you may not read it."
    )


class LatestAsked(Pages):
    ordering = ("-requested_at", "-id")


def decidable(request: Request) -> "QuerySet[Approval]":
    """Those that the caller may see and decide on: of their own conversations; of everybody's, for whoever may decide
    in the console as well. Of the agents that the key may name."""
    return _decidable(key_of(request), request.user)


def _decidable(key: ApiKey, user: Any) -> "QuerySet[Approval]":
    rows = Approval.objects.prefetch_related("votes")
    if not user.has_perm(DECIDERS):
        rows = rows.filter(owner_id=user.pk)
    if access.admits_all(key):
        return rows
    names = key.agent_names or Agent.objects.filter(is_public=True).values("name")
    return rows.filter(agent__in=names)


def _found(request: Request, approval_id: UUID) -> Approval:
    for approval in decidable(request).filter(pk=approval_id):
        return approval
    raise NotFound("There is no approval with that id, or it is not yours.")


def _refuse_who_may_no_more(key: ApiKey, approval_id: UUID) -> None:
    """Raise if the key was revoked or narrowed, or its owner lost what let them decide, since the request came."""
    now = ApiKey.objects.active().select_related("owner").filter(pk=key.pk, owner__is_active=True).first()
    if now and now.is_of_browser and now.owner.is_staff and now.owner.has_perm(DECIDERS):
        # Such a key has that of its owner's role, and it is stored nowhere.
        now.scopes, now.agent_names = key.scopes, key.agent_names
    if now is None or Scope.APPROVE not in now.scopes:
        raise NotAuthenticated("This API key was revoked, or may decide no more, since the request was made.")
    if not _decidable(now, now.owner).filter(pk=approval_id).exists():
        raise NotFound("There is no approval with that id, or it is not yours.")


def _owners(rows: list[Approval]) -> dict[str, Any]:
    users = get_user_model().objects.filter(pk__in={row.owner_id for row in rows})
    return {"owners": {user.pk: user.get_username() for user in users}}


class ApprovalList(ListAPIView[Approval]):
    """Calls that wait for consent, or did."""

    scopes: ClassVar = {"GET": (Scope.APPROVE,)}
    serializer_class = ApprovalView
    pagination_class = LatestAsked

    @extend_schema(
        operation_id="listApprovals",
        parameters=[OpenApiParameter("state", str, enum=ApprovalState.values, description="Those in this state.")],
        responses={200: ApprovalView(many=True), **problems()},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Approvals, the latest first."""
        rows, state = decidable(request), request.query_params.get("state")
        if state is not None:
            if state not in ApprovalState.values:
                raise InvalidRequest(f"state is one of {', '.join(ApprovalState.values)}.")
            rows = rows.filter(state=state)
        pages = LatestAsked()
        found = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(ApprovalView(found, many=True, context=_owners(found)).data)


class ApprovalDetail(APIView):
    """One approval."""

    scopes: ClassVar = {"GET": (Scope.APPROVE,)}

    @extend_schema(operation_id="getApproval", responses={200: ApprovalDetailView, **problems(404)})
    def get(self, request: Request, approval_id: UUID) -> Response:
        """What is asked for, and the latest messages of its conversation; of somebody else's, for those who may read it
        in the console as well."""
        approval = _found(request, approval_id)
        latest = Message.objects.filter(conversation_id=approval.conversation_id, seq__isnull=False).order_by("-seq")
        may_read = approval.owner_id == owner_of(request) or request.user.has_perms(READERS)
        approval.messages = list(latest[:MAX_MESSAGES])[::-1] if may_read else []  # type: ignore[attr-defined]  # for its shape
        return Response(ApprovalDetailView(approval, context=_owners([approval]) | {"pinned": set()}).data)


class ApprovalDecide(APIView):
    """A decision."""

    scopes: ClassVar = {"POST": (Scope.APPROVE,)}

    @extend_schema(
        operation_id="decideApproval",
        request=DecisionIn,
        responses={200: ApprovalView, **problems(403, 404, 409, 422)},
    )
    def post(self, request: Request, approval_id: UUID) -> Response:
        """Approve or deny, once. Of two who decide at the same time, one is told that it was decided already."""
        wanted = checked(DecisionIn, request)
        if UNSTORABLE.search(json.dumps(wanted.get("arguments"), ensure_ascii=False)):
            raise InvalidRequest("arguments hold a character that cannot be stored.")
        given = wanted.get("arguments")
        _found(request, approval_id)
        approvals.decide(
            approval_id,
            by=Voter(pk=owner_of(request), name=request.user.get_username()),
            decision=wanted["decision"],
            arguments=None if given is None else json.dumps(given, ensure_ascii=False),
            seen=wanted.get("argumentsHash", ""),
            reason=wanted.get("reason", ""),
            still=partial(_refuse_who_may_no_more, key_of(request), approval_id),
        )
        approval = _found(request, approval_id)
        return Response(ApprovalView(approval, context=_owners([approval])).data)
