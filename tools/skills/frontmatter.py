"""What a SKILL.md says of its skill: the frontmatter of Agent Skills, and what nanobot has besides.

Values are texts, lists and mappings; nothing in a file becomes an object of another kind, and aliases, by which a small
file can stand for a huge one, are refused.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

MAX_BYTES = 64 * 1024
MAX_FRONTMATTER_CHARS = 8 * 1024
# The bounds of the Agent Skills specification.
MAX_NAME_CHARS, MAX_DESCRIPTION_CHARS = 64, 1024
# What else may stand there, for people, with its bound.
_CHECKED = {"license": 1024, "compatibility": 500, "allowed-tools": 1024}

_NAME = re.compile(r"[a-z0-9-]{1,64}")
# Under which of the metadata nanobot's own entries stand.
_NAMESPACES = ("nanobot", "openclaw")


class BadSkill(ValueError):
    """A folder is no skill; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """What a SKILL.md says. ``bins``, ``variables``: the programs and environment variables that it needs.
    ``always``: its body is in every prompt."""

    name: str
    description: str
    body: str
    always: bool = False
    bins: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


class _Loader(yaml.BaseLoader):
    """Knows texts, lists and mappings, and no alias."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise BadSkill("The frontmatter has an alias (*name); write the value out.")
        return super().compose_node(parent, index)


# The content is the key, so what is kept is never out of date; a prompt is built from the same files each time.
@lru_cache(maxsize=256)
def parsed(folder: str, content: bytes) -> Skill:
    """The skill that a SKILL.md describes. ``folder``: the name of the folder it stands in, which is the skill's.

    Raises :class:`BadSkill`.
    """
    if len(content) > MAX_BYTES:
        raise BadSkill(f"SKILL.md has more than {MAX_BYTES} bytes; move what is seldom needed to files beside it.")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise BadSkill("SKILL.md is not UTF-8.") from None
    head, body = _parts(text)
    return _skill(folder, _values(head), body.strip())


def _parts(text: str) -> tuple[str, str]:
    if not text.startswith("---\n"):
        raise BadSkill("SKILL.md does not begin with ---, a line that its frontmatter stands beneath.")
    head, end, body = text[4:].partition("\n---")
    if not end or (body and not body.startswith("\n")):
        raise BadSkill("The frontmatter of SKILL.md does not end; a line --- ends it.")
    if len(head) > MAX_FRONTMATTER_CHARS:
        raise BadSkill(f"The frontmatter has more than {MAX_FRONTMATTER_CHARS} characters.")
    return head, body


def _values(head: str) -> Mapping[str, Any]:
    try:
        values = yaml.load(head, _Loader)  # noqa: S506 -- it makes texts, lists and mappings only
    except yaml.YAMLError:
        # nanobot reads plain lines, in which a colon needs no quotes.
        pairs = (line.partition(":") for line in head.splitlines() if line and not line[0].isspace())
        values = {key.strip(): value.strip().strip("\"'") for key, colon, value in pairs if colon}
    except RecursionError:
        raise BadSkill("The frontmatter is nested too deeply.") from None
    if not isinstance(values, dict):
        raise BadSkill("The frontmatter is no list of lines such as `name: weather`.")
    return values


def _skill(folder: str, values: Mapping[str, Any], body: str) -> Skill:
    name = _text(values, "name", MAX_NAME_CHARS) or folder
    if not _NAME.fullmatch(name) or name != folder:
        raise BadSkill(f"name has to be that of the folder, {folder!r}, of a to z, 0 to 9 and -.")
    description = " ".join(_text(values, "description", MAX_DESCRIPTION_CHARS).split())
    if not description:
        raise BadSkill("description is missing: it says what the skill does, and when to use it.")
    for key, most in _CHECKED.items():
        _text(values, key, most)
    own = _of_nanobot(values.get("metadata"))
    requires = own.get("requires")
    requires = requires if isinstance(requires, dict) else {}
    return Skill(
        name=name,
        description=description,
        body=body,
        always="true" in (str(values.get("always")).lower(), str(own.get("always")).lower()),
        bins=_names(requires, "bins"),
        variables=_names(requires, "env"),
    )


def _text(values: Mapping[str, Any], key: str, most: int) -> str:
    value = values.get(key, "")
    if not isinstance(value, str) or len(value) > most:
        raise BadSkill(f"{key} has to be a text of {most} characters at most.")
    return value


def _of_nanobot(metadata: Any) -> Mapping[str, Any]:
    """nanobot's entries: a mapping, or JSON in one line."""
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata or "{}")
        except (ValueError, RecursionError):
            raise BadSkill("metadata is a text, but no JSON.") from None
    found = [metadata.get(each) for each in _NAMESPACES] if isinstance(metadata, dict) else []
    return next((each for each in found if isinstance(each, dict)), {})


def _names(requires: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = requires.get(key, [])
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise BadSkill(f"requires.{key} has to be a list of names.")
    return tuple(names)
