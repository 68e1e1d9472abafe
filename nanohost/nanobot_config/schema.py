"""The keys of a config.json, as data; and a document put into their one spelling. Pure.

A key is known in camelCase and in snake_case. What is not known is nobody's, and kept as it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent.llm.providers import PROVIDERS
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.reading import as_text, check, parse

Place = tuple[str, ...]


class Kind(StrEnum):
    """What a value is."""

    FLAG = "true or false"
    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"
    TEXTS = "a list of texts"
    URL = "an address"  # which may have a password in it
    SECRET = "a text, which is secret"  # noqa: S105 -- words
    SECRETS = "texts by name"  # each of them a secret
    ARGUMENTS = "a list of texts, each of which may be a secret"
    ANYTHING = "anything"


@dataclass(frozen=True)
class ByName:
    """An object whose keys are names that somebody gave."""

    of: Any


def _keys(
    *, flags: str = "", integers: str = "", texts: str = "", lists: str = "", urls: str = "", secrets: str = ""
) -> dict[str, Any]:
    """Keys by what their values are."""
    given = {Kind.FLAG: flags, Kind.INTEGER: integers, Kind.TEXT: texts, Kind.TEXTS: lists, Kind.URL: urls}
    return {name: kind for kind, names in (given | {Kind.SECRET: secrets}).items() for name in names.split()}


CHANNELS: dict[str, dict[str, Any]] = {
    "telegram": _keys(secrets="token proxy", flags="replyToMessage"),
    "discord": _keys(secrets="token", urls="gatewayUrl", integers="intents", texts="groupPolicy"),
    "whatsapp": _keys(urls="bridgeUrl", secrets="bridgeToken"),
    "feishu": _keys(texts="appId reactEmoji", secrets="appSecret encryptKey verificationToken"),
    "dingtalk": _keys(texts="clientId", secrets="clientSecret"),
    "qq": _keys(texts="appId", secrets="secret"),
    "email": _keys(
        flags="consentGranted imapUseSsl smtpUseTls smtpUseSsl autoReplyEnabled markSeen",
        texts="imapHost imapUsername imapMailbox smtpHost smtpUsername fromAddress subjectPrefix",
        secrets="imapPassword smtpPassword",
        integers="imapPort smtpPort pollIntervalSeconds maxBodyChars",
    ),
    "slack": _keys(
        texts="mode webhookPath reactEmoji groupPolicy",
        secrets="botToken appToken",
        flags="userTokenReadOnly replyInThread",
        lists="groupAllowFrom",
    )
    | {"dm": _keys(flags="enabled", texts="policy", lists="allowFrom")},
    "matrix": _keys(
        urls="homeserver",
        secrets="accessToken",
        texts="userId deviceId groupPolicy",
        flags="e2eeEnabled allowRoomMentions",
        integers="maxMediaBytes syncStopGraceSeconds",
        lists="groupAllowFrom",
    ),
    "mochat": _keys(
        urls="baseUrl socketUrl",
        texts="socketPath agentUserId replyDelayMode",
        secrets="clawToken",
        flags="socketDisableMsgpack",
        integers="socketReconnectDelayMs socketMaxReconnectDelayMs socketConnectTimeoutMs refreshIntervalMs"
        " watchTimeoutMs watchLimit retryDelayMs maxRetryAttempts replyDelayMs",
        lists="sessions panels",
    )
    | {"mention": _keys(flags="requireInGroups"), "groups": ByName(_keys(flags="requireMention"))},
}

MCP_SERVER: dict[str, Any] = _keys(
    texts="command type cwd", secrets="url", integers="toolTimeout", lists="enabledTools"
) | {"args": Kind.ARGUMENTS, "env": Kind.SECRETS, "headers": Kind.SECRETS, "auth": Kind.ANYTHING}


def camel(name: str) -> str:
    """``openai_codex`` as ``openaiCodex``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    """``openaiCodex`` as ``openai_codex``."""
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: f"_{found[0]}", name).lower()


# What a file calls a provider, and what it is here.
PROVIDER_NAMES = {camel("azure_openai" if name == "azure" else name): name for name in PROVIDERS}

