from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class ToolsConfig(AppConfig):
    """Finds every app's tools, as Django finds its ``admin.py``: this app knows nobody above it."""

    name = "tools"

    def ready(self) -> None:
        autodiscover_modules("agent_tools")
