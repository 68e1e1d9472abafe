"""Models: the agents that a key may name. (No rows: those are in ``conversations/models/``.)"""

from dataclasses import dataclass
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agent import access
from agent.models import Agent
from conversations.openai_api.errors import ModelNotFound
from conversations.openai_api.shapes import errors
from conversations.openai_api.views import KeyView
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import ApiKey, Scope

# Behind an agent's name, which has no colon itself: it is offered no tools of the host. For clients that have the same
# model make titles and tags.
PLAIN = ":plain"
OWNED_BY = "nanohost"


class ModelView(serializers.Serializer[Any]):
    """An agent."""

    id = serializers.CharField(help_text="The agent's name, which requests name as their model.")
    object = serializers.ChoiceField(choices=["model"])
    created = serializers.IntegerField(help_text="When it was made, in seconds since 1970.")
    owned_by = serializers.CharField()


class ModelListView(serializers.Serializer[Any]):
    """All that a key may name."""

    object = serializers.ChoiceField(choices=["list"])
    data = ModelView(many=True)  # type: ignore[assignment]  # a field, which is taken off the class


@dataclass(frozen=True, kw_only=True)
class AsModel:
    """An agent as a request names it."""

    agent: Agent
    name: str

    @property
    def is_plain(self) -> bool:
        """Whether it is offered no tools of the host."""
        return self.name.endswith(PLAIN)

    def as_json(self) -> dict[str, Any]:
        """As OpenAI describes a model."""
        created = int(self.agent.created_at.timestamp())
        return {"id": self.name, "object": "model", "created": created, "owned_by": OWNED_BY}


def model_of(key: ApiKey, name: str) -> AsModel:
    """The agent that a request names; raises :class:`ModelNotFound`."""
    agent = access.agent_of_key(key, name.removesuffix(PLAIN))
    if agent is None:
        raise ModelNotFound(access.UNKNOWN.format(name), param="model")
    return AsModel(agent=agent, name=name)


class ModelList(KeyView):
    """The models that there are."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(operation_id="listModels", responses={200: ModelListView, **errors()})
    def get(self, request: Request) -> Response:
        """The agents that this key may name, by name."""
        agents = [agent for agent in Agent.objects.order_by("name") if access.admits(key_of(request), agent)]
        return Response({"object": "list", "data": [AsModel(agent=each, name=each.name).as_json() for each in agents]})


class ModelDetail(KeyView):
    """One model."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.CHAT)}

    @extend_schema(operation_id="retrieveModel", responses={200: ModelView, **errors(404)})
    def get(self, request: Request, model: str) -> Response:
        """An agent, if this key may name it."""
        return Response(model_of(key_of(request), model).as_json())
