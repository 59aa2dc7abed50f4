"""Flips single bits in the files of a storage node and checks the consequences: no reader may ever be served anything but what was appended.

A node with some segments, marks and fences is made once. For each flip its disk is copied and the bit is flipped. Then the node is opened, queried
for everything that it reports, read from end to end and appended to. The result is one of

    refused      a typed error said so, or the partition did not open
    healed       the file has its right bytes again
    rolled back  the other half of an alternating pair holds (control file: the document's rule)
    fell back    the append time of the block before holds, or the creation time of the segment (times: as docs/reference/formats.md has it)
    padding      no reader checks the byte: allowed only where `PADDING` says so

and anything else fails. `python -m verification.crashes.storage_corruption` flips 10,000 bits in each kind of file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from verification.crashes.storage_model import KEY, FixedClock, append, block_of, node_on, records_of, silent_logs
from waltz_log.core.formats.control_format import CONTROL_FILE, CONTROL_HEADER_BYTES, ENTRY_BYTES, FENCE_FILE, SessionMark
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIMES
from waltz_log.errors import WaltzError
from waltz_log.storage import StorageNode
from waltz_log.testing.disk import SimulatedDisk

__all__ = ["KINDS", "PADDING", "CorruptionFound", "flip"]

PARTITIONS: Final = 30
"""Enough partitions for more than 10,000 bits in the control file and in the fence file."""

SESSION: Final = 7
BLOCKS: Final = 120
TAIL: Final = "tail"
"""The space of a data file that was preallocated and holds zeros."""

TAIL_SETTINGS: Final = {"segment_bytes": 1 << 16, "preallocate_bytes": 1 << 14}
KINDS: Final = ("control", "fence", DATA, INDEX, TIMES, TAIL)


class CorruptionFound(AssertionError):
    """A flipped bit had a forbidden effect."""

    def __init__(self, path: str, bit: int, reason: str) -> None:
        super().__init__(f"bit {bit % 8} of byte {bit // 8} of {path} flipped: {reason}")


@dataclass(frozen=True)
class Sound:
    """The disk before any corruption, and what is on it."""

    disk: SimulatedDisk
    records: list[bytes]
    times: list[int]
    marks: tuple[SessionMark, SessionMark]
    """The one before, and the current one, of partition 0; all others are fresh."""

    def paths(self, kind: str) -> list[str]:
        return [f"0/{name}" for name in self.disk.list("0") if name.endswith(f".{kind}")]


def _control_padding(offset: int) -> bool:
    # Creation time and reserved bytes of the header; the partition's number in its entry, which its position implies; the rest is checked.
    return 4 <= offset < 12 or 32 <= offset < CONTROL_HEADER_BYTES or (offset >= CONTROL_HEADER_BYTES and _in_entry(offset) < 4)


def _in_entry(offset: int) -> int:
    return (offset - CONTROL_HEADER_BYTES) % ENTRY_BYTES


PADDING: Final[dict[str, Callable[[int], bool]]] = {
    "control": _control_padding,
    # The number of partitions is in the control file.
    "fence": lambda offset: 4 <= offset < 12 or 28 <= offset < CONTROL_HEADER_BYTES,
    # Creation time and reserved bytes. The creation time is the time of what the times do not record.
    DATA: lambda offset: 4 <= offset < 12 or 40 <= offset < FILE_HEADER_BYTES,
    # The header says nothing that the data file's does not, which is the one that is believed.
    INDEX: lambda offset: offset < FILE_HEADER_BYTES,
    TIMES: lambda offset: offset < FILE_HEADER_BYTES,
    TAIL: lambda offset: False,
}


async def sound(**settings: Any) -> Sound:
    """Some segments, the last of them with more than one block and, where the settings preallocate, a tail of zeros."""
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, PARTITIONS)
    node = node_on(disk, **settings)
    await node.open(KEY)
    store = await node.partition(0)
    records: list[bytes] = []
    times: list[int] = []
    marks: list[SessionMark] = []
    for number in range(BLOCKS):
        if number in (BLOCKS // 3, BLOCKS // 2):
            session = SESSION if marks else SESSION - 1
            await store.set_low_water_mark(session, len(records) + 5)
            marks.append(SessionMark(session, len(records) + 5, len(records) - 1))
        block = block_of(0, len(records), [number % 7 * 9, 3, 40][: 1 + number % 3], salt=number, time_ms=1000 + 7 * number)
        await append(store, max(store.statistics().fence, 1), [block])
        records += records_of(block)
        times += [block.append_time_ms] * block.count
    # Killed, not closed: the last segment keeps the space that was allocated for it.
    return Sound(disk.fork(), records, times, (marks[0], marks[1]))


def bits(sound: Sound, kind: str, count: int, random: Random) -> Iterator[tuple[str, int]]:
    """Files and bits to flip. No bit comes twice unless there are too few."""
    if kind == "control":
        where = [(CONTROL_FILE, 0, len(sound.disk.content(CONTROL_FILE)))]
    elif kind == "fence":
        where = [(FENCE_FILE, 0, len(sound.disk.content(FENCE_FILE)))]
    elif kind == TAIL:
        path = sound.paths(DATA)[-1]
        content = sound.disk.content(path)
        where = [(path, len(content.rstrip(b"\0")), len(content))]
    else:
        where = [(path, 0, len(sound.disk.content(path).rstrip(b"\0"))) for path in sound.paths(kind)]
    every = [(path, bit) for path, start, end in where for bit in range(8 * start, 8 * end)]
    if every:
        chosen = random.sample(every, min(count, len(every)))
        yield from chosen
        yield from (random.choice(every) for _ in range(count - len(chosen)))


async def flip(sound: Sound, kind: str, path: str, bit: int, **settings: Any) -> str:
    """The result of one flipped bit. Raises `CorruptionFound` if it is not one of the permitted results."""
    disk = sound.disk.fork()
    right = disk.content(path)
    corrupted = bytearray(right)
    corrupted[bit // 8] ^= 1 << bit % 8
    disk.replace(path, bytes(corrupted))
    node = node_on(disk, **settings)
    try:
        outcome = await _asked(node, sound, kind)
        now = disk.content(path)[bit // 8 : bit // 8 + 1]
        await _appended(node, sound)
    except WaltzError:
        return "refused"
    except Exception as error:
        raise CorruptionFound(path, bit, f"{type(error).__name__}: {error}") from error
    if outcome is None and (now == right[bit // 8 : bit // 8 + 1] or (kind == TAIL and not now)):
        outcome = "healed"
    if outcome is None and PADDING[kind](bit // 8):
        outcome = "padding"
    if outcome is None and kind in ("control", "fence") and bit // 8 >= CONTROL_HEADER_BYTES:
        outcome = "outvoted"
    if outcome is None:
        raise CorruptionFound(path, bit, "no check noticed")
    return outcome


async def _asked(node: StorageNode, sound: Sound, kind: str) -> str | None:
    """Compares what the node reports with the truth. None if they agree."""
    await node.open(KEY)
    store = await node.partition(0)
    assert node.start >= 2, f"starts went back: {node.start}"
    for partition in range(PARTITIONS):
        fence = SESSION if partition == 0 else -1
        assert node.control.fence(partition) == fence, f"fence is {node.control.fence(partition)} partition={partition}"
        mark = sound.marks[1] if partition == 0 else SessionMark()
        reported = node.control.mark(partition)
        assert reported == mark or (kind == "control" and partition == 0 and reported == sound.marks[0]), f"mark is {reported} partition={partition}"
    rolled_back = node.control.mark(0) != sound.marks[1]
    assert (store.statistics().first_transaction_id, store.last_id) == (0, len(sound.records) - 1), f"the log ends at {store.last_id}"
    fell_back = False
    position = 0
    async for run in store.read(0, -1, 0, store.last_id, 1 << 20):
        for block in run:
            assert block.first_transaction_id == position
            for record in records_of(block):
                assert record == sound.records[position], f"other bytes than were appended transaction_id={position}"
                if block.append_time_ms != sound.times[position]:
                    earlier = block.append_time_ms in sound.times[:position] or block.append_time_ms == FixedClock().now_ms()
                    assert earlier, f"append time is {block.append_time_ms} transaction_id={position}"
                    assert kind == TIMES, f"append time is {block.append_time_ms} transaction_id={position}"
                    fell_back = True
                position += 1
    assert position == len(sound.records), f"reading ended at {position}"
    return "rolled back" if rolled_back else "fell back" if fell_back else None


async def _appended(node: StorageNode, sound: Sound) -> None:
    """A partition that was served as undamaged accepts the next append."""
    store = await node.partition(0)
    following = block_of(0, len(sound.records), [5, 6], salt=99, time_ms=10**6)
    await append(store, SESSION, [following])
    found = [block async for run in store.read(0, -1, len(sound.records), store.last_id, 1 << 20) for block in run]
    assert b"".join(block.records for block in found) == following.records, "other bytes than were appended"
    await node.close()


async def flips(kind: str, count: int, seed: int = 1, **settings: Any) -> Counter[str]:
    """Counts the results of `count` flips. Raises `CorruptionFound`."""
    settings = (TAIL_SETTINGS if kind == TAIL else {}) | settings
    with silent_logs():
        before = await sound(**settings)
        outcomes: Counter[str] = Counter()
        for path, bit in bits(before, kind, count, Random(seed)):
            outcomes[await flip(before, kind, path, bit, **settings)] += 1
        return outcomes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Flips single bits in the files of a storage node.")
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind of file")
    parser.add_argument("--count", type=int, default=10_000, help="flips in each kind")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    for kind in KINDS if chosen.kind is None else (chosen.kind,):
        begun = time.monotonic()
        try:
            outcomes = asyncio.run(flips(kind, chosen.count, chosen.seed))
        except CorruptionFound as found:
            print(f"{kind}: {found}", file=sys.stderr)
            return 1
        reported = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{kind:<8} {outcomes.total():6} flips: {reported}  {time.monotonic() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
