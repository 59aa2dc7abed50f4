"""Appending much in one call: what is read and how far ahead, what one result says of all of it, and what a break or an end leaves."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import Appended, BulkColumns, ClientSettings, Draft, Lock, LockConflict, NotInLog, Receipt, WaltzClient
from waltz_log.client.base import arrow
from waltz_log.errors import InvalidBatch, InvalidRequest, NotAppended, OutcomeUnknown, TransactionTooLarge
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import Break, ScriptedCluster

Connect = Callable[..., Awaitable[WaltzClient]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_list_is_appended_in_order_with_one_result(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"before")
    reported: list[Appended] = []
    receipt = await client.append_bulk(0, [b"%d" % n for n in range(5000)], on_ack=reported.append)
    assert receipt.appended == [Appended(0, 5000, 1)]
    assert (receipt.partition, receipt.submitted, receipt.committed, receipt.failed) == (0, 5000, 5000, [])
    assert cluster.logs[0].data()[1:] == [b"%d" % n for n in range(5000)]
    assert sum(each.length for each in reported) == 5000
    assert len(reported) < 500, "callbacks are told of ranges"
    assert [receipt.transaction_id(position) for position in (-1, 0, 4999, 5000)] == [None, 1, 5000, None]


async def test_drafts_keep_their_headers_and_locks_and_are_independent(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"winner", write_locks=[Lock("x", 1)])
    failures: list[NotInLog] = []
    late = Draft(b"late", header=3, write_locks=[Lock("x", 1)], high_water_mark=-1)
    receipt = await client.append_bulk(0, [b"a", late, Draft(b"c", header=4), "text", bytes(2 * 1024 * 1024), b"e"], on_error=failures.append)
    assert receipt.appended == [Appended(0, 1, 1), Appended(2, 1, 2), Appended(5, 1, 3)]
    assert [(each.position, type(each.error)) for each in receipt.failed] == [(1, LockConflict), (3, InvalidRequest), (4, TransactionTooLarge)]
    assert sorted(each.position for each in failures) == [1, 3, 4]
    assert cluster.logs[0].data() == [b"winner", b"a", b"c", b"e"]
    assert [receipt.transaction_id(position) for position in range(6)] == [1, None, 2, None, None, 3]
    with pytest.raises(LockConflict):
        receipt.raise_failed()


async def test_each_entry_gets_its_own_id_while_other_clients_append(connect: Connect, cluster: ScriptedCluster) -> None:
    clients = [await connect(frame_bytes=4096) for _ in range(2)]
    reported: list[list[Appended]] = [[], []]
    entries = [[b"%d:%d" % (who, number) for number in range(1500)] for who in range(2)]
    receipts = await asyncio.gather(*(clients[who].append_bulk(0, entries[who], on_ack=reported[who].append) for who in range(2)))
    log = cluster.logs[0].data()
    for who, receipt in enumerate(receipts):
        assert len(receipt.appended) > 1
        for ranges in (receipt.appended, reported[who]):
            found = {each.first + at: log[each.transaction_id + at] for each in ranges for at in range(each.length)}
            assert found == dict(enumerate(entries[who]))
        assert [log[receipt.transaction_id(position) or 0] for position in range(1500)] == entries[who]


async def test_a_generator_is_read_no_further_than_there_is_room(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=100)
    cluster.logs[0].gate.clear()
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield b"%d" % number

    appending = asyncio.ensure_future(client.append_bulk(0, endless()))
    await until(lambda: read >= 100)
    await asyncio.sleep(0.02)
    assert read <= 101
    cluster.logs[0].gate.set()
    assert (await appending).appended == [Appended(0, 1000, 0)]
    assert cluster.logs[0].data() == [b"%d" % n for n in range(1000)]


async def test_an_asynchronous_generator_is_appended_too(client: WaltzClient, cluster: ScriptedCluster) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for number in range(20):
            await asyncio.sleep(0)
            yield b"%d" % number

    assert (await client.append_bulk(1, slowly())).committed == 20
    assert cluster.logs[1].data() == [b"%d" % n for n in range(20)]


async def test_other_tasks_run_while_many_entries_are_submitted(client: WaltzClient) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await client.append_bulk(0, [b""] * 10_000)
    counting.cancel()
    assert turns > 10


@pytest.mark.parametrize("when", ["before", "after"])
async def test_no_entry_is_lost_or_repeated_over_broken_connections(connect: Connect, cluster: ScriptedCluster, when: str) -> None:
    client = await connect(frame_bytes=4096)
    cluster.logs[0].faults.extend([None, Break(when), None, Break(when), Break(when)])  # type: ignore[arg-type]
    receipt = await client.append_bulk(0, [b"%d" % n for n in range(2000)])
    assert receipt.appended == [Appended(0, 2000, 0)]
    assert cluster.logs[0].data() == [b"%d" % n for n in range(2000)]


async def test_an_error_of_the_source_is_raised_after_the_submitted_entries_are_decided(client: WaltzClient, cluster: ScriptedCluster) -> None:
    reported: list[Appended] = []

    def failing() -> Iterator[bytes]:
        yield from (b"a", b"b")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.append_bulk(0, failing(), on_ack=reported.append)
    assert sum(each.length for each in reported) == 2
    assert cluster.logs[0].data() == [b"a", b"b"]
    for nothing in (b"bytes", "text", 7, None):
        with pytest.raises(InvalidRequest, match="source of a bulk append"):
            await client.append_bulk(0, nothing)


async def test_reading_the_source_ends_with_the_first_deadline_that_passes(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=10, frame_bytes=4096)
    cluster.logs[0].gate.clear()
    read = 0

    def many() -> Iterator[bytes]:
        nonlocal read
        while read < 60:
            read += 1
            yield b""

    receipt = await client.append_bulk(0, many(), timeout_s=0.1)
    assert read == receipt.submitted < 30
    assert receipt.appended == []
    assert {type(each.error) for each in receipt.failed} == {OutcomeUnknown, NotAppended}
    assert [each.position + at for each in receipt.failed for at in range(each.length)] == list(range(receipt.submitted))
    assert [each.length for each in receipt.failed if isinstance(each.error, OutcomeUnknown)] == [10], "what is unknown together is one range"
    cluster.logs[0].gate.set()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_reading_the_source_ends_when_the_client_is_closed(connect: Connect, asynchronous: bool) -> None:
    client = await connect()
    bulk = client.bulk(0)
    await bulk.enqueue([b"before"])
    await client.flush()
    await client.close()
    read = 0

    def many() -> Iterator[bytes]:
        nonlocal read
        while read < 3000:
            read += 1
            yield b""

    async def many_arriving() -> AsyncIterator[bytes]:
        for each in many():
            yield each

    await bulk.enqueue(many_arriving() if asynchronous else many())
    receipt = await bulk.finish()
    assert (read, receipt.submitted, receipt.committed) == (1, 2, 1)
    assert "closed" in str(receipt.failed[0].error)


async def test_cancelled_it_sends_no_more_and_leaves_nothing(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=50)
    await client.append(0, b"first")
    cluster.logs[0].gate.clear()
    appending = asyncio.ensure_future(client.append_bulk(0, [b"x"] * 1000))
    await until(lambda: len(client.unacknowledged(0)) == 50)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert client.unacknowledged(0) == []
    cluster.logs[0].gate.set()
    await client.append(0, b"last")
    window = client._producer(0).window
    await until(lambda: not window.frames and not window.queue)
    assert (window.pending, window.pending_bytes) == (0, 0)
    assert len(cluster.logs[0].data()) <= 52


async def test_unacknowledged_appends_can_be_listed(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(frame_bytes=4096, linger_ms=1000)
    await client.append(0, b"done")
    cluster.logs[0].gate.clear()
    appending = asyncio.ensure_future(client.append_bulk(0, [Draft(b"%d" % n, header=n) for n in range(300)]))
    other = await client.append_nowait(1, b"other")
    await other
    await until(lambda: len(client.unacknowledged()) == 300)
    listed = client.unacknowledged(0)
    assert [(each.data, each.header) for each in listed] == [(b"%d" % n, n) for n in range(300)]
    sent = [each.sequence for each in listed if each.sequence is not None]
    assert sent == list(range(2, 2 + len(sent)))
    assert 0 < len(sent) < 300
    assert {each.client_id for each in listed} == {client.client_id}
    assert client.unacknowledged(1) == []
    cluster.logs[0].gate.set()
    await appending
    assert client.unacknowledged() == []
    found = await client.resolve(OutcomeUnknown(partition=0, client_id=listed[0].client_id, sequence=2, since=listed[0].since, reason="listed"))
    assert found is not None
    assert found.transaction_id == 1


async def test_a_callback_that_raises_changes_nothing(client: WaltzClient) -> None:
    def careless(reported: Appended) -> None:
        raise ZeroDivisionError

    assert (await client.append_bulk(0, [b"a", b"b"], on_ack=careless)).committed == 2


async def test_flush_waits_for_bulk_appends(client: WaltzClient, cluster: ScriptedCluster) -> None:
    bulk = client.bulk(0)
    await bulk.enqueue([b"a"] * 100)
    await client.flush()
    assert cluster.logs[0].high_water_mark == 99
    assert (await bulk.finish()).committed == 100


# ---- Arrow ---------------------------------------------------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.tuples(st.binary(max_size=20), st.integers(-(2**31), 2**31 - 1)), max_size=30),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    cut=st.tuples(st.integers(0, 5), st.integers(0, 30)),
    with_header=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_rows_of_a_record_batch_are_what_arrow_says_they_are(
    values: list[tuple[bytes, int]], kind: Any, cut: tuple[int, int], with_header: bool
) -> None:
    columns = {"header": pa.array([header for _, header in values], pa.int32())} if with_header else {}
    batch = pa.RecordBatch.from_pydict(columns | {"data": pa.array([data for data, _ in values], kind)}).slice(*cut)
    expected = [(data, header if with_header else 0) for data, header in values][cut[0] : cut[0] + cut[1]]
    assert list(arrow.rows(batch)) == expected


async def test_a_record_batch_a_table_and_a_stream_of_batches_are_appended(client: WaltzClient, cluster: ScriptedCluster) -> None:
    batch = pa.RecordBatch.from_pydict({"data": pa.array(["Ada", "Bob"]), "header": pa.array([1, 2], pa.int32())})
    assert (await client.append_bulk(0, batch)).appended == [Appended(0, 2, 0)]
    assert (await client.append_bulk(0, pa.Table.from_batches([batch, batch]))).appended == [Appended(0, 4, 2)]
    assert (await client.append_bulk(0, (batch for _ in range(3)))).appended == [Appended(0, 6, 6)]
    assert cluster.logs[0].data() == [b"Ada", b"Bob"] * 6


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"data": pa.array([b"a", None])}, "data"),
        ({"data": pa.array([1, 2])}, "data"),
        ({"data": pa.array([b"a"]), "header": pa.array([1], pa.int64())}, "header"),
        ({"data": pa.array([b"a"]), "header": pa.array([None], pa.int32())}, "header"),
        ({"data": pa.array([b"a"]), "key": pa.array([b"k"])}, "key"),
        ({"value": pa.array([b"a"])}, "value"),
    ],
)
async def test_a_record_batch_of_another_shape_is_refused(
    client: WaltzClient, cluster: ScriptedCluster, columns: dict[str, Any], column: str
) -> None:
    with pytest.raises(InvalidBatch) as refused:
        await client.append_bulk(0, pa.RecordBatch.from_pydict(columns))
    assert refused.value.column == column
    assert cluster.logs[0].frames == 0


# ---- columns -------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "table", "columns", "a batch in a stream"])
async def test_of_a_batch_with_a_bad_row_nothing_is_sent(client: WaltzClient, cluster: ScriptedCluster, kind: str) -> None:
    large = bytes(2 * 1024 * 1024)
    batches = [pa.RecordBatch.from_pydict({"data": pa.array(data, pa.large_binary())}) for data in ([b"a", b"b"], [b"c", large])]
    sources: dict[str, tuple[Any, int]] = {
        "list": ([b"a"] * 70_000 + [large], 70_000),
        "table": (pa.Table.from_batches(batches), 3),
        "columns": (BulkColumns([b"a", large], write_locks=[["x"], []]), 1),
        "a batch in a stream": (iter([batches[1]]), 1),
    }
    source, row = sources[kind]
    with pytest.raises(InvalidBatch, match="above a limit") as refused:
        await client.append_bulk(0, source)
    assert (refused.value.row, refused.value.column) == (row, "data")
    assert cluster.logs[0].frames == 0


async def test_rows_with_locks_conflict_by_position(client: WaltzClient, cluster: ScriptedCluster) -> None:
    winner = await client.append(0, b"winner", write_locks=[Lock("seat", "3"), Lock("seat", "5")])
    keys = [[str(number)] for number in range(8)]
    failures: list[NotInLog] = []
    columns = BulkColumns([b"%d" % number for number in range(8)], 7, pa.array(keys), lock_name="seat", high_water_mark=-1)
    receipt = await client.append_bulk(0, columns, on_error=failures.append)
    assert [(each.position, each.length) for each in receipt.failed] == [(3, 1), (5, 1)]
    assert {each.error.winner for each in failures if isinstance(each.error, LockConflict)} == {winner.transaction_id}
    assert [(each.first, each.length) for each in receipt.appended] == [(0, 3), (4, 1), (6, 2)]
    assert cluster.logs[0].data() == [b"winner", *(b"%d" % number for number in range(8) if number not in (3, 5))]
    again = await client.append_bulk(0, BulkColumns([b"x", b"y"], write_locks=[["3"], [b"3"]], lock_name="seat"))
    assert again.committed == 2, "no mark was given: what this client wrote itself counts as known"


async def test_single_appends_and_rows_share_frames_in_order(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(linger_ms=1000)
    await client.append(0, b"first")
    cluster.logs[0].gate.clear()
    held = [await client.append_nowait(0, b"held %d" % number) for number in range(2)]
    await until(lambda: len(client._producer(0).window.frames) == 1)
    await asyncio.sleep(0.01)
    single = await client.append_nowait(0, b"single", write_locks=[Lock("x", 1)])
    bulk = client.bulk(0)
    await bulk.enqueue([b"a", b"b"])
    other = await client.append_nowait(0, b"other")
    await bulk.enqueue(BulkColumns([b"c", b"d"], write_locks=[["1"], ["2"]], lock_name="x"))
    frames = cluster.logs[0].frames
    cluster.logs[0].gate.set()
    assert (await bulk.finish()).appended == [Appended(0, 2, 4), Appended(2, 2, 7)]
    assert [(await each).transaction_id for each in (*held, single, other)] == [1, 2, 3, 6]
    assert cluster.logs[0].data()[3:] == [b"single", b"a", b"b", b"other", b"c", b"d"]
    assert cluster.logs[0].frames <= frames + 2


@given(entries=st.lists(st.one_of(st.none(), st.integers(1, 700)), min_size=1, max_size=20), breaks=st.sets(st.integers(0, 5)), seed=st.integers())
@settings(max_examples=30, deadline=None)
def test_rows_and_single_appends_come_out_as_they_went_in(entries: list[int | None], breaks: set[int], seed: int) -> None:
    """Small windows and frames, and connections that break: None is a single append, a number so many rows."""

    async def main() -> None:
        ensemble, network, rng = MemoryEnsemble(), MemoryNetwork(), random.Random(seed)
        cluster = ScriptedCluster(network, ensemble.session(), partitions=1)
        await cluster.start()

        options = ClientSettings(frame_bytes=4096, max_pending=300, retry_base_s=0.001, retry_cap_s=0.002)
        client = await WaltzClient.connect_over(cluster.seeds, network, options, rng=random.Random(seed))
        cluster.logs[0].faults.extend([Break(rng.choice(["before", "after"])) if at in breaks else None for at in range(6)])
        bulk = client.bulk(0)
        expected: list[bytes] = []
        singles: dict[int, asyncio.Future[Receipt]] = {}
        positions: list[int] = []
        for number, entry in enumerate(entries):
            if entry is None:
                singles[len(expected)] = await client.append_nowait(0, b"single %d" % number)
                expected.append(b"single %d" % number)
            else:
                rows = [b"%d:%d" % (number, at) for at in range(entry)]
                positions += range(len(expected), len(expected) + entry)
                expected += rows
                await bulk.enqueue(rng.choice([rows, iter(rows), pa.RecordBatch.from_pydict({"data": pa.array(rows, pa.binary())})]))
        receipt = await bulk.finish()
        assert {place: (await future).transaction_id for place, future in singles.items()} == {place: place for place in singles}
        assert cluster.logs[0].data() == expected
        assert (receipt.submitted, receipt.committed, receipt.failed) == (len(positions), len(positions), [])
        assert [receipt.transaction_id(at) for at in range(len(positions))] == positions
        window = client._producer(0).window
        assert (window.pending, window.pending_bytes, window.queue_bytes) == (0, 0, 0)
        await client.close()
        await cluster.stop()

    asyncio.run(main())


async def test_rows_that_a_dead_client_left_undecided_are_resolved_by_ranges(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(frame_bytes=4096, close_timeout_s=0.05)
    await client.append(0, b"first", write_locks=[Lock("x", "50")])
    cluster.logs[0].faults.extend([None, None, Break("before")])
    cluster.logs[0].gate.clear()
    columns = BulkColumns([b"%d" % number for number in range(500)], write_locks=[[str(number)] for number in range(500)], lock_name="x")
    appending = asyncio.ensure_future(client.append_bulk(0, columns))
    await until(lambda: len(client._producer(0).window.frames) >= 3)
    await client.close()
    receipt = await appending
    cluster.logs[0].gate.set()
    unknown = [each for each in receipt.failed if isinstance(each.error, OutcomeUnknown)]
    assert unknown
    assert sum(each.length for each in receipt.failed) + receipt.committed == receipt.submitted
    another = await connect()
    log, found = cluster.logs[0].data(), 0
    for position, error, length in unknown:
        assert isinstance(error, OutcomeUnknown)
        assert error.count == length
        for first, count, transaction_id in await another.resolve_range(pickle.loads(pickle.dumps(error))):
            assert log[transaction_id : transaction_id + count] == [b"%d" % (position + first + at) for at in range(count)]
            found += count
        if length > 1:
            with pytest.raises(InvalidRequest, match="resolve_range"):
                await another.resolve(error)
    assert found == len(log) - 1 - receipt.committed
