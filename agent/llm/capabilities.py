"""What a model can do besides text: by its provider's row, and by the model's name. Pure.

A JSON Schema for an answer: whoever can't be given one is asked in words; so is a model whose provider refuses the
schema, which no table can know beforehand.
"""

import re

from agent.answer_schemas import AnswerFormat, is_closed, subschemas
from agent.llm.providers import Dialect, Provider

# These take no schema while tools are offered.
_NOT_WITH_TOOLS = frozenset({"groq", "gemini"})

# OpenAI's models of before August 2024: gpt-3.5 and gpt-4, but not gpt-4o, gpt-4.1 and later ones.
_TOO_OLD = re.compile(r"(?<![a-z0-9])(?:gpt-3\.5|gpt-35|gpt-4(?![a-z0-9.])|chatgpt-4o|o1-mini|o1-preview)")

# The version in claude-opus-4-5, claude-sonnet-4.5, claude-3-5-haiku and the like; a date is none.
_CLAUDE = re.compile(r"claude-(?:[a-z]{1,16}-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_CLAUDE_SINCE = (4, 5)
# What Claude's own format does not know, or refuses.
_NOT_CLAUDES = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "contains"),
        *("oneOf", "not", "if", "then", "else", "prefixItems", "propertyNames", "dependentSchemas"),
        *("dependentRequired", "minProperties", "maxProperties"),
    }
)


def takes_schema(row: Provider, model: str, wanted: AnswerFormat, *, with_tools: bool) -> bool:
    """Whether a model of this provider can be given the format of its answer. ``with_tools``: while it is offered some.

    Claude takes schemas from 4.5 on, and only those that are closed and not recursive.
    """
    if not row.json_schema or (with_tools and row.name in _NOT_WITH_TOOLS):
        return False
    name = model.lower()
    if row.dialect == Dialect.ANTHROPIC or "claude" in name:
        version = _CLAUDE.search(name)
        since = (int(version[1]), int(version[2] or 0)) if version else (0, 0)
        return since >= _CLAUDE_SINCE and wanted.schema is not None and _is_claudes(wanted.schema)
    return not (wanted.schema is not None and _TOO_OLD.search(name))


def _is_claudes(schema: dict[str, object]) -> bool:
    within = [each for _, each in subschemas(schema)]
    return is_closed(schema) and not any("$ref" in each or _NOT_CLAUDES & each.keys() for each in within)


# --- pictures ----------------------------------------------------------------------------------------------------
# A provider's row says what its API takes; of some models it is known that they take less. Of others nothing is known:
# they are asked, and their provider's refusal is told.

# By their providers' own lists: how names of models begin, behind what names a vendor, that take text alone; and of
# these, how the names begin of those that see all the same. The longest beginning decides.
_BLIND = (
    *("gpt-3.5", "gpt-4", "gpt-oss", "o1-mini", "o1-preview", "o3-mini"),
    *("claude-2", "claude-instant", "claude-3-5-haiku"),
    *("deepseek", "mistral-7b", "mistral-8x", "mistral-nemo", "mistral-tiny", "mixtral", "codestral"),
    *("llama2", "llama3", "llama-2", "llama-3", "llama3.1", "llama3.3", "llama-3.1", "llama-3.3"),
    *("qwen-", "qwen1.5-", "qwen2-", "qwen2.5-", "qwen3-", "qwq"),
    *("glm-4", "glm-5", "moonshot-v1", "kimi-k2", "minimax-m", "command-r", "phi-1", "phi-2", "phi-3"),
)
_SEEING = (
    *("gpt-4-turbo", "gpt-4-1106-vision", "gpt-4o", "gpt-4.", "gpt-41"),
    *("llama3.", "llama-3.", "kimi-k2.5"),
)
_BEGINNINGS = dict.fromkeys(_BLIND, False) | dict.fromkeys(_SEEING, True)

# What a name has, as a word or behind a figure (glm-4.5v), whose model sees whatever the name begins with.
_SEES = re.compile(r"(?<![a-z])(?:vl|vision|omni|ocr)(?![a-z])|(?<=\d)v(?![a-z0-9])")


def can_see(row: Provider, model: str) -> bool:
    """Whether a model of this provider may be sent pictures."""
    if not row.images:
        return False
    name = model.rsplit("/", 1)[-1].lower()
    known = max((each for each in _BEGINNINGS if name.startswith(each)), key=len, default="")
    return _BEGINNINGS.get(known, True) or bool(_SEES.search(name))
