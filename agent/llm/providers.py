"""The providers of models, as data: one row each; and which of them answers for a model's name, and why. Pure.

The rows are nanobot's, in its order, with Azure beside them. What differs from it: a word that a model is recognised by
stands at a word's beginning ("ark" is not in "spark"), every provider has a key of its own, and a model's name is sent
as its provider knows it, without a prefix that named the provider alone.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from agent.errors import NoProvider


class Dialect(StrEnum):
    """How a provider is spoken to; each has a client."""

    CHAT = "chat"  # OpenAI's Chat Completions
    AZURE = "azure"  # the same, by Azure's addresses and headers
    ANTHROPIC = "anthropic"  # Anthropic's Messages
    RESPONSES = "responses"  # OpenAI's Responses, which ChatGPT's Codex takes
    COPILOT = "copilot"  # Chat Completions, with a key that GitHub gives for half an hour
    SCRIPTED = "scripted"  # none: a model that nanohost brings along


class Thinking(StrEnum):
    """How a provider is told how much its model is to think, in Chat Completions."""

    EFFORT = "effort"  # reasoning_effort
    TYPE = "type"  # thinking: {type: enabled}
    ENABLE = "enable"  # enable_thinking
    SPLIT = "split"  # reasoning_split: what it thinks apart from what it says


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider.

    ``key``: the setting of its key. ``base_url``: its address; empty: the user's to say. ``keywords``: words of models'
    names that it is recognised by. ``beginnings``: words that it is recognised by where a model's name, behind what
    names a vendor, begins with them alone. ``prefixes``: what may stand before ``/`` in a model's name, beside its own
    name, to name it. ``is_gateway``: it passes on to others, and takes any model. ``is_local``: it is the user's own,
    and may ask for no key. ``is_oauth``: its key is the token of a person who has signed in, and it is never asked
    unless it is named or recognised. ``names_vendors``: its own names of models may have a vendor before a ``/``.
    ``last_segment``: it takes of a name what stands behind the last ``/``. ``key_begins``, ``base_has``: how a
    gateway's keys begin, and what its address has, by which one is known that was set up as OpenAI's. ``headers``: it
    wants besides.

    What it can do: ``tools``, ``streaming``, ``images``, ``json_schema``, ``reasoning``, ``prompt_caching``.
    ``thinking``: how it is told to think. ``sends_back``: the field in which it wants to be sent back, within a turn,
    what its model thought before; empty: it wants nothing. ``fixed_temperatures``: words of its models' names, and the
    temperature that those models take alone.
    """

    name: str
    key: str
    base_url: str = ""
    dialect: Dialect = Dialect.CHAT
    keywords: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    is_gateway: bool = False
    is_local: bool = False
    is_oauth: bool = False
    names_vendors: bool = False
    last_segment: bool = False
    key_begins: str = ""
    base_has: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tools: bool = True
    streaming: bool = True
    images: bool = False
    json_schema: bool = False
    reasoning: bool = True
    prompt_caching: bool = False
    thinking: Thinking = Thinking.EFFORT
    sends_back: str = ""
    fixed_temperatures: tuple[tuple[str, float], ...] = ()

    def temperature(self, model: str, wanted: float | None) -> float | None:
        """What a model is told; None: nothing, since nothing is wanted."""
        if wanted is None:
            return None
        return next((fixed for word, fixed in self.fixed_temperatures if word in model.lower()), wanted)

    @property
    def wants_thoughts(self) -> bool:
        """Whether it is to be sent back, within a turn, what its model thought."""
        return bool(self.sends_back) or self.dialect in (Dialect.ANTHROPIC, Dialect.RESPONSES)


