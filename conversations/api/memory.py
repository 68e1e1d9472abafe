"""The REST API of what is remembered: an agent's memory of the caller, the history log, a conversation's summaries."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent.models import Agent
from conversations import pins, summaries
from conversations.api import serializers as shapes
from conversations.api.pages import NewestFirst, Pages, parameter_of
from conversations.api.views import _checked, _owned_conversation, _owner_id, _problems
from conversations.models import MOST_SEQ, Compaction, Message
from memory import documents, log
from memory.models import HistoryEntry
from nanohost.lib.errors import InvalidRequest, NotFound

MOST_FOUND = 50


def _known_agent(name: str) -> str:
    if "\x00" in name or not Agent.objects.filter(name=name).exists():
        raise NotFound("There is no agent of that name.")
    return name


def _memory(agent: str, owner_id: int) -> dict[str, Any]:
    known = documents.background(agent=agent, owner_id=owner_id, today=timezone.localdate())
    return {
        "agent": agent,
        "version": known.version,
        "content": known.content,
        "characters": len(known.content),
        "maxCharacters": settings.MEMORY_MAX_CHARS,
        "notes": known.notes,
    }


class AgentMemory(APIView):
    """What an agent knows about the caller."""

    @extend_schema(operation_id="getMemory", responses={200: shapes.MemoryView, **_problems(404)})
    def get(self, request: Request, agent: str) -> Response:
        """The long-term memory, which is in every prompt, and today's notes."""
        return Response(_memory(_known_agent(agent), _owner_id(request)))

    @extend_schema(
        operation_id="putMemory",
        request=shapes.MemoryIn,
        responses={200: shapes.MemoryView, **_problems(404, 409, 422)},
    )
    def put(self, request: Request, agent: str) -> Response:
        """Rewrite the long-term memory, as a new version; earlier ones are kept.

        ``version`` is the one that was read: if there is a newer one by now, nothing is changed, and the answer is 409.
        """
        given = _checked(shapes.MemoryIn, request)
        documents.rewrite(
            agent=_known_agent(agent),
            owner_id=_owner_id(request),
            base=given["version"],
            content=given["content"],
            source="api",
            made_by=str(request.user),
            checked=False,
        )
        return Response(_memory(agent, _owner_id(request)))


class AgentHistory(APIView):
    """What happened between an agent and the caller."""

    @extend_schema(
        operation_id="searchHistory",
        parameters=[
            OpenApiParameter("q", str, description="Words, or their beginnings. Without: all entries, newest first."),
            *(parameter_of(each) for each in NewestFirst().get_schema_operation_parameters(None)),
        ],
        responses={200: shapes.HistoryPage, **_problems(404)},
    )
    def get(self, request: Request, agent: str) -> Response:
        """Entries of the history log: those that have all of the words, or a page of all."""
        owner_id = _owner_id(request)
        query = request.query_params.get("q")
        if query is None:
            pages = HistoryPages()
            log_of_both = HistoryEntry.objects.filter(agent=_known_agent(agent), owner_id=owner_id)
            found = pages.paginate_queryset(log_of_both, request, view=self)
            return pages.get_paginated_response(shapes.HistoryEntryView(found, many=True).data)
        if "\x00" in query:
            raise InvalidRequest("q holds a null character.")
        limit = _limit(request)
        hits = log.recall(
            agent=_known_agent(agent), owner_id=owner_id, query=query, limit=limit, today=timezone.localdate()
        )
        entries = [asdict(hit) | {"happened_at": hit.when, "happened_until": hit.until} for hit in hits]
        return Response({"next": None, "previous": None, "results": shapes.HistoryEntryView(entries, many=True).data})


class HistoryPages(NewestFirst):
    ordering = ("-happened_at", "-id")


def _limit(request: Request) -> int:
    limit = request.query_params.get("limit", "10")
    if not (limit.isascii() and limit.isdigit() and int(limit[:9]) >= 1):
        raise InvalidRequest("limit is a whole number of at least 1.")
    return min(int(limit[:9]), MOST_FOUND)


class SummariesNewestFirst(Pages):
    ordering = "-summary_seq"


class SummaryList(APIView):
    """A conversation's summaries."""

    @extend_schema(
        operation_id="listSummaries",
        parameters=[parameter_of(each) for each in NewestFirst().get_schema_operation_parameters(None)],
        responses={200: shapes.SummaryPage, **_problems(404)},
    )
    def get(self, request: Request, conversation_id: UUID) -> Response:
        """A page of summaries, for prompts and of days, the newest first, with the messages each came from and the
        model that made it."""
        conversation = _owned_conversation(request, conversation_id)
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

    @extend_schema(
        operation_id="undoSummary", request=shapes.UndoIn, responses={200: shapes.SummaryView, **_problems(404, 409)}
    )
    def post(self, request: Request, conversation_id: UUID, seq: int) -> Response:
        """Have the summary before this one count again, which has to be the one that counts. Nothing is erased."""
        conversation = _owned_conversation(request, conversation_id)
        reason = _checked(shapes.UndoIn, request).get("reason", "")
        undone = summaries.undo(conversation.pk, min(seq, MOST_SEQ), by=str(request.user), reason=reason)
        return Response(_summaries([undone])[0])


class MessagePin(APIView):
    """A message that is in every prompt."""

    @extend_schema(
        operation_id="pinMessage", request=shapes.Nothing, responses={200: shapes.MessageView, **_problems(404, 409)}
    )
    def put(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Have a message in every prompt, word by word, also once it is summarised. One that is pinned stays so."""
        conversation = _owned_conversation(request, conversation_id)
        _checked(shapes.Nothing, request)
        message = pins.pin(conversation.pk, message_id, by=str(request.user))
        return Response(shapes.MessageView(message, context={"pinned": {message.seq}}).data)

    @extend_schema(operation_id="unpinMessage", responses={204: None, **_problems(404)})
    def delete(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Have a message in prompts as others are. One that is not pinned stays so."""
        pins.unpin(_owned_conversation(request, conversation_id).pk, message_id)
        return Response(status=204)
