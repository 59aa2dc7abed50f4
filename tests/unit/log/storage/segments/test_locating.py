"""Positions by time and sizes of ranges, against a plain list of records."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import InvalidRequest, OutOfRange, ProtocolViolation, SessionTooOld
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.segments.locating import locate
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import run_in_place
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

KEY = UUID(int=7)


class Clock:
    def now_ms(self) -> int:
        return 1


def block(first: int, sizes: list[int], time_ms: int) -> Block:
    records = [encode_record(5, 1, 0, first + n, 7, b"x" * size, first + n) for n, size in enumerate(sizes)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), time_ms)


def filled(blocks: list[list[int]], trim: int = 0) -> tuple[SegmentLog, list[int], list[int]]:
    """A log of small segments, and of each record its size and time."""
    log = SegmentLog.open(SimulatedDisk(), Clock(), KEY, 0, 2048, -1)
    sizes: list[int] = []
    times: list[int] = []
    for n, data in enumerate(blocks):
        log.append([block(len(sizes), data, 1000 + 10 * n)])
        sizes += [40 + size for size in data]
        times += [1000 + 10 * n] * len(data)
    log.trim(trim)
    return log, sizes, times


@given(
    st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=5), min_size=1, max_size=25),
    st.integers(0, 60),
    st.integers(0, 130),
    st.integers(-1, 130),
    st.integers(0, 20_000),
    st.integers(990, 1300),
)
@settings(max_examples=60, deadline=None)
def test_sizes_and_positions_are_those_of_a_plain_list(blocks: list[list[int]], trim: int, first: int, last: int, budget: int, time_ms: int) -> None:
    log, sizes, times = filled(blocks, trim)
    first = max(first, log.first_id)
    found = locate(log, [time_ms], first, last, budget)
    end = min(last, len(sizes) - 1)
    assert found.bytes == sum(sizes[first : end + 1])
    within = first - 1
    while within < end and sum(sizes[first : within + 2]) <= budget:
        within += 1
    assert found.last_within == within
    assert found.positions == (next((n for n in range(log.first_id, len(times)) if times[n] >= time_ms), len(times)),)
    assert (found.first, found.last) == (log.first_id, len(sizes) - 1)


def test_a_range_that_begins_below_the_log_is_refused() -> None:
    log, _, _ = filled([[500]] * 12, trim=9)
    assert log.first_id > 0
    with pytest.raises(OutOfRange):
        locate(log, [], 0, 11, 100)


async def test_a_node_reports_where_something_is_and_refuses_a_newer_session_than_its_own() -> None:
    disk = SimulatedDisk()
    StorageNode.create(disk, Clock(), KEY, 1)
    node = StorageNode(StorageSettings(coordinator="memory", name="s", directory=Path("unused")), disk, Clock(), run_in_place)
    await node.open()
    network = MemoryNetwork()
    listener = await network.serve("s:1", node.service())
    channel = network.connect(listener.address)
    store = await node.partition(0)
    await store.open_session(3)
    await store.set_low_water_mark(3, -1)
    appender = await store.attach(3, 1 << 20)
    for n in range(5):
        await store.append(appender, block(2 * n, [10, 20], 1000 + n))
    while store.last_id < 9:
        await appender.changed()
    store.committed_mark.rise(9)

    def request(session: int, times: bytes = b"", last: int = 9) -> pb.LocateRequest:
        return pb.LocateRequest(cluster_key=KEY.bytes, partition=0, session=session, times_ms=times, last_transaction_id=last, max_bytes=300)

    answer = await channel.call(methods.LOCATE, request(3, struct.pack(">2q", 1002, 2000)), timeout_s=5)
    assert struct.unpack(">2q", answer.transaction_ids) == (4, 10)
    assert (answer.bytes, answer.last_within) == (5 * 110, 4)
    assert (answer.replica_first_transaction_id, answer.replica_last_transaction_id) == (0, 9)
    with pytest.raises(SessionTooOld):
        await channel.call(methods.LOCATE, request(4), timeout_s=5)
    with pytest.raises(ProtocolViolation):
        await channel.call(methods.LOCATE, request(3, b"123"), timeout_s=5)
    with pytest.raises(InvalidRequest):
        await channel.call(methods.LOCATE, pb.LocateRequest(cluster_key=KEY.bytes, partition=4), timeout_s=5)
    await listener.close()
    await node.close()
