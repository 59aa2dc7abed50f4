"""The disk port in memory: it keeps what was synced and may lose, tear or reorder the rest when its machine dies.

A file's bytes and a directory's names are synced separately, as POSIX has it: a new, renamed or removed name is sure only after its directory was
synced. `crash()` gives the disk as the next start finds it and takes the old one out of service, so that a node that still runs on it can do no harm.

Faults are planted by the test: `before` is called with every operation that changes something and may raise; `total` bounds the bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from waltz_log.core.ports import Disk, DiskFile

__all__ = ["Operation", "SimulatedDisk"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What is about to be done: `create`, `write`, `sync`, `truncate`, `allocate`, `rename`, `link`, `remove`, `make_directory` or
    `sync_directory`."""

    kind: str
    path: str


@dataclass(slots=True, eq=False)
class _File:
    """The bytes as users see them, as the medium has them, and the changes between the two: (offset, data), or (size, None) for a cut."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def survivor(self, random: Random | None) -> _File:
        data = bytearray(self.durable)
        for offset, change in self.changes if random is not None else ():
            assert random is not None
            fate = random.random()
            if fate < 0.4:
                continue
            if change is None:
                _resize(data, offset)
            else:
                _put(data, offset, change if fate < 0.7 else change[: random.randrange(len(change) + 1)])
        return _File(data, bytes(data))


@dataclass(slots=True, eq=False)
class _Directory:
    """Names as users see them and as the medium has them, and the changes between the two, each atomic."""

    now: dict[str, _File | _Directory] = field(default_factory=dict)
    durable: dict[str, _File | _Directory] = field(default_factory=dict)
    changes: list[dict[str, _File | _Directory | None]] = field(default_factory=list)

    def change(self, names: dict[str, _File | _Directory | None]) -> None:
        self.changes.append(names)
        _rename(self.now, names)

    def survivor(self, random: Random | None, files: dict[_File, _File]) -> _Directory:
        names = dict(self.durable)
        for change in self.changes if random is not None else ():
            assert random is not None
            if random.random() < 0.5:
                _rename(names, change)
        found = _Directory()
        for name, entry in names.items():
            if isinstance(entry, _Directory):
                found.now[name] = entry.survivor(random, files)
            else:
                if entry not in files:
                    files[entry] = entry.survivor(random)
                found.now[name] = files[entry]
        found.durable = dict(found.now)
        return found

    def walk(self) -> set[_File]:
        found: set[_File] = set()
        for entry in self.now.values():
            found |= entry.walk() if isinstance(entry, _Directory) else {entry}
        return found


def _rename(names: dict[str, _File | _Directory], change: dict[str, _File | _Directory | None]) -> None:
    for name, entry in change.items():
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _put(data: bytearray, offset: int, change: bytes) -> None:
    if change:
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(change)] = change


class SimulatedDisk:
    """`total`: how many bytes it can hold. The root is the empty path."""

    def __init__(self, total: int = 1 << 40) -> None:
        self.total = total
        self.before: Callable[[Operation], None] = lambda operation: None
        self.operations: list[Operation] = []
        """Every changing operation so far, the failed ones too."""
        self._root = _Directory()
        self._locked = False
        self._dead = False

    # ---- what a test does ------------------------------------------------------------------------------------------------------------------------

    def crash(self, random: Random | None = None, *, keep: bool = False) -> SimulatedDisk:
        """The disk after the machine died: without `random` all that was not synced is lost; with it each change is kept, lost or torn by chance.
        `keep`: only the process died; everything it wrote is there, but what it did not sync is not on the medium yet."""
        self._dead = True
        after = SimulatedDisk(self.total)
        after._root = deepcopy(self._root) if keep else self._root.survivor(random, {})
        return after

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).now)

    def replace(self, path: str, content: bytes) -> None:
        """Puts other bytes on the medium behind everybody's back, as rot or an operator would."""
        file = self._file(path)
        file.now[:] = content
        file.durable, file.changes = bytes(content), []

    # ---- the port --------------------------------------------------------------------------------------------------------------------------------

    def _operate(self, kind: str, path: str) -> None:
        operation = Operation(kind, path)
        self.operations.append(operation)
        self._alive(path)
        self.before(operation)
        self._alive(path)

    def _alive(self, path: str) -> None:
        if self._dead:
            raise OSError(errno.EIO, "the machine is dead", path)

    def _directory(self, path: str) -> _Directory:
        found: _File | _Directory | None = self._root
        for part in path.split("/") if path else ():
            found = found.now.get(part) if isinstance(found, _Directory) else None
        if not isinstance(found, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return found

    def _place(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _file(self, path: str) -> _File:
        directory, name = self._place(path)
        found = directory.now.get(name)
        if not isinstance(found, _File):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        self._alive(path)
        if mode != "create":
            return _OpenFile(self, path, self._file(path), mode == "write")
        self._operate("create", path)
        directory, name = self._place(path)
        if name in directory.now:
            raise FileExistsError(errno.EEXIST, "exists", path)
        file = _File()
        directory.change({name: file})
        return _OpenFile(self, path, file, True)

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
                directory.change({part: _Directory()})
            entry = directory.now[part]
            if not isinstance(entry, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", path)
            directory = entry

    def rename(self, old: str, new: str) -> None:
        self._operate("rename", new)
        file = self._file(old)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        if source is target:
            source.change({old_name: None, new_name: file})
        else:
            target.change({new_name: file})
            source.change({old_name: None})

    def link(self, old: str, new: str) -> None:
        self._operate("link", new)
        file = self._file(old)
        target, name = self._place(new)
        if name in target.now:
            raise FileExistsError(errno.EEXIST, "exists", new)
        target.change({name: file})

    def remove(self, path: str) -> None:
        self._operate("remove", path)
        self._file(path)
        directory, name = self._place(path)
        directory.change({name: None})

    def sync_directory(self, path: str) -> None:
        self._operate("sync_directory", path)
        directory = self._directory(path)
        directory.durable, directory.changes = dict(directory.now), []

    def free_bytes(self) -> int:
        return max(0, self.total - sum(len(file.now) for file in self._root.walk()))

    def total_bytes(self) -> int:
        return self.total

    def lock(self) -> None:
        self._alive("")
        if self._locked:
            raise BlockingIOError(errno.EAGAIN, "another process holds the directory")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False


class _OpenFile:
    def __init__(self, disk: SimulatedDisk, path: str, file: _File, writable: bool) -> None:
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
        return len(self._file.now)

    def read(self, offset: int, length: int) -> bytes:
        self._usable()
        return bytes(self._file.now[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self._change("write")
        room = self._disk.free_bytes() - max(0, offset + len(data) - len(self._file.now))
        kept = data if room >= 0 else data[: max(0, len(data) + room)]
        _put(self._file.now, offset, kept)
        self._file.changes.append((offset, bytes(kept)))
        if room < 0:
            raise OSError(errno.ENOSPC, "no space left on device", self._path)

    def sync(self) -> None:
        self._change("sync")
        self._file.durable, self._file.changes = bytes(self._file.now), []

    def truncate(self, size: int) -> None:
        self._change("truncate")
        _resize(self._file.now, size)
        self._file.changes.append((size, None))

    def allocate(self, size: int) -> None:
        self._change("allocate")
        missing = size - len(self._file.now)
        if missing > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        if missing > 0:
            _resize(self._file.now, size)
            self._file.changes.append((size, None))

    def close(self) -> None:
        self._open = False


_disk: Disk = SimulatedDisk()  # holds the class to the port when types are checked
