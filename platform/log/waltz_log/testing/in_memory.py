"""A cluster inside a test's process: the real servers, storage nodes and clients over an in-memory network, coordinator and disks
(docs/guides/testing.md).

Locks, order, idempotence, fail-over and recovery are those of a real cluster, because the code is the same; it lacks only what is not part of the
platform: sockets, disks, ZooKeeper. Faults are made when a test asks for them, none by chance. Time is the event loop's: nothing waits but for
timers.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar  # Any: keyword arguments of a topic

from waltz_log.client import ClientSettings, SyncWaltzClient, WaltzClient
from waltz_log.client.base.background import Background
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import Topic
from waltz_log.errors import InvalidRequest
from waltz_log.processes.clock import WallClock
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.injection import Fault, Faults, connect_injected, expect_partition

__all__ = ["InMemoryCluster", "SyncInMemoryCluster"]

T = TypeVar("T")


class _Planning:
    """The faults that a test can ask for. Each holds for one append, the next that no other fault was planned for."""

    def __init__(self, partitions: int, faults: Faults) -> None:
        self._partition_count = partitions
        self._faults = faults

    def _plan(self, kind: str, partition: int | None, data: bytes | None = None) -> None:
        expect_partition(partition, self._partition_count)
        self._faults.planned.append(Fault(kind, partition, data))

    def fail_next_append(self, partition: int | None = None) -> None:
        """It is refused with `NotAppended`, as while storage is full: certainly not in the log."""
        self._plan("fail", partition)

    def lose_next_answer(self, partition: int | None = None, *, appended: bool = True) -> None:
        """It ends with `OutcomeUnknown`. `appended` says what `resolve` will find."""
        self._plan("unknown, appended" if appended else "unknown, lost", partition)

    def conflict_next_append(self, partition: int | None = None, *, data: bytes | None = None) -> None:
        """Commits another transaction under the same locks just before the next append that checks a lock, which is rejected with `LockConflict`. The
        other transaction has `data`, or the same data, like one of another process of the application that does the same at that moment."""
        self._plan("conflict", partition, data)

    @property
    def planned(self) -> int:
        """Faults that no append has met yet."""
        return len(self._faults.planned)


class InMemoryCluster(MemoryCluster):
    """A cluster in the test's process: `async with InMemoryCluster(partitions=2) as cluster:`. `client` creates clients, which are closed with the
    cluster. Nodes are named `storage-0`, `server-0` and so on. `kill_server`, `start_server`, `stop_server`, `kill_storage` and `start_storage`
    are coroutines with such a name as argument. `fail_next_append`, `lose_next_answer` and `conflict_next_append` plan a fault of one append
    (docs/guides/testing.md)."""

    def __init__(self, *, partitions: int = 1, storages: int = 3, servers: int = 2) -> None:
        if min(partitions, storages, servers) < 1:
            raise InvalidRequest(reason="a cluster has at least one partition, one storage node and one server")
        super().__init__(partitions=partitions, storages=storages, servers=servers, delay_s=lambda: random.uniform(0, self._delay_s))
        self.clock = WallClock()
        self.faults = Faults(rival=self._rival)
        self._delay_s = 0.0
        self._clients: list[WaltzClient] = []
        self._other: WaltzClient | None = None
        self._plan = _Planning(partitions, self.faults)
        self.fail_next_append = self._plan.fail_next_append
        self.lose_next_answer = self._plan.lose_next_answer
        self.conflict_next_append = self._plan.conflict_next_append

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the clients, then everything else."""
        self.resume_feeds()
        self.delay(0)
        for client in self._clients:
            await client.close()
        if self._other is not None:
            await self._other.close()
        await self.stop()

    async def client(self, settings: ClientSettings | None = None) -> WaltzClient:
        """A client that meets the planned faults."""
        client = await connect_injected(self.seeds, self.network, self.faults, settings)
        self._clients.append(client)
        return client

    async def coordinator(self) -> Coordinator:
        """A session of the coordinator, for the functions of operators."""
        return self.ensemble.session()

    async def _rival(self) -> WaltzClient:
        if self._other is None:
            self._other = await self.connect()
        return self._other

    @property
    def faults_planned(self) -> int:
        """Faults that no append has met yet."""
        return self._plan.planned

    def delay(self, most_s: float) -> None:
        """From now on each message between any two processes is delayed by up to this time."""
        self._delay_s = most_s

    def suspend_feeds(self) -> None:
        """Clients are fed nothing more until `resume_feeds`: they lag, and appends continue."""
        self.faults.feeds_go_on.clear()

    def resume_feeds(self) -> None:
        """Ends `suspend_feeds`: the feeds continue where they were."""
        self.faults.feeds_go_on.set()


