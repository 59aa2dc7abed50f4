"""What must not be decided by an old answer of the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from waltz_log.coordination.cluster import create_cluster, grow_cluster
from waltz_log.coordination.subscribers import register_subscriber, remove_subscriber, report_marks
from waltz_log.coordination.topics import change_catalogue, pool_of
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble
from waltz_log.testing.virtual_time import run_in_virtual_time

KEY = UUID(int=1)


def _two_sessions(play: Callable[[MemoryCoordinator, MemoryCoordinator], Awaitable[None]]) -> None:
    """One that writes, and a new one whose follower has heard of nothing yet."""

    async def main() -> None:
        ensemble = MemoryEnsemble()
        ensemble.follower_lag_s = lambda: 5.0
        await play(ensemble.session(), ensemble.session())

    run_in_virtual_time(main())


def test_a_subscriber_that_was_just_registered_reports_over_another_session() -> None:
    async def play(first: MemoryCoordinator, second: MemoryCoordinator) -> None:
        await register_subscriber(first, Subscriber("one", {0: -1}, {}, 0, 0))
        await report_marks(second, "one", {0: 3}, 1)
        assert await remove_subscriber(second, "one") == Subscriber("one", {0: 3}, {}, 0, 1)

    _two_sessions(play)


def test_a_cluster_that_was_just_made_is_grown_over_another_session() -> None:
    async def play(first: MemoryCoordinator, second: MemoryCoordinator) -> None:
        await create_cluster(first, name="one", key=KEY, partitions=2, storages=["a"], replication=1)
        assert await pool_of(second) == range(2)
        await grow_cluster(first, 3)
        with pytest.raises(InvalidRequest, match="3 partitions already"):
            await grow_cluster(second, 2)

    _two_sessions(play)


def test_a_topic_that_was_just_made_is_found_over_another_session() -> None:
    async def play(first: MemoryCoordinator, second: MemoryCoordinator) -> None:
        name = TopicName("shop", "orders")
        await change_catalogue(first, lambda found: found.with_new(name, type="regular", partitions=1, pool=range(1), now_ms=0))
        found = await change_catalogue(second, lambda found: (found, found.find(name)))
        assert found.name == name

    _two_sessions(play)
