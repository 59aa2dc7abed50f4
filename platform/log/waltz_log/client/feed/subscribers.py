"""Subscribers: registered readers. Retention keeps what they have not read (docs/guides/topics.md, Subscribers).

A service registers under its own name with a mark for each log partition: the last transaction that it will never read again. It reports higher
marks after the results of those transactions are safe, and removes itself when it stops permanently. The log keeps the unread transactions of a
subscriber that only stops, until an operator removes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Self

from waltz_log.client.base.background import Background, blocking
from waltz_log.coordination.subscribers import read_retained, read_subscribers, register_subscriber, remove_subscriber, report_marks
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import OutOfRange

__all__ = ["Subscriber", "Subscribers", "SyncSubscribers"]


class Subscribers:
    """The registered readers of a cluster (docs/guides/topics.md, Subscribers). Made by `connect`; end it with `close`, or use `async with`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    @classmethod
    async def connect(cls, cluster: str, timeout_s: float = 10.0) -> Self:
        """Connects to the cluster at `host:port[,host:port]/root`. Raises `ClusterUnavailable` after `timeout_s` seconds."""
        from waltz_log.coordination.coordinator import ZooKeeperCoordinator

        return cls(await ZooKeeperCoordinator.connect(cluster, timeout_s=timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. The registrations stay."""
        await self._coordinator.close()

    async def register(self, name: str, marks: Mapping[int, int], labels: Mapping[str, str] | None = None) -> Subscriber:
        """Registers a subscriber, so that retention keeps everything above its marks. `marks`: by log partition. `labels`: shown to operators,
        such as a table or a host. If it is registered already, higher marks stay. Raises `OutOfRange` if retention has already removed something
        above a mark: read from its field `first` on, or continue without it."""
        now_ms = _now_ms()
        return await register_subscriber(self._coordinator, Subscriber(name, dict(marks), dict(labels or {}), now_ms, now_ms))

    async def register_at_start(self, name: str, partitions: Iterable[int], labels: Mapping[str, str] | None = None) -> Subscriber:
        """Registers a subscriber with the marks at which each log partition begins now, so that everything there is stays."""
        chosen = sorted(set(partitions))
        while True:
            kept = [await read_retained(self._coordinator, partition) for partition in chosen]
            try:
                return await self.register(
                    name, {partition: max(each.first, each.proposed) - 1 for partition, each in zip(chosen, kept, strict=True)}, labels
                )
            except OutOfRange:
                continue  # it was trimmed meanwhile

    async def report(self, name: str, marks: Mapping[int, int]) -> Subscriber:
        """Raises the marks of a subscriber: it never reads again what is at or below them. Lower marks change nothing. Raises `InvalidRequest` if
        there is no such subscriber any more."""
        return await report_marks(self._coordinator, name, marks, _now_ms())

    async def remove(self, name: str) -> Subscriber:
        """Removes a subscriber: retention keeps nothing for it any more. Raises `InvalidRequest` if there is none."""
        return await remove_subscriber(self._coordinator, name)

    async def list(self) -> list[Subscriber]:
        """All subscribers of the cluster."""
        return await read_subscribers(self._coordinator)


class SyncSubscribers:
    """The same for programs without an event loop: each call blocks."""

    def __init__(self, cluster: str, timeout_s: float = 10.0) -> None:
        self.background = Background()
        try:
            self.asynchronous = self.background.call(Subscribers.connect(cluster, timeout_s))
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


def _now_ms() -> int:
    """Only shown to people."""
    return time.time_ns() // 1_000_000
