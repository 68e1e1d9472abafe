"""Taking in a config.json: all of it is read and checked first, then stored in one transaction, or nothing is.

The files of secrets are written at the transaction's end, each whole: they are on the disk beside their places before
the first is put into its place. Whoever is killed between the files and the commit has keys in place of which no row
tells; the same import, run again, finds them as they are to be and stores the rest.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction

from agent.llm.providers import MOCK, PROVIDERS
from agent.models import Agent
from conversations.channel_models import Channel
from conversations.channels import accounts
from conversations.channels.fields import IMPORTED
from nanohost.accounts import audit
from nanohost.lib import env
from nanohost.lib.process import user_of_this
from nanohost.nanobot_config import agents, channels, parts, servers
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.models import ConfigPart, PartKind
from nanohost.nanobot_config.parts import BASES, HEADERS, Key, Part, Secret
from nanohost.nanobot_config.reading import as_text, parse, read_document
from nanohost.nanobot_config.schema import (
    CHANNELS,
    Document,
    Fate,
    Place,
    is_reference,
    resolved,
    understood,
    variable_of,
)
from nanohost.nanobot_config.secret_files import SecretFiles
from tools.mcp.models import McpServer

# Of a value, so much is shown.
_SHOWN = 80


@dataclass(frozen=True)
class Line:
    """What became of one key, in words."""

    key: str
    fate: Fate
    words: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.fate}" + (f", {self.words}" if self.words else "")


@dataclass
class Report:
    """What became of each key; what people have to know besides; what they may want to do next."""

    lines: list[Line] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    changed: bool = False

    def counted(self) -> str:
        """How many keys became what."""
        counts = Counter(line.fate for line in self.lines)
        return ", ".join(f"{fate}: {counts[fate]}" for fate in Fate if counts[fate]) or "no keys"


# What is stored and has no effect by itself, by the beginning of its place: the longest counts.
_WORDS: dict[Place, str] = {
    ("channels",): "of a channel, which is off until it is switched on",
    ("channels", "sendProgress"): "of the channels that are made",
    ("channels", "sendToolHints"): "of the channels that are made",
    ("tools",): "no tool here uses it",
    ("tools", "mcpServers"): "of an MCP server, which is off until it is enabled",
    (
        "tools",
        "allowedPaths",
    ): "not in force: WORKSPACE_WRITE_FOLDERS says where agents may read and write besides their workspace",
    (
        "tools",
        "exec",
    ): "not in force: SHELL_GRANTABLE, EXEC_TIMEOUT_SECONDS and EXEC_PATH_APPEND say whether and how commands run",
    ("tools", "web"): "not in force: web_search and web_fetch read WEB_PROXY and BRAVE_API_KEY",
    ("tools", "web", "search", "maxResults"): "not in force: WEB_SEARCH_MAX_RESULTS says how many results there are",
    ("tools", "protectedPaths"): "not in force: WORKSPACE_PROTECTED_PATHS says which files no tool changes",
    ("tools", "restrictToWorkspace"): "always so here: files and commands reach an agent's workspace alone",
    ("gateway",): "not in force",
    ("gateway", "host"): "not in force: HOST says where this host listens",
    ("gateway", "port"): "not in force: PORT says where this host listens",
    ("gateway", "heartbeat", "enabled"): "not in force: an agent that has a check-in owner looks at its HEARTBEAT",
    ("agents",): "kept",
    ("agents", "defaults", "workspace"): "manage.py import_sessions reads the documents and sessions in it",
    ("providers",): "kept",
}


def import_config(
    file: Path, *, agent: Agent, folder: Path, environment: Mapping[str, str], dry_run: bool, owner: Any = None
) -> Report:
    """Take in a file for an agent; secrets go into ``folder``. ``owner``: the user who has the conversations of its
    channels; without one, none is made. Raises :class:`Refused`, and then nothing is changed."""
    document = understood(read_document(file), environment)
    files = SecretFiles(folder)
    with nullcontext() if dry_run else files.held(), transaction.atomic():
        work = _Import(document, Agent.objects.select_for_update().get(pk=agent.pk), owner, files, environment)
        work.decide()
        if dry_run:
            transaction.set_rollback(True)
        else:
            work.store()
    if not dry_run:
        work.sweep()
    return work.report


class _Import:
    def __init__(
        self, document: Document, agent: Agent, owner: Any, files: SecretFiles, environment: Mapping[str, str]
    ) -> None:
        self.document = document
        self.agent, self.owner = agent, owner
        self.files = files
        self.environment = environment
        self.report = Report()
        self.rows: dict[Key, ConfigPart] = {
            (row.kind, row.name): row for row in ConfigPart.objects.select_for_update().order_by("pk")
        }
        self.parts = parts.parts_of(document, agent.name)
        self.contents: dict[str, str] = {}
        self.removed: set[str] = set()
        self._bases = bases_in(files.read(BASES) or "")
        self._headers = headers_in(files.read(HEADERS) or "")
        self._was = deepcopy(self._bases), deepcopy(self._headers)
        self._fields: dict[str, Any] = {}
        self._servers: list[McpServer] = []
        self._channels: list[tuple[Channel | None, dict[str, Any]]] = []

    # --- what is to be done ------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Find out what is to be stored, and what to say of it."""
        for place, fate, words in self.document.notes:
            self._say(place, fate, words)
            if fate == Fate.UNKNOWN:
                self.report.warnings.append(f"{as_text(place)}: {words}.")
        for key, part in self.parts.items():
            row = self.rows.get(key)
            for place in [each for each in part.leaves if not _is_filled(part, each)]:
                self._decide_leaf(key, part, place, row)
            self._decide_gone(key, part, row)
            if key[0] == PartKind.MCP_SERVER:
                self._decide_server(key, part, row)
            elif key[0] == PartKind.CHANNEL:
                self._decide_channel(key, part, row)
        if (self._bases, self._headers) != self._was:
            if self._bases != self._was[0]:
                self.contents[BASES] = "".join(f"{name}={address}\n" for name, address in sorted(self._bases.items()))
            if self._headers != self._was[1]:
                self.contents[HEADERS] = json.dumps(self._headers, sort_keys=True)
        self._warn()
        self._hint()

    def _decide_leaf(self, key: Key, part: Part, within: Place, row: ConfigPart | None) -> None:
        place = (*parts.place_of(key), *within)
        secret = next((each for each in part.secrets if each.place == within), None)
        before = next((each for each in secrets_of(row) if each.place == within), None)
        if not secret and before and part.leaves[within] == f"${{{variable_of(place)}}}":
            # What an export without secrets has in the place of one.
            part.secrets.append(before)
            part.leaves[within] = parts.value_at(row.settings, within) if row else None
            self._say(place, Fate.SAME, "the placeholder of a secret that is kept here")
        elif secret and part.values[secret] == f"${{{variable_of(place)}}}" and before:
            part.values.pop(secret)
            part.secrets[part.secrets.index(secret)] = before
            part.leaves[within] = parts.value_at(row.settings, within) if row else None
            self._say(place, Fate.SAME, "the placeholder of a secret that is kept here")
        elif place in agents.FIELDS:
            if secret:
                raise Refused(as_text(place), "it looks like a secret, but is not one")
            self._decide_field(place, part.leaves[within], _says(row, within, part.leaves[within]))
        elif secret and secret.file in self._of_providers():
            self._decide_provider(place, part, secret, row)
        elif secret:
            content = parts.as_content(part.values[secret])
            same = before == secret and self.files.read(secret.file) == content
            if not same:
                self.contents[secret.file] = content
            self._say_stored(place, same, f"in a file of its own, {secret.file}")
        else:
            given = part.leaves[within]
            self._say_stored(
                place, _says(row, within, given) and before is None, "empty" if given in ("", None, [], {}) else ""
            )

    def _decide_field(self, place: Place, given: Any, is_stored: bool) -> None:
        name = agents.FIELDS[place]
        try:
            value = agents.field_value(place, given, self.environment)
        except agents.NoPlace as error:
            self.report.warnings.append(f"{as_text(place)}: the agent stays as it is: {error.why}.")
            self._say(place, Fate.SAME if is_stored else Fate.STORED, "but the agent stays as it is")
            return
        same = agents.now(self.agent)[name] == value
        fate = Fate.SET if not same else Fate.SAME if is_stored else Fate.STORED
        self._fields[name] = value
        words = f"{name} of the agent {self.agent.name} is {_shown(value)}" if value not in ("", None) else ""
        self._say(place, fate, words or f"{name} of the agent {self.agent.name} is empty")

    def _decide_provider(self, place: Place, part: Part, secret: Secret, row: ConfigPart | None) -> None:
        given = part.values[secret]
        value: Any
        if isinstance(given, str):
            value, missing = resolved(given, self.environment)
            if is_reference(given):
                part.leaves[secret.place] = given
            if missing:
                part.secrets.remove(secret)
                if not is_reference(given):
                    raise Refused(as_text(place), f"the variable {missing[0]} is not set")
                is_stored = _says(row, secret.place, given)
                self.report.warnings.append(
                    f"{as_text(place)}: the variable {missing[0]} is not set: nothing is written."
                )
                self._say(place, Fate.SAME if is_stored else Fate.STORED, f"{missing[0]} is not set")
                return
            value = parse(value, as_text(place)) if secret.file == HEADERS else value.strip()
        else:
            value = {name: resolved(each, self.environment)[0] for name, each in given.items()}
            missing = [gone for each in given.values() for gone in resolved(each, self.environment)[1]]
            if missing:
                raise Refused(as_text(place), f"the variable {missing[0]} is not set")
        if secret.file == BASES:
            same = self._bases.get(secret.member) == _checked_base(place, value)
            self._bases[secret.member] = value
        elif secret.file == HEADERS:
            same = self._headers.get(secret.member) == _checked_headers(place, value)
            self._headers[secret.member] = value
        else:
            same = self.files.read(secret.file) == _checked_key(place, value)
            if not same:
                self.contents[secret.file] = value
        is_stored = secret in secrets_of(row) and _says(row, secret.place, part.leaves[secret.place])
        fate = Fate.SET if not same else Fate.SAME if is_stored else Fate.STORED
        self._say(place, fate, f"in the file {self.files.folder / secret.file}")
        variable = secret.file.upper()
        if env.is_set(variable):
            self.report.warnings.append(
                f"{as_text(place)}: {variable} is set in the environment, which counts before the file."
            )

    def _decide_gone(self, key: Key, part: Part, row: ConfigPart | None) -> None:
        """Of a part that is stored again, what the file no longer has is gone."""
        for secret in secrets_of(row):
            if any(each.file == secret.file and each.member == secret.member for each in part.secrets):
                continue
            if is_kept_reference(part.leaves.get(secret.place)):
                part.secrets.append(secret)  # its variable is not set: what it was stays
                continue
            if secret.file == BASES:
                self._bases.pop(secret.member, None)
            elif secret.file == HEADERS:
                self._headers.pop(secret.member, None)
            else:
                self.removed.add(secret.file)
            self._say((*parts.place_of(key), *secret.place), Fate.REMOVED, "its secret is no longer in the file")
        if row:
            secret_places = {each.place for each in secrets_of(row)}
            for place in _places_in(row.settings):
                if place not in secret_places and place not in part.leaves and not _covers(part, place):
                    self._say((*parts.place_of(key), *place), Fate.REMOVED, "it is no longer in the file")

    def _decide_server(self, key: Key, part: Part, row: ConfigPart | None) -> None:
        """A server of this host is made of it, unless it is there as it was, or there by somebody's own hand."""
        name, place = servers.name_of(key[1]), as_text(parts.place_of(key))
        server = McpServer.objects.select_for_update().filter(name=name).first()
        if server and row and row.said() == _said(part):
            return
        if server and not row:
            self.report.warnings.append(f"{place}: an MCP server {name} already exists, and is not changed.")
            return
        server = server or McpServer(name=name)
        try:
            servers.put(server, part, self._value_of(part))
        except servers.NoServer as why:
            self.report.warnings.append(f"{place}: {why}. It is kept, and no MCP server is made of it.")
            return
        self._servers.append(server)
        self.report.changed = True
        self.report.hints.append(f"The MCP server {name} is stored, and off. Next: manage.py mcp check {name}")

    def _decide_channel(self, key: Key, part: Part, row: ConfigPart | None) -> None:
        """A channel of this host is made of it, unless it is there as it was, or there by somebody's own hand."""
        name, place = key[1], as_text(parts.place_of(key))
        channel = Channel.objects.select_for_update(of=("self",)).filter(name=name).first()
        is_ours = channel is not None and any(str(each).startswith(IMPORTED) for each in channel.settings.values())
        if channel and is_ours and row and row.said() == _said(part):
            return
        if channel and not is_ours:
            self.report.warnings.append(f"{place}: a channel {name} already exists, and is not changed.")
            return
        if not set(part.leaves) - {("enabled",), ("allowFrom",)}:
            return  # it says no more than that there is none
        try:
            values = channels.values_of(name, part)
            values |= {"agent": self.agent, "progress": self._says_of_all("sendProgress", True)}
            values |= {"tool_hints": self._says_of_all("sendToolHints", False), "is_active": False}
            if channel is None and self.owner is None:
                self.report.hints.append(f"To have a channel made of {place}, name whose it is: --owner")
                return
            values |= {"name": name, "owner": channel.owner if channel else self.owner}
            accounts.check(Channel(pk=channel.pk if channel else None, seed="-", **values), is_new=channel is None)
        except channels.NoChannel as why:
            self.report.warnings.append(f"{place}: {why}. It is kept, and no channel is made of it.")
            return
        except ValidationError as error:
            why_not = " ".join(error.messages).rstrip(".")
            self.report.warnings.append(f"{place}: {why_not}. It is kept, and no channel is made of it.")
            return
        self._channels.append((channel, values))
        self.report.changed = True
        self.report.hints.append(
            f"The channel {name} is stored, and off. Next: look at its settings in the console, and switch it on"
        )

    def _says_of_all(self, name: str, default: bool) -> bool:
        _, value = self.document.keys.get(("channels", name), (None, default))
        return value is True

    def _value_of(self, part: Part) -> Callable[[Secret], Any]:
        return lambda secret: part.values[secret] if secret in part.values else self.files.read(secret.file)

    def _of_providers(self) -> set[str]:
        return {BASES, HEADERS, *(row.key.lower() for row in PROVIDERS.values())}

    # --- what is said of it ------------------------------------------------------------------------------------

    def _say(self, place: Place, fate: Fate, words: str = "") -> None:
        if name := self.document.variables.get(place):
            words = f"{words} (from {name})" if words else f"from {name}"
        self.report.changed |= fate in (Fate.SET, Fate.STORED, Fate.REMOVED)
        self.report.lines.append(Line(as_text(place), fate, words))

    def _say_stored(self, place: Place, same: bool, words: str = "") -> None:
        begins = (place[:length] for length in range(len(place), 0, -1))
        about = next((_WORDS[begin] for begin in begins if begin in _WORDS), "")
        if place in self.document.unknown:
            about = (
                "as it was"
                if same
                else "kept in a separate file, and written again by an export; it has no meaning here"
            )
            self.report.warnings.append(f"{as_text(place)}: no key of this name is known.")
            self._say(place, Fate.UNKNOWN, about)
            self.report.changed |= not same
            return
        self._say(place, Fate.SAME if same else Fate.STORED, "; ".join(filter(None, (words, about))))

    def _warn(self) -> None:
        for place, (_, value) in self.document.keys.items():
            if place[-1] == "allowFrom" and not value and place[:1] == ("channels",):
                self.report.warnings.append(
                    f"WARNING: {as_text(place)} is empty: EVERYONE may talk to this agent by {place[1]}, as in nanobot."
                    " It is kept so; name those who may before it is switched on."
                )
        for name in CHANNELS:
            is_on = self.document.keys.get(("channels", name, "enabled"), (None, False))[1] is True
            if is_on and name != "slack" and ("channels", name, "allowFrom") not in self.document.keys:
                self.report.warnings.append(
                    f"WARNING: channels.{name} has no allowFrom: EVERYONE may talk to this agent by {name}, as in"
                    " nanobot. Name those who may before it is switched on."
                )

    def _hint(self) -> None:
        """What would change the whole host is said, and not done."""
        keys = self.document.keys
        said = {
            "HOST": keys.get(("gateway", "host")),
            "PORT": keys.get(("gateway", "port")),
            "WORKSPACE_WRITE_FOLDERS": keys.get(("tools", "allowedPaths")),
            "WORKSPACE_PROTECTED_PATHS": keys.get(("tools", "protectedPaths")),
        }
        for name, found in said.items():
            if found and found[1]:
                value = ",".join(found[1]) if isinstance(found[1], list) else str(found[1])
                if all(each.isprintable() for each in value) and len(value) <= 200:
                    self.report.hints.append(f"To have it for the whole host, set {name}={value}")
        model = self._fields.get("model")
        if settings.LLM_MODELS and model and model not in settings.LLM_MODELS:
            self.report.hints.append(f"A request may not name {_shown(model)}: LLM_MODELS does not list it.")
        written = sorted({*self.contents, *self.removed} & self._of_providers())
        if not written:
            return
        if not settings.PRODUCTION:
            self.report.hints.append("Keys, addresses and headers of providers count from the host's next start on.")
            if settings.LLM_PROVIDER == MOCK and not env.is_set("LLM_PROVIDER"):
                self.report.hints.append("From then on a provider answers, and no more the scripted model.")
            return
        for name in written:
            if name == BASES:
                self.report.hints.append(f"For workers, set LLM_BASE_URLS to the lines of {self.files.folder / name}.")
            else:
                file = self.files.folder / name
                self.report.hints.append(f"For workers, set {name.upper()}_FILE={file}, or run make secrets.")

    # --- what is done ------------------------------------------------------------------------------------------

    def store(self) -> None:
        """Store all of it: rows first, files last."""
        agents.put(self.agent, self._fields)
        self.agent.save_version(by=user_of_this())
        for key, part in self.parts.items():
            self._store_part(key, part)
        for server in self._servers:
            before = McpServer.objects.get(pk=server.pk).said() if server.pk else None
            server.save()
            action = "mcp_server.changed" if before else "mcp_server.added"
            audit.record(action, about=server, name=server.name, before=before, after=server.said())
        for channel, values in self._channels:
            if channel:
                accounts.change(channel, **values)
            else:
                accounts.make(made_by=user_of_this(), **values)
        for name in sorted(self.contents):
            if self.contents[name] != self.files.read(name):
                audit.record("secret_file.written", kind="file", key=name, name=name)
        gone = sorted(self.removed - set(self.contents))
        for name in gone:
            audit.record("secret_file.removed", kind="file", key=name, name=name)
        self.files.write(self.contents)
        self.files.close_to_others({secret.file: None for part in self.parts.values() for secret in part.secrets})
        for name in gone:
            if name in self._of_providers():
                self.files.remove(name)

    def _store_part(self, key: Key, part: Part) -> None:
        kind, name = key
        row = self.rows.get(key) or ConfigPart(kind=kind, name=name)
        before = row.said() if row.pk else None
        said = _said(part)
        row.settings, row.secrets, row.was_enabled = said["settings"], said["secrets"], said["was_enabled"]
        if before == row.said():
            return
        row.save()
        audit.record("config_part.stored", about=row, before=before, after=row.said())

    def sweep(self) -> None:
        """Take away the files of which no row tells: of what was removed, and of imports that were killed."""
        told = {secret.file for row in ConfigPart.objects.all() for secret in secrets_of(row)}
        for name in self.files.stored() - told:
            self.files.remove(name)


