"""The open files of a node, at most as many as a setting allows: a file that is used is opened if necessary, and the least recently used one is
closed.

Decides when a file is open, never its content. Invariants: one open file for each path, shared by all its readers and its writer; a file in use is
never closed; writes are synced before a file is closed to make room. If that sync fails, the next use of the file raises the error, because the
content of the medium is then unknown. A path that was renamed over or removed is forgotten, so that its next use opens the new file. Blocks. Any
thread.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Literal
from weakref import WeakValueDictionary

from waltz_log.core.ports import Disk, DiskFile

__all__ = ["OpenFiles", "PooledFile"]


class OpenFiles:
    def __init__(self, disk: Disk, files_max: int) -> None:
        self.disk = disk
        self._files_max = files_max
        self._lock = Lock()
        self._known: WeakValueDictionary[str, PooledFile] = WeakValueDictionary()
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        """Least recently used first."""
        self._places = 0
        """Files that are open or being opened."""

    @property
    def count(self) -> int:
        return self._places

    def reading(self, path: str) -> PooledFile:
        """The file at the path. It is opened when it is used, so a missing file is found then."""
        with self._lock:
            found = self._known.get(path)
            if found is None:
                found = self._known[path] = PooledFile(self, path, "read")
            return found

    def writing(self, path: str) -> PooledFile:
        """The same file, for its only writer: reopened at once, so that reads from it show what the medium has."""
        found = self.reading(path)
        found._begin("write")
        found.failed = None
        found.size()
        return found

    def forget(self, path: str) -> None:
        """The path now names another file or none, or its owner has finished with it: closes it without a sync. The next use reopens it for
        reading."""
        with self._lock:
            found = self._known.get(path)
        if found is not None:
            found._begin("read")

    def forget_directory(self, directory: str) -> None:
        """Closes the open files below it."""
        with self._lock:
            paths = [path for path in self._known if path.startswith(f"{directory}/")]
        for path in paths:
            self.forget(path)

    def _reserve_place(self) -> None:
        """Reserves a place for one more file. While other threads do the same, or every file is in use, the limit is exceeded for that moment: by at
        most two for each thread."""
        with self._lock:
            self._places += 1
        while True:
            with self._lock:
                victim = self._victim() if self._places > self._files_max else None
                if victim is None:
                    return
                file = victim._detach()
            try:
                victim._sync_before_closing(file)
            finally:
                victim._opening.release()
                self._close(file)

    def _victim(self) -> PooledFile | None:
        """The file to close; no thread can reopen it before its lock is released. One without unsynced writes, if there is one."""
        found = None
        for file in self._open:
            if not file._users and not file._opening.locked():
                if not file._dirty:
                    found = file
                    break
                found = found or file
        return found if found is not None and found._opening.acquire(blocking=False) else None

    def _close(self, file: DiskFile) -> None:
        file.close()
        with self._lock:
            self._places -= 1


class PooledFile:
    """A file that is open while it is used. Created by `OpenFiles`."""

    def __init__(self, pool: OpenFiles, path: str, mode: Literal["read", "write"]) -> None:
        self.path = path
        self.failed: OSError | None = None
        """The error of a failed sync. Nothing is written or synced any more."""
        self._pool = pool
        self._mode: Literal["read", "write"] = mode
        self._file: DiskFile | None = None
        self._users = 0
        self._dirty = False
        self._stale: list[DiskFile] = []
        self._opening = Lock()

    def __enter__(self) -> DiskFile:
        """The open file, which stays open until the exit; any number of users at once."""
        return self._acquire()

    def __exit__(self, *_: object) -> None:
        with self._pool._lock:
            self._users -= 1
            if self._users or not self._stale:
                return
            ended, self._stale = self._stale, []
        for each in ended:
            self._pool._close(each)

    def _acquire(self) -> DiskFile:
        pool = self._pool
        with pool._lock:
            if self._file is not None:
                self._users += 1
                pool._open.move_to_end(self)
                return self._file
        with self._opening:
            with pool._lock:
                if self._file is not None:
                    self._users += 1
                    return self._file
            pool._reserve_place()
            try:
                file = pool.disk.open(self.path, self._mode)
            except BaseException:
                with pool._lock:
                    pool._places -= 1
                raise
            with pool._lock:
                self._file = file
                self._users += 1
                pool._open[self] = None
            return file

    def _detach(self) -> DiskFile:
        """With the pool's lock held."""
        assert self._file is not None
        file, self._file = self._file, None
        del self._pool._open[self]
        return file

    def _sync_before_closing(self, file: DiskFile) -> None:
        if self._dirty and self.failed is None:
            try:
                file.sync()
                self._dirty = False
            except OSError as error:
                self.failed = error

    def _begin(self, mode: Literal["read", "write"]) -> None:
        """Closes the file without a sync; the next use opens the file that the path names then. Not while another thread opens it: that thread would
        restore the old file, or one that cannot be written to."""
        with self._opening:
            with self._pool._lock:
                self._mode, self._dirty = mode, False
                file = None if self._file is None else self._detach()
                if file is not None and self._users:
                    self._stale.append(file)
                    file = None
            if file is not None:
                self._pool._close(file)

    def settle(self) -> None:
        """Ends writing. From now on it is opened only for reading."""
        self._mode = "read"

    def _change(self) -> None:
        if self.failed is not None:
            raise self.failed
        self._dirty = True

    # ---- the port --------------------------------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        with self as file:
            return file.size()

    def read(self, offset: int, length: int) -> bytes:
        with self as file:
            return file.read(offset, length)

    def write(self, offset: int, data: bytes) -> None:
        with self as file:
            self._change()
            file.write(offset, data)

    def truncate(self, size: int) -> None:
        with self as file:
            self._change()
            file.truncate(size)

    def allocate(self, size: int) -> None:
        with self as file:
            self._change()
            file.allocate(size)

    def sync(self) -> None:
        with self as file:
            self._change()
            try:
                file.sync()
            except OSError as error:
                self.failed = error
                raise
            self._dirty = False

    def next_data(self, offset: int) -> int:
        with self as file:
            return file.next_data(offset)

    def uncache(self, start: int, end: int) -> None:
        with self as file:
            file.uncache(start, end)

    def close(self) -> None:
        """Called by its owner: nothing more is written or synced."""
        self._pool.forget(self.path)


_file: type[DiskFile] = PooledFile  # mypy checks that the class implements the port
