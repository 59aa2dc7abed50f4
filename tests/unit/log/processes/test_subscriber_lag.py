"""How far subscribers are behind: their marks from the coordinator, the committed marks from the server's statistics."""

from __future__ import annotations

import asyncio

from tests.unit.log.monitoring.conftest import open_partition
from waltz_log.coordination.subscribers import register_subscriber
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import BudgetStatistics, CacheStatistics, ServerStatistics
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import ClusterUnavailable
from waltz_log.processes.subscriber_lag import PERIOD_S, SubscriberLag, lag_of
from waltz_log.testing.memory_coordinator import MemoryEnsemble

BUDGET = BudgetStatistics(0, 0, 0)
STATISTICS = ServerStatistics(1, None, False, CacheStatistics(BUDGET, BUDGET), {0: open_partition(ReplicaStatus.LIVE)})
"""Partition 0 is committed up to 99."""


def test_only_partitions_of_the_server_count_and_a_mark_above_the_known_end_is_no_lag() -> None:
    assert lag_of({0: 10, 1: 5, 2: 7}, {0: 30, 1: 3}) == 20


async def test_lags_appear_once_the_coordinator_answered_and_stay_when_it_does_not() -> None:
    coordinator = MemoryEnsemble().session()
    await register_subscriber(coordinator, Subscriber("flights", {0: 59, 3: -1}, {}, 0, 0))
    now_s = 0.0
    lag = SubscriberLag(coordinator, lambda: now_s)
    try:
        assert lag.added_to(STATISTICS).subscribers is None
        await _read(lag)
        assert lag.added_to(STATISTICS).subscribers == {"flights": 40}
        lag._coordinator = _Silent()  # type: ignore[assignment]
        now_s = PERIOD_S
        assert lag.added_to(STATISTICS).subscribers == {"flights": 40}
        await _read(lag)
        assert lag.added_to(STATISTICS).subscribers == {"flights": 40}
    finally:
        await lag.close()


async def test_the_coordinator_is_read_once_in_a_period_however_often_statistics_are_wanted() -> None:
    silent = _Silent()
    now_s = 0.0
    lag = SubscriberLag(silent, lambda: now_s)  # type: ignore[arg-type]
    for _ in range(3):
        lag.added_to(STATISTICS)
        await _read(lag)
    assert silent.asked == 1
    now_s = PERIOD_S
    lag.added_to(STATISTICS)
    await _read(lag)
    assert silent.asked == 2
    await lag.close()


async def _read(lag: SubscriberLag) -> None:
    assert lag._reading is not None
    await asyncio.wait([lag._reading])


class _Silent:
    """A coordinator that is not reached."""

    def __init__(self) -> None:
        self.asked = 0

    async def children(self, path: str) -> list[str]:
        self.asked += 1
        raise ClusterUnavailable(address=path, reason="not reached")
