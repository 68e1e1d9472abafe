"""Logs: JSON lines (or, on a terminal, text), one filter for secrets, and what each line is about.

Every line carries ``requestId``, ``turn`` and ``conversation`` where they are known: whoever starts to work on a
request or a turn binds them with :func:`about`, and threads take them along with the context.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType, TracebackType
from typing import Any

from . import traces
from .left_out import left_out
from .redaction import is_plain, names_a_secret, redact, redact_head

with left_out():
    import structlog

# What moves a terminal's cursor or changes its colours; line feed and tab are left.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# So many characters are written of one text, of a traceback, of all texts of a line, and of a line. Lines come from
# event loops, too, and what they repeat may be as long as its sender likes: what is left out is not searched.
MAX_OF_A_TEXT = 32 * 1024
MAX_OF_A_TRACEBACK = 64 * 1024
MAX_OF_TEXTS = 128 * 1024
MAX_OF_A_LINE = 256 * 1024

logger = logging.getLogger(__name__)


# What the lines that are logged now are about, by name.
_subjects: ContextVar[Mapping[str, str]] = ContextVar("subjects", default=MappingProxyType({}))


@contextmanager
def about(**subjects: object) -> Iterator[None]:
    """Bind what the lines logged inside are about; empty values are left out."""
    token = _subjects.set({**_subjects.get(), **_as_texts(subjects)})
    try:
        yield
    finally:
        _subjects.reset(token)


def also_about(**subjects: object) -> None:
    """Bind something more for the rest of the surrounding :func:`about`'s task."""
    _subjects.set({**_subjects.get(), **_as_texts(subjects)})


def subject(name: str) -> str:
    """What the lines logged here are about, such as ``requestId``; empty if that is not bound."""
    return _subjects.get().get(name, "")


def _as_texts(subjects: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in subjects.items() if value}


def _merge_subjects(_logger: Any, _method: str, line: Mapping[str, Any]) -> dict[str, Any]:
    return {**_subjects.get(), **line}


class _Redacting(structlog.stdlib.ProcessorFormatter):
    """Redacts the finished line too: an object is turned into text only there, and so is a traceback on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            line = super().format(record)
            if len(line) <= MAX_OF_A_LINE:
                return redact(line)
            why = {"event": "a line was too long", "said": redact_head(line, MAX_OF_A_TEXT)}
        except Exception as error:
            # A caller whose arguments do not fit its message, or an object that cannot be shown. The standard library
            # would write the raw arguments to standard error.
            why = {"event": "a line could not be logged", "error": type(error).__name__}
        told = {"level": record.levelname.lower(), "logger": record.name, "at": f"{record.pathname}:{record.lineno}"}
        return json.dumps(why | told)


class _JsonLines(_Redacting):
    """Most lines are of short texts and numbers, without a secret. They are written at once, in a quarter of the time:
    two lines a turn were a tenth of it."""

    def format(self, record: logging.LogRecord) -> str:
        return _plain_line(record) or super().format(record)


# What stands in a record beside what its caller has added.
_OF_RECORDS = frozenset(vars(logging.makeLogRecord({})))
_PLAIN = (int, float, bool, type(None))
_to_json = json.JSONEncoder().encode


def _plain_line(record: logging.LogRecord) -> str | None:
    """The line, or None if it is not that simple."""
    if record.exc_info or record.exc_text or record.stack_info or not isinstance(record.msg, str):
        return None
    try:
        event = record.getMessage()
    except Exception:
        return None
    line: dict[str, Any] = {"event": event, **_subjects.get()}
    line |= {"level": record.levelname.lower(), "logger": record.name}
    line |= {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
    texts = [value for value in line.values() if type(value) is str]
    if not all(map(_tells_nothing, line)) or sum(map(len, texts)) > MAX_OF_A_TEXT or not is_plain("\n".join(texts)):
        return None
    if not all(type(value) in _PLAIN for value in line.values() if type(value) is not str):
        return None
    moment = datetime.fromtimestamp(record.created, UTC)
    return _to_json(line | {"timestamp": moment.isoformat(timespec="microseconds").replace("+00:00", "Z")})


@cache
def _tells_nothing(name: str) -> bool:
    """Whether a field's name is no secret, and makes none of what the field holds. Callers write them: they are few."""
    return name.isidentifier() and not names_a_secret(name) and redact(name) == name


class Exported(logging.StreamHandler[Any]):
    """Writes lines to standard error, and has each exported as it was written: it is made once."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        traces.log(int(record.created * 1e9), record.levelno, line, _subjects.get().get("traceId", ""))
        return line


def formatter(style: str) -> logging.Formatter:
    """``style``: ``json``, ``text``, or ``auto`` (text where standard error is a terminal)."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if as_text
        else structlog.processors.JSONRenderer(ensure_ascii=True)
    )
    shared: list[Any] = [
        _merge_subjects,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [
        structlog.processors.format_exc_info,
        _cap,
        _redact_values,
        *([_show_controls] if as_text else []),
    ]
    return (_Redacting if as_text else _JsonLines)(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last, renderer],
    )


def _cap(_logger: Any, _method: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """No more of a text than is written. A secret that is cut is not left by half: where it is, it was whole."""
    left = MAX_OF_TEXTS

    def capped(text: str, most: int = MAX_OF_A_TEXT) -> str:
        nonlocal left
        if len(text) > (most := min(most, left)):
            text = redact_head(text, most) if most else "…"
        left = max(0, left - len(text))
        return text

    # As format_exc_info calls it. It is the last to be written, and told of first.
    traceback = {name: capped(line[name], MAX_OF_A_TRACEBACK) for name in ("exception",) if name in line}
    return {name: _each_text(value, capped) for name, value in line.items() if name not in traceback} | traceback


def _redact_values(_logger: Any, _method: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """Before it is rendered, a secret stands as it is: in JSON, a line feed before it would be an ``n``, and hide where
    it begins."""
    # Most lines hold none: all their texts are looked through at once, which takes a tenth of the time.
    texts = "\n".join(text for value in line.values() for text in _texts_of(value))
    if redact(texts) == texts:
        return dict(line)
    return {name: _each_text(value, redact) for name, value in line.items()}


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(inner)


def _show_controls(_logger: Any, _method: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """What a client sent must not steer the terminal of who reads the log."""

    def shown(text: str) -> str:
        return _CONTROLS.sub(lambda found: repr(found.group())[1:-1], text)

    return {name: _each_text(value, shown) for name, value in line.items()}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The value with its texts changed, those inside of lists and dictionaries too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {str(name): _each_text(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_each_text(inner, change) for inner in value]
    return value


def configure() -> None:
    """Send structlog's own loggers through the standard library's, where one formatter serves both."""
    structlog.configure(
        processors=[
            _merge_subjects,
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def log_uncaught() -> None:
    """Log what nobody catches, in whatever thread: Python would print it as it is, with the secrets in it."""
    sys.excepthook = _uncaught
    sys.unraisablehook = lambda raised: _uncaught(raised.exc_type, raised.exc_value, raised.exc_traceback)
    threading.excepthook = lambda thrown: _uncaught(thrown.exc_type, thrown.exc_value, thrown.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if error is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit)):
        logger.critical("nobody caught %s", kind.__name__, exc_info=(kind, error, traceback))
