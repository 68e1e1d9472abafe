"""What a call of a file tool takes, beside one of ``time``. ``python -m tests.bench.files CALLS``, in a host's
environment, has each called through the gate in turn, as a worker does, and prints milliseconds."""

import json
import subprocess
import sys
from collections.abc import Mapping

from tests.support.hosts import ROOT

TIME, WRITE = "time", "write_file"


def ratios(environment: Mapping[str, str], calls: int) -> tuple[float, float]:
    """The slowest of those that read, and ``write_file``, each to ``time``, by their medians."""
    command = [sys.executable, "-m", "tests.bench.files", str(calls)]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=600)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    took = json.loads(ran.stdout.splitlines()[-1])
    reading = max(each for name, each in took.items() if name not in (TIME, WRITE))
    return reading / took[TIME], took[WRITE] / took[TIME]


def main(calls: int) -> None:
    import logging
    import statistics
    import time

    import django

    django.setup()
    logging.disable()
    from tools import gate
    from tools.testing import allow, call

    grants = ["FS_READ", "FS_WRITE"]
    # Those that write come last, so that the others have something to read.
    asked: dict[str, dict[str, object]] = {
        TIME: {},
        "read_file": {"path": "notes/tea.md"},
        "list_dir": {"path": "notes"},
        "search_files": {"query": "green"},
        WRITE: {"path": "notes/tea.md"},
    }
    for name in asked:
        allow(name, grants=grants if name != TIME else [])
    gate.warm_tools()
    took: dict[str, list[float]] = {name: [] for name in asked}
    call(WRITE, path="notes/tea.md", content="Green tea\n")
    for number in range(calls + 1):
        for name, arguments in asked.items():
            more = {"content": f"Green tea, cup {number}\n"} if name == WRITE else {}
            began = time.perf_counter()
            ended = call(name, **arguments, **more)
            if number:  # the first makes what checks its arguments
                took[name].append(1000 * (time.perf_counter() - began))
            assert ended.status == "SUCCESS", ended.result
    gate.close_tools()
    found = {name: statistics.median(each) for name, each in took.items()}
    print(json.dumps(found))  # noqa: T201 -- its answer to who started it


if __name__ == "__main__":
    main(int(sys.argv[1]))
