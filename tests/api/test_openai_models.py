"""``/v1`` as such, and its models: who may list what, errors in OpenAI's shape, pages of other origins."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from django.test import Client

from agent.models import DEFAULT_AGENT
from nanohost.accounts.models import EVERY_AGENT, ApiKey
from tests.support.api_client import connect, key_of, read_answer
from tests.support.factories import AgentFactory
from tests.support.hosts import Host
from tests.support.openai_client import async_openai_client, openai_client, refusal, strictly


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host) as client:
        yield client


@pytest.fixture(scope="module")
def v1(host: Host) -> Iterator[httpx2.Client]:
    """Without a key."""
    with httpx2.Client(base_url=f"{host.address}/v1") as v1:
        yield v1


def test_agents_are_models(client):
    (model,) = [strictly(each) for each in client.models.list()]
    assert (model.id, model.object, model.owned_by) == (DEFAULT_AGENT, "model", "nanohost")
    assert strictly(client.models.retrieve(DEFAULT_AGENT)) == model
    assert client.models.retrieve(f"{DEFAULT_AGENT}:plain").id == f"{DEFAULT_AGENT}:plain"


async def listed(host: Host) -> list[str]:
    async with async_openai_client(host) as client:
        return [strictly(model).id async for model in client.models.list()]


def test_the_asynchronous_package_lists_them_as_well(host):
    assert asyncio.run(listed(host)) == [DEFAULT_AGENT]


@pytest.mark.parametrize("name", ["nobody", "someone/else", "nobody:plain", "a b", "a\x00b", "x" * 300])
def test_a_model_that_there_is_not_is_not_found(client, name):
    with pytest.raises(openai.NotFoundError) as told:
        client.models.retrieve(name)
    assert "no agent named" in refusal(told.value, 404, "model_not_found", "model")


def test_a_request_without_a_good_key_is_told_so_in_openais_shape(host):
    with (
        openai_client(host, "nh_wrong_0123456789abcdefghij") as stranger,
        pytest.raises(openai.AuthenticationError) as told,
    ):
        stranger.models.list()
    refusal(told.value, 401, "invalid_api_key")


def test_a_key_needs_a_scope_for_it(host):
    with (
        openai_client(host, key_of(host, "of memory", ["memory"])) as client,
        pytest.raises(openai.PermissionDeniedError) as told,
    ):
        client.models.list()
    assert "read or chat" in refusal(told.value, 403, "missing_scope")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/models", 401, "invalid_api_key"),
        ("GET", "/models/" + "x" * 40_000, 431, "headers_too_large"),
    ],
)
def test_what_fails_before_a_view_is_told_in_the_same_shape(v1, method, path, status, code):
    answer = v1.request(method, path, headers={"Cookie": "c" * 33_000} if status == 431 else {})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"]


def test_another_method_is_refused(host, v1):
    with host.client() as api:
        answer = api.post(f"{host.address}/v1/models", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


def test_a_body_that_is_too_large_is_refused_in_the_same_shape(host):
    with connect(host) as connection:
        connection.sendall(b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: x\r\n\r\n")
        status, _, body = read_answer(connection)
    assert status == 413
    assert b'"code":"body_too_large"' in body


# --- what a key may name -----------------------------------------------------------------------------------------


def models_of(owner: Any, **may: Any) -> list[str]:
    _, key = ApiKey.objects.issue(owner=owner, **may)
    answer = Client(headers={"Authorization": f"Bearer {key}"}).get("/v1/models", secure=True)
    assert answer.status_code == 200, answer.content
    return [each["id"] for each in answer.json()["data"]]


@pytest.mark.django_db(transaction=True)
def test_a_key_lists_the_agents_that_it_may_name(owner):
    for name, is_public in (("open", True), ("closed", False)):
        AgentFactory(name=name, is_public=is_public)
    assert models_of(owner, agent_names=[EVERY_AGENT]) == ["closed", DEFAULT_AGENT, "open"]
    assert models_of(owner, agent_names=["closed"]) == ["closed"]
    assert models_of(owner) == [DEFAULT_AGENT, "open"]


# --- pages of other origins --------------------------------------------------------------------------------------

PAGE = "https://chat.example.org"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os,x-stainless-retry-count",
}


@pytest.fixture(scope="module")
def open_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    running = Host(tmp_path_factory.mktemp("open"), CORS_ALLOWED_ORIGINS=f"http://localhost:3000, {PAGE}").start()
    yield running
    running.kill()


def cors_headers(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_no_page_is_let_in_unless_it_is_named(v1):
    preflight = v1.options("/models", headers=PREFLIGHT)
    assert (preflight.status_code, cors_headers(preflight)) == (401, {})
    assert cors_headers(v1.get("/models", headers={"Origin": PAGE})) == {}


def test_a_page_that_is_named_passes_the_preflight_without_a_key(open_host):
    answer = httpx2.options(f"{open_host.address}/v1/chat/completions", headers=PREFLIGHT)
    assert (answer.status_code, answer.content) == (204, b"")
    told = cors_headers(answer)
    assert told["access-control-allow-origin"] == PAGE
    assert told["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "POST" in told["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in told


def test_a_page_reads_answers_and_errors(open_host):
    for key, status in ((open_host.client().headers["authorization"], 200), ("Bearer none", 401)):
        headers = {"Origin": PAGE, "Authorization": key}
        answer = httpx2.get(f"{open_host.address}/v1/models", headers=headers)
        assert answer.status_code == status
        assert cors_headers(answer)["access-control-allow-origin"] == PAGE
        assert "x-request-id" in cors_headers(answer)["access-control-expose-headers"]


def test_other_pages_and_other_addresses_stay_closed(open_host):
    other = httpx2.options(f"{open_host.address}/v1/models", headers=PREFLIGHT | {"Origin": "https://evil.example"})
    assert (other.status_code, cors_headers(other)) == (401, {})
    for path in ("/api/v1/conversations", "/health/live", "/admin/login/"):
        assert cors_headers(httpx2.get(f"{open_host.address}{path}", headers={"Origin": PAGE})) == {}
