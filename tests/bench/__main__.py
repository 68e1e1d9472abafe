"""Measure, and write it to ``benchmarks/RESULTS.md``."""

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench import (
    cache,
    chat_page,
    control,
    files,
    growth,
    hosts,
    mcp,
    openai_api,
    profile,
    recall,
    results,
    speed,
)
from tests.support.browser import chromium
from tests.support.hosts import ROOT

RESULTS = ROOT / "benchmarks" / "RESULTS.md"


def main() -> None:
    """See :mod:`tests.bench`."""
    parser = argparse.ArgumentParser(prog="tests.bench", description="Measure how fast nanohost is.")
    parser.add_argument("--quick", action="store_true", help="a few turns only: shows that it works; writes nothing")
    quick = parser.parse_args().quick
    size = speed.QUICK if quick else speed.FULL
    machine = results.machine(load=os.getloadavg()[0])
    _tell(machine)
    with tempfile.TemporaryDirectory(prefix="nanohost-bench-") as place, ExitStack() as keep:
        directory = Path(place)
        directory.chmod(0o755)  # PostgreSQL runs as somebody else
        model = keep.enter_context(hosts.model(directory))
        production = hosts.Production(directory, keep, **hosts.asks(model))
        with (
            hosts.embedded(directory / "embedded", **hosts.asks(model)) as embedded,
            production.running() as processes,
        ):
            both = {speed.EMBEDDED: embedded, speed.PRODUCTION: processes}
            found = speed.Measuring(size, model, both).measure(_tell)
            share = cache.cached_share(directory / "cache", turns=4 if quick else 60, documents=4000)
            found[speed.CACHED][speed.EMBEDDED].append(share)
            for shape, host in both.items():
                took = recall.milliseconds(host.environment, 200 if quick else 100_000)
                found[speed.RECALLED][shape].append(took)
                reading, writing = files.ratios(host.environment, 5 if quick else 200)
                found[speed.FILE_READ][shape].append(reading)
                found[speed.FILE_WRITTEN][shape].append(writing)
                found[speed.MCP_CALLED][shape].append(mcp.milliseconds(host.environment, 5 if quick else 200))
            for name, goal in ((control.SCOPES, speed.SCOPED), (control.BUDGET, speed.BUDGETED)):
                for shape, host in both.items():
                    key = control.narrow_key(host.environment, name)
                    found[goal][shape] += [control.ratio(host.address, key, 2 * size.turns) for _ in range(size.rounds)]
            for shape, host in both.items():
                openai_api.make_agents(host.environment)
                for _ in range(size.rounds):
                    ratio = openai_api.whole_ratio(host.address, size.turns)
                    found[speed.COMPLETED][shape].append(ratio)
                    ratio = openai_api.first_ratio(host.address, size.turns)
                    found[speed.COMPLETED_FIRST][shape].append(ratio)
            took = growth.calls_of_a_tool(10 if quick else 1000)
            found[speed.WARM_CALL][speed.EMBEDDED].append(took[growth.WARM][0])
            found[speed.FRESH_CALL][speed.EMBEDDED].append(took[growth.FRESH][0])
            calls = results.calls(took)
            if chromium():
                found[speed.DRAWN][speed.EMBEDDED].append(chat_page.milliseconds(embedded.address, 2 if quick else 20))
            goals = results.goals(found)
            _tell(goals)
            loads = profile.LOADS[-1:] if quick else profile.LOADS
            profiles = results.profiles(profile.while_busy(both, seconds=1 if quick else 20, loads=loads))
            _tell(profiles)
        settled = 0 if quick else growth.SETTLED_SECONDS
        lines = growth.lines(
            production, workers=(1,) if quick else (1, 2, 4, 8), turns=8 if quick else 1000, settled=settled
        )
        needed = growth.needed(growth.over_http(production, turns=1 if quick else 40, settled=settled))
        stored = list(growth.stored())
    grown = results.growth(growth.rows(lines), needed, stored)
    _tell(grown)
    _tell(calls)
    compared = results.compared(RESULTS.read_text(), goals)
    _tell(compared)
    if not quick:
        page = {"machine": machine, "goals": goals, "compared": compared, "profiles": profiles, "growth": grown}
        RESULTS.write_text(results.page(**page, calls=calls))


def _tell(what: str) -> None:
    print(what, flush=True)  # noqa: T201 -- a command


if __name__ == "__main__":
    main()
