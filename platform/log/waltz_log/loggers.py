"""Loggers of the library. Applications decide where its log lines go; until they do, lines go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final  # Any: structlog types no bound logger until it is configured

from waltz_log.outside_text import cut

__all__ = ["VALUE_BYTES_MAX", "get_logger"]

VALUE_BYTES_MAX: Final = 2048
"""For a value in a line. Peers, files and other programs choose some of them."""


def get_logger(name: str) -> Any:
    """Like `structlog.get_logger`, except that lines go to stderr if the application has not configured structlog. structlog's own default is
    stdout, where the lines of a library would mix with the output of the program."""
    return _Logger(name)


class _Logger:
    """Imports structlog with the first line. Its import costs more than most commands do, and they log nothing. Nodes configure structlog when they
    start, and clients import it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        if method == "_wrapped":
            import structlog

            self._wrapped = structlog.wrap_logger(_Output(self._name))
            return self._wrapped
        return partial(_write, getattr(self._wrapped, method))


def _write(method: Callable[..., Any], event: str, /, **facts: Any) -> None:
    """However the application configured structlog, its lines hold values that are printable and not long."""
    method(event, **{name: cut(value, VALUE_BYTES_MAX) if isinstance(value, str) else value for name, value in facts.items()})


class _Output:
    """The logger of the application's choice at the time a line is written: modules of the library are imported before structlog is configured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        import structlog

        configured = structlog.is_configured()
        logger = structlog.get_config()["logger_factory"](self._name) if configured else structlog.PrintLogger(sys.stderr)
        return getattr(logger, method)
