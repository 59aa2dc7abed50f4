"""What Spark sends to executors: one value for each task of a batch. Spark pickles them, so they hold no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from pyspark_waltz.intervals import Intervals
from pyspark_waltz.naming import TopicOf

__all__ = ["LogRange", "ViewRange"]


@dataclass(frozen=True)
class LogRange(InputPartition):
    """One task: everything that an executor needs to read ids `first` to `last` of a partition with requests only to storage nodes. `tests`:
    conditions by column; only rows that pass are returned."""

    partition: int
    first: int
    last: int
    session: int
    cluster_key: bytes
    replicas: tuple[str, ...]
    fetch_timeout_ms: int
    fail_on_data_loss: bool
    include_metadata: bool = False
    tests: Mapping[str, Intervals] = field(default_factory=dict)
    topic: TopicOf | None = None
    principal: str = ""


@dataclass(frozen=True)
class ViewRange(InputPartition):
    """One task: the compacted view of a partition, which ends at `end` or further; the log is read from there up to `log_end`."""

    partition: int
    end: int
    log_end: int
    session: int
    cluster_key: bytes
    replicas: tuple[str, ...]
    fetch_timeout_ms: int
    topic: TopicOf
    principal: str
