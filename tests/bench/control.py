"""What control costs: a turn with a key that has scopes, and one with a budget too, beside one that has neither.

All ask one host, one after the other. ``python -m tests.bench.control NAME``, in a host's environment, makes a key and
prints it.
"""

import statistics
import subprocess
import sys
from collections.abc import Mapping

from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, TOOL
from tests.support.hosts import KEY, ROOT

SCOPES, BUDGET = "scopes", "budget"


def narrow_key(environment: Mapping[str, str], name: str) -> str:
    """An API key that may do little, on the host of this environment: SCOPES, or BUDGET for one that has both."""
    command = [sys.executable, "-m", "tests.bench.control", name]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return ran.stdout.split()[-1]


def ratio(address: str, key: str, turns: int) -> float:
    """A turn with ``key`` to one with the wide key: medians of as many."""
    askers = [BenchClient(address, each) for each in (KEY, key)]
    took: list[list[float]] = [[], []]
    for asker in askers:
        asker.ask(ONE_WORD)  # its caches are filled
    for number in range(turns):
        for place in (0, 1) if number % 2 else (1, 0):
            took[place].append(askers[place].ask(ONE_WORD).whole)
    for asker in askers:
        asker.close()
    wide, narrow = map(statistics.median, took)
    return narrow / wide


def main(name: str) -> None:
    import django

    django.setup()
    from django.contrib.auth.models import User

    from agent.spending.models import Budget
    from nanohost.accounts import keys

    made, text = keys.make(
        owner=User.objects.create_user(f"of {name}"),
        name=name,
        scopes=["chat", "read"],
        agent_names=["default"],
        model_names=[ONE_WORD, TOOL],
        networks=["127.0.0.0/8"],
    )
    if name == BUDGET:
        Budget.objects.create(name=name, whose="key", api_key=made, measure="tokens", every="day", amount=10**12)
    print(text)  # noqa: T201 -- its answer to who started it


if __name__ == "__main__":
    main(sys.argv[1])
