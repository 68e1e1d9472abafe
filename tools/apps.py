from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from tools import registry


class ToolsConfig(AppConfig):
    """Finds every app's tools, as Django finds its ``admin.py``: this app knows nobody above it."""

    name = "tools"

    def ready(self) -> None:
        autodiscover_modules("agent_tools")
        # A tool without a schema would break the first turn it is offered in; here it breaks the start. And once the
        # schema is made, the registry lets go of the function.
        for tool in registry.registered():
            tool.schema  # noqa: B018 -- made now, and kept
