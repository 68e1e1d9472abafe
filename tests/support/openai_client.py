"""The unmodified ``openai`` package as a client of a host, and its own models as the judge of what it is answered."""

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import openai
from pydantic import BaseModel

from tests.support.hosts import KEY, Host

M = TypeVar("M", bound=BaseModel)


def openai_client(host: Host, key: str = KEY, **options: Any) -> openai.OpenAI:
    """As its users make one."""
    return openai.OpenAI(**{"base_url": f"{host.address}/v1"} | options, api_key=key)


def async_openai_client(host: Host, key: str = KEY, **options: Any) -> openai.AsyncOpenAI:
    """The other one."""
    return openai.AsyncOpenAI(base_url=f"{host.address}/v1", api_key=key, **options)


def strictly(answer: M, *, but: Collection[str] = ()) -> M:
    """The answer, after its JSON was held against the package's model: the package itself takes whatever comes.
    ``but``: names that the model may lack."""
    type(answer).model_validate_json(answer.model_dump_json(by_alias=True, exclude_unset=True), strict=True)
    assert not (extras := set(_extras(answer)) - set(but)), extras
    return answer


def _extras(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from _extras(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _extras(each)


def refusal(error: openai.APIStatusError, status: int, code: str, param: str | None = None) -> str:
    """The message of an error, after seeing that it has OpenAI's shape and its request's id."""
    body: Any = error.body
    assert (error.status_code, error.code, error.param) == (status, code, param), error
    assert set(body) == {"message", "type", "param", "code"}
    assert error.request_id
    return str(body["message"])
