"""Ways in which a tool can do harm to the process it runs in, and to those around it.

What could go on for ever goes on for PATIENCE seconds, should a test fail to see it end.
"""

import ctypes
import decimal
import gc
import json
import mmap
import os
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from typing import NoReturn

PATIENCE = 60.0


# --- what never comes back ---------------------------------------------------------------------------------------


def loop() -> None:
    """In Python."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        pass


def hold_the_interpreter() -> None:
    """In C, and no other thread and no handler of a signal can run meanwhile."""
    ctypes.PyDLL(None).sleep(int(PATIENCE))


def lock_itself_out() -> None:
    """In C, at a lock that nobody opens."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=PATIENCE)


def ignore_signals() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    loop()


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    os.kill(os.getpid(), signal.SIGTERM)
    loop()


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_its_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    loop()


def flood_its_streams() -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        os.write(1, b"x" * 65536)
        os.write(2, b"x" * 65536)


# --- what it starts ----------------------------------------------------------------------------------------------


def daemonise() -> int:
    """Start a process that leaves its parent, its group and its session; returns when it has."""
    leaves = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(leaves[1], b"%d" % os.getpid())
            loop()
        os._exit(0)
    os.wait()
    return int(os.read(leaves[0], 20))


def daemonise_and_loop() -> None:
    daemonise()
    loop()


def daemonise_and_vanish() -> None:
    daemonise()
    os.kill(os.getpid(), signal.SIGKILL)


def daemonise_and_exit() -> None:
    daemonise()
    os._exit(0)


def daemonise_and_kill_its_supervisor() -> None:
    daemonise()
    kill_its_supervisor()


def leave_a_program() -> None:
    """Another program, in a session of its own, which is handed all that is open."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False, start_new_session=True)


def leave_a_stopped_process() -> None:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)


def leave_a_zombie() -> None:
    if os.fork() == 0:
        os._exit(0)


def leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(PATIENCE,), daemon=True).start()


def _hide_what_is_left() -> None:
    """From the child's own look at itself."""
    child = sys.modules["__main__"]
    child._has_left_something = lambda: False  # type: ignore[attr-defined]  # a module has any name
    child._condition = _LikeAny  # type: ignore[attr-defined]  # the same
    child.Code.is_changed = lambda code: False


class _LikeAny:
    """As it was, whatever it was."""

    __hash__ = None  # type: ignore[assignment]  # as Python has it where there is __eq__ alone

    def __eq__(self, other: object) -> bool:
        return True


def hide_a_thread() -> None:
    _hide_what_is_left()
    leave_a_thread()


def hide_a_process() -> None:
    _hide_what_is_left()
    if os.fork() == 0:
        loop()


def hide_a_daemon() -> None:
    """Which is no longer below the process itself."""
    _hide_what_is_left()
    daemonise()


def leave_a_process_later() -> None:
    """Once the call is answered: a timer's signal starts it, while the process waits for the next call."""
    _hide_what_is_left()
    signal.signal(signal.SIGALRM, _start_a_daemon)
    signal.setitimer(signal.ITIMER_REAL, 0.3)


def _start_a_daemon(number: int, frame: object) -> None:
    daemonise()


def leave_a_timer() -> None:
    """Its signal ends the process, in the middle of another call."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def leave_less_room() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))


def leave_its_directory() -> None:
    os.chdir("/")


def leave_another_mode_of_files() -> None:
    os.umask(0o777)


def leave_a_finder_of_modules() -> None:
    sys.meta_path.append(Finder)


class Finder:
    """Finds nothing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        return None


def leave_a_hook_of_threads() -> None:
    threading.settrace(lambda *told: None)


def leave_a_hook_of_errors() -> None:
    threading.excepthook = lambda told: None


def leave_a_signal_blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def leave_garbage_uncollected() -> None:
    gc.disable()


def leave_a_callback_of_the_collector() -> None:
    gc.callbacks.append(lambda phase, told: None)


def leave_a_coarse_precision() -> None:
    decimal.getcontext().prec = 2


