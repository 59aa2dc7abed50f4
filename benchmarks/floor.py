"""The speed of the disk alone with the same bytes: write and fdatasync, without network, checksum or a second process.

One record at a time is written to the files of all replicas at once, each by a thread of its own, and is done when a majority has synced it, as the
platform does. Blocks under load are written to one file after another.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path

__all__ = ["BLOCK_BYTES", "pipelined_floor", "single_floor_ms"]

BLOCK_BYTES = 256 * 1024
"""About as many bytes as the replicas write at once under load."""


def single_floor_ms(directory: Path, *, record_bytes: int, replicas: int, majority: int, count: int) -> list[float]:
    """Of each of `count` records, the time to write it to one file per replica in parallel, until the `majority`-th of them is synced. If a file is
    late with the last record, the next one waits in its queue, as in a replica."""
    files = [_create(directory / f"floor-{replica}") for replica in range(replicas)]
    record = os.urandom(record_bytes)
    synced: queue.SimpleQueue[int] = queue.SimpleQueue()
    asked: list[queue.SimpleQueue[int | None]] = [queue.SimpleQueue() for _ in files]

    def write(file: int, wanted: queue.SimpleQueue[int | None]) -> None:
        while (number := wanted.get()) is not None:
            os.write(file, record)
            os.fdatasync(file)
            synced.put(number)

    threads = [threading.Thread(target=write, args=each) for each in zip(files, asked, strict=True)]
    for thread in threads:
        thread.start()
    took_ms = []
    for number in range(count):
        start_s = time.perf_counter()
        for each in asked:
            each.put(number)
        answers = 0
        while answers < majority:
            answers += synced.get() == number
        took_ms.append((time.perf_counter() - start_s) * 1000)
    for each in asked:
        each.put(None)
    for thread in threads:
        thread.join()
    _remove(directory, files)
    return took_ms


def pipelined_floor(directory: Path, *, record_bytes: int, replicas: int, count: int) -> float:
    """Records per second when blocks of `BLOCK_BYTES` are written to one file per replica, each synced."""
    files = [_create(directory / f"floor-{replica}") for replica in range(replicas)]
    block = os.urandom(BLOCK_BYTES)
    blocks = max(1, count * record_bytes // BLOCK_BYTES)
    start_s = time.perf_counter()
    for _ in range(blocks):
        for file in files:
            os.write(file, block)
            os.fdatasync(file)
    took_s = time.perf_counter() - start_s
    _remove(directory, files)
    return blocks * BLOCK_BYTES / record_bytes / took_s


def _create(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)


def _remove(directory: Path, files: list[int]) -> None:
    for replica, file in enumerate(files):
        os.close(file)
        (directory / f"floor-{replica}").unlink()
