"""The client's view of the cluster: the owner of each partition, and the channels to the owners.

It follows the cluster at a log server (`following`). While none answers, the last map is used, because owners can continue without ZooKeeper. There
are two channels to each server, one for streams and one for calls (Client-Server Communication). It never decides the outcome of an append: an
owner's address is only where to ask.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

from waltz_log.background_tasks import start_task
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.following import Following
from waltz_log.client.owners.seeds import Seeds
from waltz_log.core.cluster_map import TOPICS_SOURCE
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.node_address import announced_name
from waltz_log.core.ports import CallMethod, Channel, Network, Request, Response
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, ConnectionLost, InvalidRequest, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, CLIENT_ID, CONFIRM

__all__ = ["Owners"]

CUT_OFF: Final = 0.9
"""The part of its time after which an attempt without an answer counts as cut off. Not 1, because clocks and timers differ a little."""


class Owners:
    """Made, then `open`ed; `close` ends its one task and all channels."""

    def __init__(self, seeds: Seeds, network: Network, settings: ClientSettings, rng: random.Random) -> None:
        self._seeds = seeds
        self._network = network
        self._settings = settings
        self._rng = rng
        self._following = Following(seeds, network, settings, rng, self._map_changed)
        self._changed = asyncio.Event()
        self._streams: dict[str, Channel] = {}
        self._calls: dict[str, Channel] = {}
        self._retired: set[asyncio.Task[None]] = set()
        """Closing channels to servers that are gone."""
        self._sessions_seen: dict[int, int] = {}
        """For each partition that was asked for its bound, the newest store session that has answered."""
        self._tickets: dict[int, str] = {}
        """By client id, of those that this process uses."""
        self._topic_listeners: list[Callable[[Catalogue], None]] = []
        self._closed = False

    async def open(self) -> None:
        """Raises `ClusterUnavailable` if no log server answers in time, and what `Following.open` does."""
        await self._following.open()

    @property
    def parameters(self) -> ClusterParameters:
        if not self._following.opened:
            raise InvalidRequest(reason="the client is not open")
        return self._following.map.parameters

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose partitions are appended to by number."""
        return self._settings.topics

    @property
    def principal(self) -> str:
        """The principal that the client states; empty: none."""
        return self._settings.principal or ""

    # ---- the map ---------------------------------------------------------------------------------------------------------------------------------

    @property
    def catalogue(self) -> Catalogue:
        """The topics that this client may see, as far as known."""
        return self._following.map.catalogue

    def on_topics(self, listener: Callable[[Catalogue], None]) -> None:
        """Calls the listener with each new catalog."""
        self._topic_listeners.append(listener)

    def replica_addresses(self, partition: int) -> list[str]:
        """The addresses of the storage nodes that hold the partition. Nodes that never registered are left out."""
        return [address for address in self.named_replicas(partition).values() if address is not None]

    def named_replicas(self, partition: int) -> dict[str, str | None]:
        """By name, the addresses of the storage nodes that hold the partition. None: the node never registered."""
        map = self._following.map
        entries = {name: map.node(name) for name in map.replicas.replicas.get(partition, ())}
        return {name: None if entry is None else entry.address_for(partition) for name, entry in entries.items()}

    def replicas(self) -> dict[int, list[str]]:
        """`replica_addresses` of every partition. Raises `ClusterUnavailable` if no replicas are assigned."""
        assigned = self._following.map.replicas.replicas
        if not assigned:
            raise ClusterUnavailable(address=self._seeds.text, reason="no replicas are assigned")
        return {partition: self.replica_addresses(partition) for partition in assigned}

    async def confirm(self, timeout_s: float) -> None:
        """Returns when the map has everything that any process wrote before the call. Raises `Unavailable` if that is not known in time, as while
        the servers do not reach the coordinator."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        answer = await self.call_any(CONFIRM, pb.ConfirmRequest(cluster_key=self.parameters.key.bytes), timeout_s=timeout_s)
        wanted = {each.source: each.version for each in answer.versions}
        while not self._following.map.holds(answer.epoch, wanted):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Unavailable(reason=f"the state of the cluster did not arrive within {timeout_s:g} s")
            await self.wait_changed(left)

    def _map_changed(self, sources: set[str]) -> None:
        if TOPICS_SOURCE in sources:
            for listener in self._topic_listeners:
                listener(self.catalogue)
        self._wake()
        self._retire({address: announced_name(address) for address in self._following.map.assignment.every_address})

    # ---- the assignment ------------------------------------------------------------------------------------------------------------------------

    def address(self, partition: int) -> str | None:
        """The address of the partition's owner, as far as known. None: it has no owner now."""
        return self._following.map.assignment.address_of(partition)

    def generation(self, partition: int) -> int:
        owned = self._following.map.assignment.partitions.get(partition)
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

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

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
        """Returns when it is known here that the log has the partition, which a topic has. Raises `Unavailable`."""
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

    def _retire(self, keep: Mapping[str, str | None]) -> None:
        """`keep`: by address the name of the node there. A channel expects the name that was announced when it was made."""
        for channels in (self._streams, self._calls):
            gone = [name for name, channel in channels.items() if name not in keep or keep[name] != announced_name(channel.address)]
            for address in gone:
                closing = start_task(channels.pop(address).close())
                self._retired.add(closing)
                closing.add_done_callback(self._retired.discard)

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
        last: WaltzError | None = None
        while (left := deadline - loop.time()) > 0:
            began_s = loop.time()
            try:
                address = await self.owner(partition, left)
                began_s = loop.time()
                left = max(0.001, min(deadline - began_s, self._settings.request_timeout_s))
                answer = await self.call_channel(address).call(method, request, timeout_s=left)
                if accept(answer):
                    return answer
                last = Unavailable(reason=f"the owner is not ready: partition={partition} server={address}")
            except (ClusterKeyMismatch, InvalidRequest):
                raise
            except WaltzError as error:
                if not error.retriable:
                    raise
                last = self.reported(last, error, began_s, left)
            await self.wait_changed(min(backoff.next_s(), max(0.0, deadline - loop.time())))
        raise last or Unavailable(reason=f"no answer within {timeout_s:g} s: partition={partition}")

    def reported(self, before: WaltzError | None, error: WaltzError, began_s: float, given_s: float) -> WaltzError:
        """Which error a call reports that is tried until its time is over: what a server answered before, rather than that this end cut off an
        attempt that began at `began_s` on the loop's clock and was given `given_s` seconds."""
        lasted_s = asyncio.get_running_loop().time() - began_s
        cut_off = isinstance(error, ConnectionLost) and CUT_OFF * given_s <= lasted_s < self._settings.request_timeout_s
        return before if before is not None and cut_off else error

    async def call_any(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        """The answer of any log server. If one does not answer, another one is asked: the request must be one that may be repeated. Raises the last
        error after `timeout_s`, and at once one that no other server would answer otherwise."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        last: WaltzError | None = None
        while True:
            addresses = self.server_addresses()
            for at, address in enumerate(addresses):
                began_s = loop.time()
                left = max(0.001, min(deadline - began_s, self._settings.request_timeout_s) / (len(addresses) - at))
                try:
                    return await self.call_channel(address).call(method, request, timeout_s=left)
                except WaltzError as error:
                    if not error.retriable:
                        raise
                    last = self.reported(last, error, began_s, left)
            left = deadline - loop.time()
            if left <= 0:
                raise last or Unavailable(reason="no log server is known")
            await self.wait_changed(min(backoff.next_s(), left))

    def server_addresses(self) -> list[str]:
        """The addresses of every log server in random order, but the one that is followed first: it answered last."""
        found = sorted(set(self._following.map.assignment.addresses.values()))
        self._rng.shuffle(found)
        return sorted(found, key=lambda address: address != self._following.server)

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
        await self._following.close()
        self._retire({})
        await asyncio.gather(*self._retired, return_exceptions=True)
