"""Addresses of the API; those of agents tell the apps below which agents there are."""

from django.urls import path

from agent.models import DEFAULT_AGENT, Agent
from conversations.api import summaries, views
from conversations.errors import UnknownAgent
from memory.api.views import AgentHistory, AgentMemory
from tools.api.views import ToolList
from tools.gate import AgentTools


def agent_exists(name: str) -> bool:
    """Whether there is an agent of that name."""
    return Agent.objects.filter(name=name).exists()


def tools_of(name: str | None) -> AgentTools:
    """What an agent, or the default one, may use; raises :class:`conversations.errors.UnknownAgent`."""
    wanted = DEFAULT_AGENT if name is None else name
    agent = Agent.objects.filter(name=wanted).first() if "\x00" not in wanted else None
    if agent is None:
        raise UnknownAgent(f"There is no agent named {wanted!r}.")
    return agent.allowed_tools()


urlpatterns = [
    path("conversations", views.ConversationList.as_view()),
    path("conversations/<uuid:conversation_id>", views.ConversationDetail.as_view()),
    path("conversations/<uuid:conversation_id>/chat", views.Chat.as_view()),
    path("conversations/<uuid:conversation_id>/messages", views.MessageList.as_view()),
    path("conversations/<uuid:conversation_id>/deferred", views.DeferredList.as_view()),
    path("conversations/<uuid:conversation_id>/turns", views.TurnList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries", summaries.SummaryList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries/<int:seq>/undo", summaries.SummaryUndo.as_view()),
    path("conversations/<uuid:conversation_id>/messages/<uuid:message_id>/pin", summaries.MessagePin.as_view()),
    path("agents/<str:agent>/memory", AgentMemory.as_view(agent_exists=agent_exists)),
    path("agents/<str:agent>/history", AgentHistory.as_view(agent_exists=agent_exists)),
    path("turns/<uuid:turn_id>", views.TurnDetail.as_view()),
    path("turns/<uuid:turn_id>/events", views.TurnEvents.as_view()),
    path("turns/<uuid:turn_id>/cancel", views.TurnCancel.as_view()),
    path("deferred/<uuid:deferred_id>", views.DeferredDetail.as_view()),
    path("deferred/<uuid:deferred_id>/cancel", views.DeferredCancel.as_view()),
    path("tools", ToolList.as_view(tools_of=tools_of)),
]
