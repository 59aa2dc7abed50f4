"""The disk port in memory: it keeps what was synced and may lose, tear or reorder the rest when its machine dies.

A file's bytes and a directory's names are synced separately, as in POSIX: a new, renamed or removed name is durable only after its directory was
synced. `pending()` lists every change that was not synced separately, in order; `survivor` gives the disk as the next start finds it after any fate
of each of them, so that a test can go through them (`verification/crashes/crashes.py`) or draw them (`crash`).

A failed sync is final, as on Linux. What it should have written stays visible to a process that has the file open, and is never written by a later
sync, even one that succeeds. A process that opens the file for writing again sees the medium.

Faults are planted by the test: `before` is called with every operation that changes something and may raise, a write also with `TornWrite`;
`before_read` is called with every read of a file and may raise; `total` bounds the bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Literal

from waltz_log.core.ports import Disk, DiskFile
from waltz_log.testing.medium import Change, Content, Directory, Fate, File, Pending, drawn_fate

__all__ = ["Operation", "SimulatedDisk", "TornWrite"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What is about to be done: `create`, `write`, `sync`, `truncate`, `allocate`, `rename`, `link`, `remove`, `make_directory` or
    `sync_directory`."""

    kind: str
    path: str


class TornWrite(OSError):
    """A write that failed after a share of its bytes, from 0 to 1, was written. Raised by `SimulatedDisk.before`."""

    def __init__(self, path: str, share: float) -> None:
        super().__init__(errno.EIO, "input/output error", path)
        self.share = share


