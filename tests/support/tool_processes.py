"""Running a tool in a child process, and looking at processes from outside."""

import fcntl
from pathlib import Path

from tools.sandbox.children import Task


def do(
    pool,
    name,
    *,
    module="tests.toolbox.agent_tools",
    permissions=("FS_WRITE",),
    timeout=20.0,
    output_bytes=65536,
    secrets=(),
    effects="read",
    wanted=lambda: True,
    **arguments,
):
    task = Task(
        module=module,
        qualname=name,
        arguments=arguments,
        timeout=timeout,
        output_bytes=output_bytes,
        secrets=secrets,
        repeatable=effects == "read",
        permissions=permissions,
    )
    return pool.run(task, still_wanted=wanted)


def alive(pid):
    """Whether a process runs; a zombie, which nobody has reaped yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def held(path):
    """Whether some process has a file open that took a lock on it, as ``misbehave`` does, or was forked by one that
    did."""
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
