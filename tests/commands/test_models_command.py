"""``manage.py models``: who is asked for a model, and whether those that are set up answer."""

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from agent.models import Agent
from tests.support.openai_server import OpenAIServer

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "sk-canary-0123456789"


@pytest.fixture
def server(settings) -> Any:
    running = OpenAIServer(key=KEY).start()
    settings.LLM_PROVIDER = "auto"
    settings.LLM_BASE_URLS = {"deepseek": running.url, "groq": running.url}
    settings.DEEPSEEK_API_KEY, settings.LLM_MODEL_DEFAULT = KEY, "deepseek-chat"
    yield running
    running.stop()


def models(*arguments: str) -> str:
    out = io.StringIO()
    call_command("models", *arguments, stdout=out)
    return out.getvalue()


def test_which_says_who_and_as_what_and_why(server):
    assert models("which", "deepseek/deepseek-chat") == (
        "deepseek\tas deepseek-chat\tthe model's name begins with deepseek/\n"
    )


def test_which_knows_the_agents_provider(server):
    Agent(name="quick", provider="groq").save_version(by="anna")
    assert models("which", "model-1", "--agent", "quick") == "groq\tas model-1\tits agent's provider is groq\n"
    with pytest.raises(CommandError, match="no agent slow"):
        models("which", "model-1", "--agent", "slow")


@pytest.mark.parametrize("name", ["", "  "])
def test_which_wants_a_name(server, name):
    with pytest.raises(CommandError, match="Name a model"):
        models("which", name)


def test_which_says_what_is_missing(settings):
    settings.LLM_PROVIDER = "auto"
    with pytest.raises(CommandError, match="DEEPSEEK_API_KEY"):
        models("which", "deepseek/deepseek-chat")


def test_check_calls_each_once_and_tells_no_key(server, capsys):
    """Deepseek's key is good; groq has none, and no model of it is known here to ask for."""
    out = io.StringIO()
    with pytest.raises(CommandError, match="Not every provider works"):
        call_command("models", "check", stdout=out)
    assert out.getvalue() == "deepseek\tworks\tlists 1 models\ngroq\tfails\tllm_auth: HTTP 401 invalid_api_key\n"
    assert KEY not in out.getvalue() + capsys.readouterr().err


def test_check_asks_for_an_answer_where_no_models_are_listed(server, settings):
    settings.LLM_BASE_URLS = {"deepseek": server.url}
    server.lists_models = False
    assert models("check") == "deepseek\tworks\tdeepseek-chat answers\n"
    assert server.requests[-1].body["max_tokens"] == 16


def test_check_says_so_where_nothing_is_known_that_could_be_asked(server, settings):
    settings.LLM_BASE_URLS, settings.OPENAI_CODEX_TOKEN = {"deepseek": server.url}, "token"
    out = io.StringIO()
    with pytest.raises(CommandError, match="Not every provider works"):
        call_command("models", "check", stdout=out)
    assert "it lists no models; no model of it is known that could be asked: name one" in out.getvalue()


def test_check_of_the_scripted_model_asks_nobody():
    assert models("check") == "mock\tworks\tthe scripted model; no provider is asked\n"
