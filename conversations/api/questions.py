"""The API of questions: what agents have asked, and the answers."""

from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent import access
from agent.models import Agent
from conversations.engine.consent import questions
from conversations.question_models import Question, QuestionState
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import Pages, Strict, Text, checked, owner_of, problems
from nanohost.lib.errors import InvalidRequest, NotFound

# The specification's names.
# ruff: noqa: N815


class AnswerIn(Strict):
    """Body of POST /questions/{id}/answer."""

    answer = Text(max_length=Question.MAX_ANSWER, help_text="An option, its number (from 1), or other words.")


class QuestionView(serializers.Serializer[Question]):
    questionId = serializers.UUIDField(source="pk")
    conversationId = serializers.UUIDField(source="conversation_id")
    turnId = serializers.UUIDField(source="turn_id", help_text="The turn that waits for it.")
    agent = serializers.CharField(help_text="Which agent asks.")
    text = serializers.CharField()
    options = serializers.ListField(child=serializers.CharField(), help_text="What can be chosen, in order.")
    isInChat = serializers.SerializerMethodField(
        help_text="It was put to somebody in a chat of a channel; only that person can answer it."
    )
    state = serializers.ChoiceField(QuestionState.choices)
    answer = serializers.CharField()
    answeredBy = serializers.CharField(source="answered_by")
    askedAt = serializers.DateTimeField(source="asked_at")
    expiresAt = serializers.DateTimeField(
        source="expires_at", help_text="The time after which the agent continues without an answer."
    )
    answeredAt = serializers.DateTimeField(source="answered_at", allow_null=True)

    def get_isInChat(self, question: Question) -> bool:  # noqa: N802 -- the specification's
        return bool(question.chat_id)


class LatestAsked(Pages):
    ordering = ("-asked_at", "-id")


def _seen(request: Request) -> "QuerySet[Question]":
    """Those of the caller's own conversations, of the agents that the key may name."""
    key, rows = key_of(request), Question.objects.filter(owner_id=owner_of(request))
    if access.admits_all(key):
        return rows
    names = key.agent_names or Agent.objects.filter(is_public=True).values("name")
    return rows.filter(agent__in=names)


class QuestionList(ListAPIView[Question]):
    """Questions that agents have asked."""

    scopes: ClassVar = {"GET": (Scope.READ,)}
    serializer_class = QuestionView
    pagination_class = LatestAsked

    @extend_schema(
        operation_id="listQuestions",
        parameters=[OpenApiParameter("state", str, enum=QuestionState.values, description="Those in this state.")],
        responses={200: QuestionView(many=True), **problems()},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Questions in your conversations, the latest first."""
        rows, state = _seen(request), request.query_params.get("state")
        if state is not None:
            if state not in QuestionState.values:
                raise InvalidRequest(f"state is one of {', '.join(QuestionState.values)}.")
            rows = rows.filter(state=state)
        pages = LatestAsked()
        return pages.get_paginated_response(
            QuestionView(pages.paginate_queryset(rows, request, view=self), many=True).data
        )


class QuestionAnswer(APIView):
    """An answer."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="answerQuestion", request=AnswerIn, responses={200: QuestionView, **problems(403, 404, 409)}
    )
    def post(self, request: Request, question_id: UUID) -> Response:
        """Answer a question, once; its turn goes on. One that was put to somebody in a chat is theirs to answer."""
        wanted = checked(AnswerIn, request)
        if not _seen(request).filter(pk=question_id).exists():
            raise NotFound("There is no question with that id, or it is not yours.")
        user: Any = request.user
        answered = questions.answer_as(owner_of(request), user.get_username(), question_id, wanted["answer"])
        return Response(QuestionView(answered).data)
