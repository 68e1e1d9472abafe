"""Addresses of OpenAI's API, under ``/v1``."""

from django.urls import path

from conversations.openai_api import chat_completions, compact, conversations, input_tokens, models, responses

urlpatterns = [
    path("chat/completions", chat_completions.ChatCompletions.as_view()),
    path("conversations", conversations.ConversationCreate.as_view()),
    path("conversations/<str:conversation_id>", conversations.ConversationDetail.as_view()),
    path("conversations/<str:conversation_id>/items", conversations.ConversationItems.as_view()),
    path("conversations/<str:conversation_id>/items/<str:item_id>", conversations.ConversationItem.as_view()),
    path("models", models.ModelList.as_view()),
    # Clients send what they have been told of, slashes and all.
    path("models/<path:model>", models.ModelDetail.as_view()),
    path("responses", responses.ResponseCreate.as_view()),
    path("responses/compact", compact.ResponseCompact.as_view()),
    path("responses/input_tokens", input_tokens.InputTokens.as_view()),
    path("responses/<str:response_id>", responses.ResponseDetail.as_view()),
    path("responses/<str:response_id>/cancel", responses.ResponseCancel.as_view()),
    path("responses/<str:response_id>/input_items", responses.ResponseInputItems.as_view()),
]
