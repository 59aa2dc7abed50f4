"""The platform's appends in turns with the bare way (`bare.py`), so that other load on the machine affects both: one in flight, and a full window.
Reports the ratio of each round and the median ratio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.bare import BareClient, bare_cluster
from benchmarks.load import Appending, pipelined, single
from benchmarks.measurement import Measurement, in_turns, percentile
from benchmarks.setting import Workload
from waltz_log.client import WaltzClient

__all__ = ["measure"]

ROUNDS = 9
WINDOW = 16_000

C = TypeVar("C")
T = TypeVar("T")


async def measure(cluster: str, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    """`append.single_of_bare`, `append.single_p99_of_bare`: ratios of latencies, lower is better. `append.pipelined_of_bare`: ratio of rates, higher
    is better."""
    ones, many = workload.single // 4, workload.pipelined // 5

    async def latencies_ms(client: Appending) -> list[float]:
        return (await single(client, ones)).latencies_ms

    async def rate(client: Appending) -> float:
        return (await pipelined(client, many, window=WINDOW)).rate

    with bare_cluster(directory / "bare-way") as address:
        async with WaltzClient.open(cluster) as platform, BareClient(address) as bare:
            sides: tuple[Appending, Appending] = platform, bare
            singles = await _in_turns(*sides, latencies_ms)
            rates = await _in_turns(*sides, rate)
    halves, slowest = ([(percentile(ours, share), percentile(bares, share)) for ours, bares in singles] for share in (0.5, 0.99))
    return [
        in_turns("append.single_of_bare", halves, "bare", {**conditions, "in_flight": 1}),
        in_turns("append.single_p99_of_bare", slowest, "bare", {**conditions, "in_flight": 1, "of_each_round": ones}),
        in_turns("append.pipelined_of_bare", rates, "bare", {**conditions, "in_flight": WINDOW}),
    ]


async def _in_turns(platform: C, bare: C, figure: Callable[[C], Awaitable[T]]) -> list[tuple[T, T]]:
    """What the platform and the bare way gave in each round, in this order, whichever ran first. One uncounted round warms up."""
    rounds = []
    for number in range(ROUNDS + 1):
        first, second = (platform, bare) if number % 2 else (bare, platform)
        found = [await figure(first), await figure(second)]
        rounds.append((found[0], found[1]) if number % 2 else (found[1], found[0]))
    return rounds[1:]
