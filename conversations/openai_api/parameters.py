"""Parameters of a request: passed on with each model call, kept, or refused; none is passed over in silence that would
change what a model answers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agent import answer_schemas
from conversations.openai_api.errors import InvalidValue, UnsupportedParameter
from conversations.openai_api.values import as_flag, as_list, as_number, as_one_of, as_text, as_whole

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
VERBOSITIES = ("low", "medium", "high")
MAX_STOPS, MAX_STOP = 4, 200


def _stops(value: Any, param: str) -> str | list[str]:
    if isinstance(value, str):
        return as_text(value, param, least=1, most=MAX_STOP)
    return [as_text(each, param, least=1, most=MAX_STOP) for each in as_list(value, param, most=MAX_STOPS)]


# Passed on with each model call, as far as its provider has the like.
PASSED_ON: Mapping[str, Callable[[Any, str], Any]] = {
    "temperature": partial(as_number, least=0, most=2),
    "top_p": partial(as_number, least=0, most=1),
    "presence_penalty": partial(as_number, least=-2, most=2),
    "frequency_penalty": partial(as_number, least=-2, most=2),
    "seed": partial(as_whole, least=-(2**63), most=2**63 - 1),
    "stop": _stops,
    "max_tokens": partial(as_whole, least=1),
    "max_completion_tokens": partial(as_whole, least=1),
    "reasoning_effort": partial(as_one_of, choices=EFFORTS),
    "verbosity": partial(as_one_of, choices=VERBOSITIES),
    "parallel_tool_calls": as_flag,
}

# Refused, unless they say what is so without them.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "prompt": (),
    "moderation": (),
    "functions": ([],),
    "function_call": ("none",),
}


def model_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """What is passed on with each model call, by its name in Chat Completions; raises for what is refused."""
    for name, neutral in REFUSED.items():
        if body.get(name) is not None and not any(body[name] == each for each in neutral):
            raise UnsupportedParameter(f"{name} is not supported here; leave it out.", param=name)
    given = {name: read(body[name], name) for name, read in PASSED_ON.items() if body.get(name) is not None}
    if (most := given.pop("max_completion_tokens", None)) is not None:  # the newer name of the two
        given["max_tokens"] = most
    return given


def answer_format(given: Any, param: str) -> str:
    """The form that an answer is to have, as turns keep it; empty: as the agent says. ``given``: as ``response_format``
    has it."""
    if given is None:
        return ""
    try:
        answer_schemas.read(given)
    except answer_schemas.InvalidFormat as error:
        raise InvalidValue(f"{param}: {error}", param=param) from None
    return answer_schemas.as_text(given)
