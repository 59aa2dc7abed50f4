"""What the status of a partition says of its log: ids and numbers of transactions have names of their own."""

from __future__ import annotations

import asyncio

from waltz_log.core.status.server_statistics import OpenPartitionStatistics
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


def _statistics(cluster: MemoryCluster) -> OpenPartitionStatistics:
    ((server, _),) = cluster.servers.values()
    found = server.statistics().partitions[0]
    assert isinstance(found, OpenPartitionStatistics)
    return found


def test_the_last_id_goes_on_and_the_number_of_appended_transactions_starts_again_with_the_owner() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(partitions=1, servers=1)
        await cluster.start()
        client = await cluster.connect()
        for _ in range(5):
            await client.append(0, b"first")
        found = _statistics(cluster)
        assert (found.last_transaction_id, found.appended_transactions, found.committed) == (4, 5, 4)
        (name,) = cluster.servers
        await cluster.stop_server(name)
        await cluster.start_server(name)
        for _ in range(2):
            await client.append(0, b"second")
        found = _statistics(cluster)
        assert (found.last_transaction_id, found.appended_transactions, found.committed) == (6, 2, 6)
        reported = to_json(found)
        assert (reported["last_transaction_id"], reported["appended_transactions"]) == (6, 2)
        assert "appended" not in reported
        await asyncio.gather(client.close(), cluster.stop())

    run_in_virtual_time(scenario())
