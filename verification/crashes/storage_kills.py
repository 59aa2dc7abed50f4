"""Kills a process that writes through a storage node, again and again, and compares what the next one finds with what was acknowledged.

    python -m verification.crashes.storage_kills DIRECTORY [--kills 200] [--seed 1]

The writer is a real process on the real file system, with the threads a node has. It writes its acknowledgments to a pipe. A kill comes a random
moment after some acknowledgments, so it hits writes, rolls, truncations, marks and openings alike. Another process then opens the directory and reads
everything. The expected records follow from their ids and from the process that wrote them.

A killed process leaves the page cache unchanged, so this finds errors in the order and completeness of calls, not missing syncs
(`verification/crashes/crashes.py` does that).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from verification.crashes.storage_model import KEY, FixedClock, append, block_of, node_on, read_all, silent_logs
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode

__all__ = ["KillFound", "Noted", "compare_with", "forked", "kill_and_compare", "lines_of"]

SEGMENT_BYTES = 16 * 1024
ACKNOWLEDGED_MAX = 8
"""The maximum number of acknowledgments before a kill. Many kills find more than long runs."""

LOG_MAX = 1500
"""A log that is longer is truncated to a tenth, so that reading it leaves time for kills."""


class KillFound(AssertionError):
    """Something that was acknowledged is missing, or something is there that no client wrote."""


@dataclass
class Noted:
    """What the processes reported through their pipes. `runs`: first id and number of each process that appended, in order; `lowest`, `highest`:
    where the log may end."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    lowest: int = -1
    highest: int | None = -1
    session: int = -1
    mark: int = -1

    def line(self, run: int, line: str) -> None:
        what, number = line.split()
        value = int(number)
        if what == "begin":  # everything below is as it was found
            self.runs = [(first, of) for first, of in self.runs if first < value] + [(value, run)]
            self.lowest, self.highest = value - 1, None
        elif what == "acknowledged" or what == "cutting":
            self.lowest = value
        elif what == "cut":
            self.lowest = self.highest = value
        elif what == "session":
            self.session = value
        elif what == "mark":
            self.mark = value

    def record(self, transaction_id: int) -> bytes:
        run = self.runs[bisect_right(self.runs, (transaction_id, 1 << 62)) - 1][1]
        return record_of(transaction_id, run)


def record_of(transaction_id: int, run: int) -> bytes:
    return block_of(0, transaction_id, [size_of(transaction_id, run)], salt=run).records


def size_of(transaction_id: int, run: int) -> int:
    return (transaction_id * 31 + run * 17) % 97 * (20 if transaction_id % 53 == 0 else 1)


def _node(directory: Path) -> StorageNode:
    return node_on(FileSystemDisk(directory), segment_bytes=SEGMENT_BYTES, disk_warn_free_bytes=0, disk_refuse_free_bytes=0)


