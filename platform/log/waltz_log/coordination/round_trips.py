"""How long a small message from this process to each storage node and back needs, without a disk: for `waltz selftest`. Log servers and storage nodes
measure."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from waltz_log.coordination.entries import read_entry
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import StorageNodeEntry
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ROUND_TRIPS_TIMEOUT_S", "measure_round_trips"]

PINGS = 5
"""To each node, after the one that connects."""

ROUND_TRIPS_TIMEOUT_S = 2.0
"""For all pings of all nodes, which are measured at once."""


async def measure_round_trips(
    coordinator: Coordinator, network: Network, cluster_key: bytes, *, except_for: str | None = None
) -> dict[str, float | None]:
    """The median in milliseconds by the name of the storage node; None for one that does not answer in time. `except_for`: a name to leave out."""
    names = sorted(name for name in await coordinator.children(paths.STORAGE_NODES) if name != except_for)
    entries = await asyncio.gather(*(read_entry(coordinator, f"{paths.STORAGE_NODES}/{name}", StorageNodeEntry.from_bytes) for name in names))
    known = {name: entry.address for name, entry in zip(names, entries, strict=True) if entry is not None}
    took_ms = await asyncio.gather(*(_round_trip_ms(network, address, cluster_key) for address in known.values()))
    return dict(zip(known, took_ms, strict=True))


async def _round_trip_ms(network: Network, address: str, cluster_key: bytes) -> float | None:
    channel = network.connect(address)
    request = pb.PingRequest(cluster_key=cluster_key, partition=0)
    took_s = []
    try:
        async with asyncio.timeout(ROUND_TRIPS_TIMEOUT_S):
            for _ in range(1 + PINGS):
                began_s = time.perf_counter()  # the clock of the event loop counts whole milliseconds
                await channel.call(methods.PING, request, timeout_s=ROUND_TRIPS_TIMEOUT_S)
                took_s.append(time.perf_counter() - began_s)
    except (TimeoutError, WaltzError):
        return None
    finally:
        await channel.close()
    return 1000 * median(took_s[1:])
