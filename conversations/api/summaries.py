"""The API of what prompts are made of: a conversation's summaries, and pinned messages."""

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from conversations import pins, summaries
from conversations.api import serializers as shapes
from conversations.api.views import owned_conversation
from conversations.models import MAX_SEQ, Compaction, Message
from nanohost.accounts.models import Scope
from nanohost.lib.api import NewestFirst, Nothing, Pages, checked, parameter_of, problems


class SummariesNewestFirst(Pages):
    ordering = "-summary_seq"


class SummaryList(APIView):
    """A conversation's summaries."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    @extend_schema(
        operation_id="listSummaries",
        parameters=[parameter_of(each) for each in NewestFirst().get_schema_operation_parameters(None)],
        responses={200: shapes.SummaryPage, **problems(404)},
    )
    def get(self, request: Request, conversation_id: UUID) -> Response:
        """A page of summaries, for prompts and of days, the newest first, with the messages each came from and the
        model that made it."""
        conversation = owned_conversation(request, conversation_id)
        pages = SummariesNewestFirst()
        made = Compaction.objects.filter(conversation=conversation, summary_seq__gt=0).defer("made_so_far")
        return pages.get_paginated_response(_summaries(pages.paginate_queryset(made, request, view=self)))


def _summaries(compactions: Sequence[Compaction]) -> list[dict[str, Any]]:
    """Summaries of one conversation, as the API tells of them."""
    seqs = [compaction.summary_seq for compaction in compactions]
    of_conversation = Message.objects.filter(conversation_id__in={each.conversation_id for each in compactions})
    contents = dict(of_conversation.filter(seq__in=seqs).values_list("seq", "content"))
    return [
        {
            "kind": compaction.kind,
            "day": compaction.day,
            "seq": compaction.summary_seq,
            "content": contents.get(compaction.summary_seq, ""),
            "fromSeq": compaction.first_seq,
            "throughSeq": compaction.through_seq,
            "isStub": compaction.is_stub,
            "model": compaction.model or None,
            "memoryVersion": compaction.memory_version,
            "turnId": compaction.turn_id,
            "createdAt": compaction.ended_at,
            "undoneAt": compaction.undone_at,
            "undoneBy": compaction.undone_by or None,
            "undoneBecause": compaction.undone_because or None,
        }
        for compaction in compactions
    ]


class SummaryUndo(APIView):
    """Undoing a summary."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="undoSummary", request=shapes.UndoIn, responses={200: shapes.SummaryView, **problems(404, 409)}
    )
    def post(self, request: Request, conversation_id: UUID, seq: int) -> Response:
        """Have the summary before this one count again, which has to be the one that counts. Nothing is erased."""
        conversation = owned_conversation(request, conversation_id)
        reason = checked(shapes.UndoIn, request).get("reason", "")
        undone = summaries.undo(conversation.pk, min(seq, MAX_SEQ), by=str(request.user), reason=reason)
        return Response(_summaries([undone])[0])


class MessagePin(APIView):
    """A message that is in every prompt."""

    scopes: ClassVar = {"PUT": (Scope.CHAT,), "DELETE": (Scope.CHAT,)}

    @extend_schema(
        operation_id="pinMessage", request=Nothing, responses={200: shapes.MessageView, **problems(404, 409)}
    )
    def put(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Have a message in every prompt, word by word, also once it is summarised. One that is pinned stays so."""
        conversation = owned_conversation(request, conversation_id)
        checked(Nothing, request)
        message = pins.pin(conversation.pk, message_id, by=str(request.user))
        return Response(shapes.MessageView(message, context={"pinned": {message.seq}}).data)

    @extend_schema(operation_id="unpinMessage", responses={204: None, **problems(404)})
    def delete(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Have a message in prompts as others are. One that is not pinned stays so."""
        pins.unpin(owned_conversation(request, conversation_id).pk, message_id)
        return Response(status=204)
