"""The RPC handlers of a storage node: check messages, call the partition, build answers. Decide nothing else.

A `Replicate` stream runs two loops: one receives blocks and waits for free memory, one reports what is on disk, or also what is received if the owner
wants to know. An owner that does not read its acknowledgments delays only its own stream.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from struct import iter_unpack, pack

from waltz_log.background_tasks import run_all
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.sealed_headers import seal_headers
from waltz_log.core.ports import Sender, Service
from waltz_log.core.topics.catalogue import FLUSH_BYTES_MAX
from waltz_log.errors import ClusterKeyMismatch, Fenced, ProtocolViolation
from waltz_log.security.callers import caller
from waltz_log.statistics import to_json
from waltz_log.storage.node.read_access import OpenedBy, ReadPermit
from waltz_log.storage.node.request_fields import OfPartition, OfReader, WithKey
from waltz_log.storage.node.served_node import ServedNode
from waltz_log.storage.node.upkeep_service import upkeep_service_of
from waltz_log.storage.replica.appender import Appender
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import block_of
from waltz_log.transport.large_messages import read_message

__all__ = ["service_of"]

READ_BYTES_MAX = 2 * 1024 * 1024
"""However much a reader asks for. One answer needs three times as much memory until it is sent, and 2 ms of the event loop for each MiB."""


def service_of(node: ServedNode) -> Service:
    service = _Service(node)
    return [
        methods.OPEN.served_by(service.open),
        methods.SET_LOW_WATER_MARK.served_by(service.set_low_water_mark),
        methods.KEEP_PROGRESS.served_by(service.keep_progress),
        methods.KEEP_CLIENT_IDS.served_by(service.keep_client_ids),
        methods.TRUNCATE.served_by(service.truncate),
        methods.REPLICATE.served_by(service.replicate),
        methods.READ.served_by(service.read),
        methods.LOCATE.served_by(service.locate),
        methods.PING.served_by(service.ping),
        methods.STORAGE_STATUS.served_by(service.status),
        *upkeep_service_of(node, service.partition, service.expect_reader),
    ]


FLUSH_PERIOD_MS_MIN = 2
LOCATE_BYTES_MAX = 8 * 64
"""For times in one request: each is looked up by a binary search over the segments."""


class _Service:
    def __init__(self, node: ServedNode) -> None:
        self._node = node

    def _expect_key(self, request: WithKey) -> None:
        ClusterKeyMismatch.expect(self._node.cluster_key.bytes, request.cluster_key)

    def expect_reader(self, request: OfReader, store: PartitionStore) -> None:
        """Raises `NotAllowed` as the topic's properties say."""
        self._node.access.expect_reader(
            request.partition, request.principal, fence=request.fence, token=request.owner_token, newest_session=store.newest_session
        )

    async def partition(self, request: OfPartition) -> PartitionStore:
        self._expect_key(request)
        return await self._node.partition(request.partition)

    async def open(self, request: pb.OpenRequest) -> pb.OpenResponse:
        self._expect_key(request)
        await self._node.grow_control_file(request.partitions)
        store = await self.partition(request)
        self._node.access.expect_same_owner(request.partition, request.session, request.owner_token, store.clean_session)
        state = await store.open_session(request.session, request.stream_epoch)
        opened = OpenedBy(request.session, request.owner_token, request.topic, tuple(request.readers))
        self._node.access.record(request.partition, opened, store.clean_session)
        return pb.OpenResponse(
            session=state.mark.session,
            low_water_mark=state.mark.low_water_mark,
            local_low_water_mark=state.mark.local_low_water_mark,
            last_transaction_id=state.last_id,
            first_transaction_id=state.first_id,
            start=self._node.start,
            may_lack=state.may_lack,
            grew_as_member=state.grew_as_member,
            full=self._node.full,
        )

    async def set_low_water_mark(self, request: pb.LowWaterMarkRequest) -> pb.LowWaterMarkResponse:
        store = await self.partition(request)
        return pb.LowWaterMarkResponse(
            last_transaction_id=await store.set_low_water_mark(request.session, request.low_water_mark, request.stream_epoch)
        )

    async def keep_progress(self, request: pb.LowWaterMarkRequest) -> pb.LowWaterMarkResponse:
        store = await self.partition(request)
        return pb.LowWaterMarkResponse(last_transaction_id=await store.keep_progress(request.session, request.low_water_mark, request.kept))

    async def keep_client_ids(self, request: pb.KeepClientIdsRequest) -> pb.KeepClientIdsResponse:
        self._expect_key(request)
        return pb.KeepClientIdsResponse(last=await self._node.keep_client_ids(request.last))

    async def truncate(self, request: pb.TruncateRequest) -> pb.TruncateResponse:
        store = await self.partition(request)
        last = await store.truncate(request.session, request.last_transaction_id, lost=request.lost)
        return pb.TruncateResponse(last_transaction_id=last)

    async def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        self._expect_key(request)
        self._node.access.expect_permitted(request.partition)
        store = await self.partition(request)
        if len(request.times_ms) % 8 or len(request.times_ms) > LOCATE_BYTES_MAX:
            raise ProtocolViolation(reason=f"bad number of times: bytes={len(request.times_ms)}")
        times_ms = [value for (value,) in iter_unpack(">q", request.times_ms)]
        if self._node.access.control.enforced:  # else the request names no principal, and nothing would prove it
            self._node.access.expect_reader(request.partition, request.principal, fence=0, token=b"", newest_session=store.newest_session)
        store.expect_clean(max(0, request.session))
        first, ends = request.first_transaction_id, await store.committed(max(request.last_transaction_id, request.bound))
        last = max(first - 1, min(request.last_transaction_id, ends))
        found = await store.locate(max(0, request.session), times_ms, first, last, request.max_bytes)
        return pb.LocateResponse(
            transaction_ids=pack(f">{len(found.positions)}q", *(min(each, ends + 1) for each in found.positions)),
            bytes=found.bytes,
            last_within=found.last_within,
            replica_first_transaction_id=found.first,
            replica_last_transaction_id=min(found.last, ends),
        )

    async def ping(self, request: pb.PingRequest) -> pb.PingResponse:
        self._node.access.control.expect_cluster()
        self._expect_key(request)
        return pb.PingResponse(full=self._node.full, now_ms=self._node.clock.now_ms())

    async def status(self, request: pb.StorageStatusRequest) -> pb.StorageStatusResponse:
        self._node.access.control.expect_cluster()
        found = self._node.statistics()
        if request.known_values:
            self._node.access.control.expect_trusted("read values of the coordinator")
            found = replace(found, known_values=self._node.known.values())
        if request.round_trips and self._node.measure_round_trips is not None:
            found = replace(found, round_trips=await self._node.measure_round_trips())
        return pb.StorageStatusResponse(json=json.dumps(to_json(found)))

    # ---- streams ---------------------------------------------------------------------------------------------------------------------------------

    async def replicate(self, stream: methods.ServedReplicateStream) -> None:
        opening = await stream.receive()
        if opening is None:
            return
        if opening.WhichOneof("kind") != "open":
            raise ProtocolViolation(reason="a replicate stream begins with open")
        store = await self.partition(opening.open)
        appender = await store.attach(opening.open.session, self._node.settings.pending_bytes_max, opening.open.stream_epoch)
        try:
            await run_all(_receive_blocks(stream, store, appender), _acknowledge(stream, store, appender))
        finally:
            store.detach(appender)

    async def _readable(self, request: pb.ReadRequest, store: PartitionStore) -> int:
        """Up to where the caller may read. Raises `SessionTooOld` and, for another caller than the owner that asks as one, `ProtocolViolation`."""
        fence, token, newest = request.fence, request.owner_token, store.newest_session
        if self._node.access.reads_all(request.partition, request.principal, fence=fence, token=token, newest_session=newest):
            return request.last_transaction_id
        if request.session < 0:
            if 0 < request.fence < store.newest_session:
                raise Fenced(what="store session", partition=request.partition, mine=request.fence, newer=store.newest_session)
            raise ProtocolViolation(reason="only the owner of the newest session reads what is not committed")
        store.expect_clean(request.session)
        return await store.committed(request.last_transaction_id)

    async def read(self, request: pb.ReadRequest, stream: Sender[pb.ReadResponse]) -> None:
        self._expect_key(request)
        permit = ReadPermit(self._node.access, request.partition)
        store = await self.partition(request)
        self.expect_reader(request, store)
        max_bytes = min(request.max_bytes, READ_BYTES_MAX) if request.max_bytes > 0 else self._node.settings.read_bytes_max
        first, last = request.first_transaction_id, request.last_transaction_id
        ends = await self._readable(request, store)
        if first > ends and first <= last:
            return  # as of a replica that holds no more
        found = store.read(request.session, request.fence, first, min(last, ends), max_bytes)
        answered = 0
        async with aclosing(found) as runs:
            while True:
                async with await self._node.unread.acquire(caller(), max_bytes):
                    if (run := await anext(runs, None)) is None:
                        return
                    blocks = [replace(block, records=seal_headers(block.records, block.lengths)) for block in run] if request.headers_only else run
                    permit.renew()
                    await stream.send(read_message(blocks, min(store.last_id, ends)))
                answered += 1
                if answered == request.runs_max:
                    return


