"""Settings of a storage node. Read from YAML, then `WALTZ_STORAGE_<NAME>`, then arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from waltz_log.monitoring.settings import HttpSettings
from waltz_log.settings import Settings

__all__ = ["StorageSettings"]


class StorageSettings(Settings):
    """Every value holds for one storage node; the bounds that name a partition hold for each of its partitions."""

    cluster: str = Field(description="Connection string of the cluster, `host:port[,host:port]/path`.")
    name: str = Field(
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="What the cluster calls this node. Keep it for the life of the directory; the address may change.",
    )
    directory: Path = Field(description="Where segments and the control file are. One node a directory; on a disk of its own if there is one.")
    listen: str = Field(default="127.0.0.1:0", description="Address that servers, peers and readers reach this node at. Port 0 means a free one.")
    streams_per_connection: int = Field(
        default=4608,
        ge=64,
        le=1 << 20,
        description="Calls and streams that one connection may have open here at once; what a client begins above it waits there. Servers hold "
        "one stream for each partition, readers one for each range that they read. "
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
    direct_port: int = Field(
        default=0,
        ge=-1,
        le=65_000,
        description="Where log servers send blocks on connections of their own, at less cost than over gRPC: this port, or with several workers this "
        "one and the next ones; 0: free ones; -1: nowhere, blocks come in at `listen` like everything else. Choose -1 where nothing but that can be "
        "reached, a port where a firewall must know it.",
    )
    segment_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=4096,
        le=1 << 40,
        description="What does not fit below this begins a new segment; a record that fits no segment is refused. Trimming, scrubbing and copying go "
        "by segments; opening reads the last.",
    )
    preallocate_bytes: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description="Space is reserved and filled with zeros for each partition in steps of so much before it is written; 0: as it is written. "
        "Steps of "
        "some MiB spare the file system work at every sync, a third of its time for small appends, at the price of writing all bytes twice and of up "
        "to one step for each partition; measure before you set it.",
    )
    cached_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=0,
        description="How much of the end of each partition stays in the system's page cache once it is on disk; what is read is cached besides, as "
        "the system likes. Servers keep what was just appended themselves, so this is for readers and replicas that lag behind them; more where "
        "many do on a slow disk, at the price of so much memory for each partition that is written to.",
    )
    open_files_max: int = Field(
        default=512,
        ge=16,
        description="Open segment files of all partitions together; the least used are closed for others. Three for each partition that is written "
        "to spares opening them again; sockets need descriptors besides, so stay well below the process's limit.",
    )
    read_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records in one answer block where the reader does not ask for less. Larger costs memory per reader, smaller costs throughput.",
    )
    pending_bytes_max: int = Field(
        default=1024 * 1024,
        ge=64 * 1024,
        description="Received and not yet written, per partition's owner: with more, no further block is read. It bounds the memory a slow disk can "
        "cost, with one block that is accepted; some blocks should fit, so that the next is verified while one is synced.",
    )
    writer_bytes_max: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="The same of all partitions together: with more, each owner's next block waits for its last one. What many busy partitions may "
        "use of the machine's memory when the disk is slow.",
    )
    disk_threads: int = Field(
        default=4,
        ge=2,
        le=64,
        description="Blocking disk calls at once. Readers get half of them, so that none delays an append; more for several disks.",
    )
    disk_warn_free_bytes: int = Field(
        default=2 * 1024**3, ge=0, description="Below this a warning is logged. Choose what leaves you the time to add space or trim."
    )
    disk_refuse_free_bytes: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="Below this appends are refused and reads go on, until there is space again. Room for what must be written to recover, and for a "
        "step of preallocation.",
    )
    scrub_bytes_per_s: int = Field(
        default=4 * 1024**2,
        ge=0,
        description="How fast stored data is read again to find corruption before a reader needs it; 0: never. Far below what the disk can do; 4 "
        "MiB/s reads "
        "100 GB in seven hours.",
    )
    scrub_pause_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Between two passes over all data. Corruption must be found in one replica before another has it at the same place: days, not "
        "months.",
    )
    repair_bytes_per_s: int = Field(
        default=32 * 1024**2,
        ge=1024,
        description="How fast a corrupt segment is checked and copied from other replicas. Until that is done this replica does not serve the range, "
        "and the data has a copy less: well above `scrub_bytes_per_s`, and below what appends leave of disk and network.",
    )
    repair_retry_s: float = Field(
        default=5.0,
        gt=0,
        description="After the first attempt to repair a segment that failed, mostly because the other replicas or the owner are not up yet. About "
        "the time that they need to start.",
    )
    repair_retry_max_s: float = Field(
        default=300.0,
        gt=0,
        description="The longest pause between two attempts, after the pauses have doubled. A failed attempt reads the segment twice, so minutes; "
        "data with a copy less should not wait for hours.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * 1024**2,
        ge=1024,
        description="How fast compacted views are made, one view at a time: the bytes of the log that are folded and those of view files that merges "
        "rewrite count alike. Choose several times what is appended to compaction topics, as each value is rewritten a few times while its view "
        "grows, or views and the trimming of their logs fall behind; choose less than appends leave of disk and processor.",
    )
    compaction_key_cache_bytes: int = Field(
        default=32 * 1024**2,
        ge=1 << 12,
        description="Memory for the keys of one step of a fold; one view is folded at a time, so it is the whole process's. Less means more, smaller "
        "files of a view that are merged later, never a wrong result.",
    )
    http: HttpSettings = Field(
        default=HttpSettings(),
        description="Where the process answers `/livez`, `/readyz` and `/metrics`. Set a port to monitor it with Prometheus or to probe it.",
    )
