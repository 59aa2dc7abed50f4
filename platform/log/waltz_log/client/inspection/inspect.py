"""What a bulk reader asks of a cluster before it reads: its parameters, how far each partition is committed, which storage nodes hold it.

Blocking; made for Spark's driver. It retries through changes of owner within its timeout. It never appends and needs no client id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from waltz_log.client.base.background import Background
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.inspection.recent_traces import TracedTransaction, recent_traces
from waltz_log.client.inspection.view_ends import view_ends
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import NamedServers, Seeds
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Network
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.locating import Place, Question, locate
from waltz_log.transport.methods import BOUND

__all__ = ["ClusterInspector", "PartitionBound", "Place", "Question"]

PAUSE_S = 0.1
"""Between two questions to owners that do not answer for a partition yet."""


@dataclass(frozen=True, slots=True)
class PartitionBound:
    """How far a partition is committed, as its owner knew it. Old is harmless: what is committed stays so."""

    partition: int
    generation: int
    session: int
    high_water_mark: int
    first_transaction_id: int


class ClusterInspector:
    """`with ClusterInspector("host:port") as cluster:`. Every call returns or raises within `timeout_s`."""

    def __init__(self, cluster: str, timeout_s: float = 10.0, cluster_key: UUID | None = None) -> None:
        def network() -> Network:
            from waltz_log.transport.grpc import GrpcNetwork

            return GrpcNetwork()

        self._begin(NamedServers(cluster), network, timeout_s, cluster_key)

    @classmethod
    def connect_over(cls, seeds: Seeds, network: Network, timeout_s: float = 10.0) -> Self:
        """Over any addresses and network."""
        self = cls.__new__(cls)
        self._begin(seeds, lambda: network, timeout_s)
        return self

    def _begin(self, seeds: Seeds, network: Callable[[], Network], timeout_s: float, cluster_key: UUID | None = None) -> None:
        self._timeout_s = timeout_s
        self._background = Background()
        try:
            settings = ClientSettings(connect_timeout_s=timeout_s, cluster_key=cluster_key)
            self._owners = self._background.call(self._open(seeds, network, settings))
        except BaseException:
            self._background.close()
            raise

    async def _open(self, seeds: Seeds, network: Callable[[], Network], settings: ClientSettings) -> Owners:
        owners = Owners(seeds, network(), settings, random.Random())
        await owners.open()
        return owners

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._background.forked:
            self._background.call(self._owners.close())
        self._background.close()

    @property
    def parameters(self) -> ClusterParameters:
        return self._owners.parameters

    def bounds(self, partitions: Iterable[int] | None = None) -> dict[int, PartitionBound]:
        """The bound of each partition asked for, of all by default. Raises `Unavailable` naming what has no owner that answers in time."""
        wanted = sorted(set(range(self.parameters.partitions) if partitions is None else partitions))
        unknown = [partition for partition in wanted if not 0 <= partition < self.parameters.partitions]
        if unknown:
            raise InvalidRequest(reason=f"no such partition: partition={unknown[0]} partitions={self.parameters.partitions}")
        return self._background.call(self._bounds(wanted))

    async def _bounds(self, wanted: list[int]) -> dict[int, PartitionBound]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        found: dict[int, PartitionBound] = {}
        last: WaltzError | None = None
        while True:
            missing = [partition for partition in wanted if partition not in found]
            if not missing:
                return {partition: found[partition] for partition in wanted}
            left = deadline - loop.time()
            if left <= 0:
                raise Unavailable(reason=f"no owner answers within {self._timeout_s:g} s: partitions={missing} last={last}")
            by_owner: dict[str, list[int]] = {}
            for partition in missing:
                address = self._owners.address(partition)
                if address is not None:
                    by_owner.setdefault(address, []).append(partition)
            began_s = loop.time()
            answers = await asyncio.gather(*(self._ask(address, asked, left) for address, asked in by_owner.items()))
            for answer in answers:
                if isinstance(answer, WaltzError):
                    if not answer.retriable:
                        raise answer
                    last = self._owners.reported(last, answer, began_s, left)
                    continue
                for bound in answer:
                    found[bound.partition] = bound
            if len(found) < len(wanted):
                await self._owners.wait_changed(min(PAUSE_S, max(0.0, deadline - loop.time())))

    async def _ask(self, address: str, partitions: list[int], timeout_s: float) -> list[PartitionBound] | WaltzError:
        request = pb.BoundRequest(partitions=partitions, cluster_key=self.parameters.key.bytes)
        try:
            answer: pb.BoundResponse = await self._owners.call_channel(address).call(BOUND, request, timeout_s=timeout_s)
        except WaltzError as error:
            return error
        return [
            PartitionBound(bound.partition, bound.generation, bound.session, bound.high_water_mark, bound.first_transaction_id)
            for bound in answer.bounds
            if bound.partition in partitions
        ]

    def owners(self) -> dict[int, str | None]:
        """The address of each partition's owner as it is assigned now; None if it has no owner."""
        return {partition: self._owners.address(partition) for partition in range(self.parameters.partitions)}

    def locate(self, questions: Mapping[int, Question]) -> dict[int, Place]:
        """Where something is in the log, as its replicas report: positions by time, sizes of ranges. Raises `OutOfRange`, `Unavailable`."""
        return self._background.call(self._locate(questions))

    async def _locate(self, questions: Mapping[int, Question]) -> dict[int, Place]:
        return await locate(self._owners.call_channel, self._owners.replicas(), self.parameters.key.bytes, questions, self._timeout_s)

    def catalogue(self) -> Catalogue:
        """The topics there are now; their partitions are known here when it returns."""
        return self._background.call(self._catalogue())

    async def _catalogue(self) -> Catalogue:
        await self._owners.confirm(self._timeout_s)
        found = self._owners.catalogue
        await self._owners.reach(max((each for topic in found.topics.values() for each in topic.partitions), default=0))
        return found

    def view_ends(self, sessions: Mapping[int, int], principal: str = "") -> dict[int, dict[str, int]]:
        """Where the compacted view of each partition ends, by the address of each replica that has one: the log continues with that id. `sessions`:
        of the partitions' bounds."""
        return self._background.call(self._view_ends(sessions, principal))

    async def _view_ends(self, sessions: Mapping[int, int], principal: str) -> dict[int, dict[str, int]]:
        return await view_ends(self._owners.call_channel, self._owners.replicas(), self.parameters.key.bytes, sessions, principal, self._timeout_s)

    def recent_traces(self, ranges: Mapping[int, tuple[int, int]], count_max: int, principal: str = "") -> list[TracedTransaction]:
        """The newest traced appends among ranges of transaction ids, first and last, by partition; `count_max` of each. An owner that does not answer
        is left out."""
        return self._background.call(recent_traces(self._owners, ranges, count_max, principal, self._timeout_s))

    def replicas(self) -> dict[int, list[str]]:
        """The addresses of the storage nodes that hold each partition, as they are registered now. Nodes that never registered are left out."""
        return self._owners.replicas()
