"""A log server's membership in the cluster: its number, its entry, and its candidacy as manager.

One for each server, however many processes it runs: partitions are assigned to servers, and each server alone decides which of its workers serves a
partition. The entry disappears with the coordinator session that created it. A server whose session ended must be created again, under a new number.
"""

from __future__ import annotations

import asyncio

from waltz_log.background_tasks import BackgroundTask
from waltz_log.coordination.followed import ASSIGNMENT, PARAMETERS, SERVER_ENTRIES, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.client_ids import parse_counter
from waltz_log.core.metadata import ClusterParameters, ServerEntry
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterUnavailable
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.node.manager import ClusterManager

__all__ = ["Membership", "read_cluster"]

log = get_logger(__name__)


async def read_cluster(coordinator: Coordinator, address: str, known: KnownValues | None = None) -> ClusterParameters:
    """Raises `ClusterUnavailable` if there is none at the address, `Unavailable` if its parameters cannot be read."""
    node = await coordinator.get(paths.CLUSTER, latest=True)
    if node is None:
        raise ClusterUnavailable(address=address, reason="no cluster was created there")
    return (known or KnownValues()).expect(PARAMETERS, node)


LEAVE_TIMEOUT_S = 2.0
"""A server that was asked to stop must not wait for a coordinator that is away."""


class Membership:
    """`register`, then `announce` once it answers; `leave` or `end`."""

    def __init__(self, settings: ServerSettings, coordinator: Coordinator, known: KnownValues) -> None:
        """`known`: what the process knows of the values that the cluster manager follows."""
        self._settings = settings
        self._coordinator = coordinator
        self.known = known
        self._manager: ClusterManager | None = None
        self._governing: BackgroundTask | None = None
        self.server_id = -1

    @property
    def in_office(self) -> bool:
        return self._manager is not None and self._manager.in_office

    async def register(self) -> int:
        """Acquires the server's number, which no server had before."""
        self.server_id = await self._next_server_id()
        return self.server_id

    async def announce(self, cluster: ClusterParameters, address: str, workers: tuple[str, ...] = ()) -> None:
        """From here on partitions are assigned to the server. `workers`: where each can be reached by itself, where they can."""
        await self._remove_predecessor(address)
        entry = ServerEntry(self.server_id, address, self._settings.preferred_partitions, workers)
        await self._coordinator.create(self._entry_path, entry.to_bytes(), ephemeral=True)
        self._manager = ClusterManager(self.server_id, cluster, self._coordinator, self._settings.hand_over_after_s, self.known)
        self._governing = BackgroundTask("manager", self._manager.run)

    async def _remove_predecessor(self, address: str) -> None:
        """Removes the entry of the process that had this address before. That one is dead, since this process listens there now, but its coordinator
        session may last for seconds more, and its partitions would wait as long: longer than `session_timeout_s` where ZooKeeper restarted
        meanwhile, because each session then begins its timeout again. Safety does not depend on this: generations and fences hold."""
        for name in await self._coordinator.children(paths.SERVERS):
            node = await self._coordinator.get(f"{paths.SERVERS}/{name}")
            if node is None:
                continue
            entry = self.known.accept(SERVER_ENTRIES, node, name)
            if entry is None:
                continue  # reported; the manager assigns it nothing
            if entry.address != address or entry.server_id == self.server_id:
                continue
            log.info("removing the entry of the previous process at this address", address=address, server_id=entry.server_id)
            await self._coordinator.delete(f"{paths.SERVERS}/{name}", node.version)
            manager = await self._coordinator.get(paths.MANAGER)
            if manager is not None and manager.data == str(entry.server_id).encode():
                await self._coordinator.delete(paths.MANAGER, manager.version)

    async def leave(self) -> None:
        """Releases everything, so that other servers can acquire it at once. If the coordinator does not answer, they acquire it when the session
        ends."""
        await self.end()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._coordinator.delete(self._entry_path)
                if self.in_office:
                    await self._coordinator.delete(paths.MANAGER)
        except (TimeoutError, ClusterUnavailable) as error:
            log.warning("left without notifying the coordinator", server_id=self.server_id, reason=str(error) or "no answer in time")

    async def end(self) -> None:
        """Does not notify the coordinator."""
        if self._governing is not None:
            await self._governing.end()
            self._governing = None

    @property
    def _entry_path(self) -> str:
        return f"{paths.SERVERS}/{self.server_id:010d}"

    async def _highest_server_id(self) -> int:
        """The highest server id of servers that are there, and of owners in the assignment, where the counter is missing or cannot be read: 0 in a
        new cluster."""
        found = self.known.accept(ASSIGNMENT, await self.known.get(self._coordinator, ASSIGNMENT))
        owners = [] if found is None else [owned.server_id or 0 for owned in found.partitions.values()]
        names = await self._coordinator.children(paths.SERVERS, latest=True)
        return max([0, *owners, *(int(name) for name in names if parse_counter(name.encode()) is not None)])

    async def _next_server_id(self) -> int:
        while True:
            node = await self._coordinator.get(paths.SERVER_IDS)
            if node is None:
                await self._coordinator.create(paths.SERVER_IDS, str(await self._highest_server_id()).encode())
                continue
            counted = parse_counter(node.data)
            taken = (await self._highest_server_id() if counted is None else counted) + 1
            if await self._coordinator.set(paths.SERVER_IDS, str(taken).encode(), node.version) is not None:
                return taken
