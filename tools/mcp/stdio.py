"""A server that is a program of this machine: its process, and messages as lines of its standard input and output.

mcp has a transport of this kind. This one bounds a line, passes over what is no message, keeps the end of what the
program writes to its standard error, and knows at once when the program has ended.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from tools.sandbox import cgroup

# Bytes of a message. A result is cut to much less; what is longer is taken for a flood, and ends the server.
MAX_LINE = 8 << 20
# Twice of what the launcher allows where its bound counts.
MAX_PROCESSES = 256
# Lines that are no messages: some programs log there; one that does nothing else is ended.
MAX_GARBAGE = 1_000
_STDERR_KEPT = 2_000
# Of a program whose input was closed, until it is killed.
_END_SECONDS = 1.0


class Program:
    """A server's program, once it runs. ``ended`` is set when it has, or has to; ``why``, and by which ``rule``."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.why, self.rule = "", "crashed"
        self.errors = b""

    @asynccontextmanager
    async def run(self, spec: dict[str, Any]) -> AsyncIterator[Any]:
        """Start it; gives the two streams that mcp's client talks over. It and all that it starts are as many processes
        as a server may have, also where the host runs as root."""
        with cgroup.bounded(MAX_PROCESSES, spec["command"]) as bounded:
            async with self._started(bounded.command, spec) as streams:
                yield streams

    @asynccontextmanager
    async def _started(self, command: list[str], spec: dict[str, Any]) -> AsyncIterator[Any]:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=spec["environment"],
            cwd=spec["cwd"],
            start_new_session=True,
            limit=MAX_LINE,
        )
        incoming, to_read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing)),
            asyncio.create_task(self._keep_errors(process)),
        ]
        try:
            yield to_read, to_write
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (incoming, to_read, to_write, outgoing):
                stream.close()

    async def _read(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        assert process.stdout
        garbage = 0
        try:
            while line := await process.stdout.readline():
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    if b'"jsonrpc"' in line:  # whoever waits for it would wait in vain
                        self.why, self.rule = "it wrote a message that cannot be read", "output"
                        return
                    garbage += 1
                    if garbage > MAX_GARBAGE:
                        self.why, self.rule = "it writes what is no message", "output"
                        return
                    continue
                await incoming.send(SessionMessage(message))
            with suppress(TimeoutError):  # its last words, and how it ended
                await asyncio.wait_for(process.wait(), 0.5)
            self.why = self.why or f"its program ended ({process.returncode})"
        except ValueError:  # of readline
            self.why, self.rule = f"it answered with more than {MAX_LINE} bytes", "output"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.ended.set()
            incoming.close()

    async def _write(self, process: asyncio.subprocess.Process, outgoing: Any) -> None:
        assert process.stdin
        try:
            async for each in outgoing:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{text}\n".encode())
                await process.stdin.drain()
        except OSError:
            self.ended.set()

    async def _keep_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr
        while chunk := await process.stderr.read(1 << 16):
            self.errors = (self.errors + chunk)[-_STDERR_KEPT:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, wait a moment, and kill it with all of its session."""
    assert process.stdin
    with suppress(OSError, RuntimeError):
        process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
