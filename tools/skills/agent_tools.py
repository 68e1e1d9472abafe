"""The tool that skills are read with. It runs inline, and runs nothing of a skill; scripts are for the tool exec."""

from typing import Annotated

from pydantic import Field

from tools.registry import Caller, tool
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
        content = file_of(name, path)
    except FileNotFoundError:
        raise ValueError(f"The skill {name} has no file {path!r}.") from None
    return text.shown(text.decoded(content), offset=offset, limit=1000)
