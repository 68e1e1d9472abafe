"""``manage.py models which NAME [--agent AGENT] | check``."""

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent import llm
from agent.errors import LlmError, NoProvider
from agent.llm.base import ModelRequest
from agent.llm.providers import MOCK
from agent.models import Agent

# One token is asked for; a model that thinks aloud first may need some for that.
CHECK_TOKENS = 16


class Command(BaseCommand):
    """Tells which provider answers for a model, and whether those that are set up do."""

    help = "Tell which provider is asked for a model, and why; call each that is set up once."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        which = actions.add_parser("which", help="Tell which provider is asked for a model, and why.")
        which.add_argument("name", help="The model, as a request or an agent names it.")
        which.add_argument("--agent", help="Whose provider counts, if it names one.")
        actions.add_parser("check", help="Call each provider that is set up once, and say what works.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action == "which":
            self._which(options)
        else:
            self._check()

    def _which(self, options: dict[str, Any]) -> None:
        if not options["name"].strip():
            raise CommandError("Name a model, such as gpt-4.1-mini or openrouter/anthropic/claude-sonnet-4.")
        named = ""
        if options["agent"]:
            agent = Agent.objects.filter(name=options["agent"]).first()
            if agent is None:
                raise CommandError(f"There is no agent {options['agent']}.")
            named = agent.provider
        try:
            choice = llm.choose(options["name"], named)
        except NoProvider as error:
            raise CommandError(f"Nobody is asked: {error.detail}.") from None
        self.stdout.write(f"{choice.provider.name}\tas {choice.model}\t{choice.why}")

    def _check(self) -> None:
        if settings.LLM_PROVIDER == MOCK:
            self.stdout.write(f"{MOCK}\tworks\tthe scripted model; no provider is asked")
            return
        results = asyncio.run(_check_all(_known_models()))
        for name, works, told in results:
            self.stdout.write(f"{name}\t{'works' if works else 'fails'}\t{told}")
        if not all(works for _, works, _ in results):
            raise CommandError("Not every provider works.")


def _known_models() -> dict[str, str]:
    """By provider, a model that is asked of it here, where one is."""
    agents = [(agent.own_model(), agent.provider) for agent in Agent.objects.all()]
    known: dict[str, str] = {}
    for model, named in [(settings.LLM_MODEL_DEFAULT, ""), *((each, "") for each in settings.LLM_MODELS), *agents]:
        try:
            choice = llm.choose(model, named)
        except NoProvider:
            continue
        known.setdefault(choice.provider.name, choice.model)
    return known


async def _check_all(known: dict[str, str]) -> list[tuple[str, bool, str]]:
    try:
        return list(await asyncio.gather(*[_checked(name, known.get(name, "")) for name in llm.accesses()]))
    finally:
        await llm.close_clients()


async def _checked(name: str, model: str) -> tuple[str, bool, str]:
    """A provider, whether it works, and what it was asked. Many list their models; those that do not are asked for an
    answer, if it is known for which model."""
    client = llm.client(name)
    try:
        async with asyncio.timeout(settings.LLM_TIMEOUT_SECONDS):
            try:
                return name, True, f"lists {len(await client.list_models())} models"
            except LlmError as error:
                if error.code == "llm_auth":
                    raise
                if not model:
                    missing = "no model of it is known that could be asked: name one as an agent's or in LLM_MODELS"
                    return name, False, f"{error.code}: {error.detail}; {missing}"
            messages = [{"role": "user", "content": "Say yes."}]
            await client.complete(ModelRequest(model=model, messages=messages, max_tokens=CHECK_TOKENS))
            return name, True, f"{model} answers"
    except LlmError as error:
        return name, False, f"{error.code}: {error.detail}"
    except TimeoutError:
        return name, False, "llm_timeout: no answer in time"
