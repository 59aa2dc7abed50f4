"""`waltz cluster grow`: more partitions for a log that is in use (docs/guides/operations.md)."""

from __future__ import annotations

from collections import Counter

from waltz_log.cli.printing import print_result
from waltz_log.coordination.cluster import grow_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.entries import parsed
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.errors import InvalidRequest
from waltz_log.exit_codes import OK

__all__ = ["run"]


async def run(
    address: str, partitions: int, *, storages: list[str] | None, replication: int | None, dry_run: bool, output: str, timeout_s: float
) -> int:
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s)
    try:
        node = await coordinator.get(CLUSTER)
        if node is None:
            raise InvalidRequest(reason="there is no cluster at this address: create one first")
        before = parsed(CLUSTER, node, ClusterParameters.from_bytes).partitions
        after, assignment = await grow_cluster(coordinator, partitions, storages=storages, replication=replication, dry_run=dry_run)
    finally:
        await coordinator.close()
    new = range(before, after.partitions)
    held = Counter(name for partition in new for name in assignment.replicas[partition])
    lines = [f"nothing to do: {address} has {before} partitions"]
    if new:
        lines = [f"{'would have' if dry_run else 'has'} {after.partitions} partitions, {new[0]} to {new[-1]} new; before: {before}"]
        lines += [f"{name}: {count} of the new ones" for name, count in sorted(held.items())]
        lines.append("topics keep their partitions; applications that spread keys over all of the log by themselves must keep to the old number")
    fields = {"dry_run": dry_run, "partitions_before": before, "partitions": after.partitions, "new_replicas": dict(sorted(held.items()))}
    print_result(fields, lines, output)
    return OK
