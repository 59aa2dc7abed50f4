"""The requests of a store session to the node of one replica, over one connection.

Every request carries the cluster key, the partition and the session, so a node can refuse what is late or foreign. The connection outlives the
session. What the requests mean for the replica is decided in `replica_session`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from waltz_log.coordination.followed import STORAGE_ENTRIES
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.ports import CallMethod, Channel, ReadMethod, Receiver, Request, Response, Stream, StreamMethod
from waltz_log.core.topics.access import allowed
from waltz_log.errors import ConnectionLost, CorruptData, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.replication.block_stream import BlockStream
from waltz_log.server.replication.owner_session import OwnerSession
from waltz_log.server.replication.patience import Patience
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import block_of

__all__ = ["ReplicaCalls", "flushing_message"]

log = get_logger(__name__)


class ReplicaCalls:
    """Not connected until `connect`. Every request raises `ConnectionLost` while there is no connection, and the error that the node returns."""

    def __init__(self, store: OwnerSession, name: str) -> None:
        self.name = name
        self.patience = Patience(name, store.settings.rpc_timeout_s)
        self.stream_epoch = 0
        """The node refuses a stream with a lower epoch, which was opened earlier and arrives later."""
        self.reached = False
        """Whether the node answered the last call."""
        self.corrupt = False
        """The node refuses to open the partition, because its data is damaged."""
        self.entry_version: int | None = None
        """The version of the node's entry in the coordinator when `find` read it."""
        self.started = -1
        """How often the node had started, according to that entry."""
        self._store = store
        self._channel: Channel | None = None
        self._sent_topic: tuple[str, tuple[str, ...]] | None = None

    # ---- the connection --------------------------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str | None:
        """The address of the connection, None if there is none."""
        return None if self._channel is None else self._channel.address

    async def find(self) -> str:
        """Reads the address of the node from the coordinator. Raises `Unavailable` if the node has never been started."""
        node = await self._store.probes.known.get(self._store.coordinator, STORAGE_ENTRIES, self.name)
        self.entry_version = None if node is None else node.version
        entry = self._store.probes.known.accept(STORAGE_ENTRIES, node, self.name)
        if entry is None:
            why = "storage node has never been started" if node is None else "entry of the storage node cannot be read"
            raise Unavailable(reason=f"{why} name={self.name}")
        self.started = entry.start
        return entry.address_for(self._store.partition)

    def connect(self, address: str) -> None:
        self._channel = self._store.network.connect(address)

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def _connected(self) -> Channel:
        if self._channel is None:
            raise ConnectionLost(address=self.name, reason="not connected yet")
        return self._channel

    def expect_connection(self) -> None:
        """Raises `ConnectionLost` if there is no connection."""
        self._connected()

    async def call(self, method: CallMethod[Request, Response], request: Request) -> Response:
        return await self._connected().call(method, request, timeout_s=self._store.settings.rpc_timeout_s)

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        return self._connected().read(method, request)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        return self._connected().open(method)

    # ---- the session -----------------------------------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> bytes:
        return self._store.cluster.key.bytes

    async def open_session(self) -> pb.OpenResponse:
        """Fences older sessions at the node and returns what the replica holds. Also sends the topic of the partition."""
        store = self._store
        topic, readers = sent = self._topic
        request = pb.OpenRequest(
            cluster_key=self._key,
            partition=store.partition,
            session=store.session,
            partitions=store.cluster.partitions,
            topic=topic,
            readers=readers,
            owner_token=store.owner_token,
            stream_epoch=self.stream_epoch,
        )
        try:
            answer = await self.call(methods.OPEN, request)
        except CorruptData:
            self.corrupt = True
            raise
        self.corrupt = False
        self._sent_topic = sent
        return answer

    @property
    def _topic(self) -> tuple[str, tuple[str, ...]]:
        """The topic that the partition belongs to, and the principals that may read it."""
        found = self._store.topics.of(self._store.partition)
        if found is None:
            return ("", ())
        topic, partition = found
        return str(topic.name), allowed(topic.properties_of(partition), "read")

    async def send_topic(self) -> bool:
        """Sends the topic to the node. False if it does not answer. A node that is not connected receives it when it connects."""
        if self._channel is None or self._sent_topic in (None, self._topic):
            return True
        try:
            await self.open_session()
        except WaltzError as error:
            log.info("replica not informed of its topic", partition=self._store.partition, replica=self.name, error=str(error))
            return False
        return True

    async def set_low_water_mark(self, mark: int) -> int:
        """Makes the replica clean at the mark. Returns the last id that it holds."""
        request = pb.LowWaterMarkRequest(
            cluster_key=self._key,
            partition=self._store.partition,
            session=self._store.session,
            low_water_mark=mark,
            stream_epoch=self.stream_epoch,
        )
        return (await self.call(methods.SET_LOW_WATER_MARK, request)).last_transaction_id

    async def keep_progress(self, mark: int, kept: int) -> None:
        """Makes a replica that is being filled keep what it holds up to `kept`, and what it receives up to `mark`. No session copies that again."""
        store = self._store
        request = pb.LowWaterMarkRequest(cluster_key=self._key, partition=store.partition, session=store.session, low_water_mark=mark, kept=kept)
        await self.call(methods.KEEP_PROGRESS, request)

    async def truncate(self, last: int, *, lost: bool = False) -> int:
        """Truncates the log above the id. Returns the last id that the replica holds. `lost`: it acknowledged more than it holds, and counts as
        restored from now on."""
        store = self._store
        request = pb.TruncateRequest(cluster_key=self._key, partition=store.partition, session=store.session, last_transaction_id=last, lost=lost)
        return (await self.call(methods.TRUNCATE, request)).last_transaction_id

    async def begin(self, first: int) -> int:
        """Makes the replica drop its log and start at the id: no replica keeps what this one lacks, and all of that was committed. Returns the last
        id that it holds."""
        store = self._store
        log.info("replica starts empty at a new first id", partition=store.partition, replica=self.name, first=first)
        request = pb.BeginRequest(cluster_key=self._key, partition=store.partition, session=store.session, first_transaction_id=first)
        return (await self.call(methods.BEGIN, request)).last_transaction_id

    async def is_full(self) -> bool:
        """Whether the disk of the node has no space for blocks."""
        answer = await self.call(methods.PING, pb.PingRequest(cluster_key=self._key, partition=self._store.partition))
        return bool(answer.full)

    # ---- blocks ----------------------------------------------------------------------------------------------------------------------------------

    async def open_stream(self, acknowledged: Callable[[int], None], received: Callable[[int], None] | None = None) -> BlockStream:
        """Opens the stream that sends blocks. `acknowledged` is called with the last id on the replica's disk, `received` with the last id that it
        has in memory."""
        store = self._store
        stream = self.open(methods.REPLICATE)
        opening = pb.ReplicateOpen(cluster_key=self._key, partition=store.partition, session=store.session, stream_epoch=self.stream_epoch)
        await stream.send(pb.ReplicateRequest(open=opening))
        bytes_max = store.settings.replica_bytes_in_flight
        latency = store.replicate_latency
        return BlockStream(self.name, stream, store.encodings, bytes_max=bytes_max, acknowledged=acknowledged, received=received, latency=latency)

    async def runs(self, first: int, last: int, *, headers_only: bool, recovering: bool, runs_max: int) -> AsyncGenerator[list[Block], None]:
        """Stored records of this replica. `recovering`: as the owner of a session that is not open yet, also above what is known to be clean."""
        store = self._store
        request = pb.ReadRequest(
            cluster_key=self._key,
            partition=store.partition,
            session=-1 if recovering else store.session,
            fence=store.session,
            owner_token=store.owner_token,
            first_transaction_id=first,
            last_transaction_id=last,
            max_bytes=store.settings.feed_bytes_max,
            headers_only=headers_only,
            runs_max=runs_max,
        )
        stream = self.read(methods.READ, request)
        try:
            while (answer := await self.patience.await_answer(stream.receive())) is not None:
                yield [block_of(got) for got in answer.blocks]
        finally:
            await stream.cancel()


def flushing_message(flushing: Flushing | None) -> pb.Flushing:
    """The sync policy of a replica as a message; an empty one if it syncs before it acknowledges."""
    return pb.Flushing() if flushing is None else pb.Flushing(period_ms=round(flushing.period_s * 1000), bytes=flushing.bytes)
