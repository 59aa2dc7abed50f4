"""What the disk alone can do with the same bytes: a bare loop of write and fdatasync, no network, no checksum, no second process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.measurement import percentile

__all__ = ["BLOCK_BYTES", "pipelined_floor", "single_floor_ms"]

BLOCK_BYTES = 256 * 1024
"""What the replicas write at once under load, about."""


def single_floor_ms(directory: Path, *, record_bytes: int, replicas: int, count: int) -> float:
    """p50 of writing one record to one file per replica and syncing each, one after another."""
    files = [_create(directory / f"floor-{replica}") for replica in range(replicas)]
    record = os.urandom(record_bytes)
    took_ms = []
    for _ in range(count):
        start_s = time.perf_counter()
        for file in files:
            os.write(file, record)
            os.fdatasync(file)
        took_ms.append((time.perf_counter() - start_s) * 1000)
    _remove(directory, files)
    return percentile(took_ms, 0.5)


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
