"""``python -m tests.support.network.client``: the lab's client fetches what standard input says, a JSON line each."""

import ctypes
import json
import socket
import sys
import traceback
from contextlib import suppress
from functools import cache
from typing import Any

from tools.outbound.addresses import policy_of
from tools.outbound.client import NotFetched, fetch


def do_fetch(
    url: str, private: tuple[str, ...] = (), ports: tuple[str, ...] = ("80", "443"), body: str = "", **options: Any
) -> dict[str, Any]:
    """Fetch, and tell besides what came how much memory it took, in MB above what there was before."""
    before = peak(anew=True)
    try:
        answer = fetch(url, body=body.encode(), policy=policy_of(private_cidrs=private, ports=ports), **options)
    except NotFetched as ended:
        told = {"rule": ended.rule, "hop": ended.hop, "url": ended.url, "message": str(ended)}
        return told | {"memory": peak() - before}
    return {
        "memory": peak() - before,
        "status": answer.status,
        "headers": answer.headers,
        "url": answer.url,
        "body": answer.body.decode("latin-1"),
        "cut": answer.is_cut,
    }


def peak(*, anew: bool = False) -> float:
    """The most memory this process has had in RAM, in MB; ``anew``: count from now, when nothing is kept in reserve."""
    if anew:
        with suppress(AttributeError):  # not every libc has it
            ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def do_connect(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


def do_tool(arguments: dict[str, Any]) -> dict[str, Any]:
    run_in = pool()  # which sets Django up, as a worker has it
    from tools.sandbox.children import Task

    task = Task(
        module="tools.agent_tools",
        qualname="http_get",
        arguments=arguments,
        timeout=3,
        output_bytes=65536,
        secrets=(),
        repeatable=True,
        permissions=("NET_HTTP",),
    )
    answer = run_in.run(task, still_wanted=lambda: True)
    return {"ok": answer.ok, "text": answer.text, "rule": answer.rule}


@cache
def pool() -> Any:
    """Processes of tools, as a worker has them."""
    import django

    django.setup()
    from tools.sandbox.children import ChildPool

    made = ChildPool()
    made.start()
    return made


def main() -> None:
    for line in sys.stdin:
        told = json.loads(line)
        try:
            value = globals()[f"do_{told.pop('command')}"](**told)
            answer = {"value": value}
        except Exception:
            answer = {"trace": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
