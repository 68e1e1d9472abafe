from django.urls import path

from conversations.api import memory, views

urlpatterns = [
    path("conversations", views.ConversationList.as_view()),
    path("conversations/<uuid:conversation_id>", views.ConversationDetail.as_view()),
    path("conversations/<uuid:conversation_id>/chat", views.Chat.as_view()),
    path("conversations/<uuid:conversation_id>/messages", views.MessageList.as_view()),
    path("conversations/<uuid:conversation_id>/deferred", views.DeferredList.as_view()),
    path("conversations/<uuid:conversation_id>/turns", views.TurnList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries", memory.SummaryList.as_view()),
    path("conversations/<uuid:conversation_id>/summaries/<int:seq>/undo", memory.SummaryUndo.as_view()),
    path("conversations/<uuid:conversation_id>/messages/<uuid:message_id>/pin", memory.MessagePin.as_view()),
    path("agents/<str:agent>/memory", memory.AgentMemory.as_view()),
    path("agents/<str:agent>/history", memory.AgentHistory.as_view()),
    path("turns/<uuid:turn_id>", views.TurnDetail.as_view()),
    path("turns/<uuid:turn_id>/events", views.TurnEvents.as_view()),
    path("turns/<uuid:turn_id>/cancel", views.TurnCancel.as_view()),
    path("deferred/<uuid:deferred_id>", views.DeferredDetail.as_view()),
    path("deferred/<uuid:deferred_id>/cancel", views.DeferredCancel.as_view()),
    path("tools", views.ToolList.as_view()),
]
