"""What an operator decides about the places of owners and replicas, in a coordinator: partitions that are moved to a server, nodes that are drained.

Both are in the assignment, beside what they decide, and change by the same compare-and-set. The new owners are written with the decision, by the rule
of the cluster manager, so what a dry run shows is what happens.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from waltz_log.coordination.entries import parsed, read_entry
from waltz_log.core.assignment import assign
from waltz_log.core.metadata import (
    ASSIGNMENT,
    CLUSTER,
    REPLICA_MOVES,
    REPLICAS,
    SERVERS,
    STORAGE_NODES,
    Assignment,
    ClusterParameters,
    ReplicaAssignment,
    ReplicaMove,
    ServerEntry,
    moves_to_bytes,
    parse_moves,
)
from waltz_log.core.ports import Coordinator, Values
from waltz_log.errors import InvalidRequest

__all__ = [
    "PlacementChange",
    "change_placement",
    "drain_node",
    "forget_storage",
    "move_owners",
    "read_moves",
    "read_servers",
    "readmit_node",
    "record_moves",
    "release_owners",
]


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """The assignment before and after a decision."""

    before: Assignment
    after: Assignment

    @property
    def moves(self) -> list[tuple[int, int | None, int | None]]:
        """Partition, owner before, owner afterwards: of the partitions whose owner changes."""
        found = []
        for partition, owned in sorted(self.after.partitions.items()):
            was = self.before.partitions.get(partition)
            if (None if was is None else was.server_id) != owned.server_id:
                found.append((partition, None if was is None else was.server_id, owned.server_id))
        return found


async def read_servers(coordinator: Coordinator) -> list[ServerEntry]:
    """The servers that are alive."""
    names = await coordinator.children(SERVERS, latest=True)
    entries = await asyncio.gather(*(read_entry(coordinator, f"{SERVERS}/{name}", ServerEntry.from_bytes) for name in names))
    return [each for each in entries if each is not None]


def _find_server(servers: Iterable[ServerEntry], wanted: str) -> ServerEntry:
    """The server with that number or address. Raises `InvalidRequest`, which names the most similar one."""
    known = {name: server for server in servers for name in (str(server.server_id), server.address)}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, sorted(known), n=1, cutoff=0.6)
    running = ", ".join(sorted({f"{server.server_id} at {server.address}" for server in known.values()})) or "none"
    raise InvalidRequest(reason=f"no log server {wanted} is running" + (f", did you mean {near[0]}" if near else f"; running are {running}"))


async def change_placement(coordinator: Coordinator, decide: Callable[[Assignment], Assignment], *, dry_run: bool = False) -> PlacementChange:
    """`decide` gives the assignment with other `moved` or `drained`; the owners follow. Raises `InvalidRequest` if there is no cluster, and the
    errors of `decide`."""
    while True:
        cluster, node = await coordinator.get(CLUSTER, latest=True), await coordinator.get(ASSIGNMENT, latest=True)
        if cluster is None:
            raise InvalidRequest(reason="there is no cluster at this address: create one first")
        servers = await read_servers(coordinator)
        before = Assignment() if node is None else parsed(ASSIGNMENT, node, Assignment.from_bytes)
        after = assign(decide(before), servers, parsed(CLUSTER, cluster, ClusterParameters.from_bytes).partitions)
        if dry_run or after == before:
            return PlacementChange(before, after)
        if node is None:
            if await coordinator.create(ASSIGNMENT, after.to_bytes()):
                return PlacementChange(before, after)
        elif await coordinator.set(ASSIGNMENT, after.to_bytes(), node.version) is not None:
            return PlacementChange(before, after)


async def move_owners(coordinator: Coordinator, partitions: Iterable[int], server: str, *, dry_run: bool = False) -> PlacementChange:
    """Moves partitions to a server, by its number or address. They stay with it and return to it after a restart. Raises `InvalidRequest` if there is
    no such server or partition, or if the server is drained."""
    wanted = sorted(set(partitions))
    target = _find_server(await read_servers(coordinator), server)

    def decide(before: Assignment) -> Assignment:
        _expect_partitions(before, wanted)
        if target.address in before.drained:
            raise InvalidRequest(reason=f"the server is drained: {target.address}; `waltz drain --undo` readmits it")
        return replace(before, moved=before.moved | dict.fromkeys(wanted, target.address))

    return await change_placement(coordinator, decide, dry_run=dry_run)


async def release_owners(coordinator: Coordinator, partitions: Iterable[int] | None, *, dry_run: bool = False) -> PlacementChange:
    """Cancels moves of these partitions, of all by default: the cluster distributes them again. Raises `InvalidRequest` if there is no such
    partition."""

    def decide(before: Assignment) -> Assignment:
        released = set(before.moved) if partitions is None else set(partitions)
        _expect_partitions(before, sorted(released))
        return replace(before, moved={partition: address for partition, address in before.moved.items() if partition not in released})

    return await change_placement(coordinator, decide, dry_run=dry_run)


def _expect_partitions(assignment: Assignment, wanted: Iterable[int]) -> None:
    unknown = [partition for partition in wanted if partition not in assignment.partitions]
    if unknown:
        raise InvalidRequest(reason=f"no such partition: {unknown[0]}, the log has {len(assignment.partitions)}")


async def drain_node(coordinator: Coordinator, name: str, *, dry_run: bool = False) -> PlacementChange:
    """Marks a server, by its address, or a storage node. A server then owns nothing. Raises `InvalidRequest` if no other server is left."""
    servers = await read_servers(coordinator)

    def decide(before: Assignment) -> Assignment:
        drained = tuple(sorted({*before.drained, name}))
        if name in {server.address for server in servers} and all(server.address in drained for server in servers):
            raise InvalidRequest(reason=f"{name} is the last log server that is not drained: start another one first")
        return replace(before, drained=drained)

    return await change_placement(coordinator, decide, dry_run=dry_run)


async def readmit_node(coordinator: Coordinator, name: str, *, dry_run: bool = False) -> PlacementChange:
    """Ends a drain, also an unfinished one. Raises `InvalidRequest` if the node is not drained."""

    def decide(before: Assignment) -> Assignment:
        if name not in before.drained:
            raise InvalidRequest(reason=f"the node is not drained: {name}; drained are {', '.join(before.drained) or 'none'}")
        return replace(before, drained=tuple(each for each in before.drained if each != name))

    return await change_placement(coordinator, decide, dry_run=dry_run)


async def forget_storage(coordinator: Coordinator, name: str, *, dry_run: bool = False) -> bool:
    """Removes what the cluster knows of a storage node that will not come back: its address, the number of its starts, and that it was drained.
    Returns whether it was known. Raises `InvalidRequest` if it still has a replica, or a replica is moving to it. A node with the same name can join
    later: the starts of its directory count from the beginning, and what it holds has no vote, because no partition records it."""
    replicas = await coordinator.get(REPLICAS, latest=True)
    held = {} if replicas is None else parsed(REPLICAS, replicas, ReplicaAssignment.from_bytes).replicas
    moving = [each.partition for each in (await read_moves(coordinator)).values() if name in (each.add, each.remove)]
    left = sorted({partition for partition, names in held.items() if name in names} | set(moving))
    if left:
        raise InvalidRequest(reason=f"{name} still has replicas of {len(left)} partitions, such as {left[0]}: run `waltz drain` first")
    node = await coordinator.get(f"{STORAGE_NODES}/{name}", latest=True)
    assignment = await coordinator.get(ASSIGNMENT, latest=True)
    drained = assignment is not None and name in parsed(ASSIGNMENT, assignment, Assignment.from_bytes).drained
    if not dry_run:
        if drained:
            await readmit_node(coordinator, name)
        if node is not None:
            await coordinator.delete(f"{STORAGE_NODES}/{name}")
    return drained or node is not None


# ---- moves of replicas under way -------------------------------------------------------------------------------------------------------------------


async def read_moves(coordinator: Values) -> dict[int, ReplicaMove]:
    """The moves that were begun and are not complete, of commands that run or were killed."""
    node = await coordinator.get(REPLICA_MOVES, latest=True)
    return {} if node is None else parsed(REPLICA_MOVES, node, parse_moves)


async def record_moves(coordinator: Coordinator, begun: Iterable[ReplicaMove] = (), ended: Iterable[int] = ()) -> None:
    """Before a move begins, and after it is complete, so that a command that is killed can be repeated from where it was."""
    begun, ended = list(begun), set(ended)
    while True:
        node = await coordinator.get(REPLICA_MOVES, latest=True)
        before = {} if node is None else parsed(REPLICA_MOVES, node, parse_moves)
        after = {partition: move for partition, move in before.items() if partition not in ended} | {move.partition: move for move in begun}
        if after == before:
            return
        if node is None:
            if await coordinator.create(REPLICA_MOVES, moves_to_bytes(after)):
                return
        elif await coordinator.set(REPLICA_MOVES, moves_to_bytes(after), node.version) is not None:
            return