async def _write(directory: Path, run: int, note: Callable[[str], None]) -> None:
    """One run of a writer, which ends when it is killed."""
    random = Random(run)
    settings = _node(directory).settings
    node = StorageNode(settings, FileSystemDisk(directory), FixedClock(), ThreadOffload(2))
    await node.open(KEY)
    store = await node.partition(0)
    state = await store.open_session(run)
    note(f"session {run}")
    lowest = state.mark.local_low_water_mark
    if state.last_id - lowest > LOG_MAX or random.random() < 0.2:
        last = max(lowest, state.last_id // 10 if state.last_id > LOG_MAX else state.last_id - random.randrange(200))
        note(f"cutting {last}")
        await store.truncate(run, last)
        note(f"cut {last}")
    if random.random() < 0.1:
        await store.set_low_water_mark(run, max(store.last_id, store.statistics().low_water_mark))
        note(f"mark {run}")
    first = store.last_id + 1
    note(f"begin {first}")
    while True:
        blocks = []
        for _ in range(random.randrange(1, 4)):
            count = random.randrange(1, 30)
            blocks.append(block_of(0, first, [size_of(first + n, run) for n in range(count)], salt=run))
            first += count
        await append(store, run, blocks)
        note(f"acknowledged {first - 1}")


async def compare_with(directory: Path, noted: Noted) -> tuple[int, int]:
    """Opens the directory that killed writers left. Returns the last id and the number of segments. Raises `KillFound`."""
    node = _node(directory)
    await node.open(KEY)
    store = await node.partition(0)
    reported = store.statistics()
    if reported.last_transaction_id < noted.lowest or (noted.highest is not None and reported.last_transaction_id > noted.highest):
        raise KillFound(f"the log ends at {reported.last_transaction_id}, expected {noted.lowest}..{noted.highest}")
    if reported.fence < noted.session or reported.session < noted.mark:
        raise KillFound(f"fence {reported.fence} and mark {reported.session}, expected at least {noted.session} and {noted.mark}")
    # A replica in which no session was ever opened refuses reads, and no writer could append to it.
    found = [] if reported.fence < 0 else await read_all(store, reported.fence, 0, reported.last_transaction_id)
    for transaction_id, record in enumerate(found):
        if record != noted.record(transaction_id):
            raise KillFound(f"other bytes than were written transaction_id={transaction_id}")
    if len(found) != reported.last_transaction_id + 1:
        raise KillFound(f"reading ends at {len(found) - 1}, the log at {reported.last_transaction_id}")
    await node.close()
    return reported.last_transaction_id, reported.segments


def forked(work: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Starts the work in a separate process. Returns the process id and the pipe that it reports to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            work(lambda line: _write_all(writing, f"{line}\n".encode()))
            code = 0
        except BaseException as error:
            _write_all(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def _write_all(descriptor: int, data: bytes) -> None:
    assert os.write(descriptor, data) == len(data), "a line fits a pipe"


def lines_of(reading: int, count: int | None) -> tuple[list[str], bytes]:
    """The next lines of a pipe (all lines if no number is given), and the part of the following line that was read."""
    data = b""
    while (count is None or data.count(b"\n") < count) and (more := os.read(reading, 65536)):
        data += more
    *lines, rest = data.decode().split("\n")
    return lines, rest.encode()


def kill_and_compare(directory: Path, kills: int, seed: int) -> dict[str, int]:
    """Returns statistics of the run. Raises `KillFound`."""
    random = Random(seed)
    StorageNode.create(FileSystemDisk(directory), FixedClock(), KEY, 1)
    noted = Noted()
    figures = {"kills": 0, "acknowledged": 0, "unacknowledged_found": 0, "segments_max": 0, "killed_before_appending": 0}
    for run in range(1, kills + 1):
        child, reading = forked(lambda note, run=run: asyncio.run(_write(directory, run, note)))  # type: ignore[misc]
        lines, rest = lines_of(reading, random.randrange(ACKNOWLEDGED_MAX))
        time.sleep(random.random() * 0.004)
        os.kill(child, signal.SIGKILL)
        late, _ = lines_of(reading, None)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise KillFound(f"the writer ended by itself run={run} status={status}")
        late[:1] = [rest.decode() + line for line in late[:1]]
        for line in lines + late:
            noted.line(run, line)
        figures["kills"] += 1
        figures["acknowledged"] += sum(line.startswith("acknowledged") for line in lines + late)
        figures["killed_before_appending"] += not any(line.startswith("begin") for line in lines + late)
        last, segments = _compared(directory, noted, run)
        figures["unacknowledged_found"] += last > noted.lowest
        figures["segments_max"] = max(figures["segments_max"], segments)
        noted.lowest = noted.highest = last
    return figures


def _compared(directory: Path, noted: Noted, run: int) -> tuple[int, int]:
    child, reading = forked(lambda note: note("{} {}".format(*asyncio.run(compare_with(directory, noted)))))
    lines, _ = lines_of(reading, None)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if status != 0 or len(lines) != 1:
        raise KillFound(f"what the kill left is not right run={run} noted={noted}")
    last, segments = map(int, lines[0].split())
    return last, segments


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kills a writer again and again and compares.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with silent_logs():
        figures = kill_and_compare(chosen.directory, chosen.kills, chosen.seed)
    print(" ".join(f"{name}={value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
