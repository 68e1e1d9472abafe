"""What a call of an MCP server's tool takes on top of the server's own time. ``python -m tests.bench.mcp CALLS``, in a
host's environment, has a server of the tests called through the gate, as a worker does, and then talks to the same
program itself; it prints the difference of the medians, in milliseconds."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping

from tests.support.hosts import ROOT

SERVER = [sys.executable, "-S", str(ROOT / "tests" / "support" / "mcp_server.py"), "good"]
TOOL = "echo"


def milliseconds(environment: Mapping[str, str], calls: int) -> float:
    """On top of the server's own, the median."""
    command = [sys.executable, "-m", "tests.bench.mcp", str(calls)]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=600)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return float(ran.stdout.splitlines()[-1])


def main(calls: int) -> None:
    import logging

    import django

    django.setup()
    logging.disable()
    from tools import gate
    from tools.mcp import catalogue
    from tools.mcp.models import McpServer, McpTool
    from tools.testing import allow, call

    fields = {"enabled": True, "command": SERVER[0], "arguments": SERVER[1:]}
    server, _ = McpServer.objects.update_or_create(name="bench", defaults=fields)
    gate.warm_tools()
    catalogue.refresh(server)
    tool = McpTool.objects.get(server=server, name=TOOL)
    catalogue.see(tool, expected=tool.hash, by="bench")
    allow(tool.full_name, grants=["NET_HTTP"])

    def through_the_gate() -> None:
        ended = call(tool.full_name, text="hello")
        assert ended.result == "hello", ended.result

    taken = _median(through_the_gate, calls)
    gate.close_tools()
    server.delete()
    with subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        to, of = process.stdin, process.stdout

        def directly() -> None:
            asked = {"name": TOOL, "arguments": {"text": "hello"}}
            to.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}).encode() + b"\n")
            to.flush()
            assert b"hello" in of.readline()

        own = _median(directly, calls)
        process.kill()
    print(taken - own)  # noqa: T201 -- its answer to who started it


def _median(do: Callable[[], None], times: int) -> float:
    import statistics
    import time

    do()  # the first makes what checks its arguments
    took = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


if __name__ == "__main__":
    main(int(sys.argv[1]))
