"""A document as parts that can be stored: what is a secret is named by the file that is to have it. Pure.

A file's content is the text itself, or JSON where it is no text. Providers' are those that the settings read:
``groq_api_key``, and for all of them ``llm_base_urls`` and ``llm_headers``, in which each has a member.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm.providers import PROVIDERS
from nanohost.lib.redaction import redact, remember
from nanohost.nanobot_config.models import PartKind
from nanohost.nanobot_config.reading import as_text
from nanohost.nanobot_config.schema import CHANNELS, PROVIDER_NAMES, Document, Kind, Place, is_reference, snake
from nanohost.nanobot_config.secret_files import STORED

SURELY_SECRET_CHARS = 16

BASES, HEADERS = "llm_base_urls", "llm_headers"

# A part's kind and name.
Key = tuple[str, str]


@dataclass(frozen=True)
class Secret:
    """Where a secret stands: within its part, and in which file. ``member``: of a file that several share."""

    place: Place
    file: str
    member: str = ""
    is_json: bool = False

    def as_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"path": list(self.place), "file": self.file}
        return row | ({"member": self.member} if self.member else {}) | ({"json": True} if self.is_json else {})

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Secret":
        return cls(tuple(row["path"]), row["file"], row.get("member", ""), row.get("json", False))


@dataclass
class Part:
    """What is to be stored of one. ``leaves``: its values, by place within it; None where a secret is. ``values``: the
    secrets."""

    leaves: dict[Place, Any] = field(default_factory=dict)
    secrets: list[Secret] = field(default_factory=list)
    values: dict[Secret, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        return nested(self.leaves)


def part_of(place: Place, agent: str) -> tuple[Key, Place]:
    """The part that a key belongs to, and its place within that."""
    match place:
        case ("agents", "defaults", *rest):
            return (PartKind.AGENT, agent), tuple(rest)
        case ("providers", name, *rest) if name in PROVIDER_NAMES:
            return (PartKind.PROVIDER, name), tuple(rest)
        case ("channels", name, *rest) if name in CHANNELS:
            return (PartKind.CHANNEL, name), tuple(rest)
        case ("tools", "mcpServers", name, *rest):
            return (PartKind.MCP_SERVER, name), tuple(rest)
        case (name, *rest) if name in ("agents", "providers", "channels", "tools", "gateway"):
            return (PartKind.SETTING, name), tuple(rest)
    return (PartKind.UNKNOWN, place[0]), place[1:]


def place_of(key: Key) -> Place:
    """Where a part stands in a document."""
    kind, name = key
    begins: dict[str, Place] = {
        PartKind.AGENT: ("agents", "defaults"),
        PartKind.PROVIDER: ("providers", name),
        PartKind.CHANNEL: ("channels", name),
        PartKind.MCP_SERVER: ("tools", "mcpServers", name),
    }
    return begins.get(kind, (name,))


def parts_of(document: Document, agent: str) -> dict[Key, Part]:
    """The parts of a document."""
    _remember(document)
    parts: dict[Key, Part] = {}
    for place in document.empty:
        if place:
            key, within = part_of(place, agent)
            parts.setdefault(key, Part()).leaves[within] = {}
    for place, (kind, value) in document.keys.items():
        key, within = part_of(place, agent)
        _put(parts.setdefault(key, Part()), key, within, kind, value)
    for place, value in document.unknown.items():
        key, within = part_of(place, agent)
        # Whatever it is, it may be a secret.
        _keep(parts.setdefault(key, Part()), key, within, value)
    return parts


def _remember(document: Document) -> None:
    """Have what is secret known before it is looked for elsewhere; a short one may be a word."""
    for place, (kind, value) in document.keys.items():
        if kind is Kind.SECRET and isinstance(value, str) and len(value) >= SURELY_SECRET_CHARS:
            remember(as_text(place), value)


def _put(part: Part, key: Key, within: Place, kind: Kind, value: Any) -> None:
    if kind is Kind.SECRETS and isinstance(value, dict) and value and key[0] != PartKind.PROVIDER:
        for name, each in value.items():
            _put(part, key, (*within, name), Kind.SECRET, each)
    elif not value or (isinstance(value, str) and is_reference(value) and key[0] != PartKind.PROVIDER):
        part.leaves[within] = value
    elif _is_secret(kind, value):
        _keep(part, key, within, value)
    else:
        part.leaves[within] = value


def _is_secret(kind: Kind, value: Any) -> bool:
    if kind in (Kind.SECRET, Kind.SECRETS, Kind.ARGUMENTS, Kind.ANYTHING):
        return True
    if kind is Kind.URL and any(mark in value for mark in "@?#"):
        return True
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(each, str) and redact(each) != each for each in texts)


def _keep(part: Part, key: Key, within: Place, value: Any) -> None:
    """Keep a value in a file."""
    secret = _secret_at(key, within, not isinstance(value, str))
    part.leaves[within] = None
    part.secrets.append(secret)
    part.values[secret] = value


def _secret_at(key: Key, within: Place, is_json: bool) -> Secret:
    kind, name = key
    if kind == PartKind.PROVIDER and within in (("apiKey",), ("apiBase",), ("extraHeaders",)):
        provider = PROVIDER_NAMES[name]
        if within == ("apiKey",):
            return Secret(within, PROVIDERS[provider].key.lower())
        return Secret(within, BASES if within == ("apiBase",) else HEADERS, provider)
    return Secret(within, f"{STORED}/{_file_name(key, within)}", "", is_json)


def _file_name(key: Key, within: Place) -> str:
    """A name that tells what it is, and is that of no other."""
    words = "_".join([*key, *(snake(each) for each in within)])
    slug = "".join(each if each.isascii() and each.isalnum() else "_" for each in words.lower())[:80]
    return f"{slug}_{hashlib.sha256(json.dumps([key, within]).encode()).hexdigest()[:12]}"


def nested(leaves: Mapping[Place, Any]) -> dict[str, Any]:
    """Values by place as objects within objects."""
    made: dict[str, Any] = {}
    for place, value in leaves.items():
        if not place:  # the part itself is empty, or a secret
            continue
        at = made
        for name in place[:-1]:
            at = at.setdefault(name, {})
        if not (isinstance(value, dict) and isinstance(at.get(place[-1]), dict)):
            at[place[-1]] = value
    return made


def value_at(settings: Any, place: Iterable[str]) -> Any:
    """What stands at a place; None if nothing does."""
    for name in place:
        if not isinstance(settings, dict):
            return None
        settings = settings.get(name)
    return settings


def as_content(value: Any) -> str:
    """What a file has of a secret."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
