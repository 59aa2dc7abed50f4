"""The disk port over a directory of the real file system, and the offload port over threads.

Only this user reads what it creates: directories have the mode 0700 and files 0600, whatever the umask. It opens regular files alone and follows no
link at the end of a path: a directory may come from a person, as a backup does, and a named pipe would hold the process.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar  # Any: Future is invariant

from waltz_log.core.ports import Disk, DiskFile, Offload
from waltz_log.predecessor import when_released
from waltz_log.untrusted_files import PRIVATE, make_private_directory, open_regular

__all__ = ["FileSystemDisk", "ReadOnlyFileSystemDisk", "ThreadOffload"]

T = TypeVar("T")

LOCK_FILE = "waltz.lock"
ZEROS = bytes(1 << 20)
WRITE_BYTES_MAX = 1 << 30
"""Linux writes at most 2 GiB - 4 KiB a call; short writes are continued, but there is no reason to provoke them."""


class _OpenFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        found = os.pread(self._descriptor, length, offset)
        if len(found) == length or not found:
            return found
        parts = [found]
        got = len(found)
        while got < length and (more := os.pread(self._descriptor, length - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data[:WRITE_BYTES_MAX] if len(data) > WRITE_BYTES_MAX else data, offset)
        while written < len(data):
            more = os.pwrite(self._descriptor, memoryview(data)[written : written + WRITE_BYTES_MAX], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "nothing written", self._path)
            written += more

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        if size > 0:
            start = self.size()
            os.posix_fallocate(self._descriptor, 0, size)
            # Space alone would gain little: the file system records at a sync that it is written to now (ext4: unwritten extents become written).
            for offset in range(start, size, len(ZEROS)):
                self.write(offset, ZEROS[: size - offset])

    def next_data(self, offset: int) -> int:
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # all that follows is a hole, or nothing follows
                return self.size()
            return offset  # a file system that does not know its holes

    def uncache(self, start: int, end: int) -> None:
        os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class FileSystemDisk:
    """`root` is created, with its parents, if it does not exist. An existing directory keeps its mode."""

    def __init__(self, root: Path, *, lock_within_s: float = 0.0) -> None:
        self._root = root
        self._lock_within_s = lock_within_s
        make_private_directory(root)
        self._lock: int | None = None

    def _at(self, path: str) -> str:
        return os.path.join(self._root, path) if path else str(self._root)

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        flags = {"read": os.O_RDONLY, "write": os.O_RDWR, "create": os.O_RDWR | os.O_CREAT | os.O_EXCL}[mode]
        descriptor = open_regular(self._at(path), flags, follow=False)
        if mode == "create":
            os.fchmod(descriptor, PRIVATE)
        if mode == "write" and os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            self._separate(path)
            descriptor = open_regular(self._at(path), flags, follow=False)
        if mode == "write":
            # After a failed sync the page cache may hold bytes that the medium does not. A process that opens a file to continue writing must see the
            # medium.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return _OpenFile(path, descriptor)

    def _separate(self, path: str) -> None:
        """Gives this name its own file, durably: the other names keep theirs as it is."""
        try:
            with suppress(FileNotFoundError):
                self.remove(f"{path}.new")  # the remains of a killed process
            with os.fdopen(open_regular(self._at(path), follow=False), "rb") as old:
                target = open_regular(self._at(f"{path}.new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, follow=False)
                with os.fdopen(target, "wb") as new:
                    os.fchmod(target, PRIVATE)
                    shutil.copyfileobj(old, new, 1 << 20)
                    new.flush()
                    os.fsync(target)
        except OSError:
            with suppress(OSError):
                self.remove(f"{path}.new")  # on a disk that is full it would only be in the way
            raise
        self.rename(f"{path}.new", path)
        self.sync_directory(os.path.dirname(path))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._at(path))  # a link to nothing is refused when it is opened, and is not overlooked

    def make_directory(self, path: str) -> None:
        make_private_directory(Path(self._at(path)))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new))

    def link(self, old: str, new: str) -> None:
        os.link(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._at(path))
        except IsADirectoryError:
            os.rmdir(self._at(path))

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_blocks * found.f_frsize

    def writable(self) -> bool:
        return not os.statvfs(self._root).f_flag & os.ST_RDONLY and os.access(self._root, os.W_OK)

    def lock(self) -> None:
        descriptor = open_regular(self._at(LOCK_FILE), os.O_RDWR | os.O_CREAT, follow=False)
        try:
            when_released(partial(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), str(self._root), within_s=self._lock_within_s)
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor

    @property
    def held(self) -> tuple[int, ...]:
        """The descriptor that holds the lock, while this process has it: a process that inherits it holds the tree as well."""
        return () if self._lock is None else (self._lock,)

    def unlock(self) -> None:
        """For a process that continues without the directory; otherwise its end is the unlocking."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ReadOnlyFileSystemDisk(FileSystemDisk):
    """A read-only disk: `root` must exist, nothing below it is created or changed. `lock` is shared with other readers, and refused while a process
    writes. If no process ever held the lock there is no lock file, and none is created."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "no such directory", str(root))
        self._root = root
        self._lock = None

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        if mode != "read":
            self._refuse(path)
        return super().open(path, mode)

    def lock(self) -> None:
        try:
            descriptor = open_regular(self._at(LOCK_FILE), os.O_RDONLY, follow=False)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor

    def make_directory(self, path: str) -> None:
        self._refuse(path)

    def rename(self, old: str, new: str) -> None:
        self._refuse(new)

    def link(self, old: str, new: str) -> None:
        self._refuse(new)

    def remove(self, path: str) -> None:
        self._refuse(path)

    def sync_directory(self, path: str) -> None:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, "opened for reading only", path)


class ThreadOffload:
    """Runs blocking calls on dedicated threads, so that a slow disk never occupies threads that other work needs.

    A call wakes one thread, the one that became idle last. Threads that share a queue wake each other and find it empty. The futures and locks of
    an executor cost as much as the rest of the call. That matters because a storage node makes a call for each write round. A call that has begun
    is completed. A call whose caller was cancelled is not begun."""

    def __init__(self, threads: int) -> None:
        self._turn = Lock()
        self._waiting: deque[_Call | None] = deque()
        self._idle: list[SimpleQueue[_Call | None]] = []
        """One queue for each idle thread, its only consumer. None ends the thread."""
        self._threads = [Thread(target=self._work, args=(SimpleQueue(),), name=f"waltz-disk-{number}", daemon=True) for number in range(threads)]
        self._started = self._closed = False

    async def __call__(self, call: Callable[..., T], /, *arguments: object) -> T:
        if self._closed:
            raise RuntimeError("the threads for disk calls have ended")
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._enqueue(_Call(loop, done, call, arguments))
        return await done

    def _enqueue(self, work: _Call | None) -> None:
        with self._turn:
            if not self._idle:
                self._waiting.append(work)
                return
            idle = self._idle.pop()
        idle.put(work)

    def _next_call(self, own: SimpleQueue[_Call | None]) -> None:
        """Gives the oldest waiting call to the thread, or marks the thread idle."""
        with self._turn:
            if self._waiting:
                own.put(self._waiting.popleft())
            else:
                self._idle.append(own)

    def _work(self, own: SimpleQueue[_Call | None]) -> None:
        self._next_call(own)
        while (work := own.get()) is not None:
            deliver = work.run()
            self._next_call(own)  # before the outcome is delivered: a caller that calls again at once gets this thread, whose caches are warm
            deliver()
            del work, deliver  # what they hold must not live until the next one comes

    def close(self) -> None:
        """Returns when all that was asked for is done."""
        self._closed = True
        if self._started:
            for _ in self._threads:
                self._enqueue(None)
            for thread in self._threads:
                thread.join()


class _Call(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    call: Callable[..., object]
    arguments: tuple[object, ...]

    def run(self) -> Callable[[], None]:
        """Runs the call. Returns the function that delivers its outcome to the caller."""
        outcome: object = None
        error: BaseException | None = None
        if not self.done.cancelled():
            try:
                outcome = self.call(*self.arguments)
            except BaseException as raised:
                error = raised
        return partial(self._delivery, outcome, error)

    def _delivery(self, outcome: object, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no caller any more
            self.loop.call_soon_threadsafe(self.deliver, outcome, error)

    def deliver(self, outcome: object, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(outcome)
        else:
            self.done.set_exception(error)


_disk: type[Disk] = FileSystemDisk  # holds the classes to the ports when types are checked
_offload: type[Offload] = ThreadOffload
