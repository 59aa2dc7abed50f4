"""What log partitions hold, asked of their owners and replicas, before they are given to a topic (docs/guides/topics.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from waltz_log.coordination.entries import parsed, read_entry
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, STORAGE_NODES, Assignment, ClusterParameters, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.node_address import announced_name
from waltz_log.core.ports import Channel, Coordinator, Network, Node
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.locating import Question, locate
from waltz_log.transport.methods import BOUND, TRANSACTIONS

__all__ = ["PartitionContents", "PartitionsAsked", "is_empty"]

PAUSE_S = 0.05
CALL_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """`first`, `last`: ids; `last` is `first` - 1 in an empty one. Bytes and times (ms since 1970) are None if there are none or they are not
    known."""

    partition: int
    first: int
    last: int
    bytes: int | None
    first_ms: int | None
    last_ms: int | None
    replicas: tuple[str, ...]

    @property
    def transactions(self) -> int:
        return self.last + 1 - self.first

    @property
    def figures(self) -> dict[str, int | None]:
        """What may be unknown, by name."""
        return {"bytes": self.bytes, "first_ms": self.first_ms, "last_ms": self.last_ms}


class PartitionsAsked:
    """One conversation with the nodes of a cluster; `close` it."""

    def __init__(self, coordinator: Coordinator, network: Network, timeout_s: float) -> None:
        self._coordinator = coordinator
        self._network = network
        self._timeout_s = timeout_s
        self._channels: dict[tuple[str, str | None], Channel] = {}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def channel(self, address: str) -> Channel:
        key = (address, announced_name(address))
        if key not in self._channels:
            self._channels[key] = self._network.connect(address)
        return self._channels[key]

    async def _read(self, path: str) -> Node:
        node = await self._coordinator.get(path)
        if node is None:
            raise InvalidRequest(reason="there is no cluster at this address: create one first")
        return node

    async def bounds(self, partitions: Collection[int], *, closed_in: int | None = None) -> dict[int, pb.Bound]:
        """The bound of each partition whose owner answers in time. `closed_in`: a version of the catalogue; owners answer when the partition is
        closed to appends as that says."""
        key = parsed(CLUSTER, await self._read(CLUSTER), ClusterParameters.from_bytes).key.bytes
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        found: dict[int, pb.Bound] = {}
        while len(found) < len(partitions):
            node = await self._coordinator.get(ASSIGNMENT)
            assignment = Assignment() if node is None else parsed(ASSIGNMENT, node, Assignment.from_bytes)
            asked: dict[str, list[int]] = {}
            for partition in sorted(set(partitions) - found.keys()):
                address = assignment.address_of(partition)
                if address is not None:
                    asked.setdefault(address, []).append(partition)
            answers = await asyncio.gather(*(self._bounds_at(address, key, numbers, closed_in) for address, numbers in asked.items()))
            found |= {bound.partition: bound for answer in answers for bound in answer if bound.partition in partitions}
            if loop.time() >= deadline:
                break
            if len(found) < len(partitions):
                await asyncio.sleep(PAUSE_S)
        return found

    async def _bounds_at(self, address: str, key: bytes, partitions: list[int], closed_in: int | None) -> list[pb.Bound]:
        request = pb.BoundRequest(partitions=partitions, cluster_key=key, closed_in=0 if closed_in is None else closed_in + 1)
        try:
            return list((await self.channel(address).call(BOUND, request, timeout_s=CALL_TIMEOUT_S)).bounds)
        except WaltzError as error:
            if not error.retriable:
                raise
            return []

    async def contents(self, bounds: Iterable[pb.Bound]) -> list[PartitionContents]:
        """What is in the partitions of these bounds."""
        parameters = parsed(CLUSTER, await self._read(CLUSTER), ClusterParameters.from_bytes)
        held = parsed(REPLICAS, await self._read(REPLICAS), ReplicaAssignment.from_bytes).replicas
        return list(await asyncio.gather(*(self._contents(bound, parameters.key.bytes, held.get(bound.partition, ())) for bound in bounds)))

    async def _contents(self, bound: pb.Bound, key: bytes, replicas: tuple[str, ...]) -> PartitionContents:
        first, last = bound.first_transaction_id, bound.high_water_mark
        if last < first:
            return PartitionContents(bound.partition, first, first - 1, None, None, None, replicas)
        size, first_ms, last_ms = await asyncio.gather(
            self._bytes(bound, key, replicas), self._time_ms(bound.partition, key, first), self._time_ms(bound.partition, key, last)
        )
        return PartitionContents(bound.partition, first, last, size, first_ms, last_ms, replicas)

    async def _bytes(self, bound: pb.Bound, key: bytes, replicas: tuple[str, ...]) -> int | None:
        entries = [await read_entry(self._coordinator, f"{STORAGE_NODES}/{name}", StorageNodeEntry.from_bytes) for name in replicas]
        addresses = [entry.address_for(bound.partition) for entry in entries if entry is not None]
        first, last = bound.first_transaction_id, bound.high_water_mark
        question = Question(bound.session, last, first=first, last=last, max_bytes=1 << 62)
        try:
            found = await locate(self.channel, {bound.partition: addresses}, key, {bound.partition: question}, CALL_TIMEOUT_S)
        except WaltzError:
            return None  # it is only shown
        return found[bound.partition].bytes

    async def _time_ms(self, partition: int, key: bytes, transaction_id: int) -> int | None:
        request = pb.TransactionRequest(partition=partition, first_transaction_id=transaction_id, count=1, cluster_key=key)
        node = await self._coordinator.get(ASSIGNMENT)
        address = None if node is None else parsed(ASSIGNMENT, node, Assignment.from_bytes).address_of(partition)
        if address is None:
            return None
        try:
            blocks = (await self.channel(address).call(TRANSACTIONS, request, timeout_s=CALL_TIMEOUT_S)).blocks
        except WaltzError:
            return None  # it is only shown
        return int(blocks[0].append_time_ms) if blocks else None


def is_empty(bound: pb.Bound) -> bool:
    """Whether nothing is in the partition: never used, or trimmed to its end."""
    return bound.high_water_mark < bound.first_transaction_id
