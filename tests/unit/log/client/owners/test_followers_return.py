"""How the followers of a server return when it ends, and what a client with many partitions asks for: one stream, whatever fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from waltz_log.client import ClientSettings
from waltz_log.client.owners.following import FIRST_ANSWER_S, Following
from waltz_log.client.owners.owners import Owners
from waltz_log.core.cluster_map import assignment_items, parameters_items
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership
from waltz_log.core.ports import Sender
from waltz_log.errors import QuotaExceeded, Unavailable
from waltz_log.testing.cluster import CLUSTER_KEY
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, CONFIRM, FOLLOW

FOLLOWERS = 200
PARTITIONS = 64
PAUSE_S = 1.0
ADDRESS = "server:1"


class Server:
    """Gives each follower the same map, until it ends all streams."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.followed_s: list[float] = []
        """When a follower came."""
        self.open = 0
        self.open_max = 0
        self.confirmed = 0
        self.bounds = 0
        self.refuses = False
        self.owner = 1
        self.ends = asyncio.Event()
        self.changes = asyncio.Event()

    async def listen(self) -> None:
        await self.network.serve(ADDRESS, [FOLLOW.served_by(self._follow), CONFIRM.served_by(self._confirm), BOUND.served_by(self._bound)])

    def end_streams(self) -> None:
        ended, self.ends = self.ends, asyncio.Event()
        ended.set()

    def move_partitions(self) -> None:
        """All of them to a server that answers."""
        self.owner += 1
        changed, self.changes = self.changes, asyncio.Event()
        changed.set()

    async def _follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        self.followed_s.append(asyncio.get_running_loop().time())
        if self.refuses:
            raise Unavailable(reason="not now")
        self.open += 1
        self.open_max = max(self.open, self.open_max)
        ends = self.ends
        try:
            while not ends.is_set():
                changes = self.changes
                await stream.send(self._answer())
                waits = [asyncio.ensure_future(each.wait()) for each in (ends, changes)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=5.0)
                for each in waits:
                    each.cancel()
        finally:
            self.open -= 1

    def _answer(self) -> pb.FollowResponse:
        owners = {partition: Ownership(1, self.owner) for partition in range(PARTITIONS)}
        sources = {
            "assignment": (self.owner, assignment_items(Assignment(owners, {1: ADDRESS}))),
            "cluster": (1, parameters_items(ClusterParameters("test", CLUSTER_KEY, PARTITIONS, 0))),
        }
        parts = [
            pb.MapPart(source=source, base=-1, version=version, items=[pb.MapItem(name=name, value=value) for name, value in items.items()])
            for source, (version, items) in sources.items()
        ]
        return pb.FollowResponse(cluster_key=CLUSTER_KEY.bytes, parts=parts)

    async def _confirm(self, request: pb.ConfirmRequest) -> pb.ConfirmResponse:
        self.confirmed += 1
        return pb.ConfirmResponse()

    async def _bound(self, request: pb.BoundRequest) -> pb.BoundResponse:
        self.bounds += 1
        if self.owner == 1:
            raise Unavailable(reason="the partition has another owner")
        return pb.BoundResponse(bounds=[pb.Bound(partition=request.partitions[0], session=1, high_water_mark=0)])


SLOW_RETRIES = ClientSettings(retry_base_s=PAUSE_S, retry_cap_s=PAUSE_S)


@asynccontextmanager
async def _followed(kind: type[Server] = Server, settings: ClientSettings = SLOW_RETRIES) -> AsyncIterator[Server]:
    """A server with `FOLLOWERS`."""
    network = MemoryNetwork()
    server = kind(network)
    await server.listen()
    made = [Following(KnownServers(lambda: [ADDRESS]), network, settings, random.Random(seed), lambda _: None) for seed in range(FOLLOWERS)]
    for each in made:
        await each.open()
    yield server
    for each in made:
        await each.close()


def _end_in_order(server: Server) -> None:
    server.end_streams()


def _break(server: Server) -> None:
    """As a process that is killed and started again at once."""
    services = server.network.services[ADDRESS]
    server.network.stop(ADDRESS)
    server.network.services[ADDRESS] = services


