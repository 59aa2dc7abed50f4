"""A live tail returns or counts every transaction once, whatever arrives between its polls, and reads little."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.console.reading.following import BYTES_MAX, PARTITIONS_MAX, ROWS_MAX, Follower
from waltz_log.console.reading.transaction_reader import Bounds, Entry

PARTITIONS = 7
ARRIVALS = st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 60)), max_size=6)
FEW = st.sets(st.integers(0, PARTITIONS - 1), max_size=2)
ROUNDS = st.lists(st.tuples(ARRIVALS, FEW), max_size=12)
SAMPLE: Any = None
"""The reader of these tests needs none."""


class ListReader:
    """Committed marks of partitions whose transactions exist as far as the mark. `answered` and `readable`: by partition."""

    def __init__(self) -> None:
        self.lasts = dict.fromkeys(range(PARTITIONS), 99)
        self.firsts = dict.fromkeys(range(PARTITIONS), 0)
        self.silent: set[int] = set()
        self.unreadable: set[int] = set()
        self.reads: list[tuple[int, int, int]] = []

    async def bounds(self, sample: Any, partitions: Collection[int]) -> Mapping[int, Bounds]:
        return {each: Bounds(self.firsts[each], self.lasts[each], 1, each not in self.silent) for each in partitions}

    async def beginning(self, sample: Any, partition: int, session: int, first: int, last: int, bytes_max: int) -> Sequence[Entry] | str:
        assert bytes_max == BYTES_MAX
        self.reads.append((partition, first, last))
        if partition in self.unreadable:
            return "no replica answers"
        return [Entry(partition, each, each, 0, 1, 1, each, b"", 0) for each in range(first, last + 1)]


@given(ROUNDS, FEW)
def test_each_transaction_is_returned_or_counted_once(rounds: list[tuple[list[tuple[int, int]], set[int]]], unreadable: set[int]) -> None:
    async def follow() -> None:
        reader = ListReader()
        reader.unreadable = unreadable
        follower = Follower(reader)
        assert (await follower.poll(SAMPLE, range(PARTITIONS))).entries == ()
        seen: list[tuple[int, int]] = []
        skipped = 0
        for arrivals, silent in [*rounds, *[([], set[int]())] * PARTITIONS]:  # at the end each partition has its turn
            for partition, count in arrivals:
                reader.lasts[partition] += count
            reader.silent = silent
            reader.reads.clear()
            arrived = await follower.poll(SAMPLE, range(PARTITIONS))
            assert len(reader.reads) <= PARTITIONS_MAX
            assert sum(last - first + 1 for _, first, last in reader.reads) <= ROWS_MAX
            assert [each.time_ms for each in arrived.entries] == sorted((each.time_ms for each in arrived.entries), reverse=True)
            seen += [(each.partition, each.transaction_id) for each in arrived.entries]
            skipped += arrived.skipped
        committed = [(each, number) for each, last in reader.lasts.items() for number in range(100, last + 1)]
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(committed)
        assert not any(partition in unreadable for partition, _ in seen)
        assert len(seen) + skipped == len(committed)

    asyncio.run(follow())


def test_a_log_that_a_reader_can_follow_is_shown_whole_and_newest_first() -> None:
    async def follow() -> None:
        reader = ListReader()
        follower = Follower(reader)
        await follower.poll(SAMPLE, range(PARTITIONS))
        for partition, count in ((1, 15), (4, 4), (5, 1)):
            reader.lasts[partition] += count
        arrived = await follower.poll(SAMPLE, range(PARTITIONS))
        assert arrived.skipped == 0
        assert [each.time_ms for each in arrived.entries] == sorted([*range(100, 115), *range(100, 104), 100], reverse=True)

    asyncio.run(follow())


def test_no_partition_waits_for_a_busy_one() -> None:
    async def follow() -> None:
        reader = ListReader()
        follower = Follower(reader)
        await follower.poll(SAMPLE, range(PARTITIONS))
        turns: list[int] = []
        for _ in range(PARTITIONS):
            for each in range(PARTITIONS):
                reader.lasts[each] += 1000
            reader.reads.clear()
            arrived = await follower.poll(SAMPLE, range(PARTITIONS))
            assert len(arrived.entries) == ROWS_MAX
            turns += [partition for partition, _, _ in reader.reads]
        assert turns == [each % PARTITIONS for each in range(PARTITIONS * PARTITIONS_MAX)]

    asyncio.run(follow())


def test_what_was_trimmed_meanwhile_is_not_read() -> None:
    async def follow() -> None:
        reader = ListReader()
        follower = Follower(reader)
        await follower.poll(SAMPLE, [2])
        reader.lasts[2], reader.firsts[2] = 110, 111
        arrived = await follower.poll(SAMPLE, [2])
        assert (arrived.entries, arrived.skipped, reader.reads) == ((), 11, [])

    asyncio.run(follow())


def test_a_mark_that_no_owner_confirms_is_no_beginning() -> None:
    async def follow() -> None:
        reader = ListReader()
        follower = Follower(reader)
        reader.silent, reader.lasts[2] = {2}, 50  # what the console saw last
        await follower.poll(SAMPLE, [2])
        reader.silent, reader.lasts[2] = set(), 99
        assert (await follower.poll(SAMPLE, [2])).skipped == 0
        reader.lasts[2] = 100
        assert [each.transaction_id for each in (await follower.poll(SAMPLE, [2])).entries] == [100]

    asyncio.run(follow())
