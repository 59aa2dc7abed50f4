"""Makes the disk full at every single write of a roll, on a real file system. Checks that nothing acknowledged is lost and that appends continue when
there is space again.

    unshare -m python -m verification.crashes.storage_full DIRECTORY             mounts a small tmpfs there, which vanishes with the process
    python -m verification.crashes.storage_full DIRECTORY --limit                where mounting is not allowed: a limit on the size of files instead

The disk has a small number of free pages or inodes, and a round of appends rolls to a new segment. With each additional page the round fails one
write later, until it succeeds. Each time, everything acknowledged before is read while the disk is full. When there is space again, the append is
repeated on the same node if it still serves, and on a restarted one. Everything acknowledged must be there.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from verification.crashes.storage_model import KEY, FixedClock, append, block_of, node_on, read_all, records_of, silent_logs
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import StorageFailed, StorageFull
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode

__all__ = ["FullFound", "fill_at_every_write"]

PAGE_BYTES = 4096
MOUNTED_BYTES = 2 * 1024 * 1024
INODES = 40
BEFORE_TRANSACTIONS = 240
SEGMENT_BYTES = FILE_HEADER_BYTES + BEFORE_TRANSACTIONS * (1000 + RECORD_OVERHEAD_BYTES) + 100


class FullFound(AssertionError):
    """Something that was acknowledged is missing, or appends do not continue."""


class Watched(FileSystemDisk):
    """Records which call reached the limit. It always reports free space, as if another process filled the disk between the query and the write."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.met: list[str] = []

    @contextmanager
    def noted(self, kind: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG):
                self.met.append(f"{kind} {path.partition('.')[2]}")
            raise

    def free_bytes(self) -> int:
        return self.total_bytes()

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        with self.noted(mode, path):
            return _WatchedFile(super().open(path, mode), self, path)


class _WatchedFile:
    def __init__(self, file: DiskFile, disk: Watched, path: str) -> None:
        self._file = file
        self._disk = disk
        self._path = path

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._file, name)
        if name not in ("write", "allocate", "truncate"):
            return call

        def watched(*arguments: Any) -> Any:
            with self._disk.noted(name, self._path):
                return call(*arguments)

        return watched


def _node(disk: Disk) -> StorageNode:
    return node_on(disk, segment_bytes=SEGMENT_BYTES, disk_warn_free_bytes=0, disk_refuse_free_bytes=0)


BEFORE = block_of(0, 0, [1000] * BEFORE_TRANSACTIONS, salt=1)
"""Leaves no room in the first segment for what follows."""

ROLLING = [block_of(0, BEFORE_TRANSACTIONS + 3 * n, [40, 0, 7], salt=2, time_ms=5000 + 10 * n) for n in range(300)]
"""A round whose data, index and times each need more than the page that their headers stand in."""


async def _try(root: Path, limited: Callable[[], None], freed: Callable[[], None]) -> list[str]:
    """One round against the limit. Returns the calls that reached it; none if the round fitted."""
    shutil.rmtree(root, ignore_errors=True)
    StorageNode.create(FileSystemDisk(root), FixedClock(), KEY, 1)
    disk = Watched(root)
    node = _node(disk)
    await node.open(KEY)
    store = await node.partition(0)
    await append(store, 1, [BEFORE])
    acknowledged = records_of(BEFORE)
    rolling = [record for block in ROLLING for record in records_of(block)]
    limited()
    failed = await _refused(append(store, 1, ROLLING))
    if failed is None:
        acknowledged += rolling
    try:
        if await read_all(store, 1, 0, BEFORE_TRANSACTIONS - 1) != acknowledged[:BEFORE_TRANSACTIONS]:
            raise FullFound(f"other bytes than were appended met={disk.met}")
    except StorageFailed:
        # A partition that stopped answers nothing; what it has is read after the next start.
        if failed is None:
            raise
    freed()
    if failed is not None:
        again = await _refused(append(store, 1, ROLLING))
        if again is None:
            acknowledged += rolling
        elif isinstance(failed, StorageFull):
            raise FullFound(f"appending does not go on with space: {again} met={disk.met}")
    await node.close()
    await _restarted(root, acknowledged, rolling, disk.met)
    return disk.met


async def _refused(work: Any) -> StorageFailed | None:
    try:
        await work
    except StorageFailed as error:
        return error
    return None


async def _restarted(root: Path, acknowledged: list[bytes], rolling: list[bytes], met: list[str]) -> None:
    node = _node(FileSystemDisk(root))
    await node.open(KEY)
    store = await node.partition(0)
    found = await read_all(store, 1, 0, store.last_id)
    everything = acknowledged[:BEFORE_TRANSACTIONS] + rolling
    if len(found) < len(acknowledged) or found != everything[: len(found)]:
        raise FullFound(f"{len(found)} transactions after the next start, expected {len(acknowledged)} at least met={met}")
    following = block_of(0, len(found), [9], salt=3)
    await append(store, 1, [following])
    if await read_all(store, 1, len(found), len(found)) != records_of(following):
        raise FullFound(f"the next append is not there met={met}")
    await node.close()


async def fill_at_every_write(directory: Path) -> dict[str, list[str]]:
    """The calls that found the disk full, for pages and for inodes, ordered by the space that was left."""
    found: dict[str, list[str]] = {"pages": [], "inodes": []}
    filler, fillers = directory / "filler", directory / "fillers"

    def pages_left(pages: int) -> None:
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o644)
        os.posix_fallocate(descriptor, 0, os.statvfs(directory).f_bavail * PAGE_BYTES - pages * PAGE_BYTES)
        os.close(descriptor)

    def inodes_left(inodes: int) -> None:
        fillers.mkdir()
        while os.statvfs(directory).f_favail > inodes:
            (fillers / str(os.statvfs(directory).f_favail)).touch()

    for kind, left, free in (("pages", pages_left, filler.unlink), ("inodes", inodes_left, lambda: shutil.rmtree(fillers))):
        amount = 0
        while met := await _try(directory / "storage", lambda left=left, amount=amount: left(amount), free):  # type: ignore[misc]
            found[kind].append(met[0])
            amount += 1
    return found


async def limit_at_every_write(directory: Path) -> dict[str, list[str]]:
    """The same with a limit on the size of any file, which a process can put on itself."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    found = []
    for limit in [0, *range(PAGE_BYTES // 2, 16 * PAGE_BYTES, PAGE_BYTES)]:
        met = await _try(
            directory / "storage",
            lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)),  # type: ignore[misc]
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
        )
        if not met:
            break
        found.append(met[0])
    return {"limit": found}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fills the disk at every write of a roll.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--limit", action="store_true", help="limit the size of files instead of filling a file system")
    chosen = parser.parse_args(arguments)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    if not chosen.limit:
        options = f"size={MOUNTED_BYTES},nr_inodes={INODES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(chosen.directory)], check=True)
    with silent_logs():
        work = limit_at_every_write if chosen.limit else fill_at_every_write
        for kind, met in asyncio.run(work(chosen.directory)).items():
            print(f"{kind}: {len(met)} times full: {', '.join(dict.fromkeys(met))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
