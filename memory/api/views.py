"""The API of memory: what an agent knows about the caller, and the history log."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from memory import documents, log
from memory.api import serializers as shapes
from memory.models import HistoryEntry
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.api import NewestFirst, checked, owner_of, parameter_of, problems
from nanohost.lib.errors import InvalidRequest, NotFound

MAX_FOUND = 50


def _memory(agent: str, owner_id: int) -> dict[str, Any]:
    known = documents.background(agent=agent, owner_id=owner_id, today=timezone.localdate())
    return {
        "agent": agent,
        "version": known.version,
        "content": known.content,
        "characters": len(known.content),
        "maxCharacters": settings.MEMORY_MAX_CHARS,
        "notes": known.notes,
        "tainted": known.tainted_by or None,
    }


class OfAgent(APIView):
    """Of an agent that is named in the address."""

    # Which agents there are, and a key may name, is the app's to say that gives this view its address.
    may_name: Callable[[ApiKey, str], bool] = staticmethod(lambda key, name: False)

    def known(self, name: str) -> str:
        """The name of an agent that the caller's key may name; raises :class:`nanohost.lib.errors.NotFound`."""
        if not self.may_name(key_of(self.request), name):
            raise NotFound("There is no agent with that name.")
        return name


class AgentMemory(OfAgent):
    """What an agent knows about the caller."""

    scopes: ClassVar = {"GET": (Scope.MEMORY,), "PUT": (Scope.MEMORY,)}

    @extend_schema(operation_id="getMemory", responses={200: shapes.MemoryView, **problems(404)})
    def get(self, request: Request, agent: str) -> Response:
        """The long-term memory, which is in every prompt, and today's notes."""
        return Response(_memory(self.known(agent), owner_of(request)))

    @extend_schema(
        operation_id="putMemory",
        request=shapes.MemoryIn,
        responses={200: shapes.MemoryView, **problems(404, 409, 422)},
    )
    def put(self, request: Request, agent: str) -> Response:
        """Rewrite the long-term memory, as a new version; earlier ones are kept.

        ``version`` is the one that was read: if there is a newer one by now, nothing is changed, and the answer is 409.
        """
        given = checked(shapes.MemoryIn, request)
        documents.rewrite(
            agent=self.known(agent),
            owner_id=owner_of(request),
            base=given["version"],
            content=given["content"],
            source="api",
            made_by=str(request.user),
            checked=False,
        )
        return Response(_memory(agent, owner_of(request)))


class AgentHistory(OfAgent):
    """What happened between an agent and the caller."""

    scopes: ClassVar = {"GET": (Scope.MEMORY,)}

    @extend_schema(
        operation_id="searchHistory",
        parameters=[
            OpenApiParameter("q", str, description="Words, or their beginnings. Without: all entries, newest first."),
            *(parameter_of(each) for each in NewestFirst().get_schema_operation_parameters(None)),
        ],
        responses={200: shapes.HistoryPage, **problems(404)},
    )
    def get(self, request: Request, agent: str) -> Response:
        """Entries of the history log: those that have all of the words, or a page of all."""
        owner_id = owner_of(request)
        query = request.query_params.get("q")
        if query is None:
            pages = HistoryPages()
            log_of_both = HistoryEntry.objects.filter(agent=self.known(agent), owner_id=owner_id)
            found = pages.paginate_queryset(log_of_both, request, view=self)
            return pages.get_paginated_response(shapes.HistoryEntryView(found, many=True).data)
        if "\x00" in query:
            raise InvalidRequest("q holds a null character.")
        limit = _limit(request)
        hits = log.recall(
            agent=self.known(agent), owner_id=owner_id, query=query, limit=limit, today=timezone.localdate()
        )
        entries = [asdict(hit) | {"happened_at": hit.when, "happened_until": hit.until} for hit in hits]
        return Response({"next": None, "previous": None, "results": shapes.HistoryEntryView(entries, many=True).data})


class HistoryPages(NewestFirst):
    ordering = ("-happened_at", "-id")


def _limit(request: Request) -> int:
    limit = request.query_params.get("limit", "10")
    if not (limit.isascii() and limit.isdigit() and int(limit[:9]) >= 1):
        raise InvalidRequest("limit is a whole number of at least 1.")
    return min(int(limit[:9]), MAX_FOUND)
