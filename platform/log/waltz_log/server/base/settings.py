"""Settings of a log server. Read from YAML, then `WALTZ_SERVER_<NAME>`, then arguments."""

from __future__ import annotations

from pydantic import Field

from waltz_log.node_settings import NodeSettings
from waltz_log.settings import Settings

__all__ = ["QuotaSettings", "ServerSettings"]


class QuotaSettings(Settings):
    """One rule: how much each principal may do in each topic, at one process of a server. A limit that is not set does not apply. Only accepted work
    counts. The first rule that fits a principal and a topic applies."""

    principal: str | None = Field(
        default=None,
        min_length=1,
        description="The principals that the rule is for. A `*` stands for any text without a slash. None: all. Each of them has its own quota.",
    )
    topic: str | None = Field(
        default=None,
        min_length=1,
        description="The topics, as `namespace/topic`, with `*` as above. None: all, and partitions of no topic. Each topic has its own quota.",
    )
    transactions_per_s: float | None = Field(
        default=None, gt=0, description="Transactions that are appended. Choose several times the normal rate, so that only a defect meets it."
    )
    bytes_per_s: float | None = Field(
        default=None, gt=0, description="Bytes of their records: the data and 40 bytes each. Choose what the disks of the replicas can spare."
    )
    mounts_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Mounts: a client mounts each partition that it appends to or follows, and again after each lost connection. Choose at least the "
        "number of partitions times the number of clients in a minute.",
    )
    burst_s: float = Field(
        default=1.0,
        ge=0.01,
        le=3600,
        description="A principal that was idle can use the quota of this many seconds at once. Longer bursts let batch jobs finish sooner.",
    )


class ServerSettings(NodeSettings):
    """Every value holds for one server process; the bounds that name a partition hold for each partition it owns."""

    preferred_partitions: tuple[int, ...] = Field(
        default=(), description="Partitions that this server should own while it runs. Empty: any that the manager assigns."
    )
    followers_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Clients that follow the cluster at this server, for each of its processes; one principal may be half of them. Choose more than "
        "all clients of the cluster, because they go to the servers that are left when others are down.",
    )
    session_timeout_s: float = Field(
        default=6.0,
        ge=0.5,
        description="Timeout of the coordinator session. The partitions of a killed server move after this time. If it is too short, a long "
        "pause of the machine moves them too.",
    )
    block_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records in one block. Larger blocks cost latency under load; smaller ones cost throughput.",
    )
    blocks_in_flight: int = Field(
        default=2, ge=1, le=16, description="Blocks that wait for their majority at once. With more, blocks are smaller and throughput falls."
    )
    overlap_bytes: int = Field(
        default=128 * 1024,
        ge=0,
        description="While a block is in flight, another one is ordered only if this many bytes wait. Each block has a fixed cost, so fewer blocks "
        "need less processor time. If the storage nodes are far away, choose less: latency falls, and processor time rises.",
    )
    queue_bytes_max: int = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Received and not yet ordered, for each partition. When it is full, the clients of that partition slow down.",
    )
    transaction_cache_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024 * 1024,
        description="Records in memory for all partitions together, the newest and the recently read ones: for feeds, for reads by id, and "
        "for replicas that fall behind a little. Choose some seconds of all appends; older records are read from replicas. "
        "Blocks that wait for their majority can come on top.",
    )
    feed_cache_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="Feed frames in memory for all partitions together, encoded once for all readers of the same. Choose a few frames for "
        "each partition that is read, and more if many readers follow at a distance.",
    )
    feed_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=2 * 1024 * 1024,
        description="Records in one feed frame, and in one read of a replica. Larger frames cost memory for each reader; smaller ones cost "
        "throughput.",
    )
    fetches_max: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Concurrent reads of replicas for the feeds of one partition; further ones wait. Each holds one frame in memory. Raise "
        "it for slow disks.",
    )
    answers_max: int = Field(
        default=1024,
        ge=16,
        description="Answers in memory for a client that does not read them. At the limit, the server reads nothing more from that client.",
    )
    record_bytes_max: int = Field(
        default=1024 * 1024, ge=1024, le=8 * 1024 * 1024, description="Largest data of one transaction. Raise it on servers first, then on clients."
    )
    lock_entries_max: int = Field(
        default=1_000_000,
        ge=1000,
        description="Locks that a partition remembers exactly, 32 to 96 bytes each. With fewer, slow clients get needless conflicts.",
    )
    checkpoint_transactions: int = Field(
        default=2_000_000,
        ge=1,
        description="The number of transactions after which a partition continues in a new session. It limits what recovery reads, and what "
        "a disk that was restored from a copy can hide. Each new session pauses appends for some ten milliseconds.",
    )
    replica_bytes_in_flight: int = Field(
        default=4 * 1024 * 1024, ge=65536, description="Sent to one replica and not acknowledged. It limits how much a slow replica can delay."
    )
    replica_retry_s: float = Field(
        default=0.1, gt=0, description="First pause before a failed replica is tried again. It doubles up to `replica_retry_max_s`."
    )
    replica_retry_max_s: float = Field(default=5.0, gt=0, description="Longest pause between tries of a failed replica.")
    hand_over_after_s: float = Field(
        default=5.0,
        gt=0,
        description="How long a partition can be without a majority of its replicas before it moves to a server that reaches one, if there "
        "is such a server. Choose longer than a restart of a storage node. A shorter time ends an outage of one server's "
        "network sooner. Each move of the same partition doubles the wait before the next, up to 64 times.",
    )
    memory_wait_s: float = Field(
        default=10.0,
        ge=0,
        description="How long the opening of a partition of a `quorum_memory` topic waits for absent replicas, if those that are present "
        "died and may have lost what they had in memory. A longer time loses less after a power failure, and opens later.",
    )
    rpc_timeout_s: float = Field(default=10.0, gt=0, description="Deadline of one call to a storage node. A node slower than that counts as failed.")
    mount_wait_s: float = Field(
        default=5.0, gt=0, description="How long a mount waits for a partition in recovery before the client is sent elsewhere."
    )
    upkeep_s: float = Field(
        default=60.0,
        gt=0,
        description="Time between two rounds of retention and compaction of a partition. Each round asks every replica what it holds. A "
        "shorter time frees space sooner and keeps compacted views newer.",
    )
    quotas: tuple[QuotaSettings, ...] = Field(
        default=(),
        description="How much a principal may append and mount per second in a topic. Each process of a server counts for itself: a topic whose "
        "partitions are at several processes gets it once at each. Empty: no limits. Without TLS a principal is what the client claims.",
    )
