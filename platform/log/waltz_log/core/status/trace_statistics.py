"""What a process reports of the spans that it sends to a collector."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.statistics import Summed, snapshot

__all__ = ["TraceStatistics"]


@snapshot
@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """`exported`: spans that the collector accepted; `dropped`: spans that were given up because the queue was full or the collector did not accept
    them; `waiting`: spans in the queue."""

    exported: Summed[int]
    dropped: Summed[int]
    waiting: Summed[int]