def _said(part: Part) -> dict[str, Any]:
    """What a row says of a part, as :meth:`ConfigPart.said` has it."""
    config = part.settings()
    secrets = sorted((each.as_row() for each in part.secrets), key=json.dumps)
    return {"settings": config, "secrets": secrets, "was_enabled": config.get("enabled") is True}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def secrets_of(row: ConfigPart | None) -> list[Secret]:
    return [Secret.of_row(each) for each in row.secrets] if row else []


def is_kept_reference(value: Any) -> bool:
    """Whether a reference stands where a secret stood."""
    return isinstance(value, str) and is_reference(value)


def _says(row: ConfigPart | None, place: Place, value: Any) -> bool:
    """Whether that is stored already."""
    config = row.settings if row else None
    for name in place:
        if not isinstance(config, dict) or name not in config:
            return False
        config = config[name]
    return row is not None and type(config) is type(value) and bool(config == value)


def _is_filled(part: Part, place: Place) -> bool:
    """Whether an object that was empty got something from a variable."""
    return part.leaves[place] == {} and any(each != place and each[: len(place)] == place for each in part.leaves)


def _places_in(config: Any, place: Place = ()) -> list[Place]:
    if isinstance(config, dict) and config:
        return [found for name, each in config.items() for found in _places_in(each, (*place, name))]
    return [place] if place else []


