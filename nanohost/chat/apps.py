"""The app: its templates and static files."""

from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "nanohost.chat"
    label = "chat"
    verbose_name = "Chat"
