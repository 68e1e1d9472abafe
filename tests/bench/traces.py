"""What telemetry costs: CPU a turn of hosts without it, with traces alone, and with traces, figures and lines.

All ask one model and are asked in turns, a conversation each time, so that whatever else the machine does is shared by
them. What a host does by the clock, such as sending figures once a minute, counts three times as much as it does under
a steady load. ``python -m tests.bench.traces [CONVERSATIONS [ROUNDS]]`` prints a table; docs/decisions/tracing.md has
one.
"""

import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.bench import hosts
from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, TOOL
from tests.support.collector import Collector
from tests.support.hosts import KEY

# Turns of a conversation: a longer one would cost more.
TALK = 40

OFF, TRACES, ALL = "off", "traces", "traces, metrics and logs"


def milliseconds(conversations: int, rounds: int) -> dict[tuple[str, str], float]:
    """CPU of a turn, by host and model. ``rounds``: of processes, since those of the same code differ by some per cent
    for as long as they live."""
    spent: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="nanohost-traces-") as place, ExitStack() as keep:
        model = keep.enter_context(hosts.model(Path(place)))
        collector = Collector()
        keep.callback(collector.close)
        exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}
        alone = exported | {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        for number in range(rounds):
            with ExitStack() as of_round:
                running = {
                    name: of_round.enter_context(
                        hosts.embedded(Path(place) / f"{number} {name}", **hosts.asks(model), **settings)
                    )
                    for name, settings in {OFF: {}, TRACES: alone, ALL: exported}.items()
                }
                for talk in range(conversations + 1):
                    for asked in (ONE_WORD, TOOL):
                        for name in list(running) if talk % 2 else reversed(running):
                            took = _talk(running[name], asked)
                            if talk:  # in the first it makes what it needs once
                                spent[name, asked] += took
        assert not collector.faults
        assert collector.spans(name="chat")
    return {of: took / (rounds * conversations * TALK) for of, took in spent.items()}


def _talk(host: hosts.Processes, asked: str) -> float:
    asker = BenchClient(host.address, KEY)
    before = sum(host.cpu().values())
    for _ in range(TALK):
        asker.ask(asked)
    asker.close()
    return 1000 * (sum(host.cpu().values()) - before)


def main(conversations: int = 20, rounds: int = 4) -> None:
    """Print the table."""
    found = milliseconds(conversations, rounds)
    print("| a turn | off | traces | all |\n|---|---|---|---|")  # noqa: T201 -- a command
    for model in (ONE_WORD, TOOL):
        off, *others = (found[name, model] for name in (OFF, TRACES, ALL))
        pairs = [f"{each:.2f} ms ({100 * (each / off - 1):+.1f} %)" for each in others]
        print(f"| {model} | {off:.2f} ms | {' | '.join(pairs)} |", flush=True)  # noqa: T201 -- a command


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
