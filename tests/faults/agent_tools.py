"""Tools that leave a trace outside the database, and that may kill the host they run for."""

import os
import signal
import time
from pathlib import Path

from tests.faults.ledger import tell
from tools.registry import tool


@tool(effects="write", permissions=["FS_WRITE"], timeout=30)
def leave_mark(path: str, mark: str, kill: str = "", host: int = 0, seconds: float = 0) -> str:
    """Append a mark to a file: a side effect that can be counted.

    Args:
        path: The file.
        mark: What is appended, once for each time the tool runs.
        kill: Kill the host "before" the effect, which then never is; "beside" it; or "after" it.
        host: The host's process id.
        seconds: How long it takes before it leaves its mark.
    """
    time.sleep(seconds)
    if kill == "before" and kill_host(host):
        wait_for_the_end()
    if kill == "beside":
        kill_host(host)
    with Path(path).open("a") as file:
        file.write(f"{mark}\n")
    if kill == "after" and kill_host(host):
        wait_for_the_end()
    return f"left {mark}"


@tool(effects="read", timeout=30)
def look(path: str, mark: str, kill: str = "", host: int = 0, seconds: float = 0) -> str:
    """Look, and leave a mark each time: a read whose runs can be counted.

    Args:
        path: The file that counts.
        mark: What is appended, once for each time the tool runs.
        kill: Kill the host "during" it.
        host: The host's process id.
        seconds: How long it takes after its mark.
    """
    with Path(path).open("a") as file:
        file.write(f"{mark}\n")
    if kill == "during" and kill_host(host):
        wait_for_the_end()
    time.sleep(seconds)
    return f"saw {mark}"


@tool(effects="write", timeout=30)
def strike(mark: str, kill: str = "", seconds: float = 0) -> str:
    """Tell the ledger of an effect.

    Args:
        mark: Its name; each call has its own.
        kill: Kill the toolbox "before" the effect, which then never is; "beside" it; or "after" it. ("stored": the
            toolbox kills itself, once the answer is stored.)
        seconds: How long it takes before the effect.
    """
    time.sleep(seconds)
    if kill == "before" and kill_toolbox(mark):
        wait_for_the_end()
    if kill == "beside":
        kill_toolbox(mark)
    tell(os.environ["DATA_DIR"], "effect", mark)
    if kill == "after" and kill_toolbox(mark):
        wait_for_the_end()
    return f"struck {mark}"


@tool(effects="read", timeout=30)
def glance(mark: str, kill: str = "", seconds: float = 0) -> str:
    """Tell the ledger that somebody looked.

    Args:
        mark: Its name; each call has its own.
        kill: Kill the toolbox "during" the first look.
        seconds: How long it takes.
    """
    tell(os.environ["DATA_DIR"], "glance", mark)
    if kill == "during" and kill_toolbox(mark):
        wait_for_the_end()
    time.sleep(seconds)
    return f"saw {mark}"


def kill_toolbox(mark: str) -> bool:
    """kill -9 of the toolbox this runs for; False if that was done for this mark already."""
    toolbox = runs_for()
    data_dir = os.environ["DATA_DIR"]
    if b"worker" not in Path(f"/proc/{toolbox}/cmdline").read_bytes() or tell(data_dir, "asked to die", mark):
        return False
    tell(data_dir, "died", mark, pid=toolbox)
    os.kill(toolbox, signal.SIGKILL)
    return True


def runs_for() -> int:
    """The host: above us are our supervisor, the fork server, and then it."""
    above = os.getppid()
    for _ in range(2):
        above = int(Path(f"/proc/{above}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return above


def kill_host(host: int) -> bool:
    """kill -9 of the host we run for; False, and nothing killed, if another one runs us by now."""
    if runs_for() != host:
        return False
    os.kill(host, signal.SIGKILL)
    return True


def wait_for_the_end() -> None:
    """The host is dead: whoever forked us ends us too."""
    time.sleep(20)
