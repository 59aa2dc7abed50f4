"""What a storage node reports of itself in the answer to a status call: frozen snapshots, for the command line and for operators' tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from waltz_log.core.status.latency import LatencyStatistics
from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.statistics import ByKey, Concatenated, Fieldwise, Highest, Lowest, Newest, Summed, by_attribute, snapshot, worst_of

__all__ = ["NodeStatistics", "PartitionStatistics", "ScrubStatistics"]


@snapshot
@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """`write_rounds` and what they carried since the node started; `unsynced_transactions`: acknowledged from memory and not on disk yet;
    `writer_bytes`: memory for what is received and not written or not synced; `failed`: why the partition serves nothing, None while it does;
    `fenced`: requests and streams of older sessions that were refused."""

    partition: Newest[int]
    session: Highest[int]
    fence: Highest[int]
    low_water_mark: Highest[int]
    first_transaction_id: Highest[int]
    last_transaction_id: Highest[int]
    segments: Newest[int]
    write_rounds: Summed[int]
    transactions_written: Summed[int]
    bytes_written: Summed[int]
    unsynced_transactions: Summed[int]
    writer_bytes: Summed[int]
    failed: Newest[str | None]
    fenced: Summed[int] = 0


@snapshot
@dataclass(frozen=True, slots=True)
class ScrubStatistics:
    """`passes` over all data and `bytes_read` since the node started; `found` and `repaired` count damaged places, each once; `damaged_segments` are
    those that are damaged now, and compacted views; `damaged` says why the first of them are not repaired."""

    passes: Summed[int]
    bytes_read: Summed[int]
    found: Summed[int]
    repaired: Summed[int]
    damaged_segments: Summed[int]
    damaged: ByKey[Mapping[str, str]]


@snapshot
@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """`space`: ample, low or refusing; `stopped`: partitions that serve nothing, and why; `corrupt`: those of them whose stored data is damaged;
    `repairing`: partitions that are served and have corrupt segments, which `scrub` names and repairs from other replicas; `scrub`: None before it is
    started; `writer_bytes`: bytes received and not yet written, of all partitions: now, the maximum since the start, and the bound above which each
    stream waits for its last block. `workers`: empty for a node of one process. `writable`: whether the directory may be written to; `http`: where
    the node answers `/livez`, `/readyz` and `/metrics`, None for a node that does not. `write_latency`: of write rounds of all partitions, with the
    sync where one was made; `sync_latency`: of the syncs alone; `traces`: None for a node that does not trace. `certificate_expires_s`: when the
    certificate expires, since 1970, None without TLS. `round_trips`: if they were asked for, milliseconds of a ping by the name of the other storage
    node, None for a node that does not answer. `rules`, `refused_values`, `known_values`: as those of a log server.

    All workers report `name`, `cluster_key`, `start` and the disk, which are the node's; the rest is each worker's own."""

    name: Newest[str]
    cluster_key: Newest[str]
    start: Highest[int]
    disk_free_bytes: Highest[int]
    open_files: Summed[int]
    disk_total_bytes: Highest[int]
    space: Annotated[str, worst_of("refusing", "low", "ample")]
    partitions: Annotated[tuple[PartitionStatistics, ...], by_attribute("partition")]
    stopped: ByKey[Mapping[int, str]]
    corrupt: Concatenated[tuple[int, ...]]
    repairing: Concatenated[tuple[int, ...]]
    scrub: Fieldwise[ScrubStatistics | None]
    writer_bytes: Summed[int]
    writer_bytes_highest: Summed[int]
    writer_bytes_max: Summed[int]
    workers: Annotated[tuple[WorkerStatistics, ...], by_attribute("worker")] = ()
    writable: Lowest[bool] = True
    http: Newest[str | None] = None
    write_latency: Fieldwise[LatencyStatistics | None] = None
    sync_latency: Fieldwise[LatencyStatistics | None] = None
    time_ms: Newest[int | None] = None
    certificate_expires_s: Newest[float | None] = None
    round_trips: ByKey[Mapping[str, float | None] | None] = None
    traces: Fieldwise[TraceStatistics | None] = None
    rules: Concatenated[tuple[str, ...]] = ()
    refused_values: ByKey[Mapping[str, str] | None] = None
    known_values: ByKey[Mapping[str, str] | None] = None
