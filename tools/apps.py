from importlib import import_module

from django.apps import AppConfig, apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from nanohost.lib import env
from tools import registry
from tools.errors import ToolDefinitionError


class ToolsConfig(AppConfig):
    """Finds every app's tools, as Django finds its ``admin.py``: this app knows nobody above it."""

    name = "tools"

    def ready(self) -> None:
        if settings.NANOHOST_TOOL_PROCESS:
            return  # it imports the modules that it is told of, which are not those of inline tools
        autodiscover_modules("agent_tools")
        import_module("tools.workspace.agent_tools")  # a room of this app, and no app of its own
        import_module("tools.skills.agent_tools")
        import_module("tools.commands")
        from tools.mcp import catalogue  # of models, which are there by now

        registry.add_source(catalogue.find)
        from tools.custom import catalogue as custom

        registry.add_source(custom.find)
        # A tool without a schema would break the first turn it is offered in; here it breaks the start. And once the
        # schema is made, the registry lets go of the function.
        for tool in registry.registered():
            env.have_redacted(tool.secrets)
            tool.schema  # noqa: B018 -- made now, and kept
            if tool.boxed and not _is_of_nanohost(tool.module):
                raise ToolDefinitionError(f"{tool.name}: boxed tools are nanohost's alone.")
            if tool.inline and not _is_of_nanohost(tool.module):
                raise ToolDefinitionError(
                    f"{tool.name}: a tool of {tool.module} cannot have `caller: Caller`. Tools that have it run in the"
                    " worker's own process, on its database, and are nanohost's alone. Leave the argument out."
                )


def _is_of_nanohost(module: str) -> bool:
    """Whether a module is of an app of nanohost's own. Those of NANOHOST_EXTRA_APPS stand last among the apps."""
    names = [config.name for config in apps.get_app_configs()]
    own = names[: len(names) - len(settings.NANOHOST_EXTRA_APPS)]
    return any(module.startswith(f"{name}.") for name in own)
