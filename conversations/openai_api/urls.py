"""Addresses of OpenAI's API, under ``/v1``."""

from django.urls import path

from conversations.openai_api import chat_completions, models

urlpatterns = [
    path("chat/completions", chat_completions.ChatCompletions.as_view()),
    path("models", models.ModelList.as_view()),
    # Clients send what they have been told of, slashes and all.
    path("models/<path:model>", models.ModelDetail.as_view()),
]
