"""``python -m tools.mcp.launch BOX MEMORY PROCESSES PROGRAM …``: become a server's program, within the limits that hold
for tools. It is started in its box already; what a process gives up by itself, this one does. No Django."""

import json
import os
import sys
import tempfile

from tools.sandbox.box import Box, limit_a_tool


def main(box: str, memory: str, processes: str, *program: str) -> None:
    inside = Box(**json.loads(box))
    inside.enter()
    limit_a_tool(inside, memory=int(memory), processes=int(processes))
    os.chdir(tempfile.gettempdir())
    try:
        os.execvp(program[0], program)  # noqa: S606 -- what the administrator named; no shell
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
