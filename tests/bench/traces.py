"""What telemetry costs: CPU a turn of hosts without it, with traces alone, and with traces, figures and lines.

All ask one model and are asked in turns, so that whatever else the machine does is shared by them. ``python -m
tests.bench.traces [TURNS [ROUNDS]]`` prints a table; docs/decisions/tracing.md has one.
"""

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench import hosts
from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, TOOL
from tests.support.collector import Collector
from tests.support.hosts import KEY

OFF, TRACES, ALL = "off", "traces", "traces, metrics and logs"


def milliseconds(turns: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """CPU of a turn, by host and model: one figure a round."""
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="nanohost-traces-") as place, ExitStack() as keep:
        model = keep.enter_context(hosts.model(Path(place)))
        collector = Collector()
        keep.callback(collector.close)
        exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}
        alone = exported | {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        running = {
            name: keep.enter_context(hosts.embedded(Path(place) / str(number), **hosts.asks(model), **settings))
            for number, (name, settings) in enumerate({OFF: {}, TRACES: alone, ALL: exported}.items())
        }
        askers = {name: BenchClient(host.address, KEY) for name, host in running.items()}
        for asker in askers.values():
            for _ in range(20):
                asker.ask(ONE_WORD)
                asker.ask(TOOL)
        for number in range(rounds):
            for asked in (ONE_WORD, TOOL):
                for name in list(running) if number % 2 else reversed(running):
                    before = sum(running[name].cpu().values())
                    for _ in range(turns):
                        askers[name].ask(asked)
                    spent = 1000 * (sum(running[name].cpu().values()) - before) / turns
                    found.setdefault((name, asked), []).append(spent)
        assert not collector.faults
        assert collector.spans(name="chat")
    return found


def main(turns: int = 200, rounds: int = 10) -> None:
    """Print the table."""
    found = milliseconds(turns, rounds)
    print("| a turn | off | traces | all |\n|---|---|---|---|")  # noqa: T201 -- a command
    for model in (ONE_WORD, TOOL):
        off, *others = (statistics.median(found[name, model]) for name in (OFF, TRACES, ALL))
        pairs = [f"{each:.2f} ms ({100 * (each / off - 1):+.1f} %)" for each in others]
        print(f"| {model} | {off:.2f} ms | {' | '.join(pairs)} |", flush=True)  # noqa: T201 -- a command


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
