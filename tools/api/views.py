"""The API of tools: which there are, and which an agent may use."""

from collections.abc import Callable
from typing import ClassVar

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.api import problems
from tools import gate
from tools.api import serializers as shapes
from tools.gate import AgentTools


class ToolList(APIView):
    """The tools there are."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    # What an agent may use is the app's to say that gives this view its address; raises for one that there is not, or
    # that the key may not name.
    tools_of: Callable[[ApiKey, str | None], AgentTools] = staticmethod(lambda key, name: AgentTools(names=frozenset()))

    @extend_schema(
        operation_id="listTools",
        parameters=[
            OpenApiParameter(
                "agent",
                {"type": "string", "minLength": 1},
                description="For which agent; the default one if missing.",
            )
        ],
        responses={200: shapes.ToolView(many=True), **problems()},
    )
    def get(self, request: Request) -> Response:
        """Every registered tool, and whether an agent may use it now, or the rule that forbids it."""
        survey = gate.survey(agent_tools=self.tools_of(key_of(request), request.query_params.get("agent")))
        return Response(
            [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "schema": tool.schema,
                    "permissions": list(tool.permissions),
                    "allowed": forbidden_by is None,
                    "forbiddenBy": forbidden_by,
                }
                for tool, forbidden_by in survey
            ]
        )
