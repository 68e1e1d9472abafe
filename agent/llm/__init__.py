"""Model clients. A provider is a line in PROVIDERS and a module beside this one."""

from functools import cache
from importlib import import_module

from django.conf import settings

from agent.llm.base import LlmClient

PROVIDERS = {
    "mock": "agent.llm.scripted.ScriptedClient",
    "openai": "agent.llm.openai.OpenAIClient",
}


@cache
def client() -> LlmClient:
    """The process's one client of the provider the settings choose; clients are slow to make and keep connections."""
    module, _, name = PROVIDERS[settings.LLM_PROVIDER].rpartition(".")
    made: LlmClient = getattr(import_module(module), name)()
    return made
