"""A log that consists of storage stubs only, to test readers with: `StubCluster` in the test, `StubSource` (`format("waltz_stub")`) in Spark.

The stubs are real gRPC servers that answer the real READ procedure from memory, and can be made to misbehave. The answers of the cluster to the
driver (bounds, replicas) are in a JSON file whose path is the source's `cluster` option, because Spark plans in separate processes.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: JSON values, messages, and gRPC's context
from uuid import UUID, uuid4

import grpc

from pyspark_waltz.source import DefaultSource
from waltz_log import errors
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.formats.records import Record, decode_record, encode_record
from waltz_log.core.formats.wal_records import WalRecord, wal_checksum
from waltz_log.core.topics.access import expect_allowed
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, OutOfRange, SessionTooOld, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import CHANNEL_OPTIONS
from waltz_log.transport.locating import Place, Question
from waltz_log.transport.methods import READ, READ_VIEW
from waltz_log.transport.view_pages import encode_view_page

__all__ = ["StubCluster", "StubInspector", "StubSource", "StubStorage", "block_of", "page_of"]


def block_of(partition: int, first: int, rows: Iterable[bytes], *, append_time_ms: int, headers: Callable[[int], int] = lambda _: 0) -> Block:
    """Rows as a block of consecutive ids from `first`."""
    records = [encode_record(1, 1, partition, first + n, headers(first + n), data, transaction_id=first + n) for n, data in enumerate(rows)]
    lengths = b"".join(len(record).to_bytes(4, "big") for record in records)
    return Block(first, lengths, b"".join(records), append_time_ms)


def records_in(block: Block) -> Iterator[tuple[Record, int]]:
    """Each record with the offset of its end."""
    end = 0
    while end < len(block.records):
        record, size = decode_record(block.records[end:])
        end += size
        yield record, end


def page_of(records: Sequence[WalRecord], *, bound: int, done: bool) -> pb.ReadViewResponse:
    """A page of a compacted view, as storage nodes send it."""
    following = records[-1].transaction_id + 1 if records else 0
    return encode_view_page(records, [wal_checksum(each) for each in records], start=0, bound=bound, next_transaction_id=following, done=done)


@dataclass
class StubStorage:
    """One replica. `session` is what its control file would say; `hook` receives each block before it is sent and may change it, raise, or call
    `stop`; `view_hook` receives the number of view pages sent so far before each page, and may raise."""

    name: str
    cluster_key: bytes
    session: int = 1
    hook: Callable[[int, pb.Block], pb.Block] | None = None
    view_hook: Callable[[int], None] = lambda _: None
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    views: dict[int, tuple[int, list[WalRecord]]] = field(default_factory=dict)
    readers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    address: str = ""
    _server: Any = None

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8, thread_name_prefix=self.name), options=CHANNEL_OPTIONS)
        handler = grpc.unary_stream_rpc_method_handler(
            self._read, request_deserializer=READ.request.FromString, response_serializer=READ.response.SerializeToString
        )
        views = grpc.unary_stream_rpc_method_handler(
            self._read_view, request_deserializer=READ_VIEW.request.FromString, response_serializer=READ_VIEW.response.SerializeToString
        )
        service, method = READ.name.strip("/").split("/")
        handlers = {method: handler, READ_VIEW.name.rpartition("/")[2]: views}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        """Like a killed process: open streams break, new ones are refused."""
        if self._server is not None:
            self._server.stop(0)
            self._server = None

    def last(self, partition: int) -> int:
        blocks = self.blocks.get(partition)
        return blocks[-1].last_transaction_id if blocks else -1

    def _read(self, request: Any, context: Any) -> Iterator[Any]:
        try:
            yield from self._answers(request)
        except WaltzError as error:
            context.abort(grpc.StatusCode.ABORTED, errors.encode(error))

    def _read_view(self, request: Any, context: Any) -> Iterator[Any]:
        """Pages of two records, so that there are several."""
        try:
            self._check(request)
            bound, records = self.views.get(request.partition, (0, []))
            if bound < request.bound_min:
                raise OutOfRange(partition=request.partition, asked=request.bound_min, first=0, last=bound)
            wanted = [each for each in records if each.transaction_id >= request.first_transaction_id]
            for at in range(0, len(wanted) or 1, 2):
                self.view_hook(at // 2)
                yield page_of(wanted[at : at + 2], bound=bound, done=at + 2 >= len(wanted))
        except WaltzError as error:
            context.abort(grpc.StatusCode.ABORTED, errors.encode(error))

    def _check(self, request: Any) -> None:
        partition, readers = request.partition, self.readers.get(request.partition, ())
        if request.cluster_key != self.cluster_key:
            raise ClusterKeyMismatch(where="the request")
        expect_allowed("stub", readers, "read", request.principal)
        if request.session > self.session:
            raise SessionTooOld(partition=partition, asked=request.session, session=self.session)

    def _answers(self, request: Any) -> Iterator[Any]:
        partition, first, last = request.partition, request.first_transaction_id, request.last_transaction_id
        self.reads.append((partition, first, last))
        self._check(request)
        retained, end = self.first.get(partition, 0), self.last(partition)
        if first < retained or first > end:
            raise OutOfRange(partition=partition, asked=first, first=retained, last=end)
        blocks = self.blocks[partition]
        at = bisect.bisect_right([block.first_transaction_id for block in blocks], first) - 1
        for block in blocks[at:]:
            for piece in _pieces(block, first, last, request.max_bytes):
                sent = pb.Block(**{name: getattr(piece, name) for name in ("first_transaction_id", "lengths", "records", "append_time_ms")})
                yield pb.ReadResponse(blocks=[self.hook(partition, sent) if self.hook else sent], replica_last_transaction_id=end)
            if block.last_transaction_id >= last:
                return


def _lengths(block: Block) -> list[int]:
    return [int.from_bytes(block.lengths[n : n + 4], "big") for n in range(0, len(block.lengths), 4)]


def _pieces(block: Block, first: int, last: int, max_bytes: int) -> Iterator[Block]:
    """The part of a block within the range, in pieces of about `max_bytes`."""
    low, high = max(first, block.first_transaction_id), min(last, block.last_transaction_id)
    if low == block.first_transaction_id and high == block.last_transaction_id and len(block.records) <= max_bytes:
        yield block
        return
    lengths = _lengths(block)
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    at = low - block.first_transaction_id
    end = high - block.first_transaction_id + 1
    while at < end:
        until = at + 1
        while until < end and offsets[until + 1] - offsets[at] <= max_bytes:
            until += 1
        records = block.records[offsets[at] : offsets[until]]
        yield Block(block.first_transaction_id + at, block.lengths[4 * at : 4 * until], records, block.append_time_ms)
        at = until


@dataclass(frozen=True)
class _Parameters:
    name: str
    key: UUID
    partitions: int


@dataclass(frozen=True)
class _Bound:
    partition: int
    generation: int
    session: int
    high_water_mark: int
    first_transaction_id: int


class StubInspector(AbstractContextManager["StubInspector"]):
    """`ClusterInspector` over the file that a `StubCluster` writes."""

    def __init__(self, cluster: str, timeout_s: float = 10.0) -> None:
        self._path = Path(cluster)

    def __enter__(self) -> Self:
        if not self._path.exists():
            raise ClusterUnavailable(address=str(self._path), reason="no such file")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Does nothing: nothing is open."""

    @property
    def parameters(self) -> _Parameters:
        found = self._state()
        return _Parameters("stub", UUID(found["key"]), found["partitions"])

    def bounds(self, partitions: Iterable[int] | None = None) -> dict[int, _Bound]:
        found = {int(p): _Bound(**bound) for p, bound in self._state()["bounds"].items()}
        return found if partitions is None else {p: found[p] for p in partitions if p in found}

    def replicas(self) -> dict[int, list[str]]:
        return {int(p): list(addresses) for p, addresses in self._state()["replicas"].items()}

    def owners(self) -> dict[int, str | None]:
        found = self._state()
        return {p: f"server-{p}:1" if str(p) in found["bounds"] else None for p in range(found["partitions"])}

    def catalogue(self) -> Catalogue:
        return Catalogue.from_bytes(self._state()["catalogue"].encode())

    def view_ends(self, sessions: Mapping[int, int], principal: str = "") -> dict[int, dict[str, int]]:
        return {int(p): dict(ends) for p, ends in self._state()["view_ends"].items() if int(p) in sessions}

    def locate(self, questions: Mapping[int, Question]) -> dict[int, Place]:
        state = self._state()
        rows: dict[str, list[list[int]]] = state["rows"]
        return {p: _located(rows.get(str(p), []), state["bounds"][str(p)]["first_transaction_id"], asked) for p, asked in questions.items()}

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._path.read_text())
        return found


