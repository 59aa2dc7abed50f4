"""No receiver of a compacted view's pages uses a record of which a bit changed on the way: the client, the Spark source, and a node that loads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_waltz import view_reads
from pyspark_waltz.naming import TopicOf
from pyspark_waltz.tasks import ViewRange
from verification.simulation.message_faults import VIEW_COLUMNS
from waltz_log.client import ClientSettings
from waltz_log.client.base.retry import Backoff
from waltz_log.client.topics import compacted
from waltz_log.client.topics.compacted import VerifiedPage, ViewReader
from waltz_log.compaction.view import CompactedView
from waltz_log.compaction.view_load import ViewLoad
from waltz_log.core.formats.wal_records import WalRecord, encode_wal_record, wal_checksum
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, ProtocolViolation
from waltz_log.storage.node import upkeep_service
from waltz_log.storage.views import views
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.transport import view_pages
from waltz_log.transport import waltz_pb2 as pb

RECORDS = [WalRecord(3, 1000, -7, b"a", b""), WalRecord(9, 2000, 1 << 30, b"key", b"value"), WalRecord(10, 2000, 0, b"k", b"v" * 40)]
BOUND = 12

Reader = Callable[[pb.ReadViewResponse], Sequence[tuple[Any, ...]]]
"""What a receiver uses of a page: (id, time, header, key, value) of each record. Raises if it refuses the page."""


def sound() -> pb.ReadViewResponse:
    checksums = [wal_checksum(record) for record in RECORDS]
    return view_pages.encode_view_page(RECORDS, checksums, start=0, bound=BOUND, next_transaction_id=BOUND, done=True)


# ---- readers -------------------------------------------------------------------------------------------------------------------------------------


class Replicas:
    """The owners of a cluster with one replica for each page, as a `ViewReader` uses them."""

    parameters = SimpleNamespace(key=SimpleNamespace(bytes=bytes(16)))

    def __init__(self, *pages: pb.ReadViewResponse) -> None:
        self._pages = pages

    async def bound(self, partition: int, timeout_s: float) -> pb.Bound:
        return pb.Bound(session=0, first_transaction_id=BOUND, high_water_mark=BOUND - 1)

    def replica_addresses(self, partition: int) -> list[str]:
        return [str(number) for number in range(len(self._pages))]

    def connect(self, address: str) -> Any:
        async def nothing() -> None: ...

        async def receive() -> pb.ReadViewResponse:
            return self._pages[int(address)]

        stream = SimpleNamespace(receive=receive, cancel=nothing)
        return SimpleNamespace(read=lambda method, request: stream, close=nothing)


async def _client_pages(*pages: pb.ReadViewResponse) -> list[VerifiedPage]:
    owners: Any = Replicas(*pages)
    reader = ViewReader(0, owners, ClientSettings(append_timeout_s=5.0), Backoff(0.001, 0.001, Random(1)))
    return [page async for page in reader.pages(-1)]


def client(page: pb.ReadViewResponse) -> Sequence[tuple[Any, ...]]:
    """Of two replicas, of which the second one's page is sound. If the first one's was refused, that one is read."""
    (found,) = asyncio.run(_client_pages(page, sound()))
    return found.records


def spark(page: pb.ReadViewResponse) -> Sequence[tuple[Any, ...]]:
    task = ViewRange(0, BOUND, BOUND, 0, bytes(16), (), 1000, TopicOf("shop/stock", True), "")
    batch, _ = view_reads._batch(task, page, 0)
    _, ids, times, headers, values, _, keys = batch.columns
    milliseconds = [time // 1000 for time in times.cast(pa.int64()).to_pylist()]
    return list(zip(ids.to_pylist(), milliseconds, headers.to_pylist(), keys.to_pylist(), values.to_pylist(), strict=True))


def node_that_loads(page: pb.ReadViewResponse) -> Sequence[tuple[Any, ...]]:
    """What its files hold then."""
    view = CompactedView.open(SimulatedDisk(), TopicName("shop", "stock"), 0, start=0, now_ms=1, properties={})
    loading = ViewLoad(view, start=0, bound=BOUND, segment_bytes=1 << 20, now_ms=1)

    async def load() -> None:
        messages = iter([pb.LoadViewRequest(page=page)])

        async def receive() -> pb.LoadViewRequest | None:
            return next(messages, None)

        stream: Any = SimpleNamespace(receive=receive)
        async for records in upkeep_service._received(stream):
            loading.put(records)

    try:
        asyncio.run(load())
        loading.finish()
    finally:
        loading.close()
    with view.snapshot() as snapshot:
        return list(snapshot.records())


READERS: list[Reader] = [client, spark, node_that_loads]


def used(reader: Reader, page: pb.ReadViewResponse) -> Sequence[tuple[Any, ...]]:
    """None of the records if the reader refuses the page."""
    try:
        return reader(page)
    except (CorruptData, ProtocolViolation):
        return []


def flipped(column: str) -> Iterator[pb.ReadViewResponse]:
    """The page with each bit of a column changed in turn."""
    whole: bytes = getattr(sound(), column)
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        page = sound()
        setattr(page, column, bytes(content))
        yield page


# ---- tests ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_a_sound_page_is_used_as_it_is(reader: Reader) -> None:
    assert reader(sound()) == RECORDS


@pytest.mark.parametrize("column", VIEW_COLUMNS)
@pytest.mark.parametrize("reader", READERS)
def test_each_flipped_bit_is_found_and_another_replica_is_read(reader: Reader, column: str) -> None:
    expected = RECORDS if reader is client else []
    results = [used(reader, page) for page in flipped(column)]
    assert results == [expected] * len(results)
    assert len(results) > 8


@pytest.mark.parametrize("reader", READERS)
def test_a_page_without_checksums_is_refused(reader: Reader) -> None:
    page = sound()
    page.checksums = b""
    assert used(reader, page) == (RECORDS if reader is client else [])


def test_the_columns_that_are_flipped_are_all_columns_of_a_page() -> None:
    assert set(VIEW_COLUMNS) == {field.name for field in pb.ReadViewResponse.DESCRIPTOR.fields if field.type == field.TYPE_BYTES}


def test_a_page_has_the_checksums_of_the_files_even_if_a_record_changed_in_memory_since() -> None:
    class Snapshot:
        start, bound = 0, BOUND

        def stored(self, first: int) -> Iterator[tuple[WalRecord, bytes]]:
            for record in RECORDS:
                yield record._replace(header=record.header ^ 1), encode_wal_record(record)

    snapshot: Any = Snapshot()
    ((records, checksums, *_),) = views._pages(snapshot, 0, 1 << 20)
    page = view_pages.encode_view_page(records, checksums, start=0, bound=BOUND, next_transaction_id=BOUND, done=True)
    with pytest.raises(CorruptData, match="checksum does not match"):
        view_pages.decode_view_page(page)


# ---- planted bugs --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reader", "module"), [(client, compacted), (spark, view_reads), (node_that_loads, upkeep_service)])
def test_planted_a_reader_that_does_not_verify_uses_a_changed_record(monkeypatch: pytest.MonkeyPatch, reader: Reader, module: Any) -> None:
    monkeypatch.setattr(module, "decode_view_page", lambda page: view_pages._unverified(page)[0])
    (changed, *_) = flipped("values")
    assert used(reader, changed) not in ([], RECORDS)
