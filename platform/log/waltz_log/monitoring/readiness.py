"""Whether a process is ready, judged from its statistics: one check for each thing that must work. Pure.

A log server is ready when each partition that it owns accepts appends. A storage node is ready when its disk accepts appends and each of its
partitions is served. A node with workers is ready when all of them answer. A process that owns nothing is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from waltz_log.core.replica_status import ReplicaStatus, can_commit
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, RecoveringPartitionStatistics, ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics

__all__ = ["Check", "checks_of", "is_ready", "report"]

REASON_MAX = 300
"""Characters of a reason that are shown: an error of a replica may contain another one."""

SPACE_REASONS = {"refusing": "the disk has less free space than disk_refuse_free_bytes, appends are refused"}


@dataclass(frozen=True, slots=True)
class Check:
    """`failed`: why, None for a check that passes."""

    name: str
    failed: str | None = None


def is_ready(checks: Sequence[Check]) -> bool:
    return all(check.failed is None for check in checks)


def checks_of(statistics: ServerStatistics | NodeStatistics) -> tuple[Check, ...]:
    specific = _of_server(statistics) if isinstance(statistics, ServerStatistics) else _of_node(statistics)
    return (*_of_workers(statistics.workers), *specific)


def report(what: str, checks: Sequence[Check], *, verbose: bool) -> str:
    """One line for each check that fails, with `verbose` for each check, and a last line with the result."""
    lines = [_line(check) for check in checks if verbose or check.failed is not None]
    return "\n".join([*lines, f"{what} check {'passed' if is_ready(checks) else 'failed'}", ""])


def _line(check: Check) -> str:
    if check.failed is None:
        return f"[+]{check.name} ok"
    reason = " ".join(check.failed.split())
    return f"[-]{check.name} failed: {reason if len(reason) <= REASON_MAX else reason[:REASON_MAX] + '…'}"


def _of_workers(workers: Sequence[WorkerStatistics]) -> Iterator[Check]:
    for worker in workers:
        yield Check(f"worker {worker.worker}", None if worker.answers else "does not answer")


def _of_server(statistics: ServerStatistics) -> Iterator[Check]:
    yield Check("cluster", None if statistics.cluster_key is not None else "not joined yet")
    for number, partition in statistics.partitions.items():
        yield Check(f"partition {number}", _why_no_appends(partition))


def _why_no_appends(partition: OpenPartitionStatistics | RecoveringPartitionStatistics) -> str | None:
    if isinstance(partition, RecoveringPartitionStatistics):
        return f"recovering: {partition.error or 'waiting for replicas'}"
    replicas = {name: replica for name, replica in partition.replicas.items() if replica.counts}
    if can_commit(served=True, replicas=[replica.state for replica in replicas.values()]):
        return None
    good = (ReplicaStatus.LIVE, ReplicaStatus.REPAIRING)
    missing = [f"{name} {replica.state.value}" for name, replica in sorted(replicas.items()) if replica.state not in good]
    return f"no majority of its replicas accepts appends: {', '.join(missing)}"


def _of_node(statistics: NodeStatistics) -> Iterator[Check]:
    failed = "the directory cannot be written to" if not statistics.writable else SPACE_REASONS.get(statistics.space)
    yield Check("disk", failed)
    stopped = dict(statistics.stopped)
    stopped |= {each.partition: each.failed for each in statistics.partitions if each.failed is not None}
    for number in sorted({*stopped, *(each.partition for each in statistics.partitions)}):
        yield Check(f"partition {number}", stopped.get(number))
