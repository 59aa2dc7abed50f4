"""`waltz selftest`: how fast a disk syncs, how long a round trip to each node is, from here and from each node that connects to it, and how far each
node's clock is from this machine's.

Run it on the machine of a node to measure that node's disk. It writes one small file and removes it. A node that does not answer is a row that says
so.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any  # the two status calls, and documents in JSON

from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.ports import Network
from waltz_log.errors import InvalidSetting, WaltzError
from waltz_log.exit_codes import FAILED, OK
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["CLOCK_MS_MAX", "NodeMeasured", "RoundTrip", "measure_between", "measure_disk", "measure_nodes", "run"]

SYNCS = 20
CALLS = 5
"""For each node: its status, which is short where it has few partitions."""

SYNC_BYTES = 4096
CALL_TIMEOUT_S = 2.0

CLOCK_MS_MAX = 500
"""A larger difference is reported: times of transactions and retention by time would be off by as much."""


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    """Round trips in milliseconds. `clock_ms`: how far the node's clock is ahead of this machine's, within `clock_within_ms`, half of the fastest
    round trip; None for a node that does not answer or does not report its time."""

    node: str
    address: str | None
    round_trip_ms: float | None
    slowest_ms: float | None
    clock_ms: float | None
    clock_within_ms: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`source`: a log server or a storage node; `target`: a storage node. `round_trip_ms`: None if the target does not answer the source."""

    source: str
    target: str
    round_trip_ms: float | None


async def run(address: str, directory: Path, *, output: str, timeout_s: float) -> int:
    """Exit code 1 if a node does not answer, here or to another node, or a clock is off by more than half a second. Raises `OSError` if the directory
    cannot be written to."""
    if not await asyncio.to_thread(directory.is_dir):
        raise InvalidSetting(name="--directory", reason=f"must be an existing directory, not {directory}", nearest=None)
    disk = await asyncio.to_thread(measure_disk, directory)
    async with connected(address, timeout_s) as (coordinator, network):
        found = await survey(coordinator, network, address)
        nodes = await measure_nodes(network, found, lambda: time.time_ns() / 1e6)
        trips = await measure_between(network, found)
    off = [each for each in nodes if each.clock_ms is not None and abs(each.clock_ms) - (each.clock_within_ms or 0) > CLOCK_MS_MAX]
    silent = [each for each in nodes if each.error is not None]
    cut = [trip for trip in trips if trip.round_trip_ms is None]
    if output != "table":
        of_disk: dict[str, Any] = {"directory": str(directory), **disk}
        print_data({"disk": of_disk, "nodes": [asdict(each) for each in nodes], "round_trips": [asdict(each) for each in trips]}, output)
    else:
        print_line(f"disk at {directory}: a sync of 4 KiB takes {disk['sync_ms']:.2f} ms, at most {disk['slowest_ms']:.2f} ms")
        rows = [
            (each.node, each.address, _ms(each.round_trip_ms), _ms(each.slowest_ms), _clock(each), "ok" if each.error is None else each.error)
            for each in nodes
        ]
        print_table(("node", "address", "round trip", "slowest", "clock", "answers"), rows)
        print_table(("from", "to", "round trip"), [(trip.source, trip.target, _ms(trip.round_trip_ms) or "no answer") for trip in trips])
        for each in off:
            print_line(f"the clock of {each.node} is off by {each.clock_ms:.0f} ms: synchronize it (NTP); times of transactions are off by as much")
    return FAILED if off or silent or cut else OK


def measure_disk(directory: Path, rounds: int = SYNCS) -> dict[str, float]:
    """Overwrites and syncs a small file, as an append to a segment does. Milliseconds."""
    took_ms = []
    descriptor, name = tempfile.mkstemp(prefix=".waltz-selftest-", dir=directory)
    try:
        os.write(descriptor, bytes(SYNC_BYTES * rounds))
        os.fsync(descriptor)
        for number in range(rounds):
            began_s = time.perf_counter()
            os.pwrite(descriptor, bytes([number]) * SYNC_BYTES, number * SYNC_BYTES)
            os.fdatasync(descriptor)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    finally:
        os.close(descriptor)
        os.unlink(name)
    return {"sync_ms": median(took_ms), "slowest_ms": max(took_ms)}


