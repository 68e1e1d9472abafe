"""The routes of the API."""

from django.urls import path

from agent import access
from agent.models import DEFAULT_AGENT
from conversations.api import approvals, feedback, files, questions, shares, summaries, views
from conversations.errors import UnknownAgent
from memory.api.views import AgentHistory, AgentMemory
from nanohost.accounts.api.views import KeyDetail, KeyList
from nanohost.accounts.models import ApiKey
from tools.api.views import ToolList
from tools.gate import AgentTools


def may_name(key: ApiKey, name: str) -> bool:
    """Whether there is an agent of that name, and a key may name it."""
    return access.agent_of_key(key, name) is not None


def tools_of(key: ApiKey, name: str | None) -> AgentTools:
    """What an agent, or the default one, may use; raises :class:`conversations.errors.UnknownAgent`."""
    wanted = DEFAULT_AGENT if name is None else name
    agent = access.agent_of_key(key, wanted)
    if agent is None:
        raise UnknownAgent(access.UNKNOWN.format(wanted))
    return agent.allowed_tools(owner_id=key.owner_id)


urlpatterns = [
    path("keys", KeyList.as_view()),
    path("keys/<str:prefix>", KeyDetail.as_view()),
    path("conversations", views.ConversationList.as_view()),
    path("conversations/<uuid:conversation_id>", views.ConversationDetail.as_view()),
    path("conversations/<uuid:conversation_id>/branches", views.BranchCreate.as_view()),
    path("conversations/<uuid:conversation_id>/chat", views.Chat.as_view()),
    path("conversations/<uuid:conversation_id>/messages", views.MessageList.as_view()),
    path("conversations/<uuid:conversation_id>/deferred", views.DeferredList.as_view()),
    path("conversations/<uuid:conversation_id>/turns", views.TurnList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries", summaries.SummaryList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries/<int:seq>/undo", summaries.SummaryUndo.as_view()),
    path("conversations/<uuid:conversation_id>/messages/<uuid:message_id>/pin", summaries.MessagePin.as_view()),
    path("conversations/<uuid:conversation_id>/shares", shares.ShareCreate.as_view()),
    path("shares", shares.ShareList.as_view()),
    path("shares/<uuid:share_id>", shares.ShareDetail.as_view()),
    path("agents/<str:agent>/memory", AgentMemory.as_view(may_name=may_name)),
    path("agents/<str:agent>/history", AgentHistory.as_view(may_name=may_name)),
    path("agents/<str:agent>/files", files.FileList.as_view(may_name=may_name)),
    path("agents/<str:agent>/files/<path:path>", files.FileDetail.as_view(may_name=may_name)),
    path("turns", views.TurnSearch.as_view()),
    path("turns/<uuid:turn_id>", views.TurnDetail.as_view()),
    path("turns/<uuid:turn_id>/events", views.TurnEvents.as_view()),
    path("turns/<uuid:turn_id>/cancel", views.TurnCancel.as_view()),
    path("turns/<uuid:turn_id>/feedback", feedback.TurnFeedback.as_view()),
    path("deferred/<uuid:deferred_id>", views.DeferredDetail.as_view()),
    path("deferred/<uuid:deferred_id>/cancel", views.DeferredCancel.as_view()),
    path("attachments/<uuid:attachment_id>", views.AttachmentDetail.as_view()),
    path("attachments/<uuid:attachment_id>/thumbnail", views.AttachmentThumbnail.as_view()),
    path("approvals", approvals.ApprovalList.as_view()),
    path("approvals/<uuid:approval_id>", approvals.ApprovalDetail.as_view()),
    path("approvals/<uuid:approval_id>/decide", approvals.ApprovalDecide.as_view()),
    path("questions", questions.QuestionList.as_view()),
    path("questions/<uuid:question_id>/answer", questions.QuestionAnswer.as_view()),
    path("tools", ToolList.as_view(tools_of=tools_of)),
]
