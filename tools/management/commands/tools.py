"""``manage.py tools list | allow NAME [--grant PERMISSION] [--approval MODE] | deny NAME | custom | see NAME
| new NAME [--app APP]``."""

import difflib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nanohost.accounts import audit
from nanohost.lib.process import user_of_this
from tools import gate, registry, scaffold
from tools.changes import changing
from tools.consent import Consent
from tools.custom import catalogue, looking
from tools.custom.models import CustomTool
from tools.errors import ToolExists, UnfitName
from tools.models import sync_settings
from tools.permissions import grantable

WITH_CONSENT = {
    Consent.NEVER: "",
    Consent.TAINTED: "; in a conversation that is tainted, each call waits for consent",
    Consent.ALWAYS: "; each call waits for consent",
}

EFFECTS = {"read": "reads", "write": "writes", "rows": "changes rows"}

EVERY_TOOL = gate.AgentTools(names=None, workspace=gate.ANY_WORKSPACE)

NEXT = """Wrote {tool}
  and {test}

Write what {name} does, and test it:
  {python} -m pytest {test}

Then start the host with it, allow it, and have the scripted model call it by a chat with this body:
{exports}  {manage} tools allow {name}
  {body}

docs/tools.md has the rest."""


class Command(BaseCommand):
    """Shows and changes which tools may run, and begins new ones."""

    help = "Show and change which tools may run; begin a new one."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="List the registered tools, and why each is not run, if it is not.")
        allow = actions.add_parser("allow", help="Enable a tool.")
        allow.add_argument("name")
        allow.add_argument("--grant", action="append", default=[], choices=[str(each) for each in grantable()])
        allow.add_argument("--approval", choices=Consent.values, help="When its calls wait for consent.")
        deny = actions.add_parser("deny", help="Disable a tool and take its grants back.")
        deny.add_argument("name")
        actions.add_parser("custom", help="List the files of workspaces that are tools, or could be.")
        see = actions.add_parser("see", help="Show a file that is a tool, and note that you have seen it.")
        see.add_argument("name")
        new = actions.add_parser("new", help="Create a new tool and its test in an app of your own.")
        new.add_argument("name", help="The tool's name: that of a Python function.")
        new.add_argument("--app", help="Its dotted name; made if there is none. Default: yours, or my_tools.")
        new.add_argument("--directory", type=Path, help="The folder of the app. Default: that of manage.py.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action != "new":  # which needs no database
            sync_settings()
        getattr(self, f"_{action}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        for tool, forbidden_by in gate.survey(agent_tools=EVERY_TOOL):
            state = f"forbidden by {forbidden_by}" if forbidden_by else "allowed"
            needs = f"needs {', '.join(tool.permissions)}" if tool.permissions else "needs no permission"
            self.stdout.write(f"{tool.name}\t{state}\t{needs}\t{EFFECTS[tool.effects]}")

    def _allow(self, options: dict[str, Any]) -> None:
        name = _known(options["name"])
        with changing(name, by=_who()) as setting:
            setting.enabled = True
            setting.grants = sorted({*setting.grants, *options["grant"]})
            setting.approval = options["approval"] or setting.approval
            mode = Consent(setting.approval)
        survey = gate.survey(agent_tools=EVERY_TOOL)
        forbidden_by = next(rule for tool, rule in survey if tool.name == name)
        if forbidden_by and forbidden_by.startswith("permission:"):
            missing = forbidden_by.removeprefix("permission:")
            self.stdout.write(f"{name} is enabled, but needs {missing}: add --grant {missing}.")
        elif forbidden_by:
            self.stdout.write(f"{name} is enabled, but still forbidden by {forbidden_by}.")
        else:
            self.stdout.write(f"{name} is allowed{WITH_CONSENT[mode]}.")

    def _deny(self, options: dict[str, Any]) -> None:
        name = _known(options["name"])
        with changing(name, by=_who()) as setting:
            setting.enabled, setting.grants = False, []
        self.stdout.write(f"{name} is denied.")

    def _custom(self, options: dict[str, Any]) -> None:
        if not settings.CUSTOM_TOOLS:
            raise CommandError("Files of workspaces are no tools here: CUSTOM_TOOLS is not set.")
        with audit.acting(_who()):
            looking.look_at_all()
        for tool in CustomTool.objects.filter(gone=False):
            flagged = f"{len(tool.flagged)} flagged" if tool.flagged else "nothing flagged"
            state = f"{tool.state}: {tool.unfit}" if tool.unfit else tool.state
            self.stdout.write(_printable(f"{tool.full_name}\t{state}\t{flagged}\t{tool.workspace}/{tool.file}"))

    def _see(self, options: dict[str, Any]) -> None:
        tool = CustomTool.objects.filter(full_name=options["name"], gone=False).first()
        if tool is None:
            raise CommandError(f"No file of a workspace is {options['name']!r}; see manage.py tools custom.")
        if tool.unfit:
            raise CommandError(_printable(f"{tool.full_name} cannot be a tool: {tool.unfit}."))
        before, now = (text.splitlines() for text in catalogue.what_is_told(tool))
        for line in difflib.unified_diff(before, now, "seen", "now", lineterm=""):
            self.stdout.write(_printable(line))
        for each in tool.flagged:
            self.stdout.write(_printable(f"flagged: {each}"))
        with audit.acting(_who()):
            if not catalogue.see(tool, expected=tool.hash, by=user_of_this()):
                raise CommandError("It was changed just now; look again.")
        self.stdout.write(f"{tool.full_name} was seen. Next: manage.py tools allow {tool.full_name}")

    def _new(self, options: dict[str, Any]) -> None:
        extra, directory = settings.NANOHOST_EXTRA_APPS, options["directory"]
        app = options["app"] or (extra[0] if len(extra) == 1 else "my_tools")
        directory = directory.expanduser().resolve() if directory else None
        try:
            written = scaffold.new_tool(options["name"], app=app, directory=directory)
        except (UnfitName, ToolExists) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{error.filename or app}: {error.strerror or error}; nothing was written.") from None
        script = [{"call": [{"name": options["name"], "arguments": {"text": "hello"}}]}, {"say": "{results}"}]
        exports = {"NANOHOST_EXTRA_APPS": ",".join(dict.fromkeys([*extra, app]))}
        if directory not in (None, settings.BASE_DIR):
            exports["PYTHONPATH"] = str(directory)
        self.stdout.write(
            NEXT.format(
                name=options["name"],
                tool=written.tool,
                test=shlex.quote(str(written.test)),
                python=shlex.quote(sys.executable),
                manage=f"{shlex.quote(sys.executable)} manage.py",
                exports="".join(f"  export {name}={shlex.quote(value)}\n" for name, value in exports.items()),
                body=shlex.quote(json.dumps({"message": json.dumps({"script": script})})),
            )
        )


def _printable(line: str) -> str:
    """A line of somebody else's, for a terminal."""
    return "".join(each if each.isprintable() or each == "\t" else repr(each)[1:-1] for each in line)


def _who() -> str:
    """Whom the change log names."""
    return f"manage.py, {user_of_this()}"


def _known(name: str) -> str:
    names = [tool.name for tool in registry.everything()]
    if name not in names:
        raise CommandError(f"There is no tool named {name!r}; there are: {', '.join(names)}.")
    return name
