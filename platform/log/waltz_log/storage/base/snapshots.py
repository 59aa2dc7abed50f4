"""What a storage node tells of itself: frozen snapshots, for the command line, the console and sessions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from waltz_log.core.formats.control_format import SessionMark

__all__ = ["NodeStatistics", "PartitionStatistics", "ReplicaState", "ScrubStatistics"]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a session learns when it opens the partition. `may_lack`: this replica may have acknowledged more than it holds, from memory.
    `grew_as_member`: its log grew in the session in which it is clean."""

    mark: SessionMark
    first_id: int
    last_id: int
    may_lack: bool = False
    grew_as_member: bool = False


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """`write_rounds` and what they carried since the node started; `unsynced_transactions`: acknowledged from memory and not on disk yet;
    `writer_bytes`: memory for what is received and not written or not synced; `failed`: why the partition serves nothing, None while it does."""

    partition: int
    session: int
    fence: int
    low_water_mark: int
    first_transaction_id: int
    last_transaction_id: int
    segments: int
    write_rounds: int
    transactions_written: int
    bytes_written: int
    unsynced_transactions: int
    writer_bytes: int
    failed: str | None


@dataclass(frozen=True, slots=True)
class ScrubStatistics:
    """`passes` over all data and `bytes_read` since the node started; `found` and `repaired` count damaged places, each once; `damaged_segments` are
    those that are damaged now, and compacted views; `damaged` says why the first of them are not mended."""

    passes: int
    bytes_read: int
    found: int
    repaired: int
    damaged_segments: int
    damaged: dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """`space`: ample, low or refusing; `stopped`: partitions that serve nothing, and why; `corrupt`: those of them whose stored data is damaged;
    `repairing`: partitions that are served and have corrupt segments, which `scrub` names and repairs from other replicas; `scrub`: None before it is
    started; `writer_bytes`: received and not written, of all partitions, now, at most since the start, and the bound beyond which each stream waits
    for its last block."""

    name: str
    cluster_key: str
    start: int
    disk_free_bytes: int
    open_files: int
    disk_total_bytes: int
    space: str
    partitions: tuple[PartitionStatistics, ...]
    stopped: dict[int, str]
    corrupt: tuple[int, ...]
    repairing: tuple[int, ...]
    scrub: ScrubStatistics | None
    writer_bytes: int
    writer_bytes_highest: int
    writer_bytes_max: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))