async def measure_nodes(network: Network, found: Survey, now_ms: Callable[[], float]) -> list[NodeMeasured]:
    """All nodes at once, so that one that hangs delays no other."""
    asked = [(f"server {each.server_id}", each.address, methods.SERVER_STATUS, pb.ServerStatusRequest()) for each in found.servers]
    others = [(each.name, each.address, methods.STORAGE_STATUS, pb.StorageStatusRequest()) for each in found.storages]
    return list(await asyncio.gather(*(_measured(network, *each, now_ms) for each in (*asked, *others))))


async def measure_between(network: Network, found: Survey) -> list[RoundTrip]:
    """From each log server that answers to each storage node, and from each storage node that answers to the others. Nothing of a node of an older
    version, which does not measure."""
    asked: list[tuple[str, str, Any, Any]] = [
        (f"server {each.server_id}", each.address, methods.SERVER_STATUS, pb.ServerStatusRequest(round_trips=True))
        for each in found.servers
        if each.answers
    ]
    for each in found.storages:
        if each.answers and each.address is not None:
            asked.append((each.name, each.address, methods.STORAGE_STATUS, pb.StorageStatusRequest(round_trips=True)))
    answers = await asyncio.gather(*(_trips_of(network, address, method, request) for _, address, method, request in asked))
    return [
        RoundTrip(source, target, took_ms) for (source, *_), trips in zip(asked, answers, strict=True) for target, took_ms in sorted(trips.items())
    ]


async def _trips_of(network: Network, address: str, method: Any, request: Any) -> Mapping[str, float | None]:
    """`Any`: the two status calls differ only in their types."""
    channel = network.connect(address)
    try:
        answer = await channel.call(method, request, timeout_s=2 * CALL_TIMEOUT_S)
    except WaltzError:
        return {}  # the table of the nodes says so
    finally:
        await channel.close()
    trips: Mapping[str, float | None] = json.loads(answer.json or "{}").get("round_trips") or {}
    return trips


async def _measured(network: Network, node: str, address: str | None, method: Any, request: Any, now_ms: Callable[[], float]) -> NodeMeasured:
    """`Any`: the two status calls differ only in their types."""
    if address is None:
        return NodeMeasured(node, None, None, None, None, None, "never started")
    channel = network.connect(address)
    try:
        return await _answered(node, address, lambda: channel.call(method, request, timeout_s=CALL_TIMEOUT_S), now_ms)
    except WaltzError as error:
        return NodeMeasured(node, address, None, None, None, None, str(error))
    finally:
        await channel.close()


async def _answered(node: str, address: str, call: Callable[[], Awaitable[Any]], now_ms: Callable[[], float]) -> NodeMeasured:
    await call()  # connects
    took_ms: list[float] = []
    clocks: list[tuple[float, float]] = []
    for _ in range(CALLS):
        began_ms = now_ms()
        status = json.loads((await call()).json or "{}")
        ended_ms = now_ms()
        took_ms.append(ended_ms - began_ms)
        if status.get("time_ms") is not None:
            clocks.append((ended_ms - began_ms, status["time_ms"] + 0.5 - (began_ms + ended_ms) / 2))
    fastest = min(clocks, default=None)
    clock_ms = None if fastest is None else fastest[1]
    within_ms = None if fastest is None else fastest[0] / 2 + 0.5
    return NodeMeasured(node, address, median(took_ms), max(took_ms), clock_ms, within_ms, None)


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} ms"


def _clock(node: NodeMeasured) -> str | None:
    return None if node.clock_ms is None else f"{node.clock_ms:+.1f} ms (within {node.clock_within_ms:.1f})"
