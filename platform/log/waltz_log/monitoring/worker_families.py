"""The metrics of a node's worker processes, the same for log servers and storage nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waltz_log.core.status.worker_statistics import ForwardingStatistics, WorkerStatistics
from waltz_log.monitoring.families import Family, Kind, Samples

__all__ = ["WORKERS", "WithWorkers"]


class WithWorkers(Protocol):
    @property
    def workers(self) -> tuple[WorkerStatistics, ...]: ...


def _worker(name: str, kind: Kind, meaning: str, pick: Callable[[WorkerStatistics], float | None]) -> Family[WithWorkers]:
    def read(statistics: WithWorkers) -> Samples:
        return [((str(each.worker),), pick(each)) for each in statistics.workers]

    return Family(name, kind, ("worker",), meaning, read)


def _forwarded(name: str, kind: Kind, meaning: str, pick: Callable[[ForwardingStatistics], float]) -> Family[WithWorkers]:
    return _worker(name, kind, meaning, lambda worker: None if worker.passed_on is None else pick(worker.passed_on))


def _forwarded_bytes(statistics: WithWorkers) -> Samples:
    for each in statistics.workers:
        if each.passed_on is not None:
            yield (str(each.worker), "to_owner"), each.passed_on.bytes_to_owners
            yield (str(each.worker), "from_owner"), each.passed_on.bytes_from_owners


WORKERS: tuple[Family[WithWorkers], ...] = (
    _worker("waltz_worker_up", "gauge", "1 if the worker process answers, 0 if not.", lambda worker: int(worker.answers)),
    _worker("waltz_worker_restarts_total", "counter", "How often the supervisor restarted the worker.", lambda worker: worker.restarts),
    _worker("waltz_worker_cpu_seconds_total", "counter", "Processor time of the worker process.", lambda worker: worker.cpu_s),
    _worker(
        "waltz_worker_memory_highest_bytes",
        "gauge",
        "The most resident memory that the worker process has had.",
        lambda worker: None if worker.memory_max_kib is None else 1024 * worker.memory_max_kib,
    ),
    _forwarded(
        "waltz_worker_forwarded_calls_total", "counter", "Calls that the worker forwarded to the owner of the partition.", lambda by: by.calls
    ),
    _forwarded("waltz_worker_forwarded_open_calls", "gauge", "Forwarded calls that are open now.", lambda by: by.open_calls),
    Family(
        "waltz_worker_forwarded_bytes_total",
        "counter",
        ("worker", "direction"),
        "Bytes of forwarded calls. `direction`: `to_owner` or `from_owner`.",
        _forwarded_bytes,
    ),
)
"""Only of nodes with several workers. They start at 0 again when the worker is restarted."""
