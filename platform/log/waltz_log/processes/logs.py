"""Log lines of every process: one event a line, key=value, on stderr. Libraries' own warnings come out in the same shape."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import VALUE_BYTES_MAX
from waltz_log.outside_text import cut, printable, printable_lines

__all__ = ["configure_logs"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_SHARED: list[structlog.typing.Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


TRACE_LENGTH_MAX: Final = 16 * 1024
"""Characters of a stack trace."""


class _LogFmt:
    """logfmt with the event as the first key; a value of any type is printed, never refused. Texts are made printable and cut (`outside_text`): a
    peer, a file or a library may have chosen them."""

    def __init__(self) -> None:
        self._render = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], drop_missing=True)

    def __call__(self, logger: structlog.typing.WrappedLogger, name: str, event: structlog.typing.EventDict) -> str:
        return self._render(logger, name, {_key(key): _value(key, value) for key, value in event.items()})


def _key(name: str) -> str:
    return printable(name).replace(" ", "_")


def _value(name: str, value: object) -> bool | int | float | str:
    if isinstance(value, bool | int | float):
        return value
    if name == "exception":
        return printable_lines(str(value)[:TRACE_LENGTH_MAX])  # the renderer escapes line ends
    return cut(str(value), VALUE_BYTES_MAX)


class _PresentStderr:
    """The value of `sys.stderr` at the time a line is written. A line that cannot be written, as to a file on a full disk, is lost: an append
    must not fail because of a line about it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


_STDERR = _PresentStderr()


def configure_logs(level: str | None = None) -> None:
    """`level`, or `WALTZ_LOG_LEVEL`, or info. Raises `InvalidSetting`."""
    chosen = (level or os.environ.get("WALTZ_LOG_LEVEL") or "info").lower()
    if chosen not in LEVELS:
        raise InvalidSetting.unknown(chosen, LEVELS, what="log level")
    structlog.configure(
        processors=[*_SHARED, _LogFmt()],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[chosen]),
        # Resolved for each line, never kept: a test that replaces the stream receives the lines, and writers keep working.
        logger_factory=lambda *_: structlog.PrintLogger(cast(TextIO, _STDERR)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_STDERR)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[_without_internals, _LogFmt()]))
    logging.basicConfig(level=max(LEVELS[chosen], logging.WARNING), handlers=[handler], force=True)


def _without_internals(_logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(_logger, _name, event)
