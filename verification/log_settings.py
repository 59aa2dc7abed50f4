"""Changes of the log's settings that end with a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

__all__ = ["kept_log_settings"]


@contextmanager
def kept_log_settings() -> Iterator[None]:
    """Restores structlog's settings at the end. Where it had none, it must have none again: with structlog's own defaults, lines of the library would
    go to stdout from then on."""
    before = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
