"""The tool that skills are read with. It runs inline, and runs nothing of a skill; scripts are for the tool exec."""

from typing import Annotated

from pydantic import Field

from tools.registry import Caller, Untrusted, tool
from tools.skills.shelf import file_of
from tools.workspace import text


@tool(effects="read", requires=["openat2"])
def read_skill(caller: Caller, name: str, path: str = "SKILL.md", offset: Annotated[int, Field(ge=1)] = 1) -> str:
    """Read a skill: instructions for a kind of task, and files that belong to them.

    Args:
        name: The skill, as the system prompt lists it.
        path: Another file of the skill, such as references/codes.md.
        offset: The first line, counted from 1.
    """
    try:
        content, trusted = file_of(name, path, agent=caller.agent, owner_id=caller.owner_id)
    except FileNotFoundError:
        raise ValueError(f"The skill {name} has no file {path!r}.") from None
    shown = text.shown(text.decoded(content), offset=offset, limit=1000)
    return shown if trusted else Untrusted(shown, by=f"a skill of the workspace ({name})")
