"""The OpenAPI document of ``/v1`` and the running host, held against each other by schemathesis.

What is said and gone on from has an order that OpenAPI cannot tell: so each body is sent as it was made up, when no
more is asked than an answer that the document has; and with a transcript that makes sense in the place of one that
merely fits, when what fits has to be taken and what does not has to be refused.
"""

from functools import cache
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import schemathesis
from drf_spectacular.settings import patched_settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from conversations.openai_api import parameters, response_request
from conversations.openai_api.schema import SETTINGS, OpenAISchema
from tests.support.hosts import KEY, Host
from tests.support.schemas import lend_an_id, own_host

# Whether the host lives and keeps its word: what is made up need not be taken.
WHATEVER_COMES = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

# In the place of what fits.
SENSIBLE: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Hello"}],
    "input": "Hello",
    "items": [{"role": "user", "content": "Hello"}],
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "text": {"format": {"type": "text"}},
    "metadata": {"name": "value"},
    "conversation": None,
    "previous_response_id": None,
    "background": False,
}

TRANSCRIPTS = {"messages", "input", "items"}

# What no route takes; no document tells of it.
REFUSED = parameters.REFUSED.keys() | response_request.REFUSED.keys()


@cache
def document() -> dict[str, Any]:
    with patched_settings(SETTINGS):
        made: dict[str, Any] = OpenAISchema.generator_class().get_schema(request=None, public=True)
    # The document tells of what events have, and schemathesis takes that for what they are: the package's own models
    # are their judge elsewhere.
    for operation in (operation for path in made["paths"].values() for operation in path.values()):
        if "text/event-stream" in (content := operation["responses"]["200"]["content"]):
            content["text/event-stream"] = {}
    return made


def loaded(dose: int) -> Any:
    """The document, with so many examples of each route besides those that cover each of its keywords; what is left out
    stands in test_schema.py."""
    generation = {
        "max-examples": dose,
        "deterministic": True,
        "allow-x00": False,
        "allow-extra-parameters": False,
        "with-security-parameters": False,
    }
    config = SchemathesisConfig.from_dict({"seed": 1, "generation": generation})
    return schemathesis.openapi.from_dict(document(), config=config)


host = pytest.fixture(scope="module")(own_host)


# Both are made by the process that runs these tests: to make up the requests takes seconds, and every process collects.
@pytest.fixture
def at_length(request: pytest.FixtureRequest) -> Any:
    lend_an_id(request.node)
    return loaded(200)


@pytest.fixture
def documented(request: pytest.FixtureRequest) -> Any:
    lend_an_id(request.node)
    return loaded(4)


in_full = schemathesis.pytest.from_fixture("at_length")
# Two more routes read what the first does, and by the same function.
schema = schemathesis.pytest.from_fixture("documented").exclude(
    path=["/v1/responses/compact", "/v1/responses/input_tokens"]
)


def as_json_schema(part: Any) -> Any:
    """A part of the document, with OpenAPI's own word for null said in JSON Schema's."""
    if isinstance(part, list):
        return [as_json_schema(each) for each in part]
    if not isinstance(part, dict):
        return part
    plain = {name: as_json_schema(value) for name, value in part.items() if name != "nullable"}
    return {"anyOf": [{"type": "null"}, plain]} if part.get("nullable") is True else plain


@cache
def components() -> Any:
    return as_json_schema(document()["components"])


def fits(case: Any, name: str) -> bool:
    """Whether the body has such a field as the document says."""
    operation = document()["paths"][case.path].get(case.method.lower(), {})
    if "requestBody" not in operation or not isinstance(case.body, dict) or name not in case.body:
        return False
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    told = components()["schemas"][body["$ref"].rpartition("/")[2]]["properties"].get(name)
    if told is None:
        return False
    validator = jsonschema.Draft4Validator({"allOf": [told], "components": components()})
    return bool(validator.is_valid(case.body[name]))


def use_real_things(host: Host, case: Any) -> None:
    """Put things that there are in the place of ids that merely fit."""
    if case.headers and case.headers.get("Idempotency-Key"):
        case.headers["Idempotency-Key"] = uuid4().hex
    if case.method not in ("GET", "POST", "DELETE"):
        return
    with host.client() as client:
        if "conversation_id" in case.path_parameters:
            said = {"items": [{"role": "user", "content": "Hello"}]}
            made = client.post(f"{host.address}/v1/conversations", json=said).json()["id"]
            case.path_parameters["conversation_id"] = made
            if "item_id" in case.path_parameters:
                items = client.get(f"{host.address}/v1/conversations/{made}/items").json()
                case.path_parameters["item_id"] = items["first_id"]
        if "response_id" in case.path_parameters:
            asked = {"model": "default", "input": "Hello"}
            case.path_parameters["response_id"] = client.post(f"{host.address}/v1/responses", json=asked).json()["id"]
    if isinstance(case.query, dict) and isinstance(case.query.get("after"), str):
        case.query["after"] = ""


def check(host: Host, case: Any) -> None:
    asked: dict[str, Any] = {
        "base_url": host.address,
        "headers": {"Authorization": f"Bearer {KEY}"},
        "timeout": 30,
    }
    use_real_things(host, case)
    if isinstance(case.body, dict):  # of the names that are made up, some are strings of the code's
        case.body = {name: value for name, value in case.body.items() if name not in REFUSED or fits(case, name)}
    if fits(case, "model"):
        case.body["model"] = "default"
        if case.path.startswith("/v1/responses"):
            case.body.setdefault("input", None)  # OpenAPI cannot say what may be in its place
    sensible = {name: value for name, value in SENSIBLE.items() if fits(case, name)}
    if any(case.body[name] for name in TRANSCRIPTS & sensible.keys()):
        case.call_and_validate(checks=WHATEVER_COMES, **asked)
    if sensible:
        case.body.update(sensible)
    # Keys have a matrix of their own.
    case.call_and_validate(excluded_checks=[ignored_auth], **asked)


@pytest.mark.embedded(reason="what a route takes is decided in the same code; test_api_bad_input.py is on both")
@schema.parametrize()
def test_the_host_does_as_its_schema_says(case: Any, host: Host) -> None:
    check(host, case)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.embedded(reason="what a route takes is decided in the same code; test_api_bad_input.py is on both")
@in_full.parametrize()
def test_it_does_so_at_length(case: Any, host: Host) -> None:
    check(host, case)
