"""The table of providers, and who is asked for a model, and why."""

import pytest

from agent import llm
from agent.errors import NoProvider
from agent.llm.providers import AUTO, PROVIDERS, choose

pytestmark = pytest.mark.shapeless(reason="it is pure")

OF_NANOBOT = (
    *("custom", "openrouter", "aihubmix", "siliconflow", "volcengine", "anthropic", "openai", "openai_codex"),
    *("github_copilot", "deepseek", "gemini", "zhipu", "dashscope", "moonshot", "minimax", "vllm", "groq"),
)


def chosen(model: str, *configured: str, named: str = "", default: str = AUTO) -> tuple[str, str]:
    choice = choose(model, named=named, default=default, configured=configured)
    assert choice.why
    return choice.provider.name, choice.model


def test_those_of_nanobot_are_there_in_their_order():
    assert tuple(PROVIDERS) == (*OF_NANOBOT, "azure")
    assert len({row.key for row in PROVIDERS.values()}) == len(PROVIDERS)


@pytest.mark.parametrize(
    ("model", "provider", "sent"),
    [
        ("deepseek/deepseek-chat", "deepseek", "deepseek-chat"),
        ("zai/glm-4.6", "zhipu", "glm-4.6"),
        ("hosted_vllm/Qwen/Qwen3", "vllm", "Qwen/Qwen3"),
        ("github-copilot/gpt-4.1", "github_copilot", "gpt-4.1"),
        ("openai-codex/gpt-5-codex", "openai_codex", "gpt-5-codex"),
        ("OpenRouter/anthropic/claude-sonnet-4", "openrouter", "anthropic/claude-sonnet-4"),
        ("aihubmix/anthropic/claude-sonnet-4", "aihubmix", "claude-sonnet-4"),
        ("siliconflow/Qwen/Qwen3", "siliconflow", "Qwen/Qwen3"),
        ("azure/my-deployment", "azure", "my-deployment"),
        ("groq/", "groq", "groq/"),
    ],
)
def test_a_prefix_names_the_provider_and_is_not_sent(model, provider, sent):
    assert chosen(model, *PROVIDERS) == (provider, sent)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("claude-sonnet-4", "anthropic"),
        ("gpt-4.1-mini", "openai"),
        ("chatgpt-4o-latest", "openai"),
        ("gpt4o", "openai"),
        ("o1", "openai"),
        ("O3-mini", "openai"),
        ("o4-mini-2025-04-16", "openai"),
        ("ft:o4-mini:acme", "openai"),
        ("deepseek-reasoner", "deepseek"),
        ("gemini-2.5-flash", "gemini"),
        ("GLM-4.6", "zhipu"),
        ("qwen2.5-72b", "dashscope"),
        ("kimi-k2", "moonshot"),
        ("MiniMax-M2", "minimax"),
        ("ep-ark-1", "volcengine"),
        ("meta/claude-like", "anthropic"),
    ],
)
def test_a_provider_is_recognised_by_a_word_of_the_name(model, provider):
    assert chosen(model, *PROVIDERS)[0] == provider


@pytest.mark.parametrize("model", ["spark-max", "sharky", "notclaude", "gptish", "bespoke", "marco-o1", "o10", "o3x"])
def test_a_part_of_a_word_is_none_and_the_first_that_is_set_up_is_asked(model):
    choice = choose(model, named="", default=AUTO, configured=("volcengine", "anthropic", "openai"))
    assert (choice.provider.name, "the first that is set up" in choice.why) == ("volcengine", True)


def test_one_that_is_not_set_up_is_passed_over_and_its_name_left_to_the_gateway():
    assert chosen("anthropic/claude-sonnet-4", "openrouter") == ("openrouter", "anthropic/claude-sonnet-4")
    assert chosen("claude-sonnet-4", "openrouter", "openai") == ("openrouter", "claude-sonnet-4")


@pytest.mark.parametrize(
    ("model", "configured"),
    [
        ("deepseek/deepseek-chat", ["openai", "anthropic"]),
        ("zai/qwen-like", ["dashscope"]),
        ("openrouter/anthropic/claude-sonnet-4", ["anthropic"]),
        ("azure/my-deployment", ["openai"]),
    ],
)
def test_a_name_that_begins_with_one_that_is_not_set_up_is_not_sent_to_another_maker_of_models(model, configured):
    """It could not answer; and nobody has chosen to tell it."""
    with pytest.raises(NoProvider, match="is not set up: set"):
        chosen(model, *configured)
    assert chosen(model, *configured, "vllm") == ("vllm", model), "a server of one's own may have a model of that name"


