"""Scenarios of a storage node that are crashed at every operation, and the command that runs them: `make crash`.

    python -m verification.crashes.storage_crashes [--short] [--jobs N] [SCENARIO[:POINT:SURVIVOR[:POINT:SURVIVOR]]]

With a scenario it goes through that one; with numbers it repeats the one crash that a failure named, with the effort it was found with.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import Final

from verification.crashes.crashes import FULL, SHORT, CrashFound, Effort, Tally, enumerate_crashes
from verification.crashes.storage_model import StorageLife, check, silent_logs
from waltz_log.errors import StorageFull
from waltz_log.testing.disk import SimulatedDisk

__all__ = ["SCENARIOS", "crash"]


class _Append(StorageLife):
    """Data, index and times of one segment; several blocks a round; a close in order and a start after it."""

    async def steps(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        await self.append(0, 1, [10, 0, 30])
        await self.append(0, 1, [5] * 4, [60, 7], [1])
        await self.close()
        await self.open()
        await self.session(0, 2)
        await self.append(0, 2, [40])


class _Roll(StorageLife):
    """Blocks that do not fit, one larger than a segment, two rolls in one round, and a start that finds several segments."""

    async def steps(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        await self.append(0, 1, [1800, 20])
        await self.append(0, 1, [1500, 900], [20])
        await self.append(0, 1, [3900], [1000], [3000])
        await self.close()
        await self.open()
        await self.session(0, 2)
        await self.append(0, 2, [700], [3500])


class _Checkpoint(StorageLife):
    """The index is synced before the record after each thousandth."""

    async def before(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        await self.append(0, 1, [0] * 990)

    async def steps(self) -> None:
        await self.append(0, 1, [1] * 9, [2] * 6)
        await self.append(0, 1, [3] * 5)
        await self.truncate(0, 1, 995)
        await self.append(0, 1, [4] * 20)


class _Truncate(StorageLife):
    """Within a segment, across segments, to the end of one, to nothing; and what is appended after it."""

    async def steps(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        for size in (1300, 1400, 1500, 1600, 1700):
            await self.append(0, 1, [size, 10], [20])
        await self.session(0, 2)
        await self.truncate(0, 2, 13)
        await self.truncate(0, 2, 5)
        await self.append(0, 2, [30, 40])
        await self.append(0, 2, [3900])
        await self.truncate(0, 2, 2)
        await self.append(0, 2, [50])
        await self.truncate(0, 2, -1)
        await self.append(0, 2, [60, 70])


class _Marks(StorageLife):
    """Fence and control file of two partitions, between appends."""

    async def steps(self) -> None:
        self.create(2)
        await self.open()
        await self.session(0, 1)
        await self.clean(0, 1, -1)
        await self.append(0, 1, [10, 20])
        await self.session(1, 1)
        await self.clean(1, 1, 5)
        await self.session(0, 2)
        await self.clean(0, 2, 1)
        await self.append(0, 2, [30])
        await self.append(1, 1, [11] * 3)
        await self.session(0, 4)
        await self.truncate(0, 4, 1)
        await self.clean(0, 4, 6)
        await self.session(1, 3)
        await self.clean(1, 3, 6)
        await self.append(1, 3, [12])


class _Grow(StorageLife):
    """A node is created, started and gets more partitions, twice."""

    async def steps(self) -> None:
        self.create(1)
        await self.open(2)
        await self.session(1, 3)
        await self.append(1, 3, [10])
        await self.clean(1, 3, 0)
        await self.close()
        await self.open(4)
        await self.session(3, 5)
        await self.append(3, 5, [20])
        await self.append(1, 3, [30])


class _Trim(StorageLife):
    """Whole segments are removed from the beginning, oldest first. Appends and truncations follow."""

    async def steps(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        for size in (2200, 2300, 2400, 2500, 2600):
            await self.append(0, 1, [size, 10], [20])
        await self.clean(0, 1, 14)
        await self.trim(0, 4)
        await self.trim(0, 11)
        await self.append(0, 1, [30], [3000])
        await self.session(0, 2)
        await self.truncate(0, 2, 14)
        await self.trim(0, 15)
        await self.append(0, 2, [40])


class _Begin(StorageLife):
    """The log continues above its end, from one segment and from several, and goes on there."""

    async def before(self) -> None:
        self.create(1)
        await self.open()

    async def steps(self) -> None:
        await self.begin(0, 1, 7)
        await self.append(0, 1, [2200, 10], [2300])
        await self.clean(0, 1, 9)
        await self.begin(0, 2, 40)
        await self.append(0, 2, [30])


class _Memory(StorageLife):
    """Acknowledged before it is on disk: over rolls, a sync of its own, by a session, by a mark, by a truncation and by the end of the node."""

    async def steps(self) -> None:
        self.create(1)
        await self.open()
        await self.session(0, 1)
        await self.receive(0, 1, [10, 0], [30])
        await self.receive(0, 1, [2000], [1500])
        await self.flush(0)
        await self.receive(0, 1, [40])
        await self.session(0, 2)
        await self.receive(0, 2, [700], [800])
        await self.clean(0, 2, 8)
        await self.receive(0, 2, [50])
        await self.append(0, 2, [60])
        await self.receive(0, 2, [70] * 3)
        await self.session(0, 3)
        await self.truncate(0, 3, 9)
        await self.receive(0, 3, [80])
        await self.close()
        await self.open()
        await self.session(0, 4)
        await self.receive(0, 4, [90])


class _Full(StorageLife):
    """A disk that becomes full in the middle of a round and has space again later."""

    async def tried(self, step: Awaitable[None]) -> bool:
        """Whether the disk was full."""
        try:
            await step
        except StorageFull:
            # Blocks in the segment before the one without room are on disk, although no caller was informed.
            self._may(0, self.model(0).settled((await self.node.partition(0)).last_id))
            return True
        return False

    async def steps(self) -> None:
        disk = self.disk
        assert isinstance(disk, SimulatedDisk)
        self.create(1)
        await self.open()
        await self.session(0, 1)
        await self.append(0, 1, [1800, 20])
        full = 0
        # Only the records fit and are written. Headers, index and times do not fit, or not all of them.
        for more in (30, 140, 400):
            disk.total -= disk.free_bytes() - (2 * (2000 + 40) + more)
            full += await self.tried(self.append(0, 1, [2000], [2000], salt=more))
            disk.total += 1 << 20
            await self.append(0, 1, [11])
        assert full >= 2, "the disk was hardly ever full"
        await self.append(0, 1, [2000], [2000])


class _FewFiles(StorageLife):
    """More files than may be open: one is synced and closed to open another one."""

    async def before(self) -> None:
        self.create(6)
        await self.open()
        for partition in range(6):
            await self.append(partition, 1, [3300 if partition == 0 else 10])

    async def steps(self) -> None:
        for partition in (0, 3):
            await self.append(partition, 1, [partition, 30])
        await self.append(0, 2, [700])
        await self.truncate(0, 2, 1)
        await self.append(5, 1, [40])


SCENARIOS: dict[str, Callable[..., StorageLife]] = {
    "append": _Append,
    "roll": _Roll,
    "checkpoint": partial(_Checkpoint, segment_bytes=1 << 20),
    "truncate": _Truncate,
    "marks": _Marks,
    "grow": _Grow,
    "trim": _Trim,
    "begin": _Begin,
    "memory": _Memory,
    "preallocated-memory": partial(_Memory, preallocate_bytes=1500),
    "full": partial(_Full, disk_warn_free_bytes=0, disk_refuse_free_bytes=0),
    "preallocated": partial(_Append, preallocate_bytes=1500),
    "preallocated-roll": partial(_Roll, preallocate_bytes=1024),
    "preallocated-truncate": partial(_Truncate, preallocate_bytes=4096),
    "preallocated-full": partial(_Full, preallocate_bytes=1024, disk_warn_free_bytes=0, disk_refuse_free_bytes=0),
    "few-files": partial(_FewFiles, open_files_max=16),
}


PROGRESS_S: Final = 10.0


async def crash(
    name: str,
    effort: Effort,
    only: tuple[int, ...] = (),
    *,
    disk: SimulatedDisk | None = None,
    progress: Callable[[str], None] = lambda reported: None,
) -> Tally:
    """Goes through one scenario. Raises `CrashFound`. `disk`: an empty disk with a planted bug."""
    scenario = SCENARIOS[name]
    return await enumerate_crashes(name, scenario, partial(check, **scenario().settings), effort, only, disk=disk, progress=progress)


def _gone_through(name: str, effort: Effort, only: tuple[int, ...]) -> tuple[bool, str]:
    """Whether the scenario passed, and a line or a failure to print."""
    begun = reported = time.monotonic()

    def progress(line: str) -> None:
        nonlocal reported
        if time.monotonic() - reported > PROGRESS_S:
            reported = time.monotonic()
            print(f"  {line}", file=sys.stderr, flush=True)

    try:
        with silent_logs():
            tally = asyncio.run(crash(name, effort, only, progress=progress))
    except CrashFound as found:
        return False, str(found)
    return True, (
        f"{name:<21} {tally.points:4} crash points  {tally.survivors:7} survivors  {tally.checked:7} of them different and right  "
        f"{tally.recoveries:6} crashed again while they recovered  {time.monotonic() - begun:6.1f} s"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Crashes a storage node in every way and checks what is left.")
    parser.add_argument("only", nargs="?", help="a scenario, or the place that a failure named")
    parser.add_argument("--short", action="store_true", help="what the tests do")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="scenarios at once")
    chosen = parser.parse_args(arguments)
    effort = SHORT if chosen.short else FULL
    if chosen.only is not None:
        name, *numbers = chosen.only.split(":")
        if name not in SCENARIOS:
            parser.error(f"no such scenario: {name} (there are {', '.join(SCENARIOS)})")
        return _reported([_gone_through(name, effort, tuple(map(int, numbers)))])
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        return _reported(each.result() for each in as_completed([pool.submit(_gone_through, name, effort, ()) for name in SCENARIOS]))


def _reported(results: Iterable[tuple[bool, str]]) -> int:
    right = True
    for passed, line in results:
        print(line, file=sys.stdout if passed else sys.stderr, flush=True)
        right &= passed
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
