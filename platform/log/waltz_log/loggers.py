"""Loggers of the library. Applications decide where its log lines go; until they do, lines go to stderr."""

from __future__ import annotations

import sys
from typing import Any  # Any: structlog types no bound logger until it is configured

import structlog

__all__ = ["get_logger"]


def get_logger(name: str) -> Any:
    """Like `structlog.get_logger`, except that lines go to stderr if the application has not configured structlog. structlog's own default is
    stdout, where the lines of a library would mix with the output of the program."""
    return structlog.wrap_logger(_Output(name))


class _Output:
    """The logger of the application's choice at the time a line is written: modules of the library are imported before structlog is configured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        configured = structlog.is_configured()
        logger = structlog.get_config()["logger_factory"](self._name) if configured else structlog.PrintLogger(sys.stderr)
        return getattr(logger, method)