def test_the_agents_provider_comes_before_the_hosts_and_both_before_recognition():
    assert chosen("gpt-4.1", "openai", "groq", "azure", named="azure", default="groq")[0] == "azure"
    assert chosen("gpt-4.1", "openai", "groq", default="groq")[0] == "groq"


def test_a_prefix_comes_before_the_agents_provider():
    assert chosen("deepseek/deepseek-chat", "deepseek", "openai", named="openai") == ("deepseek", "deepseek-chat")


@pytest.mark.parametrize("gateway", ["openrouter", "groq", "vllm", "custom"])
def test_but_one_whose_own_names_have_vendors_is_left_them(gateway):
    """anthropic/claude-sonnet-4 is what OpenRouter calls it: who has said OpenRouter is not sent to Anthropic."""
    asked = chosen("anthropic/claude-sonnet-4", "anthropic", gateway, named=gateway)
    assert asked == (gateway, "anthropic/claude-sonnet-4")


@pytest.mark.parametrize("named", ["groq", "vllm", "of an earlier release"])
def test_one_that_is_named_and_not_set_up_is_an_error_and_never_another(named):
    with pytest.raises(NoProvider, match=PROVIDERS[named].key if named in PROVIDERS else "which is none"):
        chosen("gpt-4.1", "openai", named=named)


def test_who_has_signed_in_is_asked_for_what_is_meant_for_them_alone():
    with pytest.raises(NoProvider):
        chosen("model-1", "openai_codex", "github_copilot")
    assert chosen("copilot-model", "github_copilot")[0] == "github_copilot"


def test_mock_answers_for_everything():
    assert chosen("openai/gpt-4.1", "openai", named="openai", default="mock") == ("mock", "openai/gpt-4.1")


# --- which are set up --------------------------------------------------------------------------------------------


def set_up(settings, **given) -> dict[str, tuple[str, str]]:
    for name, value in given.items():
        setattr(settings, name, value)
    return {name: (access.base_url, access.key) for name, access in llm.accesses().items()}


def test_a_key_sets_one_up_and_an_address_takes_the_place_of_its_own(settings):
    found = set_up(settings, DEEPSEEK_API_KEY="k1", GROQ_API_KEY="k2", LLM_BASE_URLS={"groq": "http://proxy/v1"})
    assert found == {"deepseek": (PROVIDERS["deepseek"].base_url, "k1"), "groq": ("http://proxy/v1", "k2")}


def test_one_of_your_own_needs_no_key_but_an_address(settings):
    assert set_up(settings, HOSTED_VLLM_API_KEY="k1") == {}
    assert set_up(settings, HOSTED_VLLM_API_KEY="", LLM_BASE_URLS={"vllm": "http://h/v1"}) == {
        "vllm": ("http://h/v1", "")
    }


def test_the_key_for_an_address_goes_there_and_nowhere_else(settings):
    found = set_up(settings, OPENAI_API_KEY="k1", LLM_BASE_URL="http://127.0.0.1:11434/v1", LLM_PROVIDER="auto")
    assert found == {"custom": ("http://127.0.0.1:11434/v1", "k1")}
    found = set_up(settings, LLM_PROVIDER="openai")
    assert found == {"openai": ("http://127.0.0.1:11434/v1", "k1")}
    found = set_up(settings, LLM_PROVIDER="deepseek", DEEPSEEK_API_KEY="k2")
    assert found["deepseek"] == ("http://127.0.0.1:11434/v1", "k2")
    assert found["openai"] == (PROVIDERS["openai"].base_url, "k1")


@pytest.mark.parametrize(
    ("key", "address", "gateway"),
    [
        ("sk-or-v1-0123", "", "openrouter"),
        ("k1", "https://openrouter.ai/api/v1", "openrouter"),
        ("k1", "https://aihubmix.com/v1", "aihubmix"),
        ("k1", "https://api.siliconflow.cn/v1", "siliconflow"),
        ("k1", "https://ark.cn-beijing.volces.com/api/v3", "volcengine"),
    ],
)
def test_a_gateway_that_was_set_up_as_openai_is_known_by_its_key_or_address(settings, key, address, gateway):
    found = set_up(settings, OPENAI_API_KEY=key, LLM_BASE_URL=address, LLM_PROVIDER="auto")
    assert found == {gateway: (address or PROVIDERS[gateway].base_url, key)}


def test_what_is_set_up_shows_no_key(settings):
    set_up(settings, GROQ_API_KEY="a key that nobody may see")
    assert "nobody may see" not in repr(llm.accesses())
