"""What each worker process of a node reports of itself, in the answer to a status call."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.statistics import Fieldwise, Highest, Newest, Summed, snapshot

__all__ = ["ForwardingStatistics", "WorkerStatistics"]


@snapshot
@dataclass(frozen=True, slots=True)
class ForwardingStatistics:
    """What a worker passed on to others since it started; `open_calls` are in progress."""

    calls: Summed[int]
    open_calls: Summed[int]
    bytes_to_owners: Summed[int]
    bytes_from_owners: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """`worker`: its number in the node. All but the first two are None if it does not answer. `restarts`: by the supervisor."""

    worker: Newest[int]
    answers: Newest[bool]
    pid: Newest[int | None] = None
    restarts: Highest[int | None] = None
    cpu_s: Highest[float | None] = None
    memory_max_kib: Highest[int | None] = None
    passed_on: Fieldwise[ForwardingStatistics | None] = None
