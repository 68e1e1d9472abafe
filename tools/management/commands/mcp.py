"""``manage.py mcp list | add NAME [--env A=MCP_SECRET_B] [--network] -- PROGRAM … | add NAME --url URL [--sse]
[--header A=MCP_SECRET_B] | check NAME | see TOOL [--reads] | enable NAME | disable NAME``."""

import difflib
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nanohost.accounts import audit
from nanohost.lib.process import user_of_this
from tools.mcp import catalogue
from tools.mcp.errors import NotStarted
from tools.mcp.models import McpServer, McpTool, Transport


class Command(BaseCommand):
    """Shows and changes MCP servers, and which of their tools somebody has seen."""

    help = "Show and change MCP servers and the reviews of their tools."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="List the servers and their tools.")
        add = actions.add_parser(
            "add", help="Add a server: a program of this machine, or an address. It is off at first."
        )
        add.add_argument("name")
        add.add_argument("program", nargs="*", help="After --: the program and its arguments.")
        add.add_argument("--url", default="", help="Its address, instead of a program.")
        add.add_argument("--sse", action="store_true", help="The address speaks SSE, and not streamable HTTP.")
        add.add_argument("--header", action="append", default=[], metavar="NAME=MCP_SECRET_NAME")
        add.add_argument("--env", action="append", default=[], metavar="VARIABLE=MCP_SECRET_NAME")
        add.add_argument("--network", action="store_true", help="It may reach the network.")
        for action, help_text in (
            ("check", "Start a server, and read its list of tools."),
            ("enable", "Let the tools of a server be used that were seen and allowed."),
            ("disable", "Let no tool of a server be used."),
        ):
            actions.add_parser(action, help=help_text).add_argument("name")
        see = actions.add_parser("see", help="Show what a tool says, and note that you have seen it.")
        see.add_argument("tool")
        see.add_argument("--reads", action="store_true", help="Agree that it changes nothing, as its server says.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        with audit.acting(f"manage.py, {user_of_this()}"):
            {
                "list": self._list,
                "add": self._add,
                "check": self._check,
                "enable": self._switch,
                "disable": self._switch,
                "see": self._see,
            }[action](action, options)

    def _list(self, action: str, options: dict[str, Any]) -> None:
        for server in McpServer.objects.prefetch_related("tools"):
            state = "enabled" if server.enabled else "not enabled"
            self.stdout.write(f"{server.name}\t{state}\t{server.last_error or 'no error'}")
            for tool in server.tools.filter(gone=False):
                self.stdout.write(f"  {tool.full_name}\t{tool.state}")

    def _add(self, action: str, options: dict[str, Any]) -> None:
        if bool(options["url"]) == bool(options["program"]):
            raise CommandError("Give a program after --, or its address with --url.")
        command, *arguments = options["program"] or [""]
        environment, headers = (dict(each.partition("=")[::2] for each in options[name]) for name in ("env", "header"))
        server = McpServer(name=options["name"], command=command, arguments=arguments, environment=environment)
        server.url, server.headers = options["url"], headers
        if options["url"]:
            server.transport = Transport.SSE if options["sse"] else Transport.HTTP
        server.network = options["network"]
        try:
            server.full_clean()
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        server.save()
        audit.record("mcp_server.added", about=server, name=server.name, after=server.said())
        self.stdout.write(f"{server.name} is added, and off. Next: manage.py mcp check {server.name}")

    def _check(self, action: str, options: dict[str, Any]) -> None:
        server = _server(options["name"])
        try:
            unfit = catalogue.refresh(server)
        except NotStarted as why:
            raise CommandError(f"{server.name}: {why}.") from None
        for tool in server.tools.filter(gone=False):
            self.stdout.write(f"{tool.full_name}\t{tool.state}")
        for name, why_not in sorted(unfit.items()):
            self.stdout.write(f"{name!r} cannot be a tool here: {why_not}.")

    def _switch(self, action: str, options: dict[str, Any]) -> None:
        server = _server(options["name"])
        catalogue.switch(server, on=action == "enable")
        self.stdout.write(f"{server.name} is {'enabled' if action == 'enable' else 'not enabled'}.")

    def _see(self, action: str, options: dict[str, Any]) -> None:
        tool = McpTool.objects.filter(full_name=options["tool"]).first()
        if tool is None:
            raise CommandError(f"No MCP server has a tool named {options['tool']!r}; see manage.py mcp list.")
        before, now = (text.splitlines() for text in catalogue.what_is_told(tool))
        for line in difflib.unified_diff(before, now, "seen", "now", lineterm=""):
            self.stdout.write("".join(each if each.isprintable() else repr(each)[1:-1] for each in line))
        if not catalogue.see(tool, expected=tool.hash, by=user_of_this(), reads=options["reads"]):
            raise CommandError("It was changed just now; look again.")
        self.stdout.write(f"{tool.full_name} was seen. Next: manage.py tools allow {tool.full_name} --grant NET_HTTP")


def _server(name: str) -> McpServer:
    server = McpServer.objects.filter(name=name).first()
    if server is None:
        raise CommandError(f"There is no MCP server named {name!r}.")
    return server
