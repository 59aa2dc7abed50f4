"""Kills a process that compacts, again and again, and compares what the next one finds with the simplest fold of the log.

    python -m verification.crashes.compaction_kills DIRECTORY [--kills 50] [--seed 1]

The process is a storage node on the real file system, with the threads a node has: it appends, folds its view in the smallest possible steps, and
trims what the view holds, all at the same time. It writes the progress of the view to a pipe. A kill comes a random moment after some of that, so it
hits folds, merges, changes of the view and trims alike. The contents of a transaction follow from its id, so the expected fold also includes trimmed
transactions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import pack

from verification.crashes.storage_kills import KillFound, forked, lines_of
from verification.crashes.storage_model import KEY, FixedClock, append, silent_logs
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.core.formats.records import encode_record
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.views.views import TopicPartition, Wanted

__all__ = ["kill_and_compare"]

OF = TopicPartition(TopicName("market", "prices"), 0, {})
KEYS = 199
NOTES_MAX = 6
"""The maximum number of steps before a kill. Many kills find more than long runs."""


def keyed(transaction_id: int) -> tuple[bytes, bytes]:
    value = b"" if transaction_id % 17 == 0 else b"%d:" % transaction_id + bytes(transaction_id * 31 % 300)
    return b"k%d" % (transaction_id * transaction_id % KEYS), value


def block_at(first: int, count: int) -> Block:
    records = [encode_record(1, 1, 0, first + n, 0, pack_keyed(*keyed(first + n)), first + n) for n in range(count)]
    return Block(first, pack(f">{count}i", *map(len, records)), b"".join(records), 1000 + first)


def fold(bound: int) -> list[tuple[int, bytes, bytes]]:
    latest = {keyed(transaction_id)[0]: transaction_id for transaction_id in range(bound)}
    return [(transaction_id, *keyed(transaction_id)) for transaction_id in sorted(latest.values())]


def _node(directory: Path) -> StorageNode:
    settings = StorageSettings(
        name="storage-0",
        directory=directory,
        coordinator="test",
        segment_bytes=16 * 1024,
        compaction_key_cache_bytes=4096,
        compaction_bytes_per_s=1 << 40,
        scrub_bytes_per_s=0,
        disk_warn_free_bytes=0,
        disk_refuse_free_bytes=0,
    )
    return StorageNode(settings, FileSystemDisk(directory), FixedClock(), ThreadOffload(4))


async def _compact(directory: Path, run: int, note: Callable[[str], None]) -> None:
    """One run of the process, which ends when it is killed."""
    random = Random(run)
    node = _node(directory)
    await node.open(KEY)
    store = await node.partition(0)
    await store.open_session(run)
    await store.set_low_water_mark(run, max(store.last_id, store.statistics().low_water_mark))
    note(f"open {node.views.bound(0)}")
    while True:
        await append(store, run, [block_at(store.last_id + 1, random.randrange(1, 80)) for _ in range(1)])
        await node.views.compact(store.log, OF, 0, Wanted(store.last_id + 1, store.last_id + 1, 0, 1 << 60))
        while node.views.bound(0) <= store.last_id - random.randrange(100):
            if node.views.describe(0).error:
                raise KillFound(node.views.describe(0).error)
            await asyncio.sleep(0)
        note(f"view {node.views.bound(0)}")
        if random.random() < 0.3:
            await store.trim(min(node.views.bound(0), store.trimmable + 1), run)


async def _compare(directory: Path) -> int:
    """Opens the directory in a separate process. Returns the bound of the view."""
    node = _node(directory)
    await node.open(KEY)
    reported = node.views.describe(0)
    if reported.error:
        raise KillFound(reported.error)
    found = []
    if reported.exists:
        async for page in node.views.read(0, 0, 10_000, 0):
            found += [(record.transaction_id, record.key, record.value) for record in page.records]
    if found != fold(reported.bound):
        raise KillFound(f"the view up to {reported.bound} is not the fold: {len(found)} records, wanted {len(fold(reported.bound))}")
    first = (await node.partition(0)).log.first_id
    if first > reported.bound:
        raise KillFound(f"the log begins at {first}, the view ends at {reported.bound}")
    await node.close()
    return reported.bound


def kill_and_compare(directory: Path, kills: int, seed: int) -> dict[str, int]:
    """Returns statistics of the run. Raises `KillFound`."""
    random = Random(seed)
    StorageNode.create(FileSystemDisk(directory), FixedClock(), KEY, 1)
    figures = {"kills": 0, "changes": 0, "bound": 0, "further_than_noted": 0}
    for run in range(1, kills + 1):
        child, reading = forked(lambda note, run=run: asyncio.run(_compact(directory, run, note)))  # type: ignore[misc]
        lines, rest = lines_of(reading, random.randrange(NOTES_MAX))
        time.sleep(random.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        late, _ = lines_of(reading, None)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise KillFound(f"the node ended by itself run={run} status={status}")
        late[:1] = [rest.decode() + line for line in late[:1]]
        noted = max((int(line.split()[1]) for line in lines + late), default=figures["bound"])
        bound = _compared(directory, run)
        if bound < max(noted, figures["bound"]):
            raise KillFound(f"the view goes back from {max(noted, figures['bound'])} to {bound} run={run}")
        figures["further_than_noted"] += bound > noted
        figures["kills"] += 1
        figures["changes"] += len(lines + late)
        figures["bound"] = bound
    return figures


def _compared(directory: Path, run: int) -> int:
    child, reading = forked(lambda note: note(f"bound {asyncio.run(_compare(directory))}"))
    lines, _ = lines_of(reading, None)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if status != 0 or len(lines) != 1:
        raise KillFound(f"what the kill left is not right run={run}")
    return int(lines[0].split()[1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kills a node that compacts again and again and compares.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with silent_logs():
        figures = kill_and_compare(chosen.directory, chosen.kills, chosen.seed)
    print(" ".join(f"{name}={value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