_ROWS = (
    Provider(
        name="custom",
        key="CUSTOM_API_KEY",
        base_url="http://localhost:8000/v1",
        is_local=True,
        names_vendors=True,
        images=True,
    ),
    Provider(
        name="openrouter",
        key="OPENROUTER_API_KEY",
        base_url="https://openrouter.ai/api/v1",
        keywords=("openrouter",),
        is_gateway=True,
        names_vendors=True,
        key_begins="sk-or-",
        base_has="openrouter",
        images=True,
        json_schema=True,
        prompt_caching=True,
        sends_back="reasoning_details",
    ),
    Provider(
        name="aihubmix",
        key="AIHUBMIX_API_KEY",
        base_url="https://aihubmix.com/v1",
        keywords=("aihubmix",),
        is_gateway=True,
        names_vendors=True,
        last_segment=True,
        base_has="aihubmix",
        images=True,
        json_schema=True,
    ),
    Provider(
        name="siliconflow",
        key="SILICONFLOW_API_KEY",
        base_url="https://api.siliconflow.cn/v1",
        keywords=("siliconflow",),
        is_gateway=True,
        names_vendors=True,
        base_has="siliconflow",
        images=True,
        thinking=Thinking.ENABLE,
    ),
    Provider(
        name="volcengine",
        key="VOLCENGINE_API_KEY",
        base_url="https://ark.cn-beijing.volces.com/api/v3",
        keywords=("volcengine", "volces", "ark"),
        is_gateway=True,
        base_has="volces",
        images=True,
        json_schema=True,
        thinking=Thinking.TYPE,
    ),
    Provider(
        name="anthropic",
        key="ANTHROPIC_API_KEY",
        base_url="https://api.anthropic.com",
        dialect=Dialect.ANTHROPIC,
        keywords=("anthropic", "claude"),
        images=True,
        json_schema=True,
        prompt_caching=True,
    ),
    Provider(
        name="openai",
        key="OPENAI_API_KEY",
        base_url="https://api.openai.com/v1",
        keywords=("openai", "gpt", "chatgpt"),
        beginnings=("o1", "o3", "o4", "ft:o4"),
        images=True,
        json_schema=True,
        prompt_caching=True,
    ),
    Provider(
        name="openai_codex",
        key="OPENAI_CODEX_TOKEN",
        base_url="https://chatgpt.com/backend-api/codex",
        dialect=Dialect.RESPONSES,
        keywords=("openai-codex",),
        is_oauth=True,
        images=True,
        json_schema=True,
        prompt_caching=True,
    ),
    Provider(
        name="github_copilot",
        key="GITHUB_COPILOT_TOKEN",
        base_url="https://api.githubcopilot.com",
        dialect=Dialect.COPILOT,
        keywords=("github_copilot", "copilot"),
        is_oauth=True,
        headers=(("Editor-Version", "nanohost/1"), ("Copilot-Integration-Id", "vscode-chat")),
        images=True,
    ),
    Provider(
        name="deepseek",
        key="DEEPSEEK_API_KEY",
        base_url="https://api.deepseek.com",
        keywords=("deepseek",),
        prompt_caching=True,
        thinking=Thinking.TYPE,
        sends_back="reasoning_content",
    ),
    Provider(
        name="gemini",
        key="GEMINI_API_KEY",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai/",
        keywords=("gemini",),
        images=True,
        json_schema=True,
        prompt_caching=True,
    ),
    Provider(
        name="zhipu",
        key="ZAI_API_KEY",
        base_url="https://open.bigmodel.cn/api/paas/v4",
        keywords=("zhipu", "glm", "zai"),
        prefixes=("zai",),
        images=True,
        prompt_caching=True,
        thinking=Thinking.TYPE,
    ),
    Provider(
        name="dashscope",
        key="DASHSCOPE_API_KEY",
        base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
        keywords=("qwen", "dashscope"),
        images=True,
        prompt_caching=True,
        thinking=Thinking.ENABLE,
    ),
    Provider(
        name="moonshot",
        key="MOONSHOT_API_KEY",
        base_url="https://api.moonshot.ai/v1",
        keywords=("moonshot", "kimi"),
        images=True,
        json_schema=True,
        prompt_caching=True,
        thinking=Thinking.TYPE,
        sends_back="reasoning_content",
        fixed_temperatures=(("kimi-k2.5", 1.0),),
    ),
    Provider(
        name="minimax",
        key="MINIMAX_API_KEY",
        base_url="https://api.minimax.io/v1",
        keywords=("minimax",),
        prompt_caching=True,
        thinking=Thinking.SPLIT,
        sends_back="reasoning_details",
    ),
    Provider(
        name="vllm",
        key="HOSTED_VLLM_API_KEY",
        keywords=("vllm",),
        prefixes=("hosted_vllm",),
        is_local=True,
        names_vendors=True,
        images=True,
        json_schema=True,
    ),
    Provider(
        name="groq",
        key="GROQ_API_KEY",
        base_url="https://api.groq.com/openai/v1",
        keywords=("groq",),
        names_vendors=True,
        images=True,
        json_schema=True,
    ),
    Provider(
        name="azure",
        key="AZURE_OPENAI_API_KEY",
        dialect=Dialect.AZURE,
        images=True,
        json_schema=True,
        prompt_caching=True,
    ),
)

