"""What the simulator's disk, offload and clocks do when a fault is planted in them."""

from __future__ import annotations

import asyncio
import errno

import pytest

from waltz_log.testing.disk import Operation, SimulatedDisk, TornWrite
from waltz_log.testing.offload import HangingOffload, run_in_place
from waltz_log.testing.virtual_time import SimulatedProcess, run_in_virtual_time, world_time_s


def test_a_torn_write_leaves_a_part_of_its_bytes_behind() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")

    def fail(operation: Operation) -> None:
        raise TornWrite(operation.path, 0.5)

    disk.before = fail
    with pytest.raises(OSError, match="input/output error"):
        file.write(0, b"12345678")
    assert disk.content("a") == b"1234"


def test_a_read_may_fail() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"1234")

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "input/output error", path)

    disk.before_read = fail
    with pytest.raises(OSError, match="input/output error"):
        file.read(0, 4)
    disk.before_read = None
    assert file.read(0, 4) == b"1234"


def test_nothing_returns_from_a_disk_that_hangs() -> None:
    async def hang() -> tuple[list[str], bool, bool]:
        done: list[str] = []
        offload = HangingOffload(run_in_place)
        begun = asyncio.ensure_future(offload(done.append, "begun before"))
        await asyncio.sleep(0)
        offload.hang()
        waiting = asyncio.ensure_future(offload(done.append, "waits"))
        await asyncio.sleep(100)
        returned, seen = begun.done() or waiting.done(), list(done)
        offload.resume()
        await asyncio.gather(begun, waiting)
        return seen, returned, done == ["begun before", "waits"]

    assert run_in_virtual_time(hang()) == (["begun before"], False, True)


def test_a_process_whose_clock_drifts_waits_by_its_own() -> None:
    async def drift() -> tuple[float, float, float, float]:
        fast, loop = SimulatedProcess("fast"), asyncio.get_running_loop()
        await asyncio.sleep(10)
        fast.drift(2.0)

        async def wait() -> tuple[float, float, float]:
            began_s = loop.time()
            try:
                async with asyncio.timeout(4):
                    await asyncio.sleep(5)
            except TimeoutError:
                pass
            await asyncio.sleep(6)
            return began_s, loop.time(), world_time_s()

        began_s, ended_s, world_s = await fast.spawn(wait())
        return began_s, ended_s, world_s, loop.time()

    began_s, ended_s, world_s, others_s = run_in_virtual_time(drift())
    assert (began_s, ended_s) == pytest.approx((10, 20))
    assert (world_s, others_s) == pytest.approx((15, 15))


def test_a_clock_that_drifts_never_goes_back() -> None:
    async def drift() -> list[float]:
        process, loop = SimulatedProcess("one"), asyncio.get_running_loop()

        async def reported() -> float:
            return loop.time()

        found = []
        for rate in (1.25, 0.5, 1.0, 2.0):
            process.drift(rate)
            found.append(await process.spawn(reported()))
            await asyncio.sleep(1)
            found.append(await process.spawn(reported()))
        return found

    assert run_in_virtual_time(drift()) == pytest.approx([0, 1.25, 1.25, 1.75, 1.75, 2.75, 2.75, 4.75])
