"""The metrics of a log server, each read from its statistics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from waltz_log.core.recovery import majority
from waltz_log.core.replica_status import ReplicaStatus, can_commit
from waltz_log.core.status.latency import LatencyStatistics
from waltz_log.core.status.server_statistics import BudgetStatistics, FollowerStatistics, OpenPartitionStatistics, ReplicaStatistics, ServerStatistics
from waltz_log.monitoring.families import Family, Kind, Samples, counter, gauge, histogram, single

__all__ = ["SERVER"]

SUBSCRIBERS_SHOWN = 50
"""For a server: names of subscribers are chosen by applications, and labels must be bounded."""

_PARTITION = ("partition",)
_REPLICA = ("partition", "replica")

GOOD = (ReplicaStatus.LIVE, ReplicaStatus.REPAIRING)
"""States in which a replica's acknowledgments count."""


def _open(name: str, kind: Kind, meaning: str, pick: Callable[[OpenPartitionStatistics], float | None]) -> Family[ServerStatistics]:
    """One sample for each partition that the server serves."""

    def read(statistics: ServerStatistics) -> Samples:
        for number, each in statistics.partitions.items():
            if isinstance(each, OpenPartitionStatistics):
                yield (str(number),), pick(each)

    return Family(name, kind, _PARTITION, meaning, read)


def _replica(
    name: str, kind: Kind, meaning: str, pick: Callable[[OpenPartitionStatistics, ReplicaStatistics], float | None]
) -> Family[ServerStatistics]:
    """One sample for each replica of each partition that the server serves."""

    def read(statistics: ServerStatistics) -> Samples:
        for number, each in statistics.partitions.items():
            if isinstance(each, OpenPartitionStatistics):
                for replica, found in each.replicas.items():
                    yield (str(number), replica), pick(each, found)

    return Family(name, kind, _REPLICA, meaning, read)


def _cache(name: str, kind: Kind, meaning: str, pick: Callable[[BudgetStatistics], float]) -> Family[ServerStatistics]:
    def read(statistics: ServerStatistics) -> Samples:
        return [(("transactions",), pick(statistics.caches.transactions)), (("frames",), pick(statistics.caches.frames))]

    return Family(name, kind, ("cache",), f"{meaning} `cache`: `transactions` (records) or `frames` (encoded feed frames).", read)


def _all_partitions(pick: Callable[[OpenPartitionStatistics | None], float]) -> Callable[[ServerStatistics], Samples]:
    """Also of those that are recovering, as None."""

    def read(statistics: ServerStatistics) -> Samples:
        for number, each in statistics.partitions.items():
            yield (str(number),), pick(each if isinstance(each, OpenPartitionStatistics) else None)

    return read


def _replica_states(statistics: ServerStatistics) -> Samples:
    found = Counter(
        replica.state for each in statistics.partitions.values() if isinstance(each, OpenPartitionStatistics) for replica in each.replicas.values()
    )
    return [((state.name.lower(),), found[state]) for state in ReplicaStatus]


def _spare(partition: OpenPartitionStatistics | None) -> int | None:
    if partition is None:
        return None
    states = [each.state for each in partition.replicas.values() if each.counts]
    return sum(state in GOOD for state in states) - majority(len(states)) if states else None


def _accepts_appends(partition: OpenPartitionStatistics | None) -> int:
    return int(partition is not None and can_commit(served=True, replicas=[each.state for each in partition.replicas.values() if each.counts]))


def _views(statistics: ServerStatistics) -> Samples:
    for number, each in statistics.partitions.items():
        if isinstance(each, OpenPartitionStatistics) and each.upkeep.replicas is not None:
            for replica, kept in each.upkeep.replicas.items():
                if kept.view is not None:
                    yield (str(number), replica), max(0, kept.last - kept.view.bound)