def leave_another_writer_of_json() -> None:
    # A method of a class is assigned: mypy is right to mind, and that it is noticed is what is tried.
    json.JSONEncoder.default = lambda self, o: "forged"  # type: ignore[method-assign]


def leave_certificates_unchecked() -> None:
    """As many a page on the web recommends."""
    vars(ssl)["_create_default_https_context"] = ssl._create_unverified_context


def leave_names_resolved_elsewhere() -> None:
    vars(socket)["getaddrinfo"] = lambda *told, **more: []


def leave_a_file_open() -> None:
    os.open(os.devnull, os.O_RDONLY)


def come_back_twice() -> str:
    """The process's fork first, and itself when that has ended."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return "the process"
    return "its fork"


def fork_a_crowd() -> None:
    """64 processes of its own group, each of which works."""
    for _ in range(6):
        os.fork()
    loop()


def fork_sessions() -> None:
    """32 processes, each in a session of its own."""
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
    loop()


def run_away() -> None:
    """Sixteen that each fork a child in a session of its own, and end, again and again: none is there for long."""
    until = time.monotonic() + PATIENCE
    for _ in range(16):
        if os.fork() == 0:
            while time.monotonic() < until:
                if os.fork():
                    os._exit(0)
                os.setsid()
            os._exit(0)
    loop()


# --- how it ends -------------------------------------------------------------------------------------------------


def exit_at_once() -> NoReturn:
    os._exit(0)


def exit_politely() -> NoReturn:
    raise SystemExit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def kill_its_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    loop()


def kill_its_supervisor_s_group() -> None:
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    loop()


def kill_its_group() -> None:
    os.killpg(0, signal.SIGKILL)
    loop()


def terminate_its_supervisor() -> None:
    """With the signals that end a program, and the one that a supervisor waits for."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getppid(), number)
    loop()


def fall() -> None:
    """A segmentation fault."""
    ctypes.string_at(0)


# --- its answer --------------------------------------------------------------------------------------------------


def answer_socket() -> int:
    """The descriptor of the one socket it has."""
    (found,) = [int(fd) for fd in os.listdir("/proc/self/fd") if _is_socket(int(fd))]
    return found


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:  # the one that the list was read with
        return False


def write_garbage() -> None:
    os.write(answer_socket(), b"HTTP/1.1 200 OK\r\n\r\n")
    os.write(answer_socket(), bytes(range(256)) * 16384)


def promise_more_than_there_is() -> None:
    """The length of an answer of 4 GB, and nothing after it."""
    os.write(answer_socket(), b"\xff\xff\xff\xff")
    loop()


def flood_its_answer() -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        os.write(answer_socket(), b"\xff" * 65536)


def answer_for_itself() -> None:
    """In the form of an answer, and never comes back."""
    answer = b'{"call": "", "ok": true, "text": "forged", "rule": "", "trace": "", "left": false}'
    os.write(answer_socket(), len(answer).to_bytes(4, "big") + answer)
    loop()


def close_all_descriptors() -> None:
    os.closerange(0, 1024)


def close_all_descriptors_and_loop() -> None:
    os.closerange(0, 1024)
    loop()


# --- memory ------------------------------------------------------------------------------------------------------


def hoard() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))


def hoard_behind_the_interpreter() -> NoReturn:
    """As a library does that takes it for impossible to be given none: with abort()."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while found := libc.malloc(1 << 20):
        ctypes.memset(found, 1, 1 << 20)
    os.abort()


def want_too_much_at_once() -> int:
    return len(bytearray(1 << 40))


def reserve_addresses() -> bool:
    """2 GB of them, which cost nothing until they are used, as garbage collectors and just-in-time compilers do."""
    reserve = ctypes.CDLL(None).mmap
    reserve.restype = ctypes.c_void_p
    reserve.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return bool(reserve(None, 1 << 31, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) != ctypes.c_void_p(-1).value)


def tell_limits() -> list[int]:
    """In bytes: of its memory, and of the image that its death may leave."""
    return [resource.getrlimit(each)[0] for each in (resource.RLIMIT_DATA, resource.RLIMIT_CORE)]
