"""2,000 clients return to a server that ended, with the default settings and the server's own bounds. In virtual time.

The server is a real one; how long it works for a connection is a model: its event loop works for one connection after the other, also for those whose
client has given up by then, because the bytes of a handshake arrive before the end of the connection is noticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from waltz_log.client import ClientSettings
from waltz_log.client.owners.following import Following
from waltz_log.core.ports import Sender
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import FOLLOW

FOLLOWERS = 2000

PLAIN_S = 0.0002
"""The work for a connection without TLS."""

TLS_S = 0.002
"""The work for one with TLS: 2,000 of them need longer than a client waits for its first answer."""


class Crowd:
    """The clients of one application, and the server that they follow."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        server = cluster.servers["server-0"][0]
        assert server._followers is not None
        self.followers = server._followers
        self.address = server.address
        self.connection_s = 0.0
        self.attempts = 0
        self.answered_s: list[float] = []
        """When a follower had its whole first answer."""
        self._free_s = 0.0
        self._ends = asyncio.Event()
        services, context = cluster.network.services[self.address]
        cluster.network.services[self.address] = services | {FOLLOW: self._follow}, context
        self._clients = [
            Following(cluster.seeds, cluster.network.host("application-shop"), ClientSettings(), random.Random(seed), lambda _: None)
            for seed in range(FOLLOWERS)
        ]

    async def _follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        loop = asyncio.get_running_loop()
        self.attempts += 1
        self._free_s = max(self._free_s, loop.time()) + self.connection_s
        await asyncio.sleep(self._free_s - loop.time())
        following = asyncio.ensure_future(self.followers.follow(request, _Noted(stream, self.answered_s)))
        ends = asyncio.ensure_future(self._ends.wait())
        try:
            await asyncio.wait([following, ends], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for each in (following, ends):
                each.cancel()

    async def open(self) -> None:
        for each in self._clients:
            await each.open()

    def end_in_order(self) -> None:
        ended, self._ends = self._ends, asyncio.Event()
        ended.set()

    def break_off(self) -> None:
        """As a process that is killed and started again at once."""
        services = self.cluster.network.services[self.address]
        self.cluster.network.stop(self.address)
        self.cluster.network.services[self.address] = services

    async def return_s(self, end: Callable[[Crowd], None]) -> float:
        """After which time all have their first answer again."""
        self.attempts = 0
        self.answered_s.clear()
        began_s = asyncio.get_running_loop().time()
        end(self)
        async with asyncio.timeout(120):
            while len(self.answered_s) < FOLLOWERS or self.followers.count != FOLLOWERS:
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began_s

    async def close(self) -> None:
        for each in self._clients:
            await each.close()


class _Noted:
    """A stream that notes the time of the first answer."""

    def __init__(self, stream: Sender[pb.FollowResponse], answered_s: list[float]) -> None:
        self._stream = stream
        self._answered_s: list[float] | None = answered_s

    async def send(self, message: Any) -> None:
        await self._stream.send(message)
        if self._answered_s is not None and not message.decoded().more:
            self._answered_s.append(asyncio.get_running_loop().time())
            self._answered_s = None

    async def cancel(self) -> None:
        await self._stream.cancel()


def _identity(host: str) -> Identity:
    role, _, name = host.partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _run(work: Callable[[Crowd], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        cluster = MemoryCluster(partitions=4, storages=1, servers=1, identities=_identity, settings=settings)
        await cluster.start()
        await cluster.change_access(lambda found: found.granted(Rule(principal="spiffe://waltz/*/*", operations=(Operation.READ,), resource="log:0")))
        await asyncio.sleep(1)
        crowd = Crowd(cluster)
        await crowd.open()
        try:
            await work(crowd)
        finally:
            await crowd.close()
            await cluster.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("end", [Crowd.end_in_order, Crowd.break_off])
def test_all_return_at_once_to_a_server_that_can_serve_them(end: Callable[[Crowd], None]) -> None:
    async def work(crowd: Crowd) -> None:
        crowd.connection_s = PLAIN_S
        assert await crowd.return_s(end) < FOLLOWERS * PLAIN_S + 0.2
        assert crowd.attempts == FOLLOWERS

    _run(work)


@pytest.mark.parametrize("end", [Crowd.end_in_order, Crowd.break_off])
def test_all_return_soon_to_a_server_that_needs_longer_for_them_than_they_wait(end: Callable[[Crowd], None]) -> None:
    async def work(crowd: Crowd) -> None:
        crowd.connection_s = TLS_S
        assert await crowd.return_s(end) < 3 * FOLLOWERS * TLS_S
        assert crowd.attempts < 3 * FOLLOWERS

    _run(work)
