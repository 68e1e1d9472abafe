"""What telemetry costs: CPU a turn of hosts without it, with traces alone, and with traces, figures and lines.

All ask one model and are asked in turns, for some seconds each, so that whatever else the machine does is shared by
them. What a host does by the clock, such as sending figures once a minute, counts as it does under a steady load.
``python -m tests.bench.traces [SECONDS [ROUNDS]]`` prints a table; docs/decisions/tracing.md has one.
"""

import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from tests.bench import hosts
from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, TOOL
from tests.support.collector import Collector
from tests.support.hosts import KEY

# Turns of a conversation.
TALK = 40

OFF, TRACES, ALL = "off", "traces", "traces, metrics and logs"


def milliseconds(seconds: float, rounds: int) -> dict[tuple[str, str], list[float]]:
    """CPU of a turn, by host and model: one figure a round."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
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
        for number in range(rounds):
            for asked in (ONE_WORD, TOOL):
                for name in list(running) if number % 2 else reversed(running):
                    found[name, asked].append(_a_turn(running[name], asked, seconds))
        assert not collector.faults
        assert collector.spans(name="chat")
    return found


def _a_turn(host: hosts.Processes, asked: str, seconds: float) -> float:
    before, turns, until = sum(host.cpu().values()), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        asker = BenchClient(host.address, KEY)  # whose conversation is short, or a faster host would have longer ones
        for _ in range(TALK):
            asker.ask(asked)
        asker.close()
        turns += TALK
    return 1000 * (sum(host.cpu().values()) - before) / turns


def main(seconds: float = 10, rounds: float = 6) -> None:
    """Print the table."""
    found = milliseconds(seconds, int(rounds))
    print("| a turn | off | traces | all |\n|---|---|---|---|")  # noqa: T201 -- a command
    for model in (ONE_WORD, TOOL):
        off, *others = (sum(found[name, model]) / len(found[name, model]) for name in (OFF, TRACES, ALL))
        pairs = [f"{each:.2f} ms ({100 * (each / off - 1):+.1f} %)" for each in others]
        print(f"| {model} | {off:.2f} ms | {' | '.join(pairs)} |", flush=True)  # noqa: T201 -- a command


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
