"""The API of feedback: what people think of answers."""

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from conversations.api.views import owned_turn
from conversations.engine import feedback
from conversations.feedback_models import Feedback, Rating
from nanohost.accounts.models import Scope
from nanohost.lib.api import Strict, Text, checked, problems

# The specification's names.
# ruff: noqa: N815


class FeedbackIn(Strict):
    """Body of POST /turns/{id}/feedback."""

    rating = serializers.ChoiceField(Rating.choices)
    comment = Text(
        required=False, allow_blank=True, default="", max_length=Feedback.MAX_COMMENT, help_text="Why you think so."
    )


class FeedbackView(serializers.Serializer[Feedback]):
    turnId = serializers.UUIDField(source="turn_id")
    by = serializers.CharField(help_text="Who gave it: a user, or channel:sender where it was a reaction.")
    rating = serializers.ChoiceField(Rating.choices)
    comment = serializers.CharField()
    createdAt = serializers.DateTimeField(source="created_at")
    updatedAt = serializers.DateTimeField(source="updated_at")


class FeedbackList(serializers.Serializer[Any]):
    results = FeedbackView(many=True)


class TurnFeedback(APIView):
    """Feedback on a turn's answer."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT), "POST": (Scope.CHAT,), "DELETE": (Scope.CHAT,)}

    @extend_schema(operation_id="listFeedback", responses={200: FeedbackList, **problems(404)})
    def get(self, request: Request, turn_id: UUID) -> Response:
        """What was thought of the answer: by you, and by reactions in chats. The newest 200."""
        rows: Any = owned_turn(request, turn_id).feedback.order_by("-pk")[:200]
        return Response({"results": FeedbackView(rows, many=True).data})

    @extend_schema(operation_id="giveFeedback", request=FeedbackIn, responses={200: FeedbackView, **problems(404, 409)})
    def post(self, request: Request, turn_id: UUID) -> Response:
        """Say what you think of the answer of a turn that has ended; it takes the place of what you said before."""
        turn = owned_turn(request, turn_id)
        given = checked(FeedbackIn, request)
        user: Any = request.user
        return Response(FeedbackView(feedback.give(turn, by=user.get_username(), **given)).data)

    @extend_schema(operation_id="withdrawFeedback", responses={204: None, **problems(404)})
    def delete(self, request: Request, turn_id: UUID) -> Response:
        """Take back what you said of it, if you did."""
        user: Any = request.user
        feedback.withdraw(owned_turn(request, turn_id), by=user.get_username())
        return Response(status=204)
