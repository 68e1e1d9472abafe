"""The host's side of a fork server: starts it in its box, has it fork children and end them, and watches over it."""

import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from django.conf import settings

from nanohost.lib import env
from nanohost.lib.one_core import all_cores
from tools.sandbox.box import LANDLOCK, Box
from tools.sandbox.child import LENGTH, children_of

logger = logging.getLogger(__name__)

# What a child's environment holds besides the secrets its tool declares: enough to find code, and no secret. The
# settings know by NANOHOST_TOOL_PROCESS that they are read in one, and then name no database and no key.
PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATA_DIR", "NANOHOST_EXTRA_APPS"),
    *("HTTP_ALLOWED_PRIVATE_CIDRS", "HTTP_ALLOWED_PORTS", "TIME_ZONE", "TOOL_FOLDERS"),
    *("SEARXNG_URL", "WEB_SEARCH_MAX_RESULTS"),
)

# How long a fork server may take to start, which is a second of a processor: on a machine that is busy one that is late
# is no better replaced by another.
_START_SECONDS = 30.0

# How long it may then take for anything it is asked.
ANSWER_SECONDS = 10.0

# How often it is looked at: whoever has stopped it keeps its children's calls waiting no longer than twice this.
WATCH_SECONDS = 0.4

# What tells that it was killed, or hangs. Too few descriptors or processes are another matter: it goes on.
GONE = (ConnectionError, TimeoutError)

# Processes that may run in a box besides the two for each call: what its tools start.
MORE_PROCESSES = 128


