"""What was found, as text."""

import os
import platform
import statistics
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.growth import ANSWER_SECONDS, TURNS_EACH
from tests.bench.profile import ASKED, KINDS, OTHER, STAGES, Profile
from tests.bench.speed import DIRECT, GOALS, SHAPES


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, which can be read on a terminal as well."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def goals(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A table of the goals, what was found for each, and whether it was met."""
    rows = []
    for goal in GOALS:
        measured = found[goal.name]
        direct = _shown(measured[DIRECT]) if DIRECT in measured else ""
        for shape in SHAPES:
            if shape not in goal.bounds:
                continue
            if not measured.get(shape):  # what is measured in a browser, where there is none
                rows.append([goal.name, goal.unit, shape, direct, "not measured: there is no Chromium", "", ""])
                continue
            met = "met" if goal.is_met(shape, statistics.median(measured[shape])) else "not met"
            sign = "≥" if goal.at_least else "≤"
            wanted = f"{sign} {goal.bounds[shape]:g}"
            rows.append([goal.name, goal.unit, shape, direct, _shown(measured[shape]), wanted, met])
    return table(["", "unit", "shape", "direct", "median (of rounds: least to most)", "goal", ""], rows)


def _shown(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def machine(*, load: float) -> str:
    """What it was measured on, and how fast that is at a loop of Python and at writing to its disk."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = names[0].partition(":")[2].strip() if names else platform.machine()
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    python = f"Python {platform.python_version()}, built {'with' if optimised else 'without'} --enable-optimizations"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores ({model}), {memory:.0f} GiB; Linux {platform.release()}; {python}.\n"
        f"Ten million additions in a loop of Python take {_loop():.2f} s. Load before: {load:.1f}.\n"
    )


def _loop() -> float:
    began, number = time.perf_counter(), 0
    for each in range(10_000_000):
        number += each
    return time.perf_counter() - began


def profiles(found: Sequence[Profile]) -> str:
    """Two tables of where the time goes, a row a process and a load: by stage, and by kind of code."""
    stages = [name for name in (*STAGES, OTHER) if any(name in each.stages for each in found)]
    kinds = [name for name in (*KINDS, OTHER) if any(name in each.kinds for each in found)]
    by_stage, by_kind = [], []
    for each in found:
        (model, talking), ms = each.load, each.milliseconds
        about = [each.process, ASKED[model], str(talking)]
        by_stage.append([*about, f"{ms:.2f}", *(f"{ms * each.stages.get(name, 0):.2f}" for name in stages)])
        by_kind.append([*about, *(f"{100 * each.kinds.get(name, 0):.0f} %" for name in kinds)])
    head = ["process", "asked for", "at once"]
    return f"{table([*head, 'CPU of a turn, ms', *stages], by_stage)}\n{table([*head, *kinds], by_kind)}"


def growth(rows: Sequence[Sequence[str]], needed: Sequence[Sequence[str]], stored: Sequence[Sequence[str]]) -> str:
    """Tables: of turns by the number of workers, of what more of them need, and of what they take of a disk."""
    head = [
        "turn",
        "workers + toolboxes",
        "turns/s",
        "predicted",
        "of that",
        "to one worker",
        "cores busy",
        "full first",
    ]
    head += ["worker ms", "toolbox ms", "PostgreSQL ms", "Redis ms", "statements", "transactions", "log, bytes"]
    need = ["turn, over HTTP", "turns/s", "workers", "web nodes", "toolboxes", "cores of PostgreSQL", "cores of Redis"]
    need += ["transactions/s", "log, MB/s", f"at once, models of {ANSWER_SECONDS} s", "workers for as many"]
    disk = ["a row, with its indexes", "bytes", f"10 million conversations of {TURNS_EACH} turns with a call each, GB"]
    return f"{table(head, rows)}\n{table(need, needed)}\n{table(disk, stored)}"


def compared(page: str, goals: str) -> str:
    """What was found for each goal as a ratio to what a page written earlier says, and how fast its machine was."""
    then, now = _medians(page), _medians(goals)
    rows = [
        [name, shape, f"{then[name, shape]:.2f}", f"{value:.2f}", f"{value / then[name, shape]:.2f}"]
        for (name, shape), value in now.items()
        if then.get((name, shape))
    ]
    return table(["", "shape", "last", "now", "ratio"], rows)


def _medians(text: str) -> dict[tuple[str, str], float]:
    """Of a table of goals, by its name and the shape."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()]
    return {(row[0], row[2]): float(row[4].split()[0]) for row in rows if row[-1] in ("met", "not met")}


def calls(took: Mapping[str, tuple[float, float]]) -> str:
    """A table of a call of a tool."""
    return table(
        ["a call of a tool", "p50 ms", "p95 ms"],
        [[name, f"{p50:.3f}", f"{p95:.3f}"] for name, (p50, p95) in took.items()],
    )


def page(*, machine: str, goals: str, compared: str, profiles: str, growth: str, calls: str) -> str:
    """All of it."""
    return f"""# What it costs, and how fast it is

Written by `make bench`; run it on your machine. What counts are the ratios: to the model that is asked directly, and of
one shape to the other, since each round measures all of them one right after the other.

{machine}
The load generator and the model run on the same cores. The model answers at once, or after a second. "Over the model"
is what a turn takes beyond what a client that asks the model directly waits for; its own time stands in the column
"direct". CPU is that of the host's processes, with all they have started, without PostgreSQL's and Redis's.

## Goals

{goals}
## Compared with the last figures

Those that this page had before. They may be another machine's: compare its loop of Python first.

{compared}
## Where a turn's time goes

Samples of the thread that holds the interpreter, by what is asked for and how many talk at once: first by the stage of
the turn, in milliseconds of CPU a turn; then by the kind of code. Who talks goes on in one conversation, which grows.
Code that runs without the interpreter, such as SQLite's and that of what tools start, is in no sample: its CPU is
divided like the rest.

{profiles}
## Growth

Turns of conversations of their own, all stored first and then notified of at once. CPU in milliseconds a turn. What is
predicted, and what is full first, is by a model on paper, of what a turn costs with one worker and with most of them
([growth](../docs/growth.md)). Then, by what a turn costs over HTTP while 16 talk, what more of them would need, on
machines that have the cores. At last, what rows take of a disk, with texts of a few bytes.

{growth}
## Calls of tools

{calls}"""