PROVIDERS = {row.name: row for row in _ROWS}

# The settings of providers that `manage.py import_config` may put into files of their names.
KEPT = (*(row.key for row in _ROWS), "LLM_BASE_URLS", "LLM_HEADERS")

AUTO, MOCK = "auto", "mock"

# The model that nanohost brings along. It is LLM_PROVIDER's to choose, for everything; nobody else can name it.
SCRIPTED = Provider(name=MOCK, key="", dialect=Dialect.SCRIPTED, images=True, json_schema=True)


# --- which there are ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where a provider is, and with which key; empty: it asks for none. ``extra``: headers that it is sent besides its
    own, which may be secrets."""

    provider: Provider
    base_url: str
    key: str
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """What it is sent besides what its API has; the user's own come before the table's, whatever their case."""
        given = {name.lower() for name, _ in self.extra}
        own = {name: value for name, value in self.provider.headers if name.lower() not in given}
        return own | dict(self.extra)

    def __repr__(self) -> str:
        return f"Access({self.provider.name})"


def accesses(setting: Callable[[str], Any]) -> dict[str, Access]:
    """The providers that are set up, by name, in the table's order. ``setting``: reads one.

    One is set up that has a key, or an address that somebody gave it. OPENAI_API_KEY and LLM_BASE_URL go together: with
    that address, they are those of the provider that LLM_PROVIDER names, or whose gateway it is, or custom's.
    """
    given: dict[str, str] = dict(setting("LLM_BASE_URLS"))
    headers: dict[str, dict[str, str]] = setting("LLM_HEADERS")
    keys = {row.name: setting(row.key) for row in _ROWS}
    if address := setting("LLM_BASE_URL"):
        named = setting("LLM_PROVIDER")
        name = named if named in PROVIDERS else _of_address(keys["openai"], address)
        given.setdefault(name, address)
        if name != "openai" and not keys[name]:
            keys[name], keys["openai"] = keys["openai"], ""
    elif (gateway := _of_address(keys["openai"], "")) != "custom" and not keys[gateway]:
        keys[gateway], keys["openai"] = keys["openai"], ""
    return {
        row.name: Access(
            provider=row,
            base_url=given.get(row.name, row.base_url),
            key=keys[row.name],
            extra=tuple(headers.get(row.name, {}).items()),
        )
        for row in _ROWS
        if (keys[row.name] or row.name in given) and given.get(row.name, row.base_url)
    }


def _of_address(key: str, address: str) -> str:
    """The gateway that a key, or an address, is of."""
    for row in _ROWS:
        if row.key_begins and key.startswith(row.key_begins):
            return row.name
    return next((row.name for row in _ROWS if row.base_has and row.base_has in address), "custom")


# --- which one it is ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Who is asked for a model. ``model``: its name as the provider knows it. ``why``: in words."""

    provider: Provider
    model: str
    why: str


