"""A partition always ends completely, also if it is closed in the moment in which its store session ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.errors import Unavailable
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


@pytest.mark.parametrize("steps", range(20))
def test_a_cancelled_partition_closes_the_session_that_has_just_ended(steps: int) -> None:
    """`steps`: turns of the event loop between the end of the session and the cancellation."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"x")
        server, _ = next(iter(cluster.servers.values()))
        partition, task = server._partitions[0], server._running[0]
        store = partition._store
        assert store is not None
        replicas = [each for each in store._tasks._tasks if not each.done()]
        assert len(replicas) == 3
        store.fail(Unavailable(reason="its time has come"))
        for _ in range(steps):
            await asyncio.sleep(0)
        await task.end()
        assert all(each.done() for each in replicas), "tasks of the session go on"
        assert all(replica._calls._channel is None for replica in store._replicas.values()), "connections are left open"
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