SCHEMA: dict[str, Any] = {
    "agents": {
        "defaults": _keys(
            texts="workspace model provider reasoningEffort", integers="maxTokens maxToolIterations memoryWindow"
        )
        | {"temperature": Kind.NUMBER}
    },
    "channels": _keys(flags="sendProgress sendToolHints")
    | {name: _keys(flags="enabled", lists="allowFrom") | keys for name, keys in CHANNELS.items()},
    "providers": {name: _keys(secrets="apiKey apiBase") | {"extraHeaders": Kind.SECRETS} for name in PROVIDER_NAMES},
    "gateway": _keys(texts="host", integers="port") | {"heartbeat": _keys(flags="enabled", integers="intervalS")},
    "tools": _keys(flags="restrictToWorkspace", lists="allowedPaths protectedPaths")
    | {
        "web": {"proxy": Kind.SECRET, "search": _keys(secrets="apiKey", integers="maxResults")},
        "exec": _keys(integers="timeout", texts="pathAppend", flags="restrictToWorkspace"),
        "my": _keys(flags="enable"),
        "mcpServers": ByName(MCP_SERVER),
    },
}

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# What a variable's name begins with that stands for a key.
PREFIX = "NANOBOT_"


class Fate(StrEnum):
    """What became of a key."""

    SET = "set"
    STORED = "stored"
    SAME = "as it was"
    REMOVED = "removed"
    MOVED = "moved"
    UNUSED = "not used"
    UNKNOWN = "unknown"


@dataclass
class Document:
    """A config.json in one spelling. ``keys``: each known key that has a value, by its place, with its kind.
    ``unknown``: each key that is not, with its value. ``empty``: objects in which nothing stands. ``notes``: what
    was put elsewhere on the way, or left, by key: how, and why. ``variables``: by place, the one whose value it is."""

    keys: dict[Place, tuple[Kind, Any]] = field(default_factory=dict)
    unknown: dict[Place, Any] = field(default_factory=dict)
    empty: list[Place] = field(default_factory=list)
    notes: list[tuple[Place, Fate, str]] = field(default_factory=list)
    variables: dict[Place, str] = field(default_factory=dict)


def understood(given: Mapping[str, Any], environment: Mapping[str, str]) -> Document:
    """A document of any spelling, with old forms migrated, and what NANOBOT_… variables say where it says nothing."""
    made = Document()
    given = _with_servers_in_place(given, made)
    _take(given, SCHEMA, (), made)
    _migrate(made)
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        _take_variable(name, environment[name], made)
    return made


def _with_servers_in_place(given: Mapping[str, Any], made: Document) -> Mapping[str, Any]:
    """Claude Desktop and Cursor have ``mcpServers`` at the top."""
    found = [name for name in ("mcpServers", "mcp_servers") if name in given]
    if not found:
        return given
    at_top = given[found[0]]
    tools = given.get("tools", {})
    if len(found) > 1:
        raise Refused(found[1], "the key is there twice, in two spellings")
    if not isinstance(at_top, dict) or not isinstance(tools, dict):
        raise Refused(found[0] if isinstance(tools, dict) else "tools", "an object is needed")
    name = "mcp_servers" if "mcp_servers" in tools else "mcpServers"
    inner = tools.get(name, {})
    if not isinstance(inner, dict):
        raise Refused(f"tools.{name}", "an object is needed")
    if both := sorted(set(at_top) & set(inner)):
        raise Refused(as_text((found[0], both[0])), "tools.mcpServers has it as well; keep only one")
    made.notes.append(((found[0],), Fate.MOVED, "read as tools.mcpServers"))
    rest = {key: value for key, value in given.items() if key != found[0]}
    return rest | {"tools": tools | {name: inner | at_top}}


def _take(given: Any, known: Any, place: Place, made: Document) -> None:
    if isinstance(known, Kind):
        made.keys[place] = (known, _fitting(given, known, place))
        return
    if not isinstance(given, dict):
        raise Refused(as_text(place), f"an object is needed, and there is {_what(given)}")
    if not given:
        made.empty.append(place)
    seen: set[str] = set()
    for key, value in given.items():
        name = key if isinstance(known, ByName) else _known_as(key, known)
        if name is None:
            made.unknown[(*place, key)] = value
            continue
        if name in seen:
            raise Refused(as_text((*place, name)), "the key is there twice, in two spellings")
        seen.add(name)
        _take(value, known.of if isinstance(known, ByName) else known[name], (*place, name), made)


