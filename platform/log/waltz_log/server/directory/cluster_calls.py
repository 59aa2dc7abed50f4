"""What callers that may administer see of the coordinator, and decide there about the places of owners.

Surveys of the same moment share one read. While the coordinator is away, the answer is what was read last, with what this server has learned by its
watches since; nothing can change in a coordinator that does not answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final  # Any: values of both kinds

from waltz_log.coordination.followed import RULES, TOPICS, FollowedValue, KnownValues
from waltz_log.coordination.placement import PlacementChange, drain_node, move_owners, read_servers, readmit_node, release_owners
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, ServerEntry
from waltz_log.core.ports import Coordinator, Node
from waltz_log.core.topics.catalogue import CATALOGUE
from waltz_log.errors import ClusterUnavailable, InvalidRequest, ProtocolViolation, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import acted
from waltz_log.security.callers import caller
from waltz_log.security.identity import named_principal
from waltz_log.security.rules import ACCESS
from waltz_log.server.directory.shared_read import SharedRead
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ClusterCalls"]

VALUES: Final = (paths.CLUSTER, paths.ASSIGNMENT, paths.REPLICAS, paths.REPLICA_MOVES, CATALOGUE, ACCESS)
FOLDERS: Final = (paths.SERVERS, paths.STORAGE_NODES)

READ_S: Final = 1.0
"""For the coordinator to answer."""

PAUSE_S: Final = 0.1
"""At least so long between two reads."""


class ClusterCalls:
    """The cluster calls of one server process. Call `read` once: what is answered later needs no coordinator."""

    def __init__(self, coordinator: Coordinator, access: AccessControl, known: KnownValues) -> None:
        self._coordinator = coordinator
        self._access = access
        self._known = known
        self._values: dict[str, Node] = {}
        self._read_s = 0.0
        self._reads = SharedRead(self._read_in_time, PAUSE_S)

    async def close(self) -> None:
        await self._reads.close()

    # ---- seeing --------------------------------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Raises `ClusterUnavailable`."""
        begun_s = asyncio.get_running_loop().time()
        names = await asyncio.gather(*(self._coordinator.children(folder) for folder in FOLDERS))
        entries = [f"{folder}/{name}" for folder, found in zip(FOLDERS, names, strict=True) for name in found]
        asked = [*VALUES, *entries]
        nodes = await asyncio.gather(*map(self._coordinator.get, asked))
        self._values = {path: node for path, node in zip(asked, nodes, strict=True) if node is not None}
        self._read_s = begun_s

    async def values(self) -> pb.ClusterResponse:
        """Raises `PermissionDenied`."""
        self._access.expect_cluster()
        found = self._values if self._coordinator.reachable and await self._is_read() else self._remembered()
        found = found | self._decisive()
        age_ms = int(1000 * max(0.0, asyncio.get_running_loop().time() - self._read_s))
        values = [pb.ClusterValue(path=path, data=node.data, changed=node.changed) for path, node in sorted(found.items())]
        return pb.ClusterResponse(values=values, age_ms=age_ms)

    def _decisive(self) -> dict[str, Node]:
        """The values that decide access, as this server uses them, where the coordinator has others. A server that does not know the rules yet, or
        permits nothing without them, gives bytes that are none, with which its reader permits nothing either."""
        refused = self._known.refused()
        kinds: tuple[FollowedValue[Any], ...] = (RULES, TOPICS)
        used = {each.path: self._known.data(each) or b"" for each in kinds if each.path in refused}
        if self._access.enforced and not self._access.known:
            used[ACCESS] = b""
        return {path: Node(data, 0) for path, data in used.items()}

    async def _is_read(self) -> bool:
        """Whether the values are as the coordinator had them at the call, or later."""
        try:
            async with asyncio.timeout(READ_S):
                await self._reads.wait()
        except (TimeoutError, ClusterUnavailable, Unavailable):
            return False
        return True

    async def _read_in_time(self) -> None:
        async with asyncio.timeout(READ_S):
            await self.read()

    def _remembered(self) -> dict[str, Node]:
        learned = {path: data.encode() for path, data in self._known.values().items() if path in VALUES or path.startswith(f"{paths.STORAGE_NODES}/")}
        found = dict(self._values)
        for path, data in learned.items():
            before = found.get(path)
            if before is None or before.data != data:
                found[path] = Node(data, 0, 0 if before is None else before.changed)
        assignment = Assignment.from_bytes(found[paths.ASSIGNMENT].data) if paths.ASSIGNMENT in found else Assignment()
        for server, address in assignment.addresses.items():
            found.setdefault(f"{paths.SERVERS}/{server:010d}", Node(ServerEntry(server, address).to_bytes(), 0))
        return found

    # ---- deciding ------------------------------------------------------------------------------------------------------------------------------

    async def place(self, request: pb.PlacementRequest) -> pb.PlacementResponse:
        """Raises `PermissionDenied`, `InvalidRequest`, `ClusterUnavailable`."""
        self._access.expect_cluster()
        if len(request.partitions) > paths.PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a log has {paths.PARTITIONS_MAX} partitions at most, the request names {len(request.partitions)}")
        change = await self._placed(request)
        if not request.dry_run:
            peer = caller()
            action = pb.PlacementRequest.Action.Name(request.action).removeprefix("ACTION_").lower()
            acted("placement request", action=action, server=request.server, principal=named_principal(peer))
        moves = [
            pb.OwnerMove(partition=partition, before=-1 if before is None else before, after=-1 if after is None else after)
            for partition, before, after in change.moves
        ]
        return pb.PlacementResponse(moves=moves)

    async def _placed(self, request: pb.PlacementRequest) -> PlacementChange:
        actions = pb.PlacementRequest
        if request.action == actions.ACTION_MOVE:
            return await move_owners(self._coordinator, request.partitions, request.server, dry_run=request.dry_run)
        if request.action == actions.ACTION_RELEASE:
            return await release_owners(self._coordinator, request.partitions, dry_run=request.dry_run)
        if request.action == actions.ACTION_DRAIN:
            if all(each.address != request.server for each in await read_servers(self._coordinator)):
                raise InvalidRequest(reason=f"no log server is registered at {request.server!r}")
            return await drain_node(self._coordinator, request.server, dry_run=request.dry_run)
        if request.action == actions.ACTION_READMIT:
            return await readmit_node(self._coordinator, request.server, dry_run=request.dry_run)
        raise ProtocolViolation(reason=f"no such action: {request.action}")
