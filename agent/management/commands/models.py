"""``manage.py models which NAME [--agent AGENT] | check``."""

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent import llm
from agent.errors import NoProvider
from agent.llm import checking
from agent.llm.providers import MOCK
from agent.models import Agent


class Command(BaseCommand):
    """Tells which provider answers for a model, and whether those that are set up do."""

    help = "Show which provider is used for a model, and why; call each that is set up once."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        which = actions.add_parser("which", help="Show which provider is used for a model, and why.")
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
            raise CommandError(f"No provider is used: {error.detail}.") from None
        self.stdout.write(f"{choice.provider.name}\tas {choice.model}\t{choice.why}")

    def _check(self) -> None:
        if settings.LLM_PROVIDER == MOCK:
            self.stdout.write(f"{MOCK}\tworks\tthe scripted model; no provider is asked")
            return
        results = asyncio.run(checking.check_each(_known_models()))
        for each in results:
            self.stdout.write(f"{each.provider}\t{'works' if each.works else 'fails'}\t{each.told}")
        if not all(each.works for each in results):
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
