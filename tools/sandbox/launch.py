"""``python -m tools.sandbox.launch TOLD PROGRAM …``: become a program that a tool starts, or an MCP server, within the
limits that hold for tools. It is started in its box already; what a process gives up by itself, this one does. No
Django."""

import json
import os
import resource
import sys
import tempfile

from tools.sandbox.box import Box, limit, limit_a_tool


def main(told: str, *program: str) -> None:
    """``told``: the ``box``, bytes of ``memory`` of each process, how many ``processes`` there may be, the ``folder``
    that it begins in (empty: where temporary files are), and how ``nice`` it is to others."""
    asked = json.loads(told)
    box = Box(**asked["box"])
    os.closerange(3, 1 << 16)
    os.nice(asked["nice"])
    box.enter()
    limit(resource.RLIMIT_CORE, 0)
    limit_a_tool(box, memory=asked["memory"], processes=asked["processes"])
    os.chdir(asked["folder"] or tempfile.gettempdir())
    os.unsetenv("PWD")  # of the folder that it was started in
    try:
        os.execvp(program[0], program)  # noqa: S606 -- what a tool or an administrator names; no shell of ours
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