@lru_cache(maxsize=1024)
def choose(model: str, *, named: str, default: str, configured: tuple[str, ...]) -> Choice:
    """Who is asked for a model. ``named``: the provider that its agent names, if it names one. ``default``:
    LLM_PROVIDER. ``configured``: those that are set up, by name.

    In this order: what the model's name says before its first ``/``; the agent's provider; the host's; who is
    recognised by a word in the name; the first that has a key, gateways before others. A provider whose own names have
    vendors in them, such as a gateway, is left its names: its agent, or the host, has said that it is to be asked. A
    provider that is named but not set up is an error, and never another one: raises :class:`agent.errors.NoProvider`.
    What a model's name begins with may be a vendor's part of a gateway's own name, though; so such a name is left to
    those who pass on to others, or have vendors in their names, and is sent to nobody else.
    """
    if default == MOCK:
        return Choice(provider=SCRIPTED, model=model, why="LLM_PROVIDER is mock: the scripted model answers")
    first, slash, _ = model.partition("/")
    prefix = first.lower().replace("-", "_") if slash else ""
    explicit = next((row for row in _ROWS if prefix and prefix in _prefixes(row)), None)
    said = named or ("" if default == AUTO else default)
    if explicit and explicit.name in configured and not _keeps_vendors(said, explicit):
        return _chosen(explicit, model, f"the model's name begins with {first}/")
    if said:
        words = f"its agent's provider is {named}" if named else f"LLM_PROVIDER is {default}"
        if said not in PROVIDERS:
            raise NoProvider(f"{words}, which is none")
        if said not in configured:
            raise NoProvider(f"{words}, and {_missing(PROVIDERS[said])}")
        return _chosen(PROVIDERS[said], model, words)
    rows = [row for row in _ROWS if row.name in configured]
    if explicit:
        rows = [row for row in rows if row.is_gateway or row.names_vendors]
    for row in rows:
        if word := _keyword_in(row, model):
            return _chosen(row, model, f"the model's name has {word} in it")
    for row in rows:
        if not row.is_oauth:
            return _chosen(row, model, f"no provider is named or recognised; {row.name} is the first that is set up")
    missing = f": {_missing(explicit)}" if explicit else ""
    raise NoProvider(f"no provider is set up for the model {model}{missing}")


def _keeps_vendors(said: str, explicit: Provider) -> bool:
    return said != explicit.name and said in PROVIDERS and PROVIDERS[said].names_vendors


def _missing(row: Provider) -> str:
    return f"{row.name} is not set up: set {row.key}" + ("" if row.base_url else " and its address in LLM_BASE_URLS")


def _chosen(row: Provider, model: str, why: str) -> Choice:
    return Choice(provider=row, model=_as_known(row, model), why=why)


def _as_known(row: Provider, model: str) -> str:
    """A model's name as its provider knows it."""
    first, slash, rest = model.partition("/")
    if slash and rest and first.lower().replace("-", "_") in _prefixes(row):
        model = rest
    return model.rsplit("/", 1)[-1] if row.last_segment else model


def _prefixes(row: Provider) -> Collection[str]:
    return (row.name, *row.prefixes)


def _keyword_in(row: Provider, model: str) -> str:
    """The word by which a provider is recognised; empty if it is not."""
    name = model.lower()
    found = next((word for word in row.keywords if _pattern(word).search(name)), "")
    return found or next((word for word in row.beginnings if _beginning(word).match(name.rsplit("/", 1)[-1])), "")


@lru_cache(maxsize=256)
def _pattern(word: str) -> "re.Pattern[str]":
    """Whole, but for figures behind it: qwen2.5, gpt4."""
    return re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])")


@lru_cache(maxsize=256)
def _beginning(word: str) -> "re.Pattern[str]":
    """Whole: o1-mini and o3, but not o10 or o1x; and a name that is short stands in other names, such as marco-o1."""
    return re.compile(rf"{re.escape(word)}(?![a-z0-9])")