def _subscribers(statistics: ServerStatistics) -> Samples:
    lags = sorted((statistics.subscribers or {}).items(), key=lambda each: (-each[1], each[0]))
    return [((name,), lag) for name, lag in lags[:SUBSCRIBERS_SHOWN]]


def _fenced(statistics: ServerStatistics) -> Samples:
    if statistics.totals is not None:
        yield ("generation",), statistics.totals.fenced_generations
        yield ("session",), statistics.totals.fenced_sessions
        yield ("mount",), statistics.totals.fenced_mounts


def _quota_refusals(statistics: ServerStatistics) -> Samples:
    if statistics.totals is not None:
        yield ("append",), statistics.totals.append_refusals
        yield ("mount",), statistics.totals.mount_refusals


def _followers(pick: Callable[[FollowerStatistics], float]) -> Callable[[ServerStatistics], Samples]:
    return single(lambda found: None if found.followers is None else pick(found.followers))


def _stages(statistics: ServerStatistics) -> dict[str, LatencyStatistics]:
    totals = statistics.totals
    return {} if totals is None else {"queue": totals.queue, "replicate": totals.replicate, "commit": totals.commit}


def _lock_waits(statistics: ServerStatistics) -> dict[str, LatencyStatistics]:
    return {} if statistics.totals is None else {"": statistics.totals.lock_wait}


def _recoveries(statistics: ServerStatistics) -> dict[str, LatencyStatistics]:
    return {} if statistics.totals is None else {"": statistics.totals.recovery}