def _covers(part: Part, place: Place) -> bool:
    """Whether a part has something above, or below, a place."""
    return any(each[: len(place)] == place or place[: len(each)] == each for each in part.leaves if each)


def bases_in(content: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in content.splitlines() if "=" in line)
    return {name.strip(): address.strip() for name, _, address in pairs}


def headers_in(content: str) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(content or "{}")
    except (ValueError, RecursionError):
        raise Refused(HEADERS, "it holds no JSON; correct it, or take it away") from None
    return found if isinstance(found, dict) else {}


def _checked_key(place: Place, key: str) -> str:
    if not (key.isascii() and key.isprintable()) or " " in key or len(key) > 16_000:
        raise Refused(as_text(place), "a key is printable ASCII without blanks")
    return key


def _checked_base(place: Place, base: str) -> str:
    try:
        parts_of_it = urlsplit(base)
        is_one = parts_of_it.scheme in ("http", "https") and bool(parts_of_it.hostname) and parts_of_it.port != 0
    except ValueError:
        is_one = False
    if not is_one or not base.isascii() or not base.isprintable() or " " in base or "," in base or len(base) > 2000:
        raise Refused(as_text(place), "an address is needed that starts with http:// or https://")
    return base


def _checked_headers(place: Place, headers: Any) -> Any:
    try:
        env.check_headers(headers)
    except (ValueError, ImproperlyConfigured) as error:
        raise Refused(as_text(place), str(error)) from None
    return headers
