"""Logs: JSON lines (or, on a terminal, text), one filter for secrets, and what each line is about.

Every line carries ``requestId``, ``turn`` and ``conversation`` where they are known: whoever starts to work on a
request or a turn binds them with :func:`about`, and threads take them along with the context.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from .redaction import redact


@contextmanager
def about(**subjects: object) -> Iterator[None]:
    """Bind what the lines logged inside are about; empty values are left out."""
    with structlog.contextvars.bound_contextvars(**{name: str(value) for name, value in subjects.items() if value}):
        yield


class _Redacting(structlog.stdlib.ProcessorFormatter):
    """Redacts the finished line, so that a traceback or a library's message is covered as our own words are."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def formatter(style: str) -> logging.Formatter:
    """``style``: ``json``, ``text``, or ``auto`` (text where standard error is a terminal)."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if as_text
        else structlog.processors.JSONRenderer(ensure_ascii=True)
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    exceptions: list[Any] = [] if as_text else [structlog.processors.format_exc_info]
    return _Redacting(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *exceptions, renderer],
    )


def configure() -> None:
    """Send structlog's own loggers through the standard library's, where one formatter serves both."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
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
