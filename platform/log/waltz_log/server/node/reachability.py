"""What a log server publishes of the storage nodes that it reaches, while a partition needs it: a partition that has no majority of its replicas
(`core.hand_over`), its own or another server's, and one that avoids this server until it reaches a majority again.

In peace nothing is pinged and nothing is written: one watch waits for the first partition that is stranded anywhere. Otherwise each round pings the
replicas in question once and writes what changed, so that the rate is bounded by nodes and rounds. The coordinator carries it, because every
server whose session lives reaches the coordinator. Decides nothing: the cluster manager does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from waltz_log.background_tasks import run_until_first_ends
from waltz_log.coordination.entries import read_entry
from waltz_log.coordination.followed import ASSIGNMENT, REPLICA_ASSIGNMENT, STORAGE_ENTRIES, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.hand_over import Stranded, parse_stranded, reach_to_bytes, stranded_to_bytes
from waltz_log.core.metadata import Assignment
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.sharding import Shard
from waltz_log.errors import ClusterUnavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.node_probes import answers

__all__ = ["ROUNDS", "Reachability", "read_stranded"]

log = get_logger(__name__)

ROUNDS = 10
"""Rounds within `hand_over_after_s`, of a second at most."""

TRIES = 3
"""For one write."""


async def read_stranded(coordinator: Coordinator, names: Iterable[str]) -> dict[int, Stranded]:
    """The stranded partitions in the reports of these names; of two reports of one partition the one of the newer generation. A report that cannot be
    read is passed over."""
    found: dict[int, Stranded] = {}
    for name in names:
        for partition, report in (await read_entry(coordinator, f"{paths.STRANDED}/{name}", parse_stranded) or {}).items():
            if partition not in found or found[partition].generation < report.generation:
                found[partition] = report
    return found


class Reachability:
    """The reachability of one process of a server: run `report` and `scout` as long as it serves."""

    def __init__(
        self,
        server_id: int,
        shard: Shard,
        coordinator: Coordinator,
        network: Network,
        cluster_key: bytes,
        after_s: float,
        lacking: Callable[[], Mapping[int, Stranded | None]],
        known: KnownValues,
    ) -> None:
        """`lacking`: by partition that this process owns what to publish of it, None if it has a majority of its replicas. `known`: what this process
        knows of the values of the coordinator."""
        self._known = known
        self._server_id = server_id
        self._shard = shard
        self._coordinator = coordinator
        self._network = network
        self._key = cluster_key
        self._after_s = after_s
        self._lacking = lacking
        self._good_s: dict[int, float] = {}
        """By partition, when it was last found with a majority, or found at all."""
        name = f"{server_id:010d}-{shard.worker}"
        self._stranded_path, self._reach_path = f"{paths.STRANDED}/{name}", f"{paths.REACH}/{name}"

    @property
    def _round_s(self) -> float:
        return min(1.0, self._after_s / ROUNDS)

    # ---- what this server lacks ------------------------------------------------------------------------------------------------------------------

    async def report(self) -> None:
        """Until cancelled: publishes owned partitions that have had no majority of their replicas for `hand_over_after_s`."""
        published: bytes | None = None
        while True:
            await asyncio.sleep(self._round_s)
            stranded = self._overdue()
            wanted = stranded_to_bytes(stranded) if stranded else None
            if wanted != published:
                (log.warning if stranded else log.info)("partitions without a majority of their replicas", partitions=sorted(stranded))
            try:
                await self._publish(self._stranded_path, wanted, published)
                published = wanted
            except WaltzError as error:
                log.info("partitions without a majority not published", error=str(error))

    def _overdue(self) -> dict[int, Stranded]:
        now_s = asyncio.get_running_loop().time()
        lacking = self._lacking()
        good_s = {partition: now_s if each is None else self._good_s.get(partition, now_s) for partition, each in lacking.items()}
        self._good_s = good_s
        return {partition: each for partition, each in lacking.items() if each is not None and now_s - good_s[partition] >= self._after_s}

    # ---- what this server reaches ----------------------------------------------------------------------------------------------------------------

    async def scout(self) -> None:
        """Publishes, until cancelled, which replicas answer this server, for the partitions for which it is needed."""
        published: bytes | None = None
        while True:
            try:
                wanted = await self._wanted()
                reached = await self._reached(wanted) if wanted else {}
                found = reach_to_bytes(self._server_id, reached) if wanted else None
                await self._publish(self._reach_path, found, published)
                published = found
                if not wanted:
                    await self._wait_needed()
            except WaltzError as error:
                log.info("reachable replicas not published", error=str(error))
            await asyncio.sleep(self._round_s)

    async def _wait_needed(self) -> None:
        """Until a partition is stranded somewhere, or the assignment changes: it says whom a partition avoids."""
        node = await self._known.get(self._coordinator, ASSIGNMENT)
        if self._avoiding(self._known.accept(ASSIGNMENT, node)):
            return
        await run_until_first_ends(
            self._coordinator.wait_children(paths.STRANDED, []),
            self._coordinator.wait_changed(paths.ASSIGNMENT, None if node is None else node.version),
        )

    def _avoiding(self, assignment: Assignment | None) -> list[int]:
        if assignment is None:
            return []
        return [partition for partition, each in assignment.handed_over.items() if self._server_id in each.avoids and self._shard.owns(partition)]

    async def _wanted(self) -> dict[int, set[str]]:
        """By partition the replicas to ping."""
        stranded = await read_stranded(self._coordinator, await self._coordinator.children(paths.STRANDED))
        wanted = {partition: set(report.replicas) for partition, report in stranded.items() if self._shard.owns(partition)}
        node = await self._known.get(self._coordinator, ASSIGNMENT)
        avoiding = self._avoiding(self._known.accept(ASSIGNMENT, node))
        if avoiding:
            replicas = self._known.accept(REPLICA_ASSIGNMENT, await self._known.get(self._coordinator, REPLICA_ASSIGNMENT), expected=True)
            assigned = {} if replicas is None else replicas.replicas
            for partition in avoiding:
                wanted.setdefault(partition, set()).update(assigned.get(partition, ()))
        return wanted

    async def _reached(self, wanted: Mapping[int, set[str]]) -> dict[int, list[str]]:
        """One ping for each address, however many partitions it is of."""
        addresses: dict[tuple[int, str], str] = {}
        entries = {
            name: self._known.accept(STORAGE_ENTRIES, await self._known.get(self._coordinator, STORAGE_ENTRIES, name), name)
            for name in sorted(set().union(*wanted.values()))
        }
        for partition, names in wanted.items():
            for name in sorted(names):
                if (entry := entries[name]) is not None:
                    addresses[partition, name] = entry.address_for(partition)
        partition_of = {address: partition for (partition, _), address in addresses.items()}
        pings = {address: answers(self._network, address, self._key, partition) for address, partition in sorted(partition_of.items())}
        answered = dict(zip(pings, await asyncio.gather(*pings.values()), strict=True))
        return {
            partition: [name for name in sorted(names) if answered.get(addresses.get((partition, name), ""))] for partition, names in wanted.items()
        }

    # ---- publishing ------------------------------------------------------------------------------------------------------------------------------

    async def _publish(self, path: str, wanted: bytes | None, published: bytes | None) -> None:
        """Written again each round while there is something: the node may be one of an earlier session of this process's place, which ends. A lost
        answer is no reason to wait for the next round: where no ping is answered, a round takes a second."""
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                await self._write(path, wanted, published)
                return
            except ClusterUnavailable:
                if not tries_left:
                    raise

    async def _write(self, path: str, wanted: bytes | None, published: bytes | None) -> None:
        if wanted is None:
            if published is not None:
                await self._coordinator.delete(path)
        elif await self._coordinator.set(path, wanted, -1) is None:
            await self._coordinator.create(path, wanted, ephemeral=True)
