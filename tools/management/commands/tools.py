"""``manage.py tools list | allow NAME [--grant PERMISSION] | deny NAME``."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tools import gate, registry
from tools.models import ToolSetting, sync_settings
from tools.permissions import GRANTABLE


class Command(BaseCommand):
    """Shows and changes which tools may run."""

    help = "Show and change which tools may run."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="List the registered tools, and what keeps each from running.")
        allow = actions.add_parser("allow", help="Enable a tool.")
        allow.add_argument("name")
        allow.add_argument("--grant", action="append", default=[], choices=[str(each) for each in GRANTABLE])
        deny = actions.add_parser("deny", help="Disable a tool and take its grants back.")
        deny.add_argument("name")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        sync_settings()
        getattr(self, f"_{action}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        for tool, forbidden_by in gate.survey(agent_tools=gate.AgentTools(names=None)):
            state = f"forbidden by {forbidden_by}" if forbidden_by else "allowed"
            needs = f"needs {', '.join(tool.permissions)}" if tool.permissions else "needs no permission"
            self.stdout.write(f"{tool.name}\t{state}\t{needs}\t{tool.effects}s")

    def _allow(self, options: dict[str, Any]) -> None:
        setting = self._setting(options["name"])
        setting.enabled = True
        setting.grants = sorted({*setting.grants, *options["grant"]})
        setting.save()
        survey = gate.survey(agent_tools=gate.AgentTools(names=None))
        forbidden_by = next(rule for tool, rule in survey if tool.name == setting.name)
        if forbidden_by and forbidden_by.startswith("permission:"):
            missing = forbidden_by.removeprefix("permission:")
            self.stdout.write(f"{setting.name} is enabled, but needs {missing}: add --grant {missing}.")
        elif forbidden_by:
            self.stdout.write(f"{setting.name} is enabled, but still forbidden by {forbidden_by}.")
        else:
            self.stdout.write(f"{setting.name} is allowed.")

    def _deny(self, options: dict[str, Any]) -> None:
        setting = self._setting(options["name"])
        setting.enabled, setting.grants = False, []
        setting.save()
        self.stdout.write(f"{setting.name} is denied.")

    def _setting(self, name: str) -> ToolSetting:
        if name not in registry.names():
            raise CommandError(f"There is no tool named {name!r}; there are: {', '.join(registry.names())}.")
        return ToolSetting.objects.get(name=name)
