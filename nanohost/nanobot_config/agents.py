"""What a config.json says of its agent, and the fields of ours that have it. Pure, but for the agent's own row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.forms.models import model_to_dict

from agent.llm.providers import PROVIDERS
from agent.models import MAX_MEMORY_WINDOW, Agent, Effort
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.reading import as_text
from nanohost.nanobot_config.schema import PROVIDER_NAMES, Place, resolved

_LARGEST = 2**31 - 1

DEFAULTS: Place = ("agents", "defaults")
INTERVAL: Place = ("gateway", "heartbeat", "intervalS")

# By key: the field that has it.
FIELDS: dict[Place, str] = {
    (*DEFAULTS, "model"): "model",
    (*DEFAULTS, "provider"): "provider",
    (*DEFAULTS, "maxTokens"): "output_reserve",
    (*DEFAULTS, "temperature"): "temperature",
    (*DEFAULTS, "maxToolIterations"): "max_tool_rounds",
    (*DEFAULTS, "memoryWindow"): "memory_window",
    (*DEFAULTS, "reasoningEffort"): "reasoning_effort",
    INTERVAL: "check_in_minutes",
}
_TEXTS = ("model", "provider", "reasoning_effort")


@dataclass(frozen=True)
class NoPlace(Exception):
    """A value that the agent here cannot have; says why."""

    why: str


def field_value(place: Place, given: Any, environment: Mapping[str, str]) -> Any:
    """What the agent's field is to be. Raises :class:`NoPlace`, and Refused for a variable that is not set."""
    name = FIELDS[place]
    if isinstance(given, str):
        given, missing = resolved(given, environment)
        if missing:
            raise Refused(as_text(place), f"the variable {missing[0]} is not set")
    if given is None or given == "":
        return "" if name in _TEXTS else None
    match name:
        case "model":
            return _checked(given, len(given) <= 128, "a model's name has 128 characters at most")
        case "provider":
            return _provider(given)
        case "reasoning_effort":
            return _checked(given, given in Effort.values, f"here it is one of {', '.join(Effort.values)}")
        case "temperature":
            number = _number(place, given, float)
            return _checked(number, 0 <= number <= 2, "here it is from 0 to 2")
    number = _number(place, given, int)
    match name:
        case "output_reserve":
            return _checked(number, 128 <= number <= _LARGEST, "here it is 128 at least")
        case "max_tool_rounds":
            return _checked(number, 0 <= number <= _LARGEST, "here it is 0 at least")
        case "memory_window":
            most = 2 * MAX_MEMORY_WINDOW
            return _checked(number // 2, 2 <= number <= most + 1, f"half of it is kept, here from 1 to {most // 2}")
    return _checked(number // 60, 60 <= number <= 86_400, "here it is from a minute to a day")


def _number(place: Place, given: Any, kind: type) -> Any:
    """A number that may have come out of a variable."""
    try:
        return kind(given)
    except ValueError:
        raise Refused(as_text(place), "its variable holds no number") from None


def _checked(value: Any, is_fit: bool, why: str) -> Any:
    if not is_fit:
        raise NoPlace(why)
    return value


def _provider(given: str) -> str:
    """The name that a provider has here."""
    name = given.lower().replace("-", "_")
    if name == "auto":
        return ""
    found = PROVIDER_NAMES.get(given) or ("azure" if name == "azure_openai" else name)
    return str(_checked(found, found in PROVIDERS, "there is no such provider here"))


def now(agent: Agent) -> dict[str, Any]:
    """The fields as they are."""
    return model_to_dict(agent, fields=list(FIELDS.values()))


def put(agent: Agent, values: Mapping[str, Any]) -> None:
    """Set those fields that have a value here."""
    agent.model = values.get("model", agent.model)
    agent.provider = values.get("provider", agent.provider)
    agent.output_reserve = values.get("output_reserve", agent.output_reserve)
    agent.temperature = values.get("temperature", agent.temperature)
    agent.max_tool_rounds = values.get("max_tool_rounds", agent.max_tool_rounds)
    agent.memory_window = values.get("memory_window", agent.memory_window)
    agent.reasoning_effort = values.get("reasoning_effort", agent.reasoning_effort)
    agent.check_in_minutes = values.get("check_in_minutes", agent.check_in_minutes)


def given_value(place: Place, agent: Agent) -> Any:
    """What a config.json says of an agent's field; None if the field is empty."""
    name = FIELDS[place]
    value = now(agent)[name]
    if value in ("", None):
        return None
    if name == "memory_window":
        return 2 * value
    if name == "check_in_minutes":
        return 60 * value
    return "azure_openai" if (name, value) == ("provider", "azure") else value
