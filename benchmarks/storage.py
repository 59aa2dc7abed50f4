"""The storage engine alone: appends through a partition's store, compared with a bare loop of write and fdatasync; verified reads; rebuilding an
index. No network and no second process. The store and the bare loop write the same blocks to the same disk in turns, so that other load on the
machine affects both. Processor time shows the capacity of a core.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from struct import pack
from typing import Any
from uuid import UUID

from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, RECORD_BYTES, Workload
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import assign_ids
from waltz_log.core.formats.records import encode_record
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.opening import repair_closed_index
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["run"]

KEY = UUID(int=1)
BLOCK_BYTES = 64 * 1024
RECORDS = BLOCK_BYTES // RECORD_BYTES
TURNS = 8
IN_FLIGHT = 8
READ_BYTES = 1024 * 1024


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    disk = FileSystemDisk(directory / "storage")
    blocks = _blocks(workload.storage_blocks)
    own = {key: value for key, value in conditions.items() if key != "replicas"} | {"blocks": len(blocks), "block_bytes": BLOCK_BYTES}
    return [asyncio.run(_append(directory, disk, blocks, own)), *_read(disk, blocks, own)]


def _blocks(count: int) -> list[Block]:
    records = [encode_record(1, 1, 0, number, 0, os.urandom(DATA_BYTES)) for number in range(RECORDS)]
    lengths = pack(f">{RECORDS}i", *map(len, records))
    joined = b"".join(records)
    return [Block(n * RECORDS, lengths, assign_ids(joined, lengths, n * RECORDS), 1_700_000_000_000 + n) for n in range(count)]


async def _append(directory: Path, disk: FileSystemDisk, blocks: Sequence[Block], conditions: Mapping[str, Any]) -> Measurement:
    """From a verified block's arrival to its acknowledgment; `IN_FLIGHT` blocks unacknowledged at most."""
    StorageNode.create(disk, _Clock(), KEY, 1)
    settings = StorageSettings(coordinator="none", name="bench", directory=directory)
    offload = ThreadOffload(settings.disk_threads)
    node = StorageNode(settings, disk, _Clock(), offload)
    await node.open(KEY)
    store = await node.partition(0)
    await store.open_session(1)
    appender = await store.attach(1, IN_FLIGHT * BLOCK_BYTES)
    bare = os.open(directory / "bare", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    size = len(blocks) // TURNS
    took_s: list[tuple[float, float]] = []
    for turn in range(TURNS):
        part = blocks[turn * size : (turn + 1) * size]
        began_s = time.perf_counter()
        for block in part:
            await store.append(appender, block)
            await appender.wait_for_capacity()
        while appender.acknowledged != part[-1].last_transaction_id:
            await appender.changed()
        between_s = time.perf_counter()
        for block in part:
            os.write(bare, block.records)
            os.fdatasync(bare)
        took_s.append((between_s - began_s, time.perf_counter() - between_s))
    rounds = store.statistics().write_rounds
    os.close(bare)
    (directory / "bare").unlink()
    await node.close()
    offload.close()
    written = size * len(blocks[0].records) / 1e6
    rate, floor = written / median(store_s for store_s, _ in took_s), written / median(bare_s for _, bare_s in took_s)
    own = {**conditions, "in_flight": IN_FLIGHT, "blocks_per_sync": round(len(blocks) / rounds, 1), "turns": TURNS}
    measured = Measurement("storage.append", rate, "MB/s", own)
    return measured.compared_with(floor, f"write+fdatasync of each block to one file, {floor:.0f} MB/s")


def _read(disk: FileSystemDisk, blocks: Sequence[Block], conditions: Mapping[str, Any]) -> list[Measurement]:
    count = len(blocks) // TURNS * TURNS * RECORDS
    log = SegmentLog.open(disk, _Clock(), KEY, 0, 1 << 30, -1)
    began_s = time.process_time()
    reader, position = log.reader(0), 0
    while run := log.read(reader, position, count - 1, READ_BYTES):
        position = run[-1].last_transaction_id + 1
    reading_s = time.process_time() - began_s
    if position != count:
        raise RuntimeError(f"the log gave another number of transactions than were appended: got={position} appended={count}")
    log.close()
    began_s = time.process_time()
    repair_closed_index(OpenFiles(disk, 16), "0", KEY, 0, 0, count)
    rebuilding_s = time.process_time() - began_s
    own = {**conditions, "log": "warm"}
    return [
        Measurement("storage.read", count / reading_s, "records/s per core", {**own, "range_bytes": READ_BYTES}),
        Measurement("storage.index_rebuild", count / rebuilding_s, "records/s per core", own),
    ]
