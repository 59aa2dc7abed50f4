"""Detects within half a second that a storage node answers again, however many partitions wait for it.

A replica session whose connection broke tries again after its own pauses, which grow to seconds. While any session waits, one task for each node
pings the node, so that the number of nodes bounds the rate. When a ping is answered after one that was not, the task wakes all waiting sessions of
the node. If the node answers from the first ping on, no session is woken: the sessions failed for another reason, and their own pauses apply.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from waltz_log.background_tasks import BackgroundTask
from waltz_log.coordination.followed import STORAGE_ENTRIES, KnownValues
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["PROBE_PAUSE_MAX_S", "PROBE_TIMEOUT_S", "NodeProbes", "answers", "ping"]

PROBE_PAUSE_S = 0.05
PROBE_PAUSE_MAX_S = 0.4
"""Between two pings of a node that does not answer. With the ping and the opening after it, a partition is open within a second."""

PROBE_TIMEOUT_S = 1.0
"""For one ping. A node that cannot answer it in this time is of no use to a partition either."""


async def ping(network: Network, address: str, cluster_key: bytes, partition: int, timeout_s: float = PROBE_TIMEOUT_S) -> pb.PingResponse | None:
    """What the storage node at the address answers over a separate connection; None if it does not."""
    channel = network.connect(address)
    try:
        async with asyncio.timeout(timeout_s):
            return await channel.call(methods.PING, pb.PingRequest(cluster_key=cluster_key, partition=partition), timeout_s=timeout_s)
    except (TimeoutError, WaltzError):
        return None
    finally:
        await channel.close()


async def answers(network: Network, address: str, cluster_key: bytes, partition: int) -> bool:
    """Whether the storage node at the address answers a ping, over a separate connection."""
    return await ping(network, address, cluster_key, partition) is not None


class _Watch:
    def __init__(self, back: asyncio.Future[None]) -> None:
        self.back = back
        self.waiting = 0
        self.task: BackgroundTask | None = None


class NodeProbes:
    """The node probes of one server process. `known`: what the process knows of the values of the coordinator, so that a partition finds its replicas
    and their addresses without them."""

    def __init__(self, coordinator: Coordinator, network: Network, cluster_key: bytes, known: KnownValues | None = None) -> None:
        self.known = known or KnownValues()
        self._coordinator = coordinator
        self._network = network
        self._key = cluster_key
        self._watches: dict[str, _Watch] = {}

    async def wait_back(self, name: str, partition: int) -> None:
        """Returns when the node answers a ping after one that it did not answer. `partition`: whose worker to ask, where the node has several."""
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = _Watch(asyncio.get_running_loop().create_future())
            watch.task = BackgroundTask(f"probe of {name}", partial(self._probe, name, partition, watch))
        watch.waiting += 1
        try:
            await asyncio.shield(watch.back)
        finally:
            watch.waiting -= 1
            if not watch.waiting and not watch.back.done():
                self._forget(name, watch)

    def _forget(self, name: str, watch: _Watch) -> None:
        if self._watches.get(name) is watch:
            del self._watches[name]
        if watch.task is not None:
            watch.task.cancel()
        watch.back.cancel()

    async def _probe(self, name: str, partition: int, watch: _Watch) -> None:
        missed, pause = False, PROBE_PAUSE_S
        address: str | None = None
        while True:
            with suppress(WaltzError):  # without a coordinator the address that was known last is the best there is
                node = await self.known.get(self._coordinator, STORAGE_ENTRIES, name)
                entry = self.known.accept(STORAGE_ENTRIES, node, name)
                address = None if entry is None else entry.address_for(partition)
            answered = address is not None and await answers(self._network, address, self._key, partition)
            if answered and missed:
                del self._watches[name]
                watch.back.set_result(None)
                return
            missed = missed or not answered
            await asyncio.sleep(pause)
            pause = min(2 * pause, PROBE_PAUSE_MAX_S)
