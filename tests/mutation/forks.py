"""A plugin of pytest that tries one mistake after the other in forks of itself: it has loaded the code and made the
database once, where a new process would need seconds for each.

A fork puts the mistaken code into the functions that exist, and writes the mistaken file for the processes that tests
start. What is not within a function has been done by then: of such a mistake it is only said that it is ``OUTSIDE``.
"""

import contextlib
import gc
import importlib
import inspect
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from django.conf import settings
from django.db import connections

SEEN, SURVIVED, OUTSIDE = "seen", "survived", "outside"

# Collected first: when it has run, the database has been made.
READY = "ready.py"


class NotInAFunction(Exception):
    """The mistake is in what a module or a class does when it is loaded."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the command is given by."""
    parser.addoption("--mistakes", type=Path, help="JSON: module, file, seconds, and the sources that are mistaken")
    parser.addoption("--outcomes", type=Path, help="where what became of each is written, a line each")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """In place of running the tests once."""
    if session.testsfailed:
        raise session.Failed("the tests cannot be collected")
    told = json.loads(session.config.getoption("--mistakes").read_text())
    (ready,) = (item for item in session.items if item.path.name == READY)
    # As they are named, the quickest first, and not those that are best begun first when all are run.
    named = [(session.config.invocation_params.dir / file).resolve() for file in session.config.args]
    items = sorted((item for item in session.items if item is not ready), key=lambda item: named.index(item.path))
    session.config.hook.pytest_runtest_protocol(item=ready, nextitem=items[0])
    connections.close_all()
    gc.unfreeze()  # or the functions would not be found
    database, file = Path(settings.DATABASES["default"]["NAME"]), Path(told["file"])
    kept = shutil.copy(database, database.with_suffix(".kept"))
    original = file.read_text()
    with session.config.getoption("--outcomes").open("w", buffering=1) as outcomes:
        for source in told["sources"]:
            for left in database.parent.glob(f"{database.name}-*"):
                left.unlink()
            shutil.copy(kept, database)
            file.write_text(source)
            try:
                outcome = attempt(session, items, told["module"], original, source, seconds=told["seconds"])
            finally:
                file.write_text(original)
            outcomes.write(f"{outcome}\n")
    return True


def attempt(
    session: pytest.Session, items: list[pytest.Item], module: str, original: str, source: str, *, seconds: float
) -> str:
    """Run the tests in a fork, until one fails or the time is up."""
    try:
        changed = dict(differences(compiled(module, original), compiled(module, source)))
    except NotInAFunction:
        return OUTSIDE
    child = os.fork()
    if not child:
        try:
            os.setsid()
            with open(os.devnull, "r+b") as nothing:
                for number in (0, 1, 2):
                    os.dup2(nothing.fileno(), number)
            put_in_place(module, changed)
            for item, after in zip(items, [*items[1:], None], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.testsfailed:
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(1)
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended[0]:
        os.waitpid(child, 0)
        return SEEN
    return SEEN if ended[1] else SURVIVED


def compiled(module: str, source: str) -> CodeType:
    """The code of a source, as if it were the module's."""
    code: CodeType = compile(source, importlib.import_module(module).__file__ or "", "exec")
    return code


def differences(old: CodeType, new: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The new code of functions, by name and line. Raises :class:`NotInAFunction`."""
    within, within_new = functions(old), functions(new)
    if len(within) != len(within_new):
        raise NotInAFunction
    if old.co_flags & inspect.CO_OPTIMIZED:
        if old != new:
            yield (old.co_qualname, old.co_firstlineno), new
    elif (old.co_code, old.co_names, constants(old)) != (new.co_code, new.co_names, constants(new)):
        raise NotInAFunction
    for each, each_new in zip(within, within_new, strict=True):
        yield from differences(each, each_new)


def functions(code: CodeType) -> list[CodeType]:
    """Those, and the classes, that are made in a piece of code."""
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def constants(code: CodeType) -> list[str]:
    """The others; 1, 1.0 and True are not the same."""
    return [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]


def put_in_place(module: str, changed: dict[tuple[str, int], CodeType]) -> None:
    """Wherever a function is held by now, it does what the new code says."""
    file = importlib.import_module(module).__file__
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == file:
            new = changed.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
            if new is not None:
                each.__code__ = new
