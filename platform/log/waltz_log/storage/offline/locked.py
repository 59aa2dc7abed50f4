"""A storage directory that a command changes while no node uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from waltz_log.core.ports import Disk
from waltz_log.errors import InvalidSetting

__all__ = ["locked"]


@contextmanager
def locked(disk: Disk) -> Iterator[None]:
    """Raises `InvalidSetting` if another process uses the directory."""
    try:
        disk.lock()
    except OSError as error:
        raise InvalidSetting(name="directory", reason=f"is in use by another process: {error.strerror}", nearest=None) from None
    try:
        yield
    finally:
        disk.unlock()