def _located(blocks: list[list[int]], retained: int, asked: Question) -> Place:
    """From blocks of (first id, append time, record sizes…), one transaction after the other."""
    rows = {first + n: (time_ms, size) for first, time_ms, *sizes in blocks for n, size in enumerate(sizes)}
    ids = [at for at in rows if retained <= at <= asked.high_water_mark]
    positions = tuple(next((at for at in ids if rows[at][0] >= time_ms), asked.high_water_mark + 1) for time_ms in asked.times_ms)
    measured = range(asked.first, min(asked.last, asked.high_water_mark) + 1)
    if measured and asked.first < retained:
        raise OutOfRange(partition=0, asked=asked.first, first=retained, last=asked.high_water_mark)
    total, within = 0, asked.first - 1
    for at in measured:
        total += rows[at][1]
        if total <= asked.max_bytes:
            within = at
    return Place(positions, total, within)


class StubSource(DefaultSource):
    """The source over a `StubCluster`: `spark.dataSource.register(StubSource)`, then `format("waltz_stub")`."""

    connect = staticmethod(lambda options: StubInspector(options.cluster))
    check_address = staticmethod(Path)

    @classmethod
    def name(cls) -> str:
        return "waltz_stub"


class StubCluster:
    """Three replicas with the same blocks, and the file that describes them. Call `publish` after each change that the driver should see."""

    def __init__(self, directory: Path, *, partitions: int = 2, replicas: int = 3, session: int = 1, key: UUID | None = None) -> None:
        self.key = key or uuid4()
        self.partitions = partitions
        self.session = session
        self.path = directory / f"cluster-{self.key}.json"
        self.nodes = [StubStorage(f"storage-{n}", self.key.bytes, session=session) for n in range(replicas)]
        self.first: dict[int, int] = {}
        self.unowned: set[int] = set()
        self.catalogue = Catalogue()
        self._marks: dict[int, int] = {}
        self._written: dict[int, list[Block]] = {}
        self._lock = threading.Lock()
        for node in self.nodes:
            node.start()
        self.publish()

    @property
    def address(self) -> str:
        """The value of the option `cluster`."""
        return str(self.path)

    def append(
        self, partition: int, rows: Iterable[bytes], *, append_time_ms: int = 1_700_000_000_000, headers: Callable[[int], int] = lambda _: 0
    ) -> Block:
        """One committed block on every replica."""
        block = block_of(partition, self._marks.get(partition, -1) + 1, rows, append_time_ms=append_time_ms, headers=headers)
        self._marks[partition] = block.last_transaction_id
        self._written.setdefault(partition, []).append(block)
        for node in self.nodes:
            node.blocks.setdefault(partition, []).append(block)
        self.publish()
        return block

    def create_topic(self, name: str, partitions: int, *, type: str = "regular", keyed: bool = False) -> Topic:
        """Adds the topic to the catalog, over the first free log partitions."""
        arguments = {"type": type, "keyed": keyed, "partitions": partitions, "pool": range(self.partitions), "now_ms": 0}
        self.catalogue, made = self.catalogue.with_new(TopicName.parse(name), **arguments)  # type: ignore[arg-type]
        self.publish()
        return made

    def delete_topic(self, name: str) -> None:
        self.catalogue, _ = self.catalogue.without(TopicName.parse(name))
        self.publish()

    def compact(self, partition: int, bound: int, *, nodes: Iterable[int] | None = None) -> None:
        """Builds the simplest view: the latest transaction of each key below `bound`, on these nodes or all."""
        latest: dict[bytes, WalRecord] = {}
        for block in self._written.get(partition, []):
            for each, _ in records_in(block):
                found = split_keyed(each.data)
                if each.transaction_id < bound and found is not None:
                    latest[found.key] = WalRecord(each.transaction_id, block.append_time_ms, each.header, found.key, found.value)
        for number in range(len(self.nodes)) if nodes is None else nodes:
            self.nodes[number].views[partition] = (bound, sorted(latest.values()))
        self.publish()

    def marks(self) -> Mapping[int, int]:
        return dict(self._marks)

    def trim(self, partition: int, first: int) -> None:
        """Removes ids below `first` on every replica."""
        self.first[partition] = first
        for node in self.nodes:
            node.first[partition] = first
        self.publish()

    def publish(self) -> None:
        bounds = {
            p: asdict(_Bound(p, 1, self.session, self._marks.get(p, -1), self.first.get(p, 0)))
            for p in range(self.partitions)
            if p not in self.unowned
        }
        replicas = {p: [node.address for node in self.nodes] for p in range(self.partitions)}
        rows = {p: [[b.first_transaction_id, b.append_time_ms, *_lengths(b)] for b in blocks] for p, blocks in self._written.items()}
        state: dict[str, Any] = {"key": str(self.key), "partitions": self.partitions, "bounds": bounds, "replicas": replicas, "rows": rows}
        state["catalogue"] = self.catalogue.to_bytes().decode()
        state["view_ends"] = {p: {n.address: n.views[p][0] for n in self.nodes if p in n.views} for p in range(self.partitions)}
        with self._lock:
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(state))
            os.replace(temporary, self.path)

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
