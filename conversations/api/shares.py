"""The API of links by which others read a conversation."""

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent import access
from conversations import sharing
from conversations.api import serializers as shapes
from conversations.api.views import owned_conversation
from conversations.models import Share
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import NewestFirst, checked, owner_of, problems
from nanohost.lib.errors import InvalidRequest, NotFound


class ShareCreate(APIView):
    """Sharing a conversation."""

    scopes: ClassVar = {"POST": (Scope.CHAT,)}

    @extend_schema(
        operation_id="createShare", request=shapes.NewShare, responses={201: shapes.ShareMade, **problems(404)}
    )
    def post(self, request: Request, conversation_id: UUID) -> Response:
        """Make a link by which whoever has it reads what there is of a conversation by now. Its token is told this
        once; the link is `/chat/shared/TOKEN/`."""
        conversation = owned_conversation(request, conversation_id)
        wanted = checked(shapes.NewShare, request)
        made, token = sharing.share(conversation, days=wanted["days"], with_tools=wanted["withTools"])
        return Response(shapes.ShareView(made).data | {"token": token}, status=201)


def _mine(request: Request) -> Any:
    mine = Share.objects.filter(owner=owner_of(request))
    return access.admitted(mine, key_of(request), agent="conversation__agent")


class ShareList(ListAPIView[Share]):
    """Links of the caller."""

    scopes: ClassVar = {"GET": (Scope.READ,)}
    serializer_class = shapes.ShareView
    pagination_class = NewestFirst

    def get_queryset(self) -> Any:
        mine = _mine(self.request)
        if (conversation := self.request.query_params.get("conversationId")) is not None:
            try:
                mine = mine.filter(conversation_id=UUID(conversation))
            except ValueError:
                raise InvalidRequest("conversationId is the id of a conversation.") from None
        return mine

    @extend_schema(
        operation_id="listShares",
        parameters=[OpenApiParameter("conversationId", UUID, description="Those of this conversation.")],
        responses={200: shapes.ShareView(many=True), **problems()},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Links, the newest first; those that have ended, too."""
        return super().get(request, *args, **kwargs)


class ShareDetail(APIView):
    """One link."""

    scopes: ClassVar = {"DELETE": (Scope.CHAT,)}

    @extend_schema(operation_id="revokeShare", responses={204: None, **problems(404)})
    def delete(self, request: Request, share_id: UUID) -> Response:
        """Have it open nothing from now on. It stays listed."""
        found = _mine(request).filter(pk=share_id).first()
        if found is None:
            raise NotFound("There is no link with that id, or it is not yours.")
        sharing.revoke(found)
        return Response(status=204)
