"""A new directory that is there whole or not at all: made under another name beside its own, renamed last.

What a killed process left under the other name is removed by the next one that makes the same directory, and by nobody while it is still being made
(the directory's lock tells). Where the work fails, nothing is left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waltz_log.errors import InvalidSetting
from waltz_log.filesystem import LOCK_FILE, FileSystemDisk

__all__ = ["SUFFIX", "staged"]

SUFFIX = ".incomplete"


@contextmanager
def staged(target: Path, source: Path) -> Iterator[FileSystemDisk]:
    """The disk to fill, every file of which is synced by who fills it. Raises `InvalidSetting` where the target is there and not empty, lies in the
    source or the source in it, or is being made by somebody else; `OSError` where it cannot be made."""
    target, source = target.absolute(), source.resolve()
    real = target.parent.resolve() / target.name
    if real == source or source in real.parents or real in source.parents:
        raise InvalidSetting(name="target", reason=f"must not lie within {source}, nor hold it: {target}", nearest=None)
    if _is_taken(target):
        raise InvalidSetting(name="target", reason=f"is there already: {target}", nearest=None)
    if not target.parent.is_dir():
        raise InvalidSetting(name="target", reason=f"has a parent that is no directory: {target.parent}", nearest=None)
    making = target.with_name(target.name + SUFFIX)
    disk = FileSystemDisk(making)
    try:
        disk.lock()
    except OSError:
        raise InvalidSetting(name="target", reason=f"is being made by another process: {making}", nearest=None) from None
    try:
        _clear(making)  # what a killed process left
        yield disk
        (making / LOCK_FILE).unlink(missing_ok=True)
        disk.sync_directory("")
        if _is_taken(target):
            raise InvalidSetting(name="target", reason=f"is there already: {target}", nearest=None)
        os.rename(making, target)  # over an empty directory, never over anything else
        _sync(target.parent)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(making)
        raise
    finally:
        disk.unlock()


def _is_taken(target: Path) -> bool:
    """An empty directory is nobody's."""
    return target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir())))


def _clear(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
