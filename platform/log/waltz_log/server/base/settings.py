"""Settings of a log server. Read from YAML, then `WALTZ_SERVER_<NAME>`, then arguments."""

from __future__ import annotations

from pydantic import Field

from waltz_log.monitoring.settings import HttpSettings
from waltz_log.settings import Settings

__all__ = ["ServerSettings"]


class ServerSettings(Settings):
    """Every value holds for one server process; the bounds that name a partition hold for each partition it owns."""

    cluster: str = Field(description="Connection string of the cluster, `host:port[,host:port]/path`.")
    listen: str = Field(default="127.0.0.1:0", description="Address that clients reach this server at. Port 0 means a free one.")
    streams_per_connection: int = Field(
        default=4608,
        ge=64,
        le=1 << 20,
        description="Calls and streams that one connection may have open here at once; what a client begins above it waits there. A client holds "
        "one stream for each partition that it uses at this server, and a few calls. "
        "4,608 is enough for a log of 4,096 partitions. Lower it to bound the memory that one client can use, to no less than the "
        "partitions of the log and 512.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the partitions, which fall to them by a hash. One for each core that there is to spare, and at most a "
        "quarter of the partitions, or some are idle; 1: no other process than this one.",
    )
    worker_ports: int = Field(
        default=0,
        ge=-1,
        le=65_000,
        description="Where each of several workers listens besides, so that peers who know of it spare the way through another worker: ports from "
        "this one on; 0: free ones; -1: nowhere, all goes through the one port. Choose -1 where only that can be reached.",
    )
    preferred_partitions: tuple[int, ...] = Field(
        default=(), description="Partitions this server should own while it lives. Empty: whatever is assigned."
    )
    session_timeout_s: float = Field(
        default=6.0,
        ge=0.5,
        description="Coordinator session. A killed server's partitions move after this long; too short, and a long pause moves them.",
    )
    block_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records that one block gathers. Larger costs latency under load, smaller costs throughput.",
    )
    blocks_in_flight: int = Field(
        default=2, ge=1, le=16, description="Blocks that wait for their majority at once. More, smaller blocks close the window up: throughput falls."
    )
    queue_bytes_max: int = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Received and not yet ordered, per partition. Full, it slows the clients of that partition.",
    )
    transaction_cache_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024 * 1024,
        description="Records kept by all partitions together, newest and lately read ones: for feeds, for reads by id, for replicas that fall behind"
        " a little. Some seconds of what all partitions append; beyond that replicas are read. What waits for its majority may come on top.",
    )
    feed_cache_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="Feed frames kept by all partitions together, encoded once for all who read the same. Partitions that are read times a few"
        " frames; more where many readers follow at a distance.",
    )
    feed_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records in one feed frame, and in one read of a replica. Larger costs memory for each reader, smaller throughput.",
    )
    fetches_max: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Reads of replicas at once for the feeds of one partition; more wait. Each holds one frame; more help where disks are slow.",
    )
    answers_max: int = Field(
        default=1024,
        ge=16,
        description="Answers kept for a client that does not read them. Beyond that nothing more is read from it until it does.",
    )
    record_bytes_max: int = Field(
        default=1024 * 1024, ge=1024, le=8 * 1024 * 1024, description="Largest data of one transaction. Raise it on clients and servers alike."
    )
    lock_entries_max: int = Field(
        default=1_000_000,
        ge=1000,
        description="Locks remembered exactly per partition, about 100 bytes each. Fewer cause needless conflicts of slow clients.",
    )
    checkpoint_transactions: int = Field(
        default=2_000_000,
        ge=1,
        description="A partition goes on in a new session after so many. Bounds what recovery reads and what a disk restored from a copy can hide."
        " Each costs a pause of some ten milliseconds.",
    )
    replica_bytes_in_flight: int = Field(
        default=4 * 1024 * 1024, ge=65536, description="Sent to one replica and not acknowledged. Bounds what a slow replica can hold up."
    )
    replica_retry_s: float = Field(
        default=0.1, gt=0, description="First pause before a replica that failed is tried again; doubles up to the maximum."
    )
    replica_retry_max_s: float = Field(default=5.0, gt=0, description="Longest pause between tries of a failed replica.")
    hand_over_after_s: float = Field(
        default=10.0,
        gt=0,
        description="How long a partition may be without a majority of its replicas before a server that reaches one becomes its owner, where "
        "there is "
        "one. Longer than the restart of a storage node; shorter ends an outage of one server's network sooner. Each hand-over of the same "
        "partition doubles the wait before the next, up to 64 times.",
    )
    memory_wait_s: float = Field(
        default=10.0,
        ge=0,
        description="How long a partition of a `quorum_memory` topic waits at its opening for replicas that are away, when those that are here "
        "died and may have lost what they had in memory. Longer loses less after a power failure and opens later.",
    )
    rpc_timeout_s: float = Field(default=10.0, gt=0, description="Deadline of one call to a storage node. A node slower than that counts as failed.")
    mount_wait_s: float = Field(
        default=5.0, gt=0, description="How long a mount waits for a partition that is being recovered before it is sent elsewhere."
    )
    upkeep_s: float = Field(
        default=60.0,
        gt=0,
        description="Between two rounds of retention and compaction of a partition. A round asks every replica what it holds; shorter uses space "
        "back and brings compacted views up to date sooner.",
    )
    http: HttpSettings = Field(
        default=HttpSettings(),
        description="Where the process answers `/livez`, `/readyz` and `/metrics`. Set a port to monitor it with Prometheus or to probe it.",
    )
