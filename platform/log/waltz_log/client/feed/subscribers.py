"""Subscribers: registered readers. Retention keeps what they have not read (docs/guides/topics.md, Subscribers).

A service registers under its own name with a mark for each log partition: the last transaction that it will never read again. It reports higher
marks after the results of those transactions are safe, and removes itself when it stops permanently. The log keeps the unread transactions of a
subscriber that only stops, until an operator removes it.
"""

from __future__ import annotations

import builtins
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Self
from uuid import UUID

from waltz_log.client.base.background import Background, blocking
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.feed.subscriber_entries import ask_subscribers, subscriber_entries, subscriber_of
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import NamedServers, Seeds
from waltz_log.core.ports import Network
from waltz_log.core.topics.subscribers import Subscriber, subscriber_path
from waltz_log.errors import InvalidRequest
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["Subscriber", "Subscribers", "SyncSubscribers"]


class Subscribers:
    """The registered readers of a cluster (docs/guides/topics.md, Subscribers). Made by `connect`; end it with `close`, or use `async with`."""

    def __init__(self, owners: Owners, timeout_s: float = 10.0) -> None:
        self._owners = owners
        self._timeout_s = timeout_s

    @classmethod
    async def connect(cls, cluster: str, timeout_s: float = 10.0, tls: TlsSettings | None = None, cluster_key: UUID | None = None) -> Self:
        """Connects to the cluster with log servers at `host:port[,host:port]`. Raises `ClusterUnavailable` after `timeout_s` seconds, and
        `ClusterKeyMismatch` if they are of a cluster with another key."""
        from waltz_log.transport.grpc import GrpcNetwork

        settings = ClientSettings(tls=tls, connect_timeout_s=timeout_s, cluster_key=cluster_key)
        return await cls.connect_over(NamedServers(cluster), GrpcNetwork(tls=tls), settings, timeout_s)

    @classmethod
    async def connect_over(
        cls,
        seeds: Seeds,
        network: Network,
        settings: ClientSettings | None = None,
        timeout_s: float = 10.0,
        *,
        rng: random.Random | None = None,
    ) -> Self:
        """Connects over any addresses and network, such as those of a test."""
        owners = Owners(seeds, network, settings or ClientSettings(), rng or random.Random())
        await owners.open()
        return cls(owners, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. The registrations stay."""
        await self._owners.close()

    async def register(self, name: str, marks: Mapping[int, int], labels: Mapping[str, str] | None = None) -> Subscriber:
        """Registers a subscriber, so that retention keeps everything above its marks. `marks`: by log partition. `labels`: shown to operators,
        such as a table or a host. If it is registered already, higher marks stay. It belongs to this principal from then on. Raises `OutOfRange` if
        retention has already removed something above a mark: read from its field `first` on, or continue without it. Raises `PermissionDenied` if the
        principal may not read a partition, or the name is another principal's."""
        return await self._ask(pb.SubscribersRequest.ACTION_REGISTER, name, list(marks), list(marks.values()), labels)

    async def register_at_start(self, name: str, partitions: Iterable[int], labels: Mapping[str, str] | None = None) -> Subscriber:
        """Registers a subscriber with the marks at which each log partition begins now, so that everything there is stays."""
        return await self._ask(pb.SubscribersRequest.ACTION_REGISTER_AT_START, name, sorted(set(partitions)), (), labels)

    async def report(self, name: str, marks: Mapping[int, int]) -> Subscriber:
        """Raises the marks of a subscriber: it never reads again what is at or below them. Lower marks change nothing. Raises `InvalidRequest` if
        there is no such subscriber any more, or it is another principal's."""
        return await self._ask(pb.SubscribersRequest.ACTION_REPORT, name, list(marks), list(marks.values()))

    async def remove(self, name: str) -> Subscriber:
        """Removes a subscriber: retention keeps nothing for it any more. Raises `InvalidRequest` if there is none, or it is another principal's."""
        return await self._ask(pb.SubscribersRequest.ACTION_REMOVE, name)

    async def list(self) -> builtins.list[Subscriber]:
        """The subscribers of this principal; for an operator, and without TLS, all of the cluster."""
        return (await subscriber_entries(self._owners, self._timeout_s))[0]

    async def _ask(
        self,
        action: pb.SubscribersRequest.Action.ValueType,
        name: str,
        partitions: Sequence[int] = (),
        marks: Sequence[int] = (),
        labels: Mapping[str, str] | None = None,
    ) -> Subscriber:
        subscriber_path(name)
        try:
            columns = (struct.pack(f">{len(partitions)}i", *partitions), struct.pack(f">{len(marks)}q", *marks))
        except struct.error as error:
            raise InvalidRequest(reason=f"not marks of partitions: {error}") from None
        request = pb.SubscribersRequest(action=action, name=name, partitions=columns[0], marks=columns[1], labels=labels or {})
        (state,) = (await ask_subscribers(self._owners, request, self._timeout_s)).subscribers
        return subscriber_of(state)


class SyncSubscribers:
    """The same for programs without an event loop: each call blocks."""

    def __init__(self, cluster: str, timeout_s: float = 10.0, tls: TlsSettings | None = None, cluster_key: UUID | None = None) -> None:
        self.background = Background()
        try:
            self.asynchronous = self.background.call(Subscribers.connect(cluster, timeout_s, tls, cluster_key))
        except BaseException:
            self.background.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `Subscribers.close`."""
        if not self.background.forked:
            self.background.call(self.asynchronous.close())
        self.background.close()

    register = blocking(Subscribers.register)
    register_at_start = blocking(Subscribers.register_at_start)
    report = blocking(Subscribers.report)
    remove = blocking(Subscribers.remove)
    list = blocking(Subscribers.list)
