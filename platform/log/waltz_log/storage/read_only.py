"""A disk that can only be looked at: what the tools get that must not change anything.

Every change is refused with `OSError` (EROFS) before it reaches the disk below, files open for reading alone, and the directory is not locked:
a look at the directory of a running node must not keep that node from anything.
"""

from __future__ import annotations

import errno
from typing import Literal, NoReturn

from waltz_log.core.ports import Disk, DiskFile

__all__ = ["ReadOnlyDisk"]


def _refused(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "opened read-only", path)


class _ReadOnlyFile:
    def __init__(self, path: str, file: DiskFile) -> None:
        self._path = path
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def write(self, offset: int, data: bytes) -> None:
        _refused(self._path)

    def sync(self) -> None:
        _refused(self._path)

    def truncate(self, size: int) -> None:
        _refused(self._path)

    def allocate(self, size: int) -> None:
        _refused(self._path)

    def close(self) -> None:
        self._file.close()


class ReadOnlyDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        if mode != "read":
            _refused(path)
        return _ReadOnlyFile(path, self._disk.open(path, "read"))

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def make_directory(self, path: str) -> None:
        _refused(path)

    def rename(self, old: str, new: str) -> None:
        _refused(new)

    def link(self, old: str, new: str) -> None:
        _refused(new)

    def remove(self, path: str) -> None:
        _refused(path)

    def sync_directory(self, path: str) -> None:
        _refused(path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def total_bytes(self) -> int:
        return self._disk.total_bytes()

    def lock(self) -> None:
        _refused("")

    def unlock(self) -> None:
        """Nothing was locked."""


_disk: type[Disk] = ReadOnlyDisk  # holds the class to the port when types are checked