async def _receive_blocks(stream: methods.ServedReplicateStream, store: PartitionStore, appender: Appender) -> None:
    """Returns when the owner has ended its side and all it sent is on disk. Raises when anything fails."""
    while (message := await stream.receive()) is not None:
        kind = message.WhichOneof("kind")
        if kind not in ("block", "blocks"):
            _apply_message(kind, message, store, appender)
            continue
        for sent in (message.block,) if kind == "block" else message.blocks.blocks:
            await store.append(appender, block_of(sent))
        await appender.wait_for_capacity()
    appender.finish()


def _apply_message(kind: str | None, message: pb.ReplicateRequest, store: PartitionStore, appender: Appender) -> None:
    """Applies a message that an owner sends between blocks."""
    if kind == "flushing":
        wanted = message.flushing
        if wanted.bytes and wanted.period_ms < FLUSH_PERIOD_MS_MIN:
            raise ProtocolViolation(reason=f"flushed more often than every {FLUSH_PERIOD_MS_MIN} ms: period_ms={wanted.period_ms}")
        appender.flushing = Flushing(wanted.period_ms / 1000, min(wanted.bytes, FLUSH_BYTES_MAX)) if wanted.bytes > 0 else None
    elif kind == "flush":
        store.flush()
    elif kind == "committed":
        store.committed_mark.rise(message.committed)
    else:
        raise ProtocolViolation(reason="a replicate stream is opened once, then carries blocks")


async def _acknowledge(stream: methods.ServedReplicateStream, store: PartitionStore, appender: Appender) -> None:
    """Reports the last transaction on disk and the last one received whenever one advanced, until the stream is finished and all is reported."""
    sent = received = None
    while True:
        await appender.changed()
        if appender.received is not None and appender.received != received:
            sent, received = appender.acknowledged, appender.received
            on_disk = store.last_id if sent is None else sent
            await stream.send(pb.ReplicateResponse(last_transaction_id=on_disk, received_transaction_id=received))
        elif appender.acknowledged is not None and appender.acknowledged != sent:
            sent = appender.acknowledged
            await stream.send(pb.ReplicateResponse(last_transaction_id=sent))
        if appender.failed is not None:
            raise appender.failed
        if appender.done and sent == appender.acknowledged:
            return
