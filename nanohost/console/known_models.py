"""Which models people may mean, and who would answer for each: as the live workers would choose, who know the keys."""

from dataclasses import dataclass

from django.conf import settings

from agent import llm
from agent.errors import NoProvider
from agent.llm import providers
from agent.models import Agent
from agent.spending.models import ModelPrice
from conversations.kinds import TURNS
from conversations.models import Worker

# So many are suggested; any other can be written.
MAX_SUGGESTED = 100


@dataclass(frozen=True, kw_only=True)
class Asker:
    """What a kind of process chooses by: LLM_PROVIDER, and the providers that are set up for it."""

    default: str
    configured: tuple[str, ...]


def alive() -> list[Asker]:
    """Those of the workers that are online."""
    found = set(Worker.objects.alive().working_on(TURNS).values_list("provider", "providers"))
    return [Asker(default=default, configured=tuple(filter(None, names.split(",")))) for default, names in found]


def askers() -> list[Asker]:
    """Those that are alive; where no worker is, what this process would choose by."""
    if found := alive():
        return found
    configured = () if settings.LLM_PROVIDER == providers.MOCK else tuple(llm.accesses())
    return [Asker(default=settings.LLM_PROVIDER, configured=configured)]


def choices(model: str, named: str, among: list[Asker]) -> list[tuple[str, str]]:
    """Who is asked for a model, and why, or that nobody is; in words, each once."""
    told: dict[tuple[str, str], None] = {}
    for each in sorted(among, key=lambda asker: (asker.default, asker.configured)):
        try:
            choice = providers.choose(model, named=named, default=each.default, configured=each.configured)
            told[choice.provider.name, choice.why] = None
        except NoProvider as error:
            told["nobody", error.detail] = None
    return list(told)


def suggested() -> list[tuple[str, str]]:
    """Names of models with who answers for them: the host's, its list, those of agents, and those with a price."""
    names = dict.fromkeys([settings.LLM_MODEL_DEFAULT, *settings.LLM_MODELS])
    for model, further in Agent.objects.order_by("name").values_list("model", "fallback_models")[:MAX_SUGGESTED]:
        names |= dict.fromkeys([model, *further])
    if not settings.LLM_MODELS:  # it is a list of all that may be asked
        priced = ModelPrice.objects.order_by("model").values_list("model", flat=True).distinct()
        names |= dict.fromkeys(priced[:MAX_SUGGESTED])
    among = askers()
    there = [name for name in names if name][:MAX_SUGGESTED]
    return [(name, ", ".join(who for who, _ in choices(name, "", among))) for name in there]
