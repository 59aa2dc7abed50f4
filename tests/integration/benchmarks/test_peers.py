"""What the platform is measured beside: that it does what it is said to do, and that figures of a round are not mixed up."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from benchmarks import against_bare
from benchmarks.bare import OVERHEAD, BareClient, bare_cluster
from benchmarks.load import lock_cycle
from benchmarks.measurement import in_turns
from benchmarks.peers.kafka_clients import parsed
from benchmarks.setting import DATA_BYTES

TOLD = (
    "24971 records sent, 4994.2 records/sec (0.95 MB/sec), 12.5 ms avg latency, 250.0 ms max latency.\n"
    "500000 records sent, 53573.3 records/sec (10.22 MB/sec), 1021.44 ms avg latency, 2011.00 ms max latency, "
    "89 ms 50th, 120 ms 95th, 142 ms 99th, 201 ms 99.9th.\n"
)


async def test_the_bare_way_answers_when_a_majority_has_written(tmp_path: Path) -> None:
    count = 5_000
    with bare_cluster(tmp_path / "bare") as address:
        async with BareClient(address) as client:
            lock = lock_cycle(1)[0]
            await client.append(0, bytes(DATA_BYTES), write_locks=lock)
            async with asyncio.timeout(30):
                await asyncio.gather(*[await client.append_nowait(0, bytes(DATA_BYTES), write_locks=lock) for _ in range(count)])
            sizes = sorted(path.stat().st_size for path in (tmp_path / "bare").iterdir())
    assert await asyncio.to_thread(os.listdir, tmp_path) == [], "what it wrote goes with it"
    assert len(sizes) == 3
    assert sizes[1] == sizes[2] == (count + 1) * (len(OVERHEAD) + DATA_BYTES)


async def test_a_bare_way_whose_process_dies_is_an_error_and_no_wait(tmp_path: Path) -> None:
    with bare_cluster(tmp_path / "bare") as address:
        async with BareClient(address) as client:
            await client.append(0, bytes(DATA_BYTES))
            (server,) = (each for each in psutil.Process().children() if each.cmdline()[-5:-3] == ["benchmarks.bare", "server"])
            server.kill()
            with pytest.raises(RuntimeError, match="the bare way broke"):
                async with asyncio.timeout(30):
                    while True:
                        await client.append(0, bytes(DATA_BYTES))


async def test_each_round_has_both_sides_in_their_places_whichever_ran_first() -> None:
    ran: list[str] = []

    async def figure(client: str) -> float:
        ran.append(client)
        return {"platform": 3.0, "bare": 2.0}[client]

    found = await against_bare._in_turns("platform", "bare", figure)
    assert found == [(3.0, 2.0)] * against_bare.ROUNDS
    assert ran[2:6] == ["platform", "bare", "bare", "platform"]
    reported = in_turns("append.single_of_bare", [(3.0, 2.0), (4.0, 2.0), (2.0, 2.0)], "bare", {}).document()
    assert reported["value"] == 1.5
    assert reported["conditions"] == {"rounds": 3, "ratios": "1.00 to 2.00", "of_platform": 3.0, "of_bare": 2.0}


def test_the_final_report_of_the_performance_tool_counts() -> None:
    found = parsed(TOLD)
    assert (found.count, found.rate, found.mean_ms, found.p50_ms, found.p99_ms) == (500_000, 53573.3, 1021.44, 89, 142)


@pytest.mark.parametrize("output", ["", TOLD.splitlines()[0], "org.apache.kafka.common.errors.TimeoutException"])
def test_a_tool_that_reported_no_result_is_an_error_and_no_figure(output: str) -> None:
    with pytest.raises(RuntimeError, match="reported no result"):
        parsed(output)
