"""The processor time of a scrape of a log server with many partitions: `python -m benchmarks.metrics_scrape [PARTITIONS]`.

The statistics are artificial; the checks and the text are those of the product. Processor time of one thread, the median of several scrapes.
"""

from __future__ import annotations

import statistics
import sys
import time

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import (
    BudgetStatistics,
    CacheStatistics,
    FeedStatistics,
    LockTableStatistics,
    OpenPartitionStatistics,
    ReplicaStatistics,
    ServerStatistics,
    UpkeepStatistics,
)
from waltz_log.monitoring.exposition import exposition
from waltz_log.monitoring.monitored import Finding
from waltz_log.monitoring.readiness import checks_of

REPLICAS = 3
ROUNDS = 21
TEXT = "text/plain;version=0.0.4"


def _partition() -> OpenPartitionStatistics:
    return OpenPartitionStatistics(
        generation=3,
        state="open",
        mounts=2,
        catching_up=0,
        feed=FeedStatistics(1 << 20, 1 << 18, 1000, 400, 3, 0),
        last_transaction_id=10**6,
        appended_transactions=10**6,
        rejected=100,
        refused=0,
        blocks=10**4,
        queued_bytes=1 << 16,
        locks=LockTableStatistics(10**5, 0, 100, 0, (), 0),
        upkeep=UpkeepStatistics(),
        session=7,
        low_water_mark=10**5,
        committed=10**6,
        in_memory=0,
        replicas={f"storage-{number}": ReplicaStatistics(ReplicaStatus.LIVE, 10**6, 10**6, None, None, 0) for number in range(REPLICAS)},
    )


def main(partitions: int) -> None:
    caches = CacheStatistics(BudgetStatistics(1, 2, 0), BudgetStatistics(1, 2, 0))
    found = ServerStatistics(1, "key", True, caches, {number: _partition() for number in range(partitions)})
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        body, _type = exposition(Finding("serving", checks_of(found), found), TEXT)
        times.append(time.process_time() - began)
    samples = sum(not line.startswith(b"#") for line in body.splitlines())
    print(f"{partitions} partitions: {samples} samples, {len(body)} bytes, {1000 * statistics.median(times):.1f} ms of processor time")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
