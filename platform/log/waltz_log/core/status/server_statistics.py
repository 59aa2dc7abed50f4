"""What a log server reports of itself in the answer to a status call: frozen snapshots, for the command line and for operators' tools.

Each partition has one owner among the workers of a server, so the partitions of several workers are put side by side. The rules of a partition's own
fields make one figure of several partitions, or of two snapshots of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.retention import A_SUBSCRIBER
from waltz_log.core.status.latency import LatencyStatistics
from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.statistics import ByKey, Concatenated, Fieldwise, Highest, Newest, Rule, Summed, by_attribute, snapshot

__all__ = [
    "BudgetStatistics",
    "CacheStatistics",
    "ClientIdStatistics",
    "ConflictStatistics",
    "FeedStatistics",
    "FillStatistics",
    "FollowerStatistics",
    "HotLockStatistics",
    "LockTableStatistics",
    "OpenPartitionStatistics",
    "OwnerStatistics",
    "QuotaStatistics",
    "RecoveringPartitionStatistics",
    "ReplicaStatistics",
    "RetainedStatistics",
    "ServerStatistics",
    "ServerTotals",
    "UpkeepStatistics",
    "ViewStatistics",
]

# ---- replicas --------------------------------------------------------------------------------------------------------------------------------------


@snapshot
@dataclass(frozen=True, slots=True)
class FillStatistics:
    """`transactions`, `bytes`: copied by this owner; `last`: the last id sent to the replica; `target`: the last one committed, -1 before the first
    block; `missing`: what is left; `missing_bytes`: an estimate from what was copied; `remaining_s`: None while it is unknown, and where the fill
    never ends; `without_appends_s`: the same if nothing more were appended; `outpaced`: appends arrive faster than the replica is filled."""

    transactions: Summed[int]
    bytes: Summed[int]
    last: Highest[int]
    target: Highest[int]
    missing: Newest[int]
    missing_bytes: Newest[int | None]
    mb_s: Newest[float | None]
    transactions_s: Newest[float | None]
    appended_s: Newest[float | None]
    remaining_s: Newest[float | None]
    without_appends_s: Newest[float | None]
    outpaced: Newest[bool]


@snapshot
@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """One replica as the owner of its partition sees it. `acknowledged`: the last transaction that it confirmed in this session; `holds`: the last
    one it is known to have; `filling`: None if it lacks nothing; `corrupt_reads`: reads from it that failed their checksum; `counts`: whether the
    replica can be one of a majority."""

    state: Newest[ReplicaStatus]
    acknowledged: Highest[int | None]
    holds: Highest[int]
    filling: Newest[FillStatistics | None]
    error: Newest[str | None]
    corrupt_reads: Summed[int]
    counts: Newest[bool] = True


# ---- partitions ------------------------------------------------------------------------------------------------------------------------------------


@snapshot
@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """Memory for transactions and frames; frames made, and used again for another reader; `reads` from replicas, and requests that `joined` one."""

    memory_bytes: Summed[int]
    frame_bytes: Summed[int]
    frames_made: Summed[int]
    frames_shared: Summed[int]
    reads: Summed[int]
    joined: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class HotLockStatistics:
    """`lock`: the sixteen digits that `lock_hash` of the client gives. It met `conflicts` conflicts, or up to `error` fewer."""

    lock: Newest[str]
    conflicts: Summed[int]
    error: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class ConflictStatistics:
    """One rejected append. `lock`: as in `HotLockStatistics`; `winner`: the transaction that wrote the lock; `client_id`, `sequence`: the sender of
    the rejected append and the number that it gave to it; `time_ms`: when it was rejected, since 1970. `remembered`: False if the lock was not in
    memory, so that `winner` is only a bound."""

    lock: Newest[str]
    winner: Newest[int]
    client_id: Newest[int]
    sequence: Newest[int]
    time_ms: Newest[int]
    remembered: Newest[bool] = True


@snapshot
@dataclass(frozen=True, slots=True)
class LockTableStatistics:
    """As `core.locks.locks.LockStatistics`. `waiting`: transactions that wait for the outcome of another; `entries_max`: the
    bound of `entries`, 0 if it is not known; `recent`: the last rejected appends, oldest first, as many as
    `server.ordering.conflicts` keeps."""

    entries: Summed[int]
    floor: Highest[int]
    conflicts: Summed[int]
    floor_conflicts: Summed[int]
    hottest: Newest[tuple[HotLockStatistics, ...]]
    waiting: Summed[int]
    entries_max: Summed[int] = 0
    recent: Newest[tuple[ConflictStatistics, ...]] = ()


@snapshot
@dataclass(frozen=True, slots=True)
class ViewStatistics:
    """A compacted view: of transactions from `start` up to `bound`."""

    start: Highest[int]
    bound: Highest[int]
    records: Newest[int]
    bytes: Newest[int]


@snapshot
@dataclass(frozen=True, slots=True)
class RetainedStatistics:
    """What one replica held in the last upkeep round; `first` and `last` are transaction ids."""

    first: Highest[int]
    last: Highest[int]
    bytes: Newest[int]
    view: Newest[ViewStatistics | None]
    view_error: Newest[str | None]


@snapshot
@dataclass(frozen=True, slots=True)
class UpkeepStatistics:
    """The last upkeep round: only `error` after one that failed, nothing before the first and where the partition has no topic. `first`: the first
    retained transaction; `held_by`: what keeps more than the policies ask for, None if nothing does, empty if there was no round."""

    first: Highest[int | None] = None
    held_by: Newest[str | None] = ""
    replicas: ByKey[Mapping[str, RetainedStatistics] | None] = None
    error: Newest[str | None] = None

    def without_names(self) -> UpkeepStatistics:
        """For callers that do not learn which subscribers other principals have."""
        return replace(self, held_by=A_SUBSCRIBER) if (self.held_by or "").startswith(f"{A_SUBSCRIBER} ") else self


@snapshot
@dataclass(frozen=True, slots=True)
class RecoveringPartitionStatistics:
    """A partition that the server owns and does not serve yet; `error`: why the last attempt failed."""

    generation: Highest[int]
    state: Newest[Literal["recovering"]]
    error: Newest[str | None]


@snapshot
@dataclass(frozen=True, slots=True)
class OpenPartitionStatistics:
    """A partition that the server serves. `mounts`: clients, of which some are `catching_up`; `rejected`: transactions whose locks moved;
    `refused`: those that broke a limit; `last_transaction_id`: the last id given out, `committed`: the last one committed;
    `appended_transactions`: how many were ordered since this owner opened the partition; `low_water_mark`: where this session began; `in_memory`:
    transactions that a majority received and that are not committed; `feed_lag`: committed transactions that the slowest mount with a feed was not
    sent yet."""

    generation: Highest[int]
    state: Newest[Literal["open"]]
    mounts: Summed[int]
    catching_up: Summed[int]
    feed: Fieldwise[FeedStatistics]
    last_transaction_id: Highest[int]
    appended_transactions: Summed[int]
    rejected: Summed[int]
    refused: Summed[int]
    blocks: Summed[int]
    queued_bytes: Summed[int]
    locks: Fieldwise[LockTableStatistics]
    upkeep: Fieldwise[UpkeepStatistics]
    session: Highest[int]
    low_water_mark: Highest[int]
    committed: Highest[int]
    in_memory: Summed[int]
    replicas: ByKey[Mapping[str, ReplicaStatistics]]
    feed_lag: Highest[int] = 0


# ---- the server ------------------------------------------------------------------------------------------------------------------------------------


@snapshot
@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """A memory budget that the partitions of one process share."""

    bytes: Summed[int]
    bytes_max: Summed[int]
    evicted: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class CacheStatistics:
    transactions: Fieldwise[BudgetStatistics]
    frames: Fieldwise[BudgetStatistics]


@snapshot
@dataclass(frozen=True, slots=True)
class ServerTotals:
    """Totals of all partitions since the process started. `queue`: how long the oldest frame of each block waited until the block was ordered;
    `commit`: from then until the block was committed; `replicate`: from sending blocks to one replica until it acknowledged them; `lock_wait`: how
    long a rejection waited for its turn at a hot lock; `recovery`: from the begin of a store session to its being open; `sessions`: those that were
    opened; `fenced_generations`, `fenced_sessions`: generations and sessions that newer ones ended here; `fenced_mounts`: mounts that newer mounts of
    the same client ended; `append_refusals`, `mount_refusals`: how often frames of appends, and mounts, were refused because a quota was exceeded."""

    queue: Fieldwise[LatencyStatistics]
    commit: Fieldwise[LatencyStatistics]
    replicate: Fieldwise[LatencyStatistics]
    lock_wait: Fieldwise[LatencyStatistics]
    recovery: Fieldwise[LatencyStatistics]
    sessions: Summed[int]
    fenced_generations: Summed[int]
    fenced_sessions: Summed[int]
    fenced_mounts: Summed[int]
    append_refusals: Summed[int] = 0
    mount_refusals: Summed[int] = 0


def _earlier(one: tuple[OwnerStatistics, ...], other: tuple[OwnerStatistics, ...]) -> tuple[OwnerStatistics, ...]:
    """Each generation once, as the observer that knows best when it began reports it."""
    found: dict[tuple[int, int], OwnerStatistics] = {}
    for each in (*one, *other):
        key = (each.partition, each.generation)
        if key not in found or (not each.exact, each.since_ms) < (not found[key].exact, found[key].since_ms):
            found[key] = each
    return tuple(found[key] for key in sorted(found))


_BY_GENERATION = Rule("by partition and generation", _earlier, commutative=True)


@snapshot
@dataclass(frozen=True, slots=True)
class OwnerStatistics:
    """One generation of a partition, as a server read it in the assignment. `server_id`, `address`: None while it had no owner; `since_ms`: when it
    began, since 1970. `exact`: False if the generation was there when the server started, so that it began at that time or earlier."""

    partition: Newest[int]
    generation: Newest[int]
    server_id: Newest[int | None]
    address: Newest[str | None]
    since_ms: Newest[int]
    exact: Newest[bool] = True


@snapshot
@dataclass(frozen=True, slots=True)
class QuotaStatistics:
    """One rule of the settings. `principal`, `topic`: which it is for, None for all; a limit that is None does not apply."""

    principal: Newest[str | None]
    topic: Newest[str | None]
    transactions_per_s: Newest[float | None]
    bytes_per_s: Newest[float | None]
    mounts_per_s: Newest[float | None]
    burst_s: Newest[float]


@snapshot
@dataclass(frozen=True, slots=True)
class ClientIdStatistics:
    """`left`: ids that this server gives to new clients without the coordinator; `issued`: given since it started; `refused`: why no more are
    reserved, None if nothing is wrong."""

    left: Summed[int] = 0
    issued: Summed[int] = 0
    refused: Newest[str | None] = None


@snapshot
@dataclass(frozen=True, slots=True)
class FollowerStatistics:
    """`count`: clients that follow the cluster here; `sent_bytes`: of the answers to all since the process started; `refused`: how many were refused
    because of `followers_max`; `age_s`: seconds since the process last confirmed with the coordinator that what it sends them is current."""

    count: Summed[int] = 0
    sent_bytes: Summed[int] = 0
    refused: Summed[int] = 0
    age_s: Highest[float] = 0.0


@snapshot
@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """`cluster_key`: None before the server joined its cluster; `manager`: whether it assigns partitions; `workers`: empty for a server of one
    process; `http`: where the server answers `/livez`, `/readyz` and `/metrics`, None for one that does not; `cluster_partitions`: partitions of the
    cluster, 0 before the server joined it; `subscribers`: for each, how many committed transactions of this server's partitions it has not read, None
    where that was not asked for; `owners`: the newest generations of all partitions of the cluster, ordered by partition and generation, as
    many as `server.node.owner_history` keeps; `traces`: None for a server that does not trace.
    `certificate_expires_s`: when the certificate expires, since 1970, None without TLS; `time_ms`: the clock of the machine; `round_trips`: if they
    were asked for, milliseconds of a ping by the name of the storage node, None for a node that does not answer; `quotas`: the rules, of which the
    first that fits applies; `coordinator_certificate_expires_s`: the same for the certificates of ZooKeeper's hosts, the first of them; `client_ids`:
    None before the server joined its cluster, and so `followers`. `rules`: the
    rules of access that each process enforces (`AccessControl.label`), empty without TLS; `refused_values`: by path, why a value of the coordinator
    is not used and the one that was known before is; `known_values`: if they were asked for, by path, the values that the process knows."""

    server_id: Highest[int]
    cluster_key: Newest[str | None]
    manager: Highest[bool]
    caches: Fieldwise[CacheStatistics]
    partitions: ByKey[Mapping[int, OpenPartitionStatistics | RecoveringPartitionStatistics]]
    workers: Annotated[tuple[WorkerStatistics, ...], by_attribute("worker")] = ()
    http: Newest[str | None] = None
    totals: Fieldwise[ServerTotals | None] = None
    cluster_partitions: Highest[int] = 0
    subscribers: ByKey[Mapping[str, int] | None] = None
    owners: Annotated[tuple[OwnerStatistics, ...], _BY_GENERATION] = ()
    certificate_expires_s: Newest[float | None] = None
    traces: Fieldwise[TraceStatistics | None] = None
    time_ms: Newest[int | None] = None
    round_trips: ByKey[Mapping[str, float | None] | None] = None
    quotas: Newest[tuple[QuotaStatistics, ...]] = ()
    coordinator_certificate_expires_s: Newest[float | None] = None
    client_ids: Fieldwise[ClientIdStatistics | None] = None
    followers: Fieldwise[FollowerStatistics | None] = None
    rules: Concatenated[tuple[str, ...]] = ()
    refused_values: ByKey[Mapping[str, str] | None] = None
    known_values: ByKey[Mapping[str, str] | None] = None
