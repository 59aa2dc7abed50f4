"""The client's view of the cluster: the owner of each partition, and the channels to the owners.

It follows the assignment in the coordinator. A lost coordinator session is replaced; until then the last assignment is used, because owners can
continue without it. There are two channels to each server, one for streams and one for calls (Client-Server Communication). It never decides the
outcome of an append: an owner's address is only where to ask.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, Assignment, ClusterParameters
from waltz_log.core.node_address import announced_name
from waltz_log.core.ports import CallMethod, Channel, Coordinator, Network, Request, Response
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, InvalidRequest, ProtocolViolation, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, CLIENT_ID

__all__ = ["ConnectCoordinator", "Owners"]

log = get_logger(__name__)

ConnectCoordinator: TypeAlias = Callable[[], Awaitable[Coordinator]]
"""Makes a coordinator session; called again where the last one was used up."""


class Owners:
    """Made, then `open`ed; `close` ends its one task and all channels."""

    def __init__(self, connect: ConnectCoordinator, network: Network, settings: ClientSettings, rng: random.Random) -> None:
        self._connect = connect
        self._network = network
        self._settings = settings
        self._rng = rng
        self._coordinator: Coordinator | None = None
        self._parameters: ClusterParameters | None = None
        self._assignment = Assignment()
        self._version: int | None = None
        self._changed = asyncio.Event()
        self._streams: dict[str, Channel] = {}
        self._calls: dict[str, Channel] = {}
        self._sessions_seen: dict[int, int] = {}
        """Of each partition that was asked for its bound, the newest store session that has answered."""
        self._tickets: dict[int, str] = {}
        """By client id, of those that this process uses."""
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Raises `ClusterUnavailable` if there is no cluster."""
        self._coordinator = await self._connect()
        try:
            found = await self._coordinator.get(CLUSTER, latest=True)
            if found is None:
                raise ClusterUnavailable(address=getattr(self._coordinator, "address", "coordinator"), reason="no cluster there")
            self._parameters = ClusterParameters.from_bytes(found.data)
            await self._read_assignment(self._coordinator)
        except BaseException:
            await self._coordinator.close()
            raise
        self._watcher = asyncio.create_task(self._watch(), name="waltz assignment watch")

    @property
    def parameters(self) -> ClusterParameters:
        if self._parameters is None:
            raise InvalidRequest(reason="the client is not open")
        return self._parameters

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose partitions are appended to by number."""
        return self._settings.topics

    @property
    def principal(self) -> str:
        """The principal that the client states; empty: none."""
        return self._settings.principal or ""

    @property
    def coordinator(self) -> Coordinator | None:
        """The session in use; None while it is being replaced."""
        return self._coordinator

    # ---- the assignment ------------------------------------------------------------------------------------------------------------------------

    def address(self, partition: int) -> str | None:
        """The address of the partition's owner, as far as known. None: it has no owner now."""
        return self._assignment.address_of(partition)

    def generation(self, partition: int) -> int:
        owned = self._assignment.partitions.get(partition)
        return 0 if owned is None else owned.generation

    async def wait_changed(self, timeout_s: float) -> None:
        """Returns at the next change of the assignment, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def owner(self, partition: int, timeout_s: float) -> str:
        """The owner's address, waiting for one if there is none. Raises `Unavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (address := self.address(partition)) is None:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Unavailable(reason=f"the partition has no owner: partition={partition}")
            await self.wait_changed(left)
        return address

    async def wait_moved(self, partition: int, address: str, generation: int) -> None:
        """Returns when the partition is assigned elsewhere, or again to the same server, or this view of the cluster is closed."""
        while not self._closed and self.address(partition) in (None, address) and self.generation(partition) == generation:
            await self._changed.wait()

    async def _read_assignment(self, coordinator: Coordinator) -> None:
        node = await coordinator.get(ASSIGNMENT)
        self._version = None if node is None else node.version
        try:
            self._assignment = Assignment() if node is None else Assignment.from_bytes(node.data)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolViolation(reason=f"the assignment cannot be read: {type(error).__name__}: {error}") from None
        if self._parameters is not None and self._parameters.partitions <= max(self._assignment.partitions, default=-1):
            await self._grow(coordinator)
        self._wake()
        await self._drop_channels({address: announced_name(address) for address in self._assignment.every_address})

    async def _grow(self, coordinator: Coordinator) -> None:
        """Partitions were added to the log while this view of it was open. If another cluster answers at the address now, its owners refuse the
        cluster key."""
        found = await coordinator.get(CLUSTER)
        grown = None if found is None else ClusterParameters.from_bytes(found.data)
        if grown is not None and grown.key == self.parameters.key:
            self._parameters = grown

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _watch(self) -> None:
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        while True:
            coordinator = self._coordinator
            try:
                if coordinator is None:
                    coordinator = self._coordinator = await self._connect()
                    await self._read_assignment(coordinator)
                backoff.reset()
                await coordinator.wait_changed(ASSIGNMENT, self._version)
                await self._read_assignment(coordinator)
            except WaltzError as error:
                # The session is used up or the ensemble away. The last assignment stays good until another is known.
                log.info("assignment watch restarted", reason=str(error))
                if coordinator is not None:
                    self._coordinator = None
                    await coordinator.close()
                await asyncio.sleep(backoff.next_s())

    async def next_client_id(self) -> int:
        """An id that no client had before, from a log server. Raises `PermissionDenied` for a principal that may not append, `QuotaExceeded`,
        `Unavailable`."""
        request = pb.ClientIdRequest(cluster_key=self.parameters.key.bytes)
        answer = await self.call_any(CLIENT_ID, request, timeout_s=self._settings.request_timeout_s)
        self.keep_ticket(answer.client_id, answer.ticket)
        return answer.client_id

    def keep_ticket(self, client_id: int, ticket: str) -> None:
        """The ticket is shown with each request for the client id from now on. An empty one changes nothing."""
        if ticket:
            self._tickets[client_id] = ticket

    def ticket_of(self, client_id: int) -> str:
        """Empty if none is known."""
        return self._tickets.get(client_id, "")

    async def reach(self, partition: int) -> None:
        """Returns when it is known here that the log has the partition, which was seen in the coordinator. Raises `Unavailable`."""
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout_s
        while partition >= self.parameters.partitions:
            if asyncio.get_running_loop().time() >= deadline:
                raise Unavailable(reason=f"the partition has no owner yet: partition={partition}")
            await self.wait_changed(self._settings.retry_cap_s)

    # ---- channels ------------------------------------------------------------------------------------------------------------------------------

    def stream_channel(self, address: str) -> Channel:
        self._check()
        channel = self._streams.get(address)
        if channel is None:  # kept as long as the assignment has the address with the same name
            channel = self._streams[address] = self._network.connect(address)
        return channel

    def connect(self, address: str) -> Channel:
        """A channel of the caller's own, to any node; the caller closes it."""
        self._check()
        return self._network.connect(address)

    def call_channel(self, address: str) -> Channel:
        self._check()
        channel = self._calls.get(address)
        if channel is None:
            channel = self._calls[address] = self._network.connect(address)
        return channel

    def _check(self) -> None:
        if self._closed:
            raise InvalidRequest(reason="the client is closed")

    async def _drop_channels(self, keep: Mapping[str, str | None]) -> None:
        """`keep`: by address the name of the node there. A channel expects the name that was announced when it was made."""
        for channels in (self._streams, self._calls):
            gone = [name for name, channel in channels.items() if name not in keep or keep[name] != announced_name(channel.address)]
            for address in gone:
                await channels.pop(address).close()

    async def ask(
        self,
        partition: int,
        method: CallMethod[Request, Response],
        request: Request,
        *,
        timeout_s: float,
        accept: Callable[[Response], bool] = lambda _: True,
    ) -> Response:
        """The first answer that `accept` approves, from the partition's current owner. Raises the last error after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        last: WaltzError = Unavailable(reason=f"no answer within {timeout_s:g} s: partition={partition}")
        while (left := deadline - loop.time()) > 0:
            try:
                address = await self.owner(partition, left)
                left = max(0.001, min(deadline - loop.time(), self._settings.request_timeout_s))
                answer = await self.call_channel(address).call(method, request, timeout_s=left)
                if accept(answer):
                    return answer
                last = Unavailable(reason=f"the owner is not ready: partition={partition} server={address}")
            except (ClusterKeyMismatch, InvalidRequest):
                raise
            except WaltzError as error:
                if not error.retriable:
                    raise
                last = error
            await self.wait_changed(min(backoff.next_s(), max(0.0, deadline - loop.time())))
        raise last

    async def call_any(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        """The answer of any log server. If one does not answer, another one is asked: the request must be one that may be repeated. Raises the last
        error after `timeout_s`, and at once one that no other server would answer otherwise."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        last: WaltzError = Unavailable(reason="no log server is known")
        while True:
            addresses = self._server_addresses()
            self._rng.shuffle(addresses)
            for at, address in enumerate(addresses):
                left = max(0.001, min(deadline - loop.time(), self._settings.request_timeout_s) / (len(addresses) - at))
                try:
                    return await self.call_channel(address).call(method, request, timeout_s=left)
                except WaltzError as error:
                    if not error.retriable:
                        raise
                    last = error
            left = deadline - loop.time()
            if left <= 0:
                raise last
            await self.wait_changed(min(backoff.next_s(), left))

    def _server_addresses(self) -> list[str]:
        """Of the log servers that are known, in any order that depends on nothing but them."""
        return sorted(set(self._assignment.addresses.values()))

    async def bound(self, partition: int, timeout_s: float) -> pb.Bound:
        """How far the partition is committed, as its owner knows it. An owner that was replaced and does not know it yet may answer with an older
        mark: the answer of a session older than one that answered before is refused, and the next owner is asked."""
        request = pb.BoundRequest(partitions=[partition], cluster_key=self.parameters.key.bytes)
        newest = self._sessions_seen.get(partition, -1)
        answer = await self.ask(
            partition, BOUND, request, timeout_s=timeout_s, accept=lambda found: len(found.bounds) == 1 and found.bounds[0].session >= newest
        )
        bound = answer.bounds[0]
        self._sessions_seen[partition] = max(bound.session, self._sessions_seen.get(partition, -1))
        return bound

    async def close(self) -> None:
        self._closed = True
        self._wake()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._drop_channels({})
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()