class _InjectedSyncClient(SyncWaltzClient):
    @classmethod
    def of(cls, cluster: InMemoryCluster, settings: ClientSettings | None) -> Self:
        self = cls.__new__(cls)
        self._begin(lambda: cluster.client(settings))
        return self


class SyncInMemoryCluster:
    """`InMemoryCluster` for tests without an event loop: `with SyncInMemoryCluster(partitions=2) as cluster:`. Its clients are `SyncWaltzClient`s."""

    def __init__(self, *, partitions: int = 1, storages: int = 3, servers: int = 2) -> None:
        self._sizes = {"partitions": partitions, "storages": storages, "servers": servers}
        self._clients: list[SyncWaltzClient] = []

    def __enter__(self) -> Self:
        self._background = Background()
        try:
            self._cluster = self._background.call(self._start())
        except BaseException:
            self._background.close()
            raise
        self.fail_next_append = self._cluster.fail_next_append
        self.lose_next_answer = self._cluster.lose_next_answer
        self.conflict_next_append = self._cluster.conflict_next_append
        return self

    async def _start(self) -> InMemoryCluster:
        cluster = InMemoryCluster(**self._sizes)
        await cluster.start()
        return cluster

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.resume_feeds()
        for client in self._clients:
            client.close()
        self._background.call(self._cluster.close())
        self._background.close()

    def client(self, settings: ClientSettings | None = None) -> SyncWaltzClient:
        """As `InMemoryCluster.client`."""
        client = _InjectedSyncClient.of(self._cluster, settings)
        self._clients.append(client)
        return client

    @property
    def faults_planned(self) -> int:
        """As `InMemoryCluster.faults_planned`."""
        return self._cluster.faults_planned

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the cluster's event loop and returns its result."""
        return self._background.call(work)

    def create_topic(self, name: str, partitions: int = 1, **about: Any) -> Topic:
        """As `InMemoryCluster.create_topic`."""
        return self.call(self._cluster.create_topic(name, partitions, **about))

    def delete_topic(self, name: str) -> None:
        """As `InMemoryCluster.delete_topic`."""
        self.call(self._cluster.delete_topic(name))

    def kill_server(self, name: str) -> None:
        """As `InMemoryCluster.kill_server`."""
        self.call(self._cluster.kill_server(name))

    def start_server(self, name: str) -> None:
        """As `InMemoryCluster.start_server`."""
        self.call(self._cluster.start_server(name))

    def stop_server(self, name: str) -> None:
        """As `InMemoryCluster.stop_server`."""
        self.call(self._cluster.stop_server(name))

    def kill_storage(self, name: str) -> None:
        """As `InMemoryCluster.kill_storage`."""
        self.call(self._cluster.kill_storage(name))

    def start_storage(self, name: str) -> None:
        """As `InMemoryCluster.start_storage`."""
        self.call(self._cluster.start_storage(name))

    def delay(self, most_s: float) -> None:
        """As `InMemoryCluster.delay`."""
        self._cluster.delay(most_s)

    def suspend_feeds(self) -> None:
        """As `InMemoryCluster.suspend_feeds`."""
        self._background.loop.call_soon_threadsafe(self._cluster.suspend_feeds)

    def resume_feeds(self) -> None:
        """As `InMemoryCluster.resume_feeds`."""
        self._background.loop.call_soon_threadsafe(self._cluster.resume_feeds)