class SimulatedDisk:
    """`total`: how many bytes it can hold. The root is the empty path."""

    def __init__(self, total: int = 1 << 40) -> None:
        self.total = total
        self.before: Callable[[Operation], None] = lambda operation: None
        self.before_read: Callable[[str], None] | None = None
        """Called with the path of a file that is about to be read."""
        self.operations: list[Operation] = []
        """Every changing operation so far, the failed ones too."""
        self._root = Directory()
        self._changed = 0
        self._locked = False
        self._dead = False

    # ---- what a test does ------------------------------------------------------------------------------------------------------------------------

    def pending(self) -> list[Pending]:
        """The changes that are not on the medium for certain, oldest first."""
        found = []
        for entry in self._root.reachable({}):
            if isinstance(entry, File):
                found += [change.pending() for change in entry.changes]
            else:
                found += [Pending(order, 0, 0) for order, _ in entry.changes]
        return sorted(found)

    def survivor(self, fates: Sequence[Fate]) -> SimulatedDisk:
        """The disk after the machine died now, with a fate for each of `pending()`. This disk goes on."""
        after = SimulatedDisk(self.total)
        told = {pending.order: fate for pending, fate in zip(self.pending(), fates, strict=True)}
        after._root = self._root.survivor(told, {})
        return after

    def fork(self) -> SimulatedDisk:
        """The disk after the process died now: everything it wrote exists, but what it did not sync is not on the medium yet. This disk goes on."""
        after = SimulatedDisk(self.total)
        after._root, after._changed = self._root.copy({}), self._changed
        return after

    def crash(self, random: Random | None = None, *, keep: bool = False) -> SimulatedDisk:
        """The disk after the machine died, out of service from now on: without `random` all that was not synced is lost; with it each change is
        kept, lost or torn by chance. `keep`: only the process died (`fork`)."""
        after = self.fork() if keep else self.survivor([drawn_fate(each, random) for each in self.pending()])
        self._dead = True
        return after

    def image(self) -> bytes:
        """A digest of all names and bytes that users see: disks with the same one are the same to who opens them after a crash of the machine."""
        digest = sha256()
        for path, file in self._root.paths():
            digest.update(f"{path}\0{-1 if file is None else file.now.size}\0".encode())
            if file is not None:
                digest.update(bytes(file.now.data).rstrip(b"\0"))
        return digest.digest()

    def content(self, path: str) -> bytes:
        content = self._file(path).now
        return content.read(0, content.size)

    def replace(self, path: str, content: bytes) -> None:
        """Changes bytes on the medium without the disk's users, like corruption or an operator."""
        file = self._file(path)
        file.now, file.durable, file.changes = Content(content), Content(content), []

    # ---- the port --------------------------------------------------------------------------------------------------------------------------------

    def _operate(self, kind: str, path: str) -> None:
        operation = Operation(kind, path)
        self.operations.append(operation)
        self._alive(path)
        self.before(operation)
        self._alive(path)

    def _order(self) -> int:
        self._changed += 1
        return self._changed

    def _alive(self, path: str) -> None:
        if self._dead:
            raise OSError(errno.EIO, "the machine is dead", path)

    def _directory(self, path: str) -> Directory:
        found: File | Directory | None = self._root
        for part in path.split("/") if path else ():
            found = found.now.get(part) if isinstance(found, Directory) else None
        if not isinstance(found, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return found

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _file(self, path: str) -> File:
        directory, name = self._place(path)
        found = directory.now.get(name)
        if not isinstance(found, File):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        self._alive(path)
        if mode != "create":
            if mode == "write" and self._root.names(self._file(path)) > 1:
                self._separate(path)
            file = self._file(path)
            if mode == "write":
                file.drop_forsaken()
            return _OpenFile(self, path, file, mode == "write")
        self._operate("create", path)
        directory, name = self._place(path)
        if name in directory.now:
            raise FileExistsError(errno.EEXIST, "exists", path)
        file = File()
        directory.change(self._order(), {name: file})
        return _OpenFile(self, path, file, True)

    def _separate(self, path: str) -> None:
        """As the port has it: a name that is opened for writing gets its own file, and the other names keep theirs."""
        file = self.open(f"{path}.new", "create")
        file.write(0, self.content(path))
        file.sync()
        self.rename(f"{path}.new", path)
        self.sync_directory(path.rpartition("/")[0])

    def list(self, path: str) -> list[str]:
        self._alive(path)
        try:
            return sorted(self._directory(path).now)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        self._alive(path)
        try:
            directory, name = self._place(path)
        except FileNotFoundError:
            return False
        return name in directory.now

    def make_directory(self, path: str) -> None:
        self._operate("make_directory", path)
        directory = self._root
        for part in path.split("/"):
            if part not in directory.now:
                directory.change(self._order(), {part: Directory()})
            entry = directory.now[part]
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", path)
            directory = entry

    def rename(self, old: str, new: str) -> None:
        self._operate("rename", new)
        file = self._file(old)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        if source is target:
            source.change(self._order(), {old_name: None, new_name: file})
        else:
            target.change(self._order(), {new_name: file})
            source.change(self._order(), {old_name: None})

    def link(self, old: str, new: str) -> None:
        self._operate("link", new)
        file = self._file(old)
        target, name = self._place(new)
        if name in target.now:
            raise FileExistsError(errno.EEXIST, "exists", new)
        target.change(self._order(), {name: file})

    def remove(self, path: str) -> None:
        self._operate("remove", path)
        directory, name = self._place(path)
        entry = directory.now.get(name)
        if not isinstance(entry, Directory):
            self._file(path)
        elif entry.now:
            raise OSError(errno.ENOTEMPTY, "is not empty", path)
        directory.change(self._order(), {name: None})

    def sync_directory(self, path: str) -> None:
        self._operate("sync_directory", path)
        directory = self._directory(path)
        directory.durable, directory.changes = dict(directory.now), []

    def free_bytes(self) -> int:
        return max(0, self.total - sum(file.now.size for file in self._root.walk()))

    def total_bytes(self) -> int:
        return self.total

    def writable(self) -> bool:
        return True

    def lock(self) -> None:
        self._alive("")
        if self._locked:
            raise BlockingIOError(errno.EAGAIN, "another process holds the directory")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False


class _OpenFile:
    def __init__(self, disk: SimulatedDisk, path: str, file: File, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._writable = writable
        self._open = True

    def _usable(self) -> None:
        self._disk._alive(self._path)
        if not self._open:
            raise OSError(errno.EBADF, "closed", self._path)

    def _change(self, kind: str) -> None:
        self._disk._operate(kind, self._path)
        self._usable()
        if not self._writable:
            raise OSError(errno.EBADF, "opened for reading", self._path)

    def size(self) -> int:
        self._usable()
        return self._file.now.size

    def read(self, offset: int, length: int) -> bytes:
        self._usable()
        if self._disk.before_read is not None:
            self._disk.before_read(self._path)
        return self._file.now.read(offset, length)

    def _put(self, offset: int, data: bytes | None) -> None:
        self._file.change(Change(self._disk._order(), offset, data))

    def write(self, offset: int, data: bytes) -> None:
        try:
            self._change("write")
        except TornWrite as error:
            if torn := data[: int(len(data) * error.share)]:
                self._put(offset, bytes(torn))
            raise
        grows = max(0, offset + len(data) - self._file.now.size)
        room = self._disk.free_bytes() - grows if grows else 0  # to know the free space is to walk over all files
        kept = data if room >= 0 else data[: max(0, len(data) + room)]
        if kept:
            self._put(offset, bytes(kept))
        if room < 0:
            raise OSError(errno.ENOSPC, "no space left on device", self._path)

    def sync(self) -> None:
        try:
            self._change("sync")
        except OSError:
            self._file.forsake()
            raise
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._change("truncate")
        self._put(size, None)

    def allocate(self, size: int) -> None:
        self._change("allocate")
        missing = size - self._file.now.size
        if missing > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        if missing > 0:
            self._put(size, None)

    def next_data(self, offset: int) -> int:
        self._usable()
        return min(offset, self._file.now.size)

    def uncache(self, start: int, end: int) -> None:
        self._usable()
        if not 0 <= start <= end <= self._file.now.size:
            raise OSError(errno.EINVAL, "not within the file", self._path)

    def close(self) -> None:
        self._open = False


_disk: Disk = SimulatedDisk()  # holds the class to the port when types are checked
