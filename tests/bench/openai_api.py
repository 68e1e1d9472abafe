"""What OpenAI's API costs: a chat completion beside the same turn by ``/api/v1``, the first of a new conversation.

Both ask one host, one after the other. ``python -m tests.bench.openai_api``, in a host's environment, makes the agents.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping

from tests.bench.clients import BenchClient, Client, Took
from tests.bench.hosts import ONE_WORD, STREAMED
from tests.support.hosts import KEY, ROOT

# By the model that answers behind them.
AGENTS = {ONE_WORD: "one-word", STREAMED: "streamed"}


class Completions(Client):
    """Somebody who asks by OpenAI's API, each time with the whole transcript."""

    def ask(self, model: str, *, stream: bool = False) -> Took:
        """One turn."""
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": AGENTS[model], "messages": messages} | ({"stream": True} if stream else {})
        took = self.post("/v1/chat/completions", body, first=b'"content":"word0' if stream else b"")
        assert b"word0" in took.body, took.body
        return took


def make_agents(environment: Mapping[str, str]) -> None:
    """Make an agent for each model, on the host of this environment: a request of OpenAI's names agents alone."""
    command = [sys.executable, "-m", "tests.bench.openai_api"]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise RuntimeError(ran.stderr)


def whole_ratio(address: str, turns: int) -> float:
    """An answer by OpenAI's API to one by ``/api/v1``: medians of as many."""
    return _ratio(address, turns, lambda asker: float(asker.ask(ONE_WORD).whole))


def first_ratio(address: str, turns: int) -> float:
    """The same of the first piece of a stream."""
    return _ratio(address, turns, lambda asker: float(asker.ask(STREAMED, stream=True).first))


def _ratio(address: str, turns: int, ask: Callable[[Completions | BenchClient], float]) -> float:
    completions, ours = Completions(address, KEY), BenchClient(address, KEY)
    ask(completions), ask(ours)  # caches are filled
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(turns):
        ours.begin()
        for place in (0, 1) if number % 2 else (1, 0):
            took[place].append(ask((completions, ours)[place]))
    completions.close(), ours.close()
    theirs, own = map(statistics.median, took)
    return theirs / own


def main() -> None:
    import django

    django.setup()
    from agent.models import Agent

    for model, name in AGENTS.items():
        Agent.objects.get_or_create(name=name, defaults={"model": model})


if __name__ == "__main__":
    main()
