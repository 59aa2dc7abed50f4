"""Lets one process at a time commit to a table in a directory of this machine, by a lock of the operating system.

At a `file:` path Delta creates a commit in two steps: it checks that the file does not exist, and renames a temporary file to it. Delta serializes
these steps within one JVM only. Two processes can both pass the check. The second rename then replaces the first commit, and both processes believe
that they wrote the version. So every call of this sink that commits holds the lock of the table's directory. Delta's conflict check does the rest: a
writer that waited finds the other's commit.

The lock is `flock(2)` on the directory itself. Nothing stays on disk, and the kernel releases the lock when the process ends. The rules:

- The lock belongs to a thread. A second thread waits like another process; a nested use in the same thread does not wait.
- A child process does not hold it: the descriptor is closed on exec, and after a fork the child closes it.
- A directory that was removed and created again has a lock of its own. So after locking, the path must still lead to the directory that was locked.

A writer that does not use this module does not wait. Some network file systems grant such locks without asking the other machines. The lock belongs
to the Python process: if that process alone is killed, its JVM can finish a commit in the seconds until it notices.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from waltz_delta.errors import NotADeltaTable, TableLocked, UnsafeTable
from waltz_log.loggers import get_logger

__all__ = ["LOCKED_WITHIN_S", "holder_of", "locked", "require_lockable"]

log = get_logger(__name__)

LOCKED_WITHIN_S: Final = 1800.0
"""A MERGE or OPTIMIZE of another process holds the lock as long as it runs. In half an hour a MERGE on two cores writes 100 million rows, far more
than a batch should have. An OPTIMIZE of a large table can take longer. Then the driver that waits ends with an error, and a restart waits again."""

WARNED_AFTER_S: Final = 10.0
"""A commit takes less than a second. A longer wait is for a MERGE, an OPTIMIZE, or a process that hangs."""

POLL_S: Final = 0.01
"""Far shorter than the time between two commits of one driver, so that a driver that commits continuously does not exclude the others."""

_UNSUPPORTED: Final = (
    "its directory cannot be locked ({error}), for example because it is on NFS, and two drivers could both write one table version there. To write "
    "it, choose another store, or set spark.waltz.singleDriver=true where you guarantee that one driver alone writes it"
)

_UNREADABLE: Final = "its directory cannot be opened or created, so it cannot be locked either: {error}. Give the driver's user read and write access"

_HELD_ELSEWHERE: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})

_Inode = tuple[int, int]


class _Held(threading.local):
    """The directories that this thread has locked."""

    def __init__(self) -> None:
        self.inodes: set[_Inode] = set()


_held = _Held()
_descriptors: set[int] = set()
"""For all threads. Each is added before it is locked."""


def _forget_in_child() -> None:
    """A forked child shares the parent's locks until it closes the descriptors. It must not unlock them: that would unlock the parent's."""
    while _descriptors:
        with suppress(OSError):
            os.close(_descriptors.pop())
    _held.inodes.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def locked(
    directory: str,
    *,
    within_s: float = LOCKED_WITHIN_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Holds the lock of the directory, which is created if it does not exist. Raises `TableLocked` if another holds it for `within_s` seconds;
    `UnsafeTable` if the file system has no such locks."""
    descriptor = _acquire(directory, within_s, clock, sleep)
    if descriptor is None:  # this thread holds it
        yield
        return
    inode = _inode(os.fstat(descriptor))
    _held.inodes.add(inode)
    try:
        yield
    finally:
        _held.inodes.discard(inode)
        _release(descriptor)


def require_lockable(directory: str) -> None:
    """Raises `UnsafeTable` if the file system has no such locks. Creates nothing: before there is a table, it asks the nearest directory above."""
    place = Path(directory)
    while not place.is_dir() and place != place.parent:
        place = place.parent
    descriptor = _open(str(place))
    try:
        _try_lock(descriptor, directory)
    finally:
        _release(descriptor)


def holder_of(device: int, inode: int, locks: str) -> int | None:
    """The process that holds the lock, from the text of `/proc/locks`; None if it is not listed, as for a process of another container."""
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks.splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF; "->" in the second place for one that waits
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
            return int(words[4])
    return None


def _acquire(directory: str, within_s: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> int | None:
    """A locked descriptor of what is at the path now; None if this thread has locked it already."""
    began_s, warned = clock(), False
    while True:
        descriptor = _open_or_create(directory)
        try:
            inode = _inode(os.fstat(descriptor))
            held = inode in _held.inodes
            if not held and _try_lock(descriptor, directory) and _inode_at(directory) == inode:
                return descriptor
        except BaseException:
            _release(descriptor)
            raise
        if held:
            _close(descriptor)
            return None
        _release(descriptor)  # another holds it, or the directory was removed before it was locked
        waited_s = clock() - began_s
        if waited_s >= within_s:
            raise TableLocked(path=directory, waited_s=round(waited_s, 1), holder=_holder(inode))
        if waited_s >= WARNED_AFTER_S and not warned:
            warned = True
            log.warning("table locked by another process", path=directory, holder=_holder(inode), waited_s=round(waited_s, 1), limit_s=within_s)
        sleep(POLL_S)


def _open_or_create(directory: str) -> int:
    while True:
        try:
            return _open(directory)
        except FileNotFoundError:
            _create(directory)


def _create(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADeltaTable(path=directory, reason="a file, or a symbolic link to nothing, is there") from None
    except OSError as error:
        raise UnsafeTable(path=directory, reason=_UNREADABLE.format(error=error.strerror)) from error


def _open(directory: str) -> int:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # Python closes it on exec
    except NotADirectoryError:
        raise NotADeltaTable(path=directory, reason="a file is there") from None
    except PermissionError as error:
        raise UnsafeTable(path=directory, reason=_UNREADABLE.format(error=error.strerror)) from error
    _descriptors.add(descriptor)
    return descriptor


def _try_lock(descriptor: int, directory: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_ELSEWHERE:
            return False
        raise UnsafeTable(path=directory, reason=_UNSUPPORTED.format(error=error.strerror)) from error
    return True


def _release(descriptor: int) -> None:
    """Unlocks before it closes: a child that was forked and has not closed its copy yet would keep the lock. Does nothing in a child that was forked
    meanwhile, where the number may stand for another file."""
    if descriptor not in _descriptors:
        return
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _close(descriptor)


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _inode(found: os.stat_result) -> _Inode:
    return found.st_dev, found.st_ino


def _inode_at(directory: str) -> _Inode | None:
    try:
        return _inode(os.stat(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _holder(inode: _Inode) -> int | None:
    try:
        return holder_of(*inode, Path("/proc/locks").read_text())
    except OSError:  # not Linux
        return None