@pytest.mark.parametrize("end", [_end_in_order, _break])
def test_each_follower_pauses_at_random_before_its_first_attempt(end: Callable[[Server], None]) -> None:
    async def main() -> list[float]:
        async with _followed() as server:
            server.followed_s.clear()
            ended_s = asyncio.get_running_loop().time()
            end(server)
            await asyncio.sleep(2 * PAUSE_S)
        return [each - ended_s for each in server.followed_s]

    returned = run_in_virtual_time(main())
    assert len(returned) == FOLLOWERS
    assert 0 < min(returned) < max(returned) <= PAUSE_S
    slices = [sum(at <= each < at + 0.1 for each in returned) for at in (number / 10 for number in range(10))]
    assert max(slices) < 2 * FOLLOWERS / len(slices), f"spread evenly over the pause: {slices}"


def test_followers_that_a_server_refuses_do_not_return_together() -> None:
    async def main() -> list[float]:
        async with _followed() as server:
            server.refuses = True
            server.end_streams()
            await asyncio.sleep(5 * PAUSE_S)
        return server.followed_s[FOLLOWERS:]

    attempts = run_in_virtual_time(main())
    together = max(sum(at <= each < at + 0.05 for each in attempts) for at in attempts)
    assert len(attempts) > 3 * FOLLOWERS
    assert together < FOLLOWERS / 4, f"{together} of {FOLLOWERS} followers within 50 ms"


def test_a_refused_follower_pauses_for_about_the_time_that_the_server_states() -> None:
    class Full(Server):
        async def _follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
            if self.refuses:
                self.followed_s.append(asyncio.get_running_loop().time())
                raise QuotaExceeded(partition=-1, quota="followers_max", principal="", topic="", retry_after_s=5.0)
            await super()._follow(request, stream)

    async def main() -> list[float]:
        async with _followed(Full, ClientSettings()) as server:
            server.followed_s.clear()
            server.refuses = True
            server.end_streams()
            await asyncio.sleep(60)
        return server.followed_s

    attempts = run_in_virtual_time(main())
    assert 8 * FOLLOWERS < len(attempts) < 16 * FOLLOWERS
    together = max(sum(at <= each < at + 0.05 for each in attempts) for at in attempts if at > attempts[0] + 1)
    assert together < FOLLOWERS / 8, f"{together} of {FOLLOWERS} followers within 50 ms"


def test_a_large_first_answer_over_a_slow_link_arrives_whole() -> None:
    class Slow(Server):
        async def _follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
            whole = self._answer()
            for at, part in enumerate(whole.parts, 1):
                await asyncio.sleep(0.75 * FIRST_ANSWER_S)
                await stream.send(pb.FollowResponse(cluster_key=whole.cluster_key, parts=[part], more=at < len(whole.parts)))
            await asyncio.sleep(60)

    async def main() -> set[str]:
        network = MemoryNetwork()
        await Slow(network).listen()
        following = Following(KnownServers(lambda: [ADDRESS]), network, ClientSettings(), random.Random(1), lambda _: None)
        await following.open()
        await following.close()
        return set(following.map.versions)

    assert run_in_virtual_time(main()) == {"assignment", "cluster"}


def test_failures_of_every_partition_request_no_map() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        server = Server(network)
        await server.listen()
        owners = Owners(KnownServers(lambda: [ADDRESS]), network, ClientSettings(), random.Random(1))
        await owners.open()
        asked = [asyncio.ensure_future(owners.bound(partition, 60)) for partition in range(PARTITIONS)]
        await asyncio.sleep(10)
        assert server.bounds > 2 * PARTITIONS, "each of them failed more than once"
        assert not any(each.done() for each in asked)
        server.move_partitions()
        assert len(await asyncio.gather(*asked)) == PARTITIONS
        assert (len(server.followed_s), server.open_max, server.confirmed) == (1, 1, 0)
        await owners.close()

    run_in_virtual_time(main())


def test_a_client_whose_partitions_all_wait_for_an_owner_has_one_stream_open_at_a_time() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        server = Server(network)
        await server.listen()
        owners = Owners(KnownServers(lambda: [ADDRESS]), network, ClientSettings(), random.Random(1))
        await owners.open()
        asked = [asyncio.ensure_future(owners.bound(partition, 60)) for partition in range(PARTITIONS)]
        for _ in range(5):
            _break(server)
            await asyncio.sleep(1)
        assert (len(server.followed_s), server.open_max) == (6, 1), "one more for each stream that broke"
        server.move_partitions()
        await asyncio.gather(*asked)
        await owners.close()

    run_in_virtual_time(main())
