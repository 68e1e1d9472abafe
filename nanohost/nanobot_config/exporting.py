"""Writing a config.json: what imports have stored, with what agents and files have become since."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.models import Agent
from nanohost.nanobot_config import agents, parts
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.importing import bases_in, headers_in, secrets_of
from nanohost.nanobot_config.models import ConfigPart, PartKind
from nanohost.nanobot_config.parts import BASES, HEADERS, Secret
from nanohost.nanobot_config.schema import SCHEMA, Place, variable_of
from nanohost.nanobot_config.secret_files import SecretFiles


def document(*, agent: Agent, folder: Path, environment: Mapping[str, str], with_secrets: bool) -> dict[str, Any]:
    """What a config.json of an agent says. Without secrets, each has the name of a variable in its place:
    ``${NANOBOT_PROVIDERS__GROQ__API_KEY}``."""
    files = SecretFiles(folder)
    leaves: dict[Place, Any] = {}
    for row in ConfigPart.objects.order_by("kind", "name"):
        if row.kind == PartKind.AGENT and row.name != agent.name:
            continue
        begin = parts.place_of((row.kind, row.name))
        leaves.setdefault(begin, {})
        leaves |= {(*begin, *place): value for place, value in _leaves_in(row.settings)}
        for secret in secrets_of(row):
            place = (*begin, *secret.place)
            if isinstance(leaves.get(place), str):  # a reference that stood there
                continue
            leaves[place] = f"${{{variable_of(place)}}}"
            if with_secrets and (content := files.read(secret.file)) is not None:
                leaves[place] = _value_in(content, secret)
    _tell_of(agent, leaves, environment)
    return _in_order(parts.nested(dict(sorted(leaves.items(), key=lambda each: len(each[0])))))


def _leaves_in(config: Any, place: Place = ()) -> list[tuple[Place, Any]]:
    if isinstance(config, dict) and config:
        return [found for name, each in config.items() for found in _leaves_in(each, (*place, name))]
    return [(place, config)]


def _value_in(content: str, secret: Secret) -> Any:
    """A secret out of its file."""
    if secret.file == BASES:
        return bases_in(content).get(secret.member)
    if secret.file == HEADERS:
        return headers_in(content).get(secret.member)
    return json.loads(content) if secret.is_json else content


def _tell_of(agent: Agent, leaves: dict[Place, Any], environment: Mapping[str, str]) -> None:
    """What the agent is by now, where that is not what was imported."""
    fields = agents.now(agent)
    for place, name in agents.FIELDS.items():
        now = agents.given_value(place, agent)
        if place in leaves:
            try:
                if agents.field_value(place, leaves[place], environment) == fields[name]:
                    continue
            except agents.NoPlace:
                if now is None:
                    continue
            except Refused:
                pass
        if now is not None:
            leaves[place] = now
        elif place in leaves:
            leaves[place] = None


def _in_order(config: dict[str, Any]) -> dict[str, Any]:
    """As nanobot has them; what it does not know comes last."""
    return {name: config[name] for name in (*SCHEMA, *sorted(set(config) - set(SCHEMA))) if name in config}


def write(config: dict[str, Any], file: Path) -> None:
    """Write it for its owner alone; whole, or not at all."""
    new = file.with_name(f".{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as opened:
            json.dump(config, opened, ensure_ascii=False, indent=2)
            opened.write("\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise Refused(str(file), f"it cannot be written: {error.strerror}") from None
