"""The last rejected appends, as a partition reports them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from waltz_log.client import Lock, LockConflict
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.core.status.server_statistics import OpenPartitionStatistics
from waltz_log.server.ordering.conflicts import CONFLICTS_KEPT, RecentConflicts
from waltz_log.testing import InMemoryCluster


@dataclass(frozen=True)
class Sender:
    client_id: int


def test_the_newest_are_kept_and_the_cost_is_bounded() -> None:
    conflicts = RecentConflicts()
    conflicts.add([(Sender(1), number, 50 + number) for number in range(1000)], list(range(1000)), 7, floor=1040)
    found = conflicts.newest
    assert [each.sequence for each in found] == list(range(1000 - CONFLICTS_KEPT, 1000))
    assert [each.remembered for each in found] == [50 + each.sequence > 1040 for each in found]
    conflicts.add([(Sender(2), 1, 3000)], [9], 8, floor=0)
    assert conflicts.newest[-1] == (9, 3000, 2, 1, 8, True)
    assert len(conflicts.newest) == CONFLICTS_KEPT


async def test_a_server_reports_who_lost_to_whom_on_which_lock() -> None:
    async with InMemoryCluster(servers=1) as cluster:
        winner, loser = await cluster.client(), await cluster.client()
        mark = await loser.high_water_mark(0)
        await winner.append(0, b"unrelated")
        receipt = await winner.append(0, b"won", write_locks=[Lock("seat", "12A")])
        with pytest.raises(LockConflict) as conflict:
            await loser.append(0, b"lost", write_locks=[Lock("seat", "12A")], high_water_mark=mark)
        assert conflict.value.winner == receipt.transaction_id
        (server, _), *_ = cluster.servers.values()
        partition = server.statistics().partitions[0]
        assert isinstance(partition, OpenPartitionStatistics)
        (found,) = partition.locks.recent
        assert (found.winner, found.client_id, found.remembered) == (receipt.transaction_id, loser.client_id, True)
        assert found.lock == lock_hash(("seat", "12A")).hex()
        assert found.time_ms > 0