def _known_as(key: str, known: Mapping[str, Any]) -> str | None:
    if key in known:
        return key
    return next((name for name in known if snake(name) == key), None)


_OLD, _NEW = ("tools", "exec", "restrictToWorkspace"), ("tools", "restrictToWorkspace")


def _migrate(made: Document) -> None:
    """The one old form there is, as nanobot does it."""
    if _OLD not in made.keys:
        return
    old = made.keys.pop(_OLD)
    if _NEW in made.keys:
        made.notes.append((_OLD, Fate.MOVED, "an old form; tools.restrictToWorkspace is set and counts"))
    else:
        made.keys[_NEW] = old
        made.notes.append((_OLD, Fate.MOVED, "an old form, taken as tools.restrictToWorkspace"))


def _fitting(value: Any, kind: Kind, place: Place) -> Any:
    """The value as its kind has it. A reference may stand for any of them, and null for none."""
    if value is None or kind is Kind.ANYTHING or (isinstance(value, str) and is_reference(value)):
        return value
    fits: Any = None
    match kind:
        case Kind.FLAG:
            fits = value if isinstance(value, bool) else _FLAGS.get(value.lower()) if isinstance(value, str) else None
        case Kind.INTEGER:
            fits = _integer(value)
        case Kind.NUMBER:
            fits = _number(value)
        case Kind.TEXTS | Kind.ARGUMENTS:
            fits = value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None
        case Kind.SECRETS:
            is_one = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
            fits = value if is_one else None
        case _:
            fits = value if isinstance(value, str) else None
    if fits is None:
        raise Refused(as_text(place), f"{kind.value} is needed, and there is {_what(value)}")
    return fits


_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False, "on": True, "off": False}


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", value):
        return float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _what(value: Any) -> str:
    kinds = ((bool, "true or false"), (dict, "an object"), (list, "a list"), (str, "a text"), (int | float, "a number"))
    return next((words for kind, words in kinds if isinstance(value, kind)), "null")


# --- variables ---------------------------------------------------------------------------------------------------


def is_reference(text: str) -> bool:
    """Whether it is ``${VAR}`` and nothing else."""
    return _REFERENCE.fullmatch(text) is not None


def resolved(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """A text with what its references stand for; and the names of those that are not set."""
    names = dict.fromkeys(_REFERENCE.findall(text))
    missing = [name for name in names if not environment.get(name)]
    return _REFERENCE.sub(lambda found: environment.get(found[1], ""), text), missing


def variable_of(place: Place) -> str:
    """The variable that stands for a key, as nanobot names it."""
    return PREFIX + "__".join(re.sub(r"[^A-Za-z0-9]", "_", snake(part)).upper() for part in place)


def _take_variable(name: str, raw: str, made: Document) -> None:
    known: Any = SCHEMA
    place: Place = ()
    for word in name.removeprefix(PREFIX).lower().split("__"):
        if isinstance(known, ByName):
            key: str | None = word
            known = known.of
        elif isinstance(known, dict):
            key = next((each for each in known if snake(each) == word), None)
            known = known[key] if key else None
        else:
            key = None
        if key is None:
            made.notes.append(((name,), Fate.UNKNOWN, "no key has this name; the variable is left alone"))
            return
        place = (*place, key)
    if not isinstance(known, Kind):
        made.notes.append(((name,), Fate.UNUSED, "set its keys one by one"))
        return
    if place in made.keys:
        made.notes.append(((name,), Fate.UNUSED, f"the file has {as_text(place)}"))
        return
    value: Any = raw
    if known in (Kind.TEXTS, Kind.SECRETS, Kind.ARGUMENTS, Kind.ANYTHING):
        value = parse(f'{{"value": {raw}}}', name)["value"]
    check({"value": value})
    made.keys[place] = (known, _fitting(value, known, (name,)))
    made.variables[place] = name
