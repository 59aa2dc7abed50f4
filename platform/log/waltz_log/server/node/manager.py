"""The cluster manager: keeps the assignment of partitions to living servers (Client-Server Communication, Generation Number).

Every server runs one; the server that holds the ephemeral node is the manager. Its only output is a compare-and-set of the assignment, so that two
who both believe to be in office cannot do harm: safety rests on generations and sessions in storage, never on this node.
"""

from __future__ import annotations

from waltz_log.background_tasks import run_until_first_ends
from waltz_log.coordination.entries import read_entry
from waltz_log.coordination.followed import ASSIGNMENT, PARAMETERS, SERVER_ENTRIES, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.assignment import assign
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership, PartitionMetadata, ServerEntry
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import Unavailable
from waltz_log.loggers import get_logger
from waltz_log.server.node.hand_overs import HandOvers

__all__ = ["ClusterManager"]

log = get_logger(__name__)


class ClusterManager:
    def __init__(self, server_id: int, cluster: ClusterParameters, coordinator: Coordinator, hand_over_after_s: float, known: KnownValues) -> None:
        self._known = known
        self._hand_overs = HandOvers(coordinator, hand_over_after_s, known)
        self._server_id = server_id
        self._cluster = cluster
        self._coordinator = coordinator
        self._listed: set[str] = set()
        self.in_office = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not await self._coordinator.create(paths.MANAGER, str(self._server_id).encode(), ephemeral=True):
                node = await self._coordinator.get(paths.MANAGER)
                if node is not None and node.data != str(self._server_id).encode():
                    await self._coordinator.wait_changed(paths.MANAGER, node.version)
                    continue
                if node is None:
                    continue
            self.in_office = True
            log.info("cluster manager elected", server_id=self._server_id)
            await self._govern()
            self.in_office = False

    async def _govern(self) -> None:
        while True:
            node = await self._coordinator.get(paths.MANAGER)
            if node is None or node.data != str(self._server_id).encode():
                return
            grown = await self._grown()
            names = await self._coordinator.children(paths.SERVERS)
            servers: list[ServerEntry] = []
            for name in names:
                entry = await self._known.get(self._coordinator, SERVER_ENTRIES, name)
                found = None if entry is None else self._known.accept(SERVER_ENTRIES, entry, name)
                if found is not None:
                    servers.append(found)
            self._forget_gone(names)
            version = await self._assign(servers)
            if version is None:
                continue
            await run_until_first_ends(
                self._hand_overs.wait_round(),
                self._coordinator.wait_children(paths.SERVERS, names),
                self._coordinator.wait_changed(paths.ASSIGNMENT, version),
                self._coordinator.wait_changed(paths.MANAGER, node.version),
                self._coordinator.wait_changed(paths.CLUSTER, grown),
            )

    async def _grown(self) -> int | None:
        """Reads the current number of partitions. Returns the version of the node."""
        node = await self._known.get(self._coordinator, PARAMETERS)
        self._cluster = self._known.accept(PARAMETERS, node, expected=True) or self._cluster
        return None if node is None else node.version

    def _forget_gone(self, names: list[str]) -> None:
        """A server that left is no fault."""
        for name in self._listed - set(names):
            self._known.forget(SERVER_ENTRIES, name)
        self._listed = set(names)

    async def _assign(self, servers: list[ServerEntry]) -> int | None:
        """Writes the assignment if it changes. Returns the current version, or None if another process wrote."""
        node = await self._known.get(self._coordinator, ASSIGNMENT)
        before = self._known.accept(ASSIGNMENT, node)
        if node is None:
            await self._coordinator.create(paths.ASSIGNMENT, (before or await self._first_assignment()).to_bytes())
            return None
        if before is None:
            raise Unavailable(reason=f"the assignment cannot be read: {self._known.refused()[paths.ASSIGNMENT]}")
        after = await self._hand_overs.apply(assign(before, servers, self._cluster.partitions))
        if after == before and node.data == before.to_bytes():
            return node.version
        log.info("assigning partitions", servers=[server.server_id for server in servers])
        version = await self._coordinator.set(paths.ASSIGNMENT, after.to_bytes(), node.version)
        if version is not None:
            self._known.accept(ASSIGNMENT, Node(after.to_bytes(), version))
            self._hand_overs.note(before, after)
        return version

    async def _first_assignment(self) -> Assignment:
        """The first assignment of a cluster that has none: it is new, or lost it. Generations continue above those that owners recorded. Where the
        record cannot be read, no owner opens the partition, and the others get theirs."""
        found = {}
        for partition in range(self._cluster.partitions):
            recorded = await read_entry(self._coordinator, paths.partition_path(partition), PartitionMetadata.from_bytes)
            if recorded is not None:
                found[partition] = Ownership(None, recorded.generation)
        return Assignment(found)