class ForkServer:
    """One fork server. Once it is gone, what it is asked raises one of :data:`GONE`.

    A thread starts it and stays: the kernel ends a box with the thread that made it. It looks whether the fork server
    has ended or was stopped, and then ends its box, so that nobody waits for it longer than a moment.
    """

    def __init__(self, box: Box, modules: Sequence[str]) -> None:
        self._box = _with_scratch(box)
        self._modules = modules
        self._processes = 2 * settings.TOOL_CONCURRENCY + MORE_PROCESSES
        self._control, self._theirs = socket.socketpair()
        # The pid that the kernel, and nobody else, tells with each answer: the fork server's, as it is known here.
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._liveness, self._their_liveness = socket.socketpair()
        # One that hangs is as good as gone.
        self._control.settimeout(_START_SECONDS)
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: Exception | None = None
        self._launched, self._ended = threading.Event(), threading.Event()
        self._closing = False
        self.pid = 0
        threading.Thread(target=self._keep, name="fork server", daemon=True).start()

    def fork(self) -> "Child":
        """A child that is ready; raises BlockingIOError if there can be none."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        liveness, their_end = socket.socketpair()
        try:
            with theirs, their_end:
                pid = self._ask(b"fork", theirs.fileno(), their_end.fileno())
            if pid:
                ours.settimeout(ANSWER_SECONDS)
                ready, sender = _received(ours, LENGTH.size)
                if ready == LENGTH.pack(0):
                    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                    return Child(self, pid, ours, liveness, seen=Seen.of(sender))
                self.reap(pid)
            raise BlockingIOError("there can be no more processes for tools")
        except BaseException:
            ours.close()
            liveness.close()
            raise

    def end(self, pid: int) -> None:
        """Ask a child's supervisor to end all that is below it, and itself. ``pid`` as the fork server knows it."""
        self._ask(b"end %d" % pid)

    def reap(self, pid: int) -> bool:
        """Kill a supervisor and what is below it as far as they have not ended; True if its child died for want of
        memory."""
        return bool(self._ask(b"reap %d" % pid))

    def ask_to_end(self) -> None:
        """Have it end its children and itself, and do not wait for it."""
        self._launched.wait()
        self._closing = True
        self._shut()

    def close(self, *, patience: float = 0) -> None:
        """Have it end its children and itself; after ``patience`` seconds all in its box is killed. It is gone when
        this returns."""
        self.ask_to_end()
        if not self._ended.wait(patience):
            self._kill()
            self._ended.wait()

    def _ask(self, order: bytes, *fds: int) -> int:
        """Send an order, and read its answer; one at a time."""
        with self._asking:
            self._launched.wait()
            if self._failure:
                # Another may start: what kept this one from it, such as a want of memory, may be over in a moment.
                raise ConnectionError("the fork server of tools could not be started") from self._failure
            socket.send_fds(self._control, [order], fds)
            line = b""
            while not line.endswith(b"\n"):
                part, sender = _received(self._control, 64)
                if not part:
                    raise ConnectionError("the fork server of tools has ended")
                self.pid = self.pid or sender
                line += part
            self._control.settimeout(ANSWER_SECONDS)  # it has started
            return int(line)

    # --- the thread that starts it and stays ---

    def _keep(self) -> None:
        try:
            self._process = self._start()
        except Exception as error:
            self._failure = error
        finally:
            self._theirs.close()
            self._their_liveness.close()
            self._launched.set()
        try:
            if self._process:
                self._watch(self._process)
        finally:
            self._shut()
            self._liveness.close()
            if self._box.scratch:
                shutil.rmtree(self._box.scratch, ignore_errors=True)
            self._ended.set()

    def _start(self) -> "subprocess.Popen[bytes]":
        told = {
            "control": self._theirs.fileno(),
            "liveness": self._their_liveness.fileno() if self._box.mode == LANDLOCK else None,
            "box": asdict(self._box),
            "memory": settings.TOOL_MEMORY_MB << 20,
            "processes": self._processes,
            "modules": list(self._modules),
        }
        command = [sys.executable, "-m", "tools.sandbox.child", json.dumps(told)]
        with all_cores():
            return subprocess.Popen(  # noqa: S603 -- our own module, no shell
                self._box.command(command, cwd=settings.BASE_DIR),
                pass_fds=[self._theirs.fileno(), *([self._their_liveness.fileno()] if told["liveness"] else [])],
                env=env.inherited(PASSED_ON)
                | {"NANOHOST_TOOL_PROCESS": "1"}
                | ({"TMPDIR": self._box.scratch} if self._box.scratch else {}),
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Return when it has ended; see that it does, if the fork server was stopped or killed."""
        if not hasattr(os, "pidfd_open"):  # elsewhere than on Linux
            process.wait()
            return
        its_end = select.poll()
        ending = os.pidfd_open(process.pid)
        its_end.register(ending, select.POLLIN)
        while not its_end.poll(WATCH_SECONDS * 1000):
            if not self.pid:
                continue
            if _stands_still(self.pid):
                if not self._closing:
                    logger.warning("a fork server of tools was stopped or killed; it is replaced")
                self._kill()
            elif _is_crowded(self.pid, most=self._processes):
                logger.warning("tools have started more than %s processes; all of them are ended", self._processes)
                self._kill()
        os.close(ending)
        process.wait()

    def _kill(self) -> None:
        """End all in the box, whatever state it is in."""
        if not self._process:
            return
        if self._box.mode == LANDLOCK and self._process.poll() is None:
            # Its guardian ends all that it can find, and itself. One that was stopped ends with what it has.
            self._liveness.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=ANSWER_SECONDS if not _stands_still(self._process.pid) else 0)
        self._process.kill()

    def _shut(self) -> None:
        """Tell it that it is to end, and whoever waits for its answer that there will be none."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


def _with_scratch(box: Box) -> Box:
    """In Landlock's mode there is no /tmp of its own: a folder, which goes with it."""
    if box.mode != LANDLOCK:
        return box
    folder = tempfile.mkdtemp(prefix="nanohost-tools-")
    if box.user is not None:
        os.chown(folder, box.user, box.user)
    return replace(box, scratch=folder)


def _stands_still(pid: int) -> bool:
    """Whether a process is stopped, or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"TtZX"
    except OSError:
        return True


def _is_crowded(pid: int, *, most: int) -> bool:
    """Whether more processes than this are below a process. The kernel bounds them too, where it can count them apart
    from the host's; this is for where it cannot, and for root, whom it does not bound."""
    found, look = 0, [pid]
    while look and found <= most:
        below = children_of(look.pop())
        found += len(below)
        look += below
    return found > most


def _received(connection: socket.socket, size: int) -> tuple[bytes, int]:
    """At most ``size`` bytes, and the pid of who sent them, as it is known here: the kernel tells it, whatever
    namespace of processes the sender is in, and the sender cannot say another's. 0 if the kernel does not tell."""
    data, told, _, _ = connection.recvmsg(size, socket.CMSG_SPACE(12))
    return data, int.from_bytes(told[0][2][:4], sys.byteorder) if told else 0


@dataclass(frozen=True)
class Seen:
    """A child's and its supervisor's pid, as they are known here, outside of their box; the fork server, inside, knows
    them by others. They hold while the supervisor lives. 0, 0: nothing is known, as where there is no ``/proc``."""

    child: int
    supervisor: int

    @classmethod
    def of(cls, child: int) -> "Seen":
        """A child that has run nothing yet."""
        try:
            stat = Path(f"/proc/{child}/stat").read_bytes()
        except OSError:
            return cls(0, 0)
        return cls(child, int(stat.rpartition(b")")[2].split()[1]))

    def has_company(self) -> bool:
        """Whether the child has another thread, or there is another process below it or below its supervisor, where all
        go that leave it. Also if it is gone, or there is nothing to be seen."""
        try:
            if len(os.listdir(f"/proc/{self.child}/task")) != 1:
                return True
        except OSError:
            return sys.platform == "linux"
        return bool(children_of(self.child)) or children_of(self.supervisor) != {self.child}


@dataclass(frozen=True)
class Child:
    """Our end of a child's socket, its supervisor's pid, and the fork server: no other may signal it by its pid.
    ``liveness``: closed when the supervisor has ended; nothing else comes from it. ``seen``: who they are from here."""

    server: ForkServer
    supervisor: int
    connection: socket.socket
    liveness: socket.socket
    seen: Seen

    def is_fit(self) -> bool:
        """Whether an idle child still waits for a request, alone: it has nothing to say, unless that it has ended."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        poll.register(self.liveness, select.POLLIN)
        return not poll.poll(0) and not self.has_left_something()

    def has_left_something(self) -> bool:
        """Whether its calls have left processes or threads behind. The child says so as well, but what it has run may
        have changed what it says; this is what the kernel shows us."""
        return self.seen.has_company()

    def has_ended(self, *, within: float) -> bool:
        """Whether the supervisor ends within so many seconds; it is the last of all that a call has started."""
        poll = select.poll()
        poll.register(self.liveness, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def close(self) -> None:
        self.connection.close()
        self.liveness.close()
