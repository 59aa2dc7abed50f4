from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.topics.sharding import SUPERVISOR, WHOLE, Shard, worker_of

PARTITIONS = st.integers(-(1 << 31), (1 << 31) - 1)


@settings(max_examples=100, deadline=None)
@given(PARTITIONS, st.integers(1, 64))
def test_every_partition_has_exactly_one_worker(partition: int, workers: int) -> None:
    assert [worker for worker in range(workers) if Shard(worker, workers).owns(partition)] == [worker_of(partition, workers)]
    assert not Shard(SUPERVISOR, workers).owns(partition)
    assert WHOLE.owns(partition)


@settings(max_examples=100, deadline=None)
@given(PARTITIONS, st.integers(1, 63))
def test_with_one_worker_more_a_partition_stays_or_goes_to_the_new_one(partition: int, workers: int) -> None:
    assert worker_of(partition, workers + 1) in (worker_of(partition, workers), workers)


def test_where_partitions_fall_never_changes() -> None:
    assert [worker_of(partition, 2) for partition in range(12)] == [0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1]
    assert [worker_of(partition, 8) for partition in range(12)] == [0, 3, 5, 3, 2, 6, 2, 6, 5, 7, 3, 5]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_no_worker_has_more_than_twice_its_share_of_sixteen_partitions_each(workers: int) -> None:
    counts = [0] * workers
    for partition in range(16 * workers):
        counts[worker_of(partition, workers)] += 1
    assert 8 <= min(counts) <= max(counts) <= 32
