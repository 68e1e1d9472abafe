"""MCP servers, and what they say of their tools."""

import re
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F
from django.forms.models import model_to_dict

from nanohost.lib.clock import Now
from tools.outbound import urls
from tools.seen_tools import SeenTool, SeenToolQuerySet

# Of the variables, or the files that `<name>_FILE` names, whose values a server may be given: nothing else of the
# host's environment, whoever writes it into a server's row.
SECRET_NAME = re.compile(r"MCP_SECRET_[A-Z0-9_]{1,120}")

# What the names of those begin with that an import of nanobot's config.json has put into files.
IMPORTED = "MCP_SECRET_NANOBOT_"

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# Those of the connection, and of the protocol.
_OUR_HEADERS = re.compile(
    r"host|connection|content-.*|transfer-encoding|te|trailer|upgrade|keep-alive|expect|accept.*|user-agent|proxy-.*"
    r"|cookie|mcp-.*|last-event-id",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
# What would have a server's process load other code, or look elsewhere for programs.
_NOT_GIVEN = re.compile(r"(LD_|DYLD_|PYTHON).*|PATH|HOME")


class Transport(models.TextChoices):
    """How a server is talked to."""

    STDIO = "stdio", "a program of this machine (stdio)"
    HTTP = "http", "an address (streamable HTTP)"
    SSE = "sse", "an address (SSE, the older way)"


# As clients' configurations call them.
TYPES = {"stdio": Transport.STDIO, "sse": Transport.SSE, "streamableHttp": Transport.HTTP}


def transport_of(kind: Any, address: str) -> Transport:
    """How a configured server is talked to: by its type, or by what it has; addresses of SSE often end with that."""
    by_place = Transport.STDIO if not address else Transport.HTTP
    if address.rstrip("/").endswith("/sse"):
        by_place = Transport.SSE
    return TYPES.get(str(kind), by_place)


def validate_arguments(arguments: Any) -> None:
    """A list of texts."""
    if not isinstance(arguments, list) or not all(isinstance(each, str) and "\0" not in each for each in arguments):
        raise ValidationError('Arguments are a list of texts, such as ["-m", "mcp_server_time"].')


def validate_environment(names: Any) -> None:
    """Secrets by variable."""
    if not isinstance(names, dict):
        raise ValidationError('Variables are an object, such as {"API_KEY": "MCP_SECRET_FILES"}.')
    for variable, secret in names.items():
        if not _VARIABLE.fullmatch(variable) or _NOT_GIVEN.fullmatch(variable):
            raise ValidationError(f"{variable!r} is no variable that a server may be given.")
        if not (isinstance(secret, str) and SECRET_NAME.fullmatch(secret)):
            raise ValidationError(
                f"{variable}: name the secret that has its value, MCP_SECRET_ and more of A-Z, 0-9 and _. The value"
                " itself belongs in the environment, or in the file that MCP_SECRET_…_FILE names."
            )


TOOL_OF_A_SERVER = "tool of an MCP server"

# A server that has failed so often in a row keeps failing.
MANY_FAILURES = 3


def validate_url(url: str) -> None:
    """An address of a server, or the name of a secret that has it."""
    if SECRET_NAME.fullmatch(url):
        return
    try:
        urls.parse(url)
    except urls.Refusal as refusal:
        raise ValidationError(f"{refusal}.") from None


def validate_headers(names: Any) -> None:
    """Secrets by header."""
    if not isinstance(names, dict) or len(names) > 20:
        raise ValidationError('Headers are an object, such as {"Authorization": "MCP_SECRET_FILES"}.')
    for header, secret in names.items():
        if not _HEADER.fullmatch(header) or _OUR_HEADERS.fullmatch(header):
            raise ValidationError(f"{header!r} is no header that a server may be given.")
        if not (isinstance(secret, str) and SECRET_NAME.fullmatch(secret)):
            raise ValidationError(f"{header}: name the secret that has its value, MCP_SECRET_ and more of A-Z, 0-9, _.")


class McpServerQuerySet(models.QuerySet["McpServer"]):
    """Look-ups that say what they mean."""

    def failing(self) -> "McpServerQuerySet":
        """Those that are enabled and keep failing."""
        return self.filter(enabled=True, failures__gte=MANY_FAILURES)


class McpServer(models.Model):
    """An MCP server, and how it is reached. It holds no secret: rows name the variables that have them."""

    name = models.CharField(
        max_length=20,
        unique=True,
        validators=[RegexValidator(r"^[a-z0-9][a-z0-9-]{0,19}\Z", "Up to 20 of a-z, 0-9 and -.")],
        help_text="Its tools are called mcp_<name>_<tool>: up to 20 of a-z, 0-9 and -.",
    )
    enabled = models.BooleanField(default=False, help_text="The tools of a server that is not enabled are refused.")
    transport = models.CharField(
        max_length=5, choices=Transport.choices, default=Transport.STDIO, help_text="How nanohost connects to it."
    )
    command = models.CharField(max_length=500, blank=True, help_text="The program, such as python3 or /usr/bin/npx.")
    arguments = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_arguments],
        help_text="A list of texts, without secrets.",
    )
    environment = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_environment],
        help_text='Variables, each with the name of the secret that has its value: {"API_KEY": "MCP_SECRET_FILES"}.',
    )
    url = models.CharField(
        "address",
        max_length=1000,
        blank=True,
        validators=[validate_url],
        help_text="Address of an HTTP server, or the name of the secret that has it: https://example.org/mcp.",
    )
    headers = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_headers],
        help_text='Sent to that address, each with the name of the secret: {"Authorization": "MCP_SECRET_FILES"}.',
    )
    network = models.BooleanField(default=False, help_text="Whether its program may use the network.")
    timeout_seconds = models.FloatField(
        "timeout",
        default=30,
        validators=[MinValueValidator(0.1), MaxValueValidator(600)],
        help_text="Time limit of a call, in seconds; a tool's own setting takes precedence.",
    )
    last_error = models.CharField(max_length=500, blank=True, editable=False, help_text="The last error.")
    last_error_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="When.")
    failures = models.PositiveIntegerField(default=0, editable=False, help_text="Consecutive failures.")
    unfit = models.JSONField(
        default=dict, editable=False, help_text="Its tools that cannot be used here, each with the reason."
    )
    check_asked_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When somebody asked to reload its tools."
    )
    listed_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its tools were last listed."
    )
    by_setting = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Whether it is managed by the setting MCP_SERVERS."
    )
    updated_at = models.DateTimeField(auto_now=True)

    objects = McpServerQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = "MCP server"

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.transport == Transport.STDIO and not self.command:
            raise ValidationError({"command": "A server of this machine needs a program."})
        if self.transport != Transport.STDIO and not self.url:
            raise ValidationError({"url": "A server that is reached over HTTP needs an address."})

    def said(self) -> dict[str, Any]:
        """What the audit log is told of it."""
        return model_to_dict(self, exclude=["id"])

    def note_error(self, error: str) -> None:
        """Keep what went wrong, for people."""
        type(self).objects.filter(pk=self.pk).update(
            last_error=error[:500], last_error_at=Now(), failures=F("failures") + 1
        )

    def note_success(self) -> None:
        """It works: what went wrong before was not in a row with what will."""
        if self.failures:
            type(self).objects.filter(pk=self.pk).update(failures=0)


class McpTool(SeenTool):
    """A tool, as its server describes it. It may be used while the description is the one that somebody has seen."""

    server = models.ForeignKey(
        McpServer, on_delete=models.CASCADE, related_name="tools", help_text="The server that provides it."
    )
    name = models.CharField(max_length=200, help_text="Its name on the server.")
    hints_read = models.BooleanField(default=False, help_text="Whether the server declares it read-only.")
    reads = models.BooleanField(
        default=False, help_text="It is read-only: an administrator has confirmed the server's declaration."
    )
    seen_description = models.TextField(blank=True, default="", help_text="The reviewed description.")
    seen_schema = models.JSONField(default=dict, help_text="The reviewed schema.")

    objects = SeenToolQuerySet["McpTool"].as_manager()

    class Meta:
        ordering = ["full_name"]
        verbose_name = TOOL_OF_A_SERVER
        verbose_name_plural = "tools of MCP servers"
        constraints = [models.UniqueConstraint(fields=["server", "name"], name="one_tool_of_a_name_a_server")]
