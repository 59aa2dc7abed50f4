"""What the status says of locks that transactions meet at."""

from __future__ import annotations

import asyncio
import io
import json

from rich.console import Console

from waltz_log.cli.cluster.cluster import show
from waltz_log.client import Lock
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.coordination.survey import survey
from waltz_log.errors import LockConflict
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


def test_the_status_shows_conflicts_and_names_the_hottest_locks_as_the_client_hashes_them() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(partitions=2, servers=1)
        await cluster.start()
        client = await cluster.connect()
        hot, warm = Lock("account", 7), Lock("account", "eight")
        rejected = 0
        for lock, attempts in ((hot, 5), (warm, 2)):
            await client.append(1, b"first", write_locks=[lock])
            for _ in range(attempts):
                try:
                    await client.append(1, b"stale", write_locks=[lock], high_water_mark=-1)
                except LockConflict:
                    rejected += 1
        assert rejected == 7
        found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
        locks = json.loads(json.dumps(found.servers[0].status))["partitions"]["1"]["locks"]
        assert (locks["conflicts"], locks["floor_conflicts"], locks["entries"]) == (7, 0, 2)
        assert [(each["lock"], each["conflicts"]) for each in locks["hottest"]] == [(lock_hash(hot).hex(), 5), (lock_hash(warm).hex(), 2)]
        reported = io.StringIO()
        show(found, Console(file=reported, width=200))
        line = next(line for line in reported.getvalue().splitlines() if lock_hash(hot).hex() in line)
        assert line.split()[:4] == ["1", "7", "0", "2"]
        assert f"{lock_hash(hot).hex()} (5), {lock_hash(warm).hex()} (2)" in line
        await asyncio.gather(client.close(), cluster.stop())

    run_in_virtual_time(scenario())
