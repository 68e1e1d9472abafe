"""Where a turn's time goes: a host's Python stacks, sampled by py-spy while it works, put into the stages of a turn and
into kinds of code; by what is asked and how many talk at once."""

import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, STREAMED, TOOL, Processes, until
from tests.support.hosts import KEY

# Which model is asked, and how many talk at once.
Load = tuple[str, int]
LOADS: tuple[Load, ...] = ((ONE_WORD, 1), (ONE_WORD, 20), (ONE_WORD, 200), (STREAMED, 20), (TOOL, 1), (TOOL, 20))
ASKED = {ONE_WORD: "a turn", STREAMED: "a stream", TOOL: "a turn with a tool"}

# How often in a second a process is stopped and looked at. At 500, it does half as many turns, and what runs first on
# a thread that has waited is met two or three times as often as it should be.
RATE = 100
# By how many turns their CPU is measured, for each second that is sampled.
TURNS_A_SECOND = 20

# A frame as py-spy writes it: its function, with its class, and its file.
OWN = "agent|conversations|memory|nanohost|scheduler|tools"
# The first whose pattern a frame fits, from the innermost frame outwards, is what a sample counts for. Of uvicorn only
# what is done for a request counts: it runs the event loop, so all that happens there has its frames.
STAGES = {
    "tell": r"/conversations/events/|/redis/asyncio/",
    "store": r"/engine/(steps|transcript)[.]|/tools/calls[.]",
    "decide and run": r"/engine/tool_calls[.]|/tools/(?!skills/)",
    "ask": r"/agent/llm/|/(openai|httpx2|httpcore2|pydantic|h11)/",
    "build": r"/engine/model_request[.]|/agent/(prompt|history|tokens)[.]",
    "read": r"/engine/(step_context|snapshot|history)[.]|/memory/",
    "claim": r"/engine/(lease|doorbell)[.]|claim_and_load |/conversations/tasks[.]|/lib/broker[.]|/(celery|kombu)/",
    "answer": r"_RequestHandler[.](_answer|_keep|_send_head|_stream|_is_taken) |RequestResponseCycle[.]send ",
    "receive": r"/web/gateway[.]|/(uvicorn/protocols|rest_framework|conversations/api)/|/lib/http[.]|/engine/inbox[.]",
}
KINDS = {
    "database drivers": r"/(psycopg|psycopg_pool|(backends|lib)/(sqlite3?|postgresql))/",
    "database, written by the ORM": r"nanohost/lib/statements|/django/db/",
    "broker (Celery, kombu, redis)": r"/(celery|kombu|redis|amqp|vine|billiard)/",
    "model's client (openai, httpx2)": r"/(openai|httpx2|httpcore2|pydantic|anyio|h11)/",
    "REST framework": r"/rest_framework/",
    "logs and redaction": r"/(structlog|logging)/|nanohost/lib/(logs|redaction)",
    "Django": r"/(django|asgiref|whitenoise)/",
    "web server (uvicorn, a2wsgi)": r"/(uvicorn/protocols|a2wsgi|httptools)/",
    "nanohost": rf"[( /]({OWN})/[^(]*[.]py",
    "event loops and threads": r"/(asyncio|concurrent|uvicorn)/|threading|/queue[.]|selectors|contextlib|contextvars",
}
OTHER = "between them"


@dataclass(frozen=True)
class Profile:
    """Of one kind of process under a load: CPU of a turn, in milliseconds, and each part's share of it, by stage and by
    kind of code."""

    process: str
    load: Load
    milliseconds: float
    stages: Mapping[str, float]
    kinds: Mapping[str, float]


def while_busy(hosts: Mapping[str, Processes], *, seconds: int, loads: Sequence[Load] = LOADS) -> list[Profile]:
    """Of each host's processes that work on turns."""
    found = []
    for name, host in hosts.items():
        for kind, processes in host.running.items():
            for load in loads:
                if kind == "toolbox" and load[0] != TOOL:
                    continue
                with _talking(host, load) as turns:
                    # Before it is sampled: a process that is stopped all the time uses more.
                    before = turns(), host.cpu()[kind]
                    enough = before[0] + TURNS_A_SECOND * seconds
                    until(lambda turns=turns, enough=enough: turns() >= enough, "too few turns", host.log)
                    count, spent = turns() - before[0], host.cpu()[kind] - before[1]
                    sampled = stacks(processes[0].pid, seconds=seconds)
                found.append(
                    Profile(
                        process=f"{name}, {kind}",
                        load=load,
                        milliseconds=1000 * spent / max(count, 1),
                        stages=shares(sampled, STAGES),
                        kinds=shares(sampled, KINDS),
                    )
                )
    return found


@contextmanager
def _talking(host: Processes, load: Load) -> Iterator[Callable[[], int]]:
    """Have so many talk; tells how many turns they have had."""
    model, count = load
    enough = threading.Event()
    had = [0] * count

    def talk(number: int) -> None:
        asker = BenchClient(host.address, KEY)
        while not enough.is_set():
            asker.ask(model, stream=model == STREAMED)
            had[number] += 1
        asker.close()

    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(talk, number) for number in range(count)]
        try:
            yield lambda: sum(had)
        finally:
            enough.set()
        for each in running:
            each.result()


def stacks(pid: int, *, seconds: int) -> Counter[str]:
    """Samples by stack, of the thread that holds the interpreter: frames from the outermost in, divided by ``;``."""
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "stacks"
        command = [str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(pid), "--output", str(output)]
        command += ["--duration", str(seconds), "--rate", str(RATE), "--gil", "--format", "raw", "--full-filenames"]
        subprocess.run(command, check=True, capture_output=True)
        counted: Counter[str] = Counter()
        for line in output.read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            counted[stack] += int(samples)
        return counted


def shares(sampled: Counter[str], patterns: Mapping[str, str]) -> dict[str, float]:
    """Each part's share of the samples, the largest first."""
    compiled = {name: re.compile(pattern) for name, pattern in patterns.items()}
    found: Counter[str] = Counter()
    for stack, samples in sampled.items():
        found[_part_of(stack, compiled)] += samples
    total = sum(found.values()) or 1
    return {name: samples / total for name, samples in found.most_common()}


def _part_of(stack: str, patterns: Mapping[str, "re.Pattern[str]"]) -> str:
    for frame in reversed(stack.split(";")):
        for name, pattern in patterns.items():
            if pattern.search(frame):
                return name
    return OTHER
