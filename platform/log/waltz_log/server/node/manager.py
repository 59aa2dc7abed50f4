"""The cluster manager: keeps the assignment of partitions to living servers (Client-Server Communication, Generation Number).

Every server runs one; the server that holds the ephemeral node is the manager. Its only output is a compare-and-set of the assignment, so that two
who both believe to be in office cannot do harm: safety rests on generations and sessions in storage, never on this node.
"""

from __future__ import annotations

import asyncio

from waltz_log.core import metadata as paths
from waltz_log.core.assignment import assign
from waltz_log.core.metadata import Assignment, ClusterParameters, ServerEntry
from waltz_log.core.ports import Coordinator
from waltz_log.loggers import get_logger
from waltz_log.server.node.hand_overs import HandOvers

__all__ = ["ClusterManager"]

log = get_logger(__name__)


class ClusterManager:
    def __init__(self, server_id: int, cluster: ClusterParameters, coordinator: Coordinator, hand_over_after_s: float) -> None:
        self._hand_overs = HandOvers(coordinator, hand_over_after_s)
        self._server_id = server_id
        self._cluster = cluster
        self._coordinator = coordinator
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
                entry = await self._coordinator.get(f"{paths.SERVERS}/{name}")
                if entry is not None:
                    servers.append(ServerEntry.from_bytes(entry.data))
            version = await self._assign(servers)
            if version is None:
                continue
            waits = [
                asyncio.ensure_future(self._hand_overs.wait_round()),
                asyncio.ensure_future(self._coordinator.wait_children(paths.SERVERS, names)),
                asyncio.ensure_future(self._coordinator.wait_changed(paths.ASSIGNMENT, version)),
                asyncio.ensure_future(self._coordinator.wait_changed(paths.MANAGER, node.version)),
                asyncio.ensure_future(self._coordinator.wait_changed(paths.CLUSTER, grown)),
            ]
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in waits:
                    task.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _grown(self) -> int | None:
        """Reads the current number of partitions. Returns the version of the node."""
        node = await self._coordinator.get(paths.CLUSTER)
        if node is None:
            return None
        self._cluster = ClusterParameters.from_bytes(node.data)
        return node.version

    async def _assign(self, servers: list[ServerEntry]) -> int | None:
        """Writes the assignment if it changes. Returns the current version, or None if another process wrote."""
        node = await self._coordinator.get(paths.ASSIGNMENT)
        if node is None:
            await self._coordinator.create(paths.ASSIGNMENT, Assignment().to_bytes())
            return None
        before = Assignment.from_bytes(node.data)
        after = await self._hand_overs.apply(assign(before, servers, self._cluster.partitions))
        if after == before:
            return node.version
        log.info("assigning partitions", servers=[server.server_id for server in servers])
        version = await self._coordinator.set(paths.ASSIGNMENT, after.to_bytes(), node.version)
        if version is not None:
            self._hand_overs.note(before, after)
        return version
