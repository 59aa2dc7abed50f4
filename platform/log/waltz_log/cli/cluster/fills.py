"""The progress, rate and remaining time of replicas that are being filled, for `waltz cluster status` and `waltz cluster replica`."""

from __future__ import annotations

from waltz_log.core.status.server_statistics import FillStatistics, OpenPartitionStatistics, RecoveringPartitionStatistics

__all__ = ["describe_fill", "fill_of"]


def fill_of(partition: OpenPartitionStatistics | RecoveringPartitionStatistics | None, replica: str) -> FillStatistics | None:
    """What the owner of a partition says about the fill of a replica; None if the replica lacks nothing, or no owner answers."""
    if not isinstance(partition, OpenPartitionStatistics) or replica not in partition.replicas:
        return None
    found = partition.replicas[replica].filling
    return None if found is None or found.target < 0 else found  # nothing was copied yet, so nothing is known yet


def describe_fill(fill: FillStatistics) -> str:
    """For example `1,000 of 5,000 transactions, 0.5 of 2.5 MB copied, 1.2 MB/s, 2 s left`. Megabytes count what this owner copied, and an estimate of
    what is left."""
    parts = [f"{fill.last + 1:,} of {fill.target + 1:,} transactions"]
    if fill.missing_bytes is not None:
        parts.append(f"{fill.bytes / 1e6:,.1f} of {(fill.bytes + fill.missing_bytes) / 1e6:,.1f} MB copied")
    if fill.mb_s is not None:
        parts.append(f"{fill.mb_s:,.1f} MB/s")
    if fill.outpaced:
        without = "" if fill.without_appends_s is None else f", {_duration(fill.without_appends_s)} without appends"
        parts.append(f"no end at this rate, because appends arrive faster{without}")
    elif fill.remaining_s is not None:
        parts.append(f"{_duration(fill.remaining_s)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
