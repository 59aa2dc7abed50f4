"""What a hostile client knows: every address of the cluster, its key, and the number of the client that it wants to harm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final  # Any: messages of any method, and their fields

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import encode_records
from waltz_log.core.ports import CallMethod, Channel
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import CLIENT_ID

__all__ = ["SUBSCRIBER", "WAIT_S", "Hostile", "Outcome", "Target"]

WAIT_S: Final = 5.0

SUBSCRIBER: Final = "honest-reports"
"""Registered by the honest client."""


@dataclass(frozen=True, slots=True)
class Target:
    """`ports`: each address at which a process of the cluster listens and that another machine could reach. `foreign`: log partitions that no rule
    permits to the hostile client."""

    cluster: str
    cluster_key: str
    servers: tuple[str, ...]
    storages: tuple[str, ...]
    ports: tuple[str, ...]
    zookeeper: str
    shared: tuple[int, ...]
    foreign: tuple[int, ...]
    victim: int
    seconds: float


@dataclass(slots=True)
class Outcome:
    """What one attack did. `achieved`: how often it reached what it attacks: locks that a server judged, mounts that it held, calls that a server
    itself refused. 0: it tested nothing. `breaches`: what a server permitted and must refuse."""

    achieved: int = 0
    breaches: list[str] = field(default_factory=list)

    def refused_with(self, error: Exception) -> None:
        """A call ended with the error. A server that did not answer refused nothing."""
        self.achieved += not isinstance(error, TimeoutError | OSError | Unavailable)


class Hostile:
    """A client with a certificate of an application, and the calls that its attacks have in common."""

    def __init__(self, target: Target, tls: TlsSettings | None, rng: Random) -> None:
        """`tls` None: connects nowhere, in a test of what it sends."""
        self.target = target
        self._tls = tls
        self.rng = rng
        self.own_id = 0
        """A client id of the hostile client itself; 0 before `get_id`."""
        self.own_ticket = ""
        self.direct_ports: dict[int, int] = {}
        """By log partition, where its owner offered direct connections."""
        self._network = GrpcNetwork(tls=tls)
        self._channels: dict[str, Channel] = {}
        self._mount_sequence = 1
        self._sequence = 0
        self._further: list[pb.ClientIdResponse] = []

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.target.cluster_key)

    def channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._network.connect(address)
        return channel

    def server(self) -> Channel:
        return self.channel(self.rng.choice(self.target.servers))

    async def get_id(self) -> None:
        """Asks for a client id of its own."""
        given = await self.server().call(CLIENT_ID, pb.ClientIdRequest(cluster_key=self.key), timeout_s=WAIT_S)
        self.own_id, self.own_ticket = given.client_id, given.ticket

    async def ids(self, count: int) -> list[pb.ClientIdResponse]:
        """Further client ids of its own, the same ones whenever it is called."""
        while len(self._further) < count:
            self._further.append(await self.server().call(CLIENT_ID, pb.ClientIdRequest(cluster_key=self.key), timeout_s=WAIT_S))
        return self._further[:count]

    @property
    def tls(self) -> TlsSettings:
        assert self._tls is not None, "a hostile client that connects has a certificate"
        return self._tls

    def owns(self, client_id: int) -> bool:
        return client_id == self.own_id or any(each.client_id == client_id for each in self._further)

    def wrong_ticket(self) -> str:
        """None, its own, or its own with one character changed."""
        own = self.own_ticket
        at = self.rng.randrange(len(own)) if own else 0
        return self.rng.choice(("", own, own[:at] + self.rng.choice("0A-") + own[at + 1 :]))

    def next_mount_sequence(self) -> int:
        self._mount_sequence += 1
        return self._mount_sequence

    def next_sequences(self, count: int) -> int:
        """The first of these many sequences of the hostile client's own."""
        self._sequence += count
        return self._sequence - count

    def mounting(self, partition: int, client_id: int, mount_sequence: int, **fields: Any) -> pb.ClientMessage:
        mount = pb.MountRequest(
            protocol_version=methods.PROTOCOL_VERSION,
            cluster_key=self.key,
            client_id=client_id,
            partition=partition,
            mount_sequence=mount_sequence,
            client_high_water_mark=-1,
        )
        mount.MergeFrom(pb.MountRequest(**fields))
        return pb.ClientMessage(mount=mount)

    def mounting_as_itself(self, partition: int) -> pb.ClientMessage:
        return self.mounting(partition, self.own_id, self.next_mount_sequence(), ticket=self.own_ticket)

    def frame(
        self, generation: int, partition: int, client_id: int, first_sequence: int, bodies: Iterable[bytes], *, mark: int = -1
    ) -> pb.AppendFrame:
        """Without locks. `mark`: the client high-water mark of each transaction."""
        data = list(bodies)
        records = encode_records(client_id, generation, partition, first_sequence, [0] * len(data), data)
        lengths = b"".join((len(each) + RECORD_OVERHEAD_BYTES).to_bytes(4, "big") for each in data)
        marks = mark.to_bytes(8, "big", signed=True) * len(data)
        return pb.AppendFrame(generation=generation, lengths=lengths, marks=marks, records=records)

    async def expect_refused(self, outcome: Outcome, method: CallMethod[Any, Any], request: Any, breach: str) -> None:
        """Calls each log server. `breach`: what it is that one of them answers."""
        for address in self.target.servers:
            try:
                await self.channel(address).call(method, request, timeout_s=WAIT_S)
            except WaltzError as error:
                outcome.refused_with(error)
            else:
                outcome.breaches.append(breach)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
