"""Memory shared by partitions: who gives up what, and that what is held is what is counted."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.server.base.budget import Budget
from waltz_log.server.mounts.feed_frames import PartitionFrames
from waltz_log.server.replication.block_window import size_of
from waltz_log.server.replication.memory import PartitionMemory, Run

RECORDS, HEADERS = False, True
"""What frames hold."""


def _block(first: int, count: int, data: int = 0, time_ms: int = 0) -> Block:
    records = [encode_record(1, 1, 0, number, number, bytes(data), transaction_id=first + number) for number in range(count)]
    return Block(first, struct.pack(f">{count}i", *map(len, records)), b"".join(records), time_ms)


def test_the_partition_that_holds_most_gives_first() -> None:
    budget = Budget(10_000)
    busy, quiet = PartitionMemory(budget), PartitionMemory(budget)
    quiet.append(_block(0, 20))
    quiet.committed(19)
    held = quiet.held_bytes
    for number in range(200):
        busy.append(_block(5 * number, 5))
        busy.committed(5 * number + 4)
    assert quiet.held_bytes == held
    assert quiet.window.first_transaction_id == 0
    assert busy.window.first_transaction_id > 0
    assert 9_000 < budget.held_bytes <= 10_000
    # A new partition gets its share only from partitions that have more than that.
    third = PartitionMemory(budget)
    for number in range(200):
        third.append(_block(5 * number, 5))
        third.committed(5 * number + 4)
    assert quiet.held_bytes == held
    assert abs(third.held_bytes - busy.held_bytes) < 500


def test_uncommitted_blocks_stay_in_memory_and_leave_as_soon_as_they_are_committed() -> None:
    budget = Budget(1000)
    memory = PartitionMemory(budget)
    for number in range(50):
        memory.append(_block(number, 1, 100))
    assert memory.window.first_transaction_id == 0
    assert budget.held_bytes > 1000
    memory.committed(48)
    assert budget.held_bytes <= 1000
    assert memory.window.find(49) is not None


def test_runs_that_were_read_go_before_the_newest_blocks() -> None:
    budget = Budget(20_000)
    memory = PartitionMemory(budget)
    memory.begin(9_999)
    for number in range(10_000, 10_100):
        memory.append(_block(number, 1, 80))
        memory.committed(number)
    newest = memory.window.first_transaction_id
    assert newest == 10_000
    for first in range(0, 9_000, 100):
        memory.remember(Run((_block(first, 100),)))
    assert memory.window.first_transaction_id == newest
    assert memory.runs.find(8_950) is not None
    assert memory.runs.find(50) is None
    assert budget.held_bytes <= 20_000


def test_closed_memory_releases_everything_and_accepts_nothing_more() -> None:
    budget = Budget(1000)
    memory, frames = PartitionMemory(budget), PartitionFrames(budget)
    memory.append(_block(0, 5))
    memory.remember(Run((_block(0, 5),)))
    frames.make(RECORDS, [_block(0, 5)], 4)
    memory.close()
    frames.close()
    memory.remember(Run((_block(0, 5),)))
    frames.remember(Run((_block(0, 5),)))
    kept = frames.make(RECORDS, [_block(0, 5)], 4)
    assert budget.held_bytes == 0
    # Also where a caller keeps a reference to it: a client that does not read keeps what it was mounted on.
    assert memory.window.find(4) is None
    assert memory.runs.find(4) is None
    assert memory.window.last_transaction_id == 4
    assert frames.find(RECORDS, 0, kept.last) is None


STEPS = st.lists(st.tuples(st.sampled_from(["append", "commit", "read", "frame"]), st.integers(0, 1), st.integers(1, 8)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(500, 5000))
def test_counts_match_what_is_held_and_lookups_are_right(steps: list[tuple[str, int, int]], bytes_max: int) -> None:
    budget = Budget(bytes_max)
    memories = [PartitionMemory(budget) for _ in range(2)]
    frames = [PartitionFrames(budget) for _ in range(2)]
    committed = [-1, -1]
    for what, place, number in steps:
        memory = memories[place]
        last = memory.window.last_transaction_id
        if what == "append":
            memory.append(_block(last + 1, number))
        elif what == "commit":
            committed[place] = min(last, committed[place] + number)
            memory.committed(committed[place])
        elif what == "read" and committed[place] >= 0:
            first = number % (committed[place] + 1)
            memory.remember(Run((_block(first, committed[place] + 1 - first),)))
        elif what == "frame" and committed[place] >= 0:
            frames[place].make(RECORDS, [_block(number % (committed[place] + 1), 1)], committed[place])
        uncommitted = 0
        for each, mark in zip(memories, committed, strict=True):
            held = [found for at in range(mark + 1, each.window.last_transaction_id + 1) if (found := each.window.find(at)) is not None]
            assert [at for at in range(mark + 1, each.window.last_transaction_id + 1) if each.window.find(at) is None] == []
            uncommitted += sum(size_of(block) for block in {block.first_transaction_id: block for block in held}.values())
            assert each.held_bytes == each.window.held_bytes + each.runs.held_bytes
            for at in range(each.window.last_transaction_id + 1):
                block, run = each.window.find(at), each.runs.find(at)
                assert block is None or block.first_transaction_id <= at <= block.last_transaction_id
                assert run is None or run.first <= at <= run.last
        assert budget.held_bytes == sum(each.held_bytes for each in memories) + sum(each.held_bytes for each in frames)
        assert budget.held_bytes <= max(bytes_max, uncommitted)


@pytest.mark.parametrize("headers", [RECORDS, HEADERS])
def test_a_frame_is_shared_until_a_much_larger_one_can_be_made(headers: bool) -> None:
    frames = PartitionFrames(Budget(1 << 20))
    made = frames.make(headers, [_block(0, 1)], 0)
    assert frames.find(headers, 0, 0) is made
    assert frames.find(headers, 0, 5) is None
    assert frames.find(headers, 1, 5) is None
    assert frames.find(not headers, 0, 0) is None
    larger = frames.make(headers, [_block(0, 1), _block(1, 300, 100)], 400)
    assert frames.find(headers, 0, 0) is None, "it reaches beyond what may be told"
    assert frames.find(headers, 0, 400) is larger
