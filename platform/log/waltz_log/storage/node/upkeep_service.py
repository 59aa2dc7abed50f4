"""The RPC handlers of a storage node for the owner's upkeep and for readers of compacted views: check messages, call the node, build answers. Decide
nothing else.

Everything except reading is only for the owner, in its session: a replica refuses if it has seen a newer session or is not clean in this one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from struct import pack
from typing import TypeAlias

from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.ports import Sender, Service, Stream
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ProtocolViolation, StorageFailed, Unavailable
from waltz_log.security.callers import caller
from waltz_log.storage.node.read_access import ReadPermit
from waltz_log.storage.node.request_fields import OfPartition, OfReader, OfSession
from waltz_log.storage.node.served_node import ServedNode
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.views.views import TopicPartition, ViewFacts, Wanted
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page, encode_view_page

__all__ = ["upkeep_service_of"]

SEGMENTS_MAX = 4096
"""Most segments in one answer, 128 KiB: the oldest of them."""

PAGE_BYTES_MAX = 2 * 1024 * 1024
"""However much a reader asks for, as in a read."""

LoadStream: TypeAlias = Stream[pb.LoadViewResponse, pb.LoadViewRequest]
FindStore: TypeAlias = Callable[[OfPartition], Awaitable[PartitionStore]]


def upkeep_service_of(node: ServedNode, partition: FindStore, expect_reader: Callable[[OfReader, PartitionStore], None]) -> Service:
    """`partition`: returns the store that a request names, after comparing its cluster key; `expect_reader`: refuses a principal that may not
    read."""
    service = _UpkeepService(node, partition, expect_reader)
    return [
        methods.DESCRIBE.served_by(service.describe),
        methods.TRIM.served_by(service.trim),
        methods.BEGIN.served_by(service.begin),
        methods.COMPACT.served_by(service.compact),
        methods.READ_VIEW.served_by(service.read_view),
        methods.LOAD_VIEW.served_by(service.load_view),
        methods.DROP_VIEW.served_by(service.drop_view),
    ]


class _UpkeepService:
    def __init__(self, node: ServedNode, partition: FindStore, expect_reader: Callable[[OfReader, PartitionStore], None]) -> None:
        self._node = node
        self._views = node.views
        self._partition = partition
        self._expect_reader = expect_reader

    async def _member(self, request: OfSession) -> PartitionStore:
        store = await self._partition(request)
        store.expect_member(request.session)
        return store

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        store = await self._member(request)
        await self._node.topics.record(request.partition, _topic_partition(request.of) if request.HasField("of") else None)
        try:
            segments = await store.holdings()
        except FileNotFoundError:
            raise Unavailable(reason=f"the log is being trimmed: partition={request.partition}") from None
        except OSError as error:
            raise StorageFailed(partition=request.partition, reason=f"cannot read the segments: {error}") from None
        shown = segments[: min(request.segments_max or SEGMENTS_MAX, SEGMENTS_MAX)]
        return pb.DescribeResponse(
            first_transaction_id=segments[0].first,
            last_transaction_id=segments[-1].last,
            low_water_mark=store.trimmable,
            bytes=sum(each.bytes for each in segments),
            segments=pack(f">{4 * len(shown)}q", *[value for each in shown for value in each]),
            now_ms=self._node.clock.now_ms(),
            view=_described(self._views.describe(request.partition)),
        )

    async def trim(self, request: pb.TrimRequest) -> pb.TrimResponse:
        store = await self._member(request)
        first = request.first_transaction_id
        if request.compacted:
            first = min(first, self._views.bound(request.partition))
        return pb.TrimResponse(first_transaction_id=await store.trim(first, request.session))

    async def begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        store = await self._partition(request)
        return pb.BeginResponse(last_transaction_id=await store.begin(request.session, request.first_transaction_id))

    async def compact(self, request: pb.CompactRequest) -> pb.CompactResponse:
        store = await self._member(request)
        wanted = Wanted(min(request.bound, store.last_id + 1), request.bound, request.now_ms, request.tombstone_retention_ms)
        found = await self._views.compact(store.log, _topic_partition(request.of), request.start, wanted)
        return pb.CompactResponse(view=_described(found))

    async def read_view(self, request: pb.ReadViewRequest, stream: Sender[pb.ReadViewResponse]) -> None:
        permit = ReadPermit(self._node.access, request.partition)
        store = await self._partition(request)
        self._expect_reader(request, store)
        store.expect_clean(max(0, request.session))
        max_bytes = min(request.max_bytes, PAGE_BYTES_MAX) if request.max_bytes > 0 else self._node.settings.read_bytes_max
        answered = 0
        async with aclosing(self._views.read(request.partition, request.first_transaction_id, max_bytes, request.bound_min)) as pages:
            while True:
                async with await self._node.unread.acquire(caller(), max_bytes):
                    if (page := await anext(pages, None)) is None:
                        return
                    records, checksums, start, bound, following, done = page
                    permit.renew()
                    await stream.send(encode_view_page(records, checksums, start=start, bound=bound, next_transaction_id=following, done=done))
                answered += 1
                if answered == request.pages_max:
                    return

    async def load_view(self, stream: LoadStream) -> None:
        opening = await stream.receive()
        if opening is None:
            return
        if opening.WhichOneof("kind") != "open":
            raise ProtocolViolation(reason="a view is loaded by a stream that begins with open")
        request = opening.open
        store = await self._member(request)
        if not 0 <= request.start <= request.bound <= store.last_id + 1:
            raise ProtocolViolation(reason=f"a view that is not of this log: start={request.start} bound={request.bound} last={store.last_id}")
        await self._views.load(request.partition, _topic_partition(request.of), request.start, request.bound, _received(stream))
        await stream.send(pb.LoadViewResponse(view=_described(self._views.describe(request.partition))))

    async def drop_view(self, request: pb.DropViewRequest) -> pb.DropViewResponse:
        await self._member(request)
        await self._views.drop(request.partition)
        return pb.DropViewResponse()


async def _received(stream: LoadStream) -> AsyncGenerator[Sequence[WalRecord], None]:
    """The pages up to the one that is marked as the last. If a stream ends before it, none of it takes effect."""
    while (message := await stream.receive()) is not None:
        if message.WhichOneof("kind") != "page":
            raise ProtocolViolation(reason="a view's stream is opened once, then carries pages")
        yield decode_view_page(message.page)
        if message.page.done:
            return
    raise ProtocolViolation(reason="a view's stream ended before its last page")


def _topic_partition(message: pb.TopicPartition) -> TopicPartition:
    return TopicPartition(TopicName.parse(f"{message.namespace}/{message.topic}"), message.partition, dict(message.properties))


def _described(found: ViewFacts) -> pb.ViewDescription:
    return pb.ViewDescription(**found._asdict())
