"""How soon a partition is served again once what it waited for is back: a majority of its replicas, or its server."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from waltz_log.client import WaltzClient
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment
from waltz_log.errors import OutcomeUnknown
from waltz_log.server import LogServer, ServerSettings
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.virtual_time import run_in_virtual_time

BOUND_S = 1.0
"""What `docs/guides/operations.md` promises."""

SETTINGS = {"replica_retry_s": 0.1, "replica_retry_max_s": 5.0}
"""As an operator has them; tests of other things retry sooner."""


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("down_s", [0.3, 7.0, 60.0])
@pytest.mark.parametrize("opened", [True, False])
def test_a_partition_goes_on_within_a_second_after_a_majority_is_reached_again(down_s: float, opened: bool) -> None:
    """The nodes did not restart: nothing registers again."""

    async def run() -> None:
        cluster = MemoryCluster(servers=0, settings=SETTINGS)
        await cluster.start()
        addresses = [cluster.storages[name][1].address for name in ("storage-0", "storage-2")]
        if not opened:
            for address in addresses:
                cluster.network.cut(address)
        await cluster.start_server("server-0")
        client = await cluster.connect()
        if opened:
            await client.append(0, b"before")
            for address in addresses:
                cluster.network.cut(address)
        waiting = asyncio.create_task(client.append(0, b"meanwhile", timeout_s=200.0))
        await asyncio.sleep(down_s)
        assert not waiting.done()
        for address in addresses:
            cluster.network.heal(address)
        back_s = now_s()
        while to_json(cluster.servers["server-0"][0].statistics())["partitions"]["0"].get("committed", -2) < (1 if opened else -1):
            await asyncio.sleep(0.01)
            assert now_s() - back_s < BOUND_S
        await waiting
        assert opened or now_s() - back_s < 2 * BOUND_S  # the client has pauses of its own
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_one_refused_connection_right_after_a_registration_costs_no_long_pause() -> None:
    """The node registers, and the first connection to it is refused all the same."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1, storages=1, settings=SETTINGS)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"before")
        await cluster.stop_storage("storage-0")
        waiting = asyncio.create_task(client.append(0, b"meanwhile", timeout_s=200.0))
        await asyncio.sleep(60)  # the pauses between the tries have grown
        await cluster.start_storage("storage-0")
        address = cluster.storages["storage-0"][1].address
        cluster.network.cut(address)
        await asyncio.sleep(0.02)
        cluster.network.heal(address)
        back_s = now_s()
        await waiting
        assert now_s() - back_s < BOUND_S
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_server_started_again_at_its_address_does_not_wait_for_its_dead_coordinator_session() -> None:
    """The session of the process that was killed lives on; after ZooKeeper was started again even for the whole timeout once more."""

    async def run() -> None:
        cluster = MemoryCluster(servers=0, settings=SETTINGS)
        await cluster.start()
        sessions = [cluster.ensemble.session() for _ in range(2)]
        settings = ServerSettings(coordinator="memory/test", listen="server-0:7000")
        first = LogServer(settings, sessions[0], cluster.network, cluster.clock, owner_secret=b"secret")
        await first.start()
        client = await WaltzClient.connect_over(KnownServers(lambda: [settings.listen]), cluster.network, rng=Random(0))
        await client.append(0, b"before")
        await first.abort()  # its session is still there
        second = LogServer(settings, sessions[1], cluster.network, cluster.clock, owner_secret=b"secret")
        await second.start()
        back_s = now_s()
        try:
            await client.append(0, b"after")
        except OutcomeUnknown:
            await client.append(0, b"after")
        assert now_s() - back_s < BOUND_S
        node = await sessions[1].get(paths.ASSIGNMENT)
        assert node is not None
        assert Assignment.from_bytes(node.data).partitions[0].server_id == second.server_id
        assert to_json(second.statistics())["manager"]
        await client.close()
        await second.abort()
        for session in sessions:
            await session.close()
        await cluster.stop()

    run_in_virtual_time(run())