SERVER: tuple[Family[ServerStatistics], ...] = (
    gauge(
        "waltz_server_id",
        (),
        "The server's number in the cluster; it changes when its coordinator session ended.",
        single(lambda found: found.server_id),
    ),
    gauge("waltz_server_manager", (), "1 if this server assigns partitions to owners.", single(lambda found: int(found.manager))),
    histogram(
        "waltz_server_append_seconds",
        ("stage",),
        "Latency of blocks by stage. `queue`: from the arrival of the block's oldest frame until the block is ordered; `commit`: from then until it "
        "is on disk at a majority; `replicate`: from sending blocks to one replica until it acknowledged them.",
        _stages,
    ),
    histogram("waltz_server_recovery_seconds", (), "From the begin of a store session until the partition is open.", _recoveries),
    histogram(
        "waltz_server_lock_wait_seconds",
        (),
        "How long transactions that were rejected, or asked, waited for their turn at a hot lock until they were answered.",
        _lock_waits,
    ),
    gauge(
        "waltz_server_cluster_partitions",
        (),
        "Partitions of the cluster, served here or not.",
        single(lambda found: found.cluster_partitions or None),
    ),
    gauge(
        "waltz_server_subscriber_lag_transactions",
        ("subscriber",),
        "Committed transactions of this server's partitions that the subscriber has not finished; of the 50 that lag most.",
        _subscribers,
    ),
    counter(
        "waltz_server_sessions_total",
        (),
        "Store sessions that were opened.",
        single(lambda found: None if found.totals is None else found.totals.sessions),
    ),
    counter(
        "waltz_server_fencings_total",
        ("what",),
        "What was fenced here. `generation`: an ownership, by a newer owner; `session`: a store session, by a newer one; `mount`: a client's "
        "connection, by its newer one.",
        _fenced,
    ),
    counter(
        "waltz_server_quota_refusals_total",
        ("what",),
        "Answers that a quota is exceeded. `append`: to a frame of appends; `mount`: to a mount. The clients wait and try again.",
        _quota_refusals,
    ),
    gauge(
        "waltz_server_followers",
        (),
        "Clients that follow the cluster at this server, as each client does at one.",
        _followers(lambda each: each.count),
    ),
    counter(
        "waltz_server_follower_sent_bytes_total",
        (),
        "Bytes of the map of the cluster that were sent to them: everything to a new one, then what changed.",
        _followers(lambda each: each.sent_bytes),
    ),
    counter(
        "waltz_server_follower_refusals_total",
        (),
        "Clients that were refused because of `followers_max`. They try another server.",
        _followers(lambda each: each.refused),
    ),
    gauge(
        "waltz_server_knowledge_age_seconds",
        (),
        "Since the server last confirmed with the coordinator that what it sends to clients is current: about 1, and rising while it does not reach "
        "ZooKeeper.",
        _followers(lambda each: each.age_s),
    ),
    gauge(
        "waltz_server_partition_open",
        _PARTITION,
        "1 if the server serves the partition, 0 while it recovers it.",
        _all_partitions(lambda each: int(each is not None)),
    ),
    gauge(
        "waltz_server_partition_accepts_appends",
        _PARTITION,
        "1 if the server serves the partition and a majority of its replicas is live, so that an append can be committed now.",
        _all_partitions(_accepts_appends),
    ),
    _open(
        "waltz_server_partition_spare_replicas",
        "gauge",
        "How many more replicas may fail until the partition accepts no appends; negative if too many have failed.",
        _spare,
    ),
    _open(
        "waltz_server_partition_generation",
        "gauge",
        "The generation of the ownership; it increases with each change of owner.",
        lambda each: each.generation,
    ),
    _open("waltz_server_partition_session", "gauge", "The number of the store session; it increases with each recovery.", lambda each: each.session),
    _open("waltz_server_mounts", "gauge", "Clients that have the partition mounted.", lambda each: each.mounts),
    _open(
        "waltz_server_mounts_catching_up", "gauge", "Mounts whose feed reads from replicas because it is far behind.", lambda each: each.catching_up
    ),
    _open(
        "waltz_server_appended_transactions_total",
        "counter",
        "Transactions that were given an id. Starts at 0 when the server opens the partition.",
        lambda each: each.appended_transactions,
    ),
    _open("waltz_server_appended_blocks_total", "counter", "Blocks in which they were replicated.", lambda each: each.blocks),
    _open(
        "waltz_server_rejected_transactions_total",
        "counter",
        "Transactions that were rejected because of a lock conflict.",
        lambda each: each.rejected,
    ),
    _open(
        "waltz_server_refused_transactions_total", "counter", "Transactions that were refused because they broke a limit.", lambda each: each.refused
    ),
    _open("waltz_server_queued_bytes", "gauge", "Received and not ordered yet; bounded by `queue_bytes_max`.", lambda each: each.queued_bytes),
    _open("waltz_server_last_transaction_id", "gauge", "The last id given out; -1 if there is none.", lambda each: each.last_transaction_id),
    _open("waltz_server_high_water_mark", "gauge", "The id of the last committed transaction; -1 if there is none.", lambda each: each.committed),
    _open("waltz_server_low_water_mark", "gauge", "The high-water mark at the start of the store session.", lambda each: each.low_water_mark),
    _open(
        "waltz_server_in_memory_transactions",
        "gauge",
        "Transactions that a majority has received and that are not committed yet (`durability=quorum_memory`).",
        lambda each: each.in_memory,
    ),
    _open("waltz_server_lock_entries", "gauge", "Locks in the lock table; bounded by `lock_entries_max`.", lambda each: each.locks.entries),
    _open(
        "waltz_server_lock_entries_limit",
        "gauge",
        "Its bound (`lock_entries_max`). A table that is full forgets its older half.",
        lambda each: each.locks.entries_max or None,
    ),
    _open("waltz_server_lock_conflicts_total", "counter", "Lock conflicts.", lambda each: each.locks.conflicts),
    _open(
        "waltz_server_lock_floor_conflicts_total",
        "counter",
        "Conflicts with the floor, that is with forgotten locks, which may be needless. If it increases, raise `lock_entries_max`.",
        lambda each: each.locks.floor_conflicts,
    ),
    _open(
        "waltz_server_lock_waiting_transactions",
        "gauge",
        "Transactions that were rejected, or ask, and wait for their turn at a hot lock.",
        lambda each: each.locks.waiting,
    ),
    _open(
        "waltz_server_feed_lag_transactions",
        "gauge",
        "Committed transactions that the slowest mounted client with a feed was not sent yet.",
        lambda each: each.feed_lag,
    ),
    _open("waltz_server_feed_memory_bytes", "gauge", "Transactions of the partition in the cache.", lambda each: each.feed.memory_bytes),
    _open("waltz_server_feed_frame_bytes", "gauge", "Feed frames of the partition in the cache.", lambda each: each.feed.frame_bytes),
    _open("waltz_server_feed_frames_made_total", "counter", "Feed frames that were encoded.", lambda each: each.feed.frames_made),
    _open(
        "waltz_server_feed_frames_shared_total",
        "counter",
        "Feed frames that were used again for another reader.",
        lambda each: each.feed.frames_shared,
    ),
    _open("waltz_server_feed_reads_total", "counter", "Reads of replicas for feeds.", lambda each: each.feed.reads),
    _open("waltz_server_feed_joined_reads_total", "counter", "Requests that shared such a read with another.", lambda each: each.feed.joined),
    _open(
        "waltz_server_upkeep_failed",
        "gauge",
        "1 if the last round of retention and compaction failed.",
        lambda each: int(each.upkeep.error is not None),
    ),
    _open(
        "waltz_server_first_retained_transaction_id",
        "gauge",
        "The oldest transaction that retention keeps; only of partitions with a topic.",
        lambda each: each.upkeep.first,
    ),
    gauge("waltz_server_view_lag_transactions", _REPLICA, "Transactions of the log that the replica's compacted view does not have yet.", _views),
    gauge(
        "waltz_server_replicas",
        ("state",),
        "Replicas in each state, over the partitions that the server serves, as `waltz cluster status` shows them.",
        _replica_states,
    ),
    _replica(
        "waltz_server_replica_live",
        "gauge",
        "1 if the replica's acknowledgments count towards a majority.",
        lambda _, replica: int(replica.state in GOOD),
    ),
    _replica(
        "waltz_server_replica_lag_transactions",
        "gauge",
        "Committed transactions that the replica is not known to have.",
        lambda partition, replica: max(0, partition.committed - replica.holds),
    ),
    _replica(
        "waltz_server_replica_corrupt_reads_total",
        "counter",
        "Reads of the replica that failed their checksum.",
        lambda _, replica: replica.corrupt_reads,
    ),
    _replica(
        "waltz_server_replica_filled_bytes_total",
        "counter",
        "What was copied to a replica that is being filled. No sample for other replicas.",
        lambda _, replica: None if replica.filling is None else replica.filling.bytes,
    ),
    _replica(
        "waltz_server_replica_fill_outpaced",
        "gauge",
        "1 if appends arrive faster than the replica is filled. No sample for replicas that are not filled.",
        lambda _, replica: None if replica.filling is None else int(replica.filling.outpaced),
    ),
    _replica(
        "waltz_server_replica_fill_missing_bytes",
        "gauge",
        "What a replica that is being filled still lacks, estimated. No sample for other replicas.",
        lambda _, replica: None if replica.filling is None else replica.filling.missing_bytes,
    ),
    _replica(
        "waltz_server_replica_fill_remaining_seconds",
        "gauge",
        "The estimated time until the replica is filled. No sample while it is unknown, and while appends arrive faster than the replica is filled.",
        lambda _, replica: None if replica.filling is None else replica.filling.remaining_s,
    ),
    _cache("waltz_server_cache_bytes", "gauge", "Memory that the cache holds.", lambda budget: budget.bytes),
    _cache("waltz_server_cache_limit_bytes", "gauge", "Its bound.", lambda budget: budget.bytes_max),
    _cache("waltz_server_cache_evictions_total", "counter", "Pieces that were evicted.", lambda budget: budget.evicted),
)
