"""Creates a directory atomically: it is filled under another name next to the target, and renamed last.

If a killed process left the other directory, the next one that creates the same target removes it, but not while it is still being filled (the
directory's lock shows that). If the work fails, nothing is left.
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
    """The disk to fill; the caller syncs every file. Raises `InvalidSetting` if the target exists and is not empty, lies in the source or the source
    in it, or is being created by another process; `OSError` if it cannot be created."""
    target, source = target.absolute(), source.resolve()
    real = target.parent.resolve() / target.name
    if real == source or source in real.parents or real in source.parents:
        raise InvalidSetting(name="target", reason=f"must not lie within {source}, nor hold it: {target}", nearest=None)
    if _is_occupied(target):
        raise InvalidSetting(name="target", reason=f"exists already: {target}", nearest=None)
    if not target.parent.is_dir():
        raise InvalidSetting(name="target", reason=f"has a parent that is not a directory: {target.parent}", nearest=None)
    making = target.with_name(target.name + SUFFIX)
    disk = FileSystemDisk(making)
    try:
        disk.lock()
    except OSError:
        raise InvalidSetting(name="target", reason=f"is being made by another process: {making}", nearest=None) from None
    try:
        _clear(making)  # the remains of a killed process
        yield disk
        (making / LOCK_FILE).unlink(missing_ok=True)
        disk.sync_directory("")
        if _is_occupied(target):
            raise InvalidSetting(name="target", reason=f"exists already: {target}", nearest=None)
        os.rename(making, target)  # over an empty directory, never over anything else
        _sync(target.parent)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(making)
        raise
    finally:
        disk.unlock()


def _is_occupied(target: Path) -> bool:
    """An empty directory is not occupied."""
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
