"""Settings of a storage node. Read from YAML, then `WALTZ_STORAGE_<NAME>`, then arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from waltz_log.node_settings import NodeSettings

__all__ = ["StorageSettings"]


class StorageSettings(NodeSettings):
    """Every value holds for one storage node; the bounds that name a partition hold for each of its partitions."""

    name: str = Field(
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The name of this node in the cluster. Keep it for the life of the directory; the address can change.",
    )
    directory: Path = Field(description="Directory of segments and control files, for one node only. Use a separate disk if there is one.")
    segment_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=4096,
        le=1 << 40,
        description="Size of a segment. A block that does not fit starts a new segment; a larger record has its own segment. Trimming, "
        "scrubbing and copying work on whole segments; opening reads the last one.",
    )
    preallocate_bytes: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description="Reserves space for each partition in steps of this size, filled with zeros. 0: no reservation. Steps of some MiB save "
        "the file system work at every sync, a third of its time for small appends. In return all bytes are written twice, and "
        "each partition uses up to one more step. Measure before you set it.",
    )
    cached_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=0,
        description="How much of the end of each partition stays in the system's page cache after it is on disk. What is read is cached in "
        "addition. Servers keep the newest blocks themselves, so this serves readers and replicas that fall behind. Raise it if "
        "many do so on a slow disk. It needs that much memory for each partition that is written.",
    )
    open_files_max: int = Field(
        default=512,
        ge=16,
        description="Open segment files of all partitions together; the least recently used are closed. Three for each partition that is "
        "written avoid opening them again. Sockets need descriptors too, so stay well below the limit of the process.",
    )
    read_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=2 * 1024 * 1024,
        description="Records in one block of an answer, if the reader does not ask for less. Larger blocks cost memory for each reader; "
        "smaller ones cost throughput.",
    )
    pending_bytes_max: int = Field(
        default=1024 * 1024,
        ge=64 * 1024,
        description="Received from a partition's owner and not yet written. At the limit, no further block is read. It limits, together "
        "with one more block, the memory that a slow disk can need. Choose room for some blocks, so the next one is verified "
        "during a sync.",
    )
    writer_bytes_max: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="The same for all partitions together. At the limit, each owner's next block waits for its previous one. It limits the "
        "memory that many busy partitions can use with a slow disk.",
    )
    disk_threads: int = Field(
        default=4,
        ge=2,
        le=64,
        description="Concurrent blocking disk calls. Readers get half of them, so reads do not delay appends. Raise it for several disks.",
    )
    disk_warn_free_bytes: int = Field(
        default=2 * 1024**3, ge=0, description="With less free space, a warning is logged. Choose it so that you have time to add space or to trim."
    )
    disk_refuse_free_bytes: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="With less free space, appends are refused until there is space again; reads continue. Keep enough for what recovery "
        "writes, and for a step of preallocation.",
    )
    scrub_bytes_per_s: int = Field(
        default=4 * 1024**2,
        ge=0,
        description="How fast stored data is read to find corruption before a reader does. 0: never. Choose far below the speed of the "
        "disk; 4 MiB/s reads 100 GB in seven hours.",
    )
    scrub_pause_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Time between two passes over all data. Corruption in one replica must be found before another replica is corrupted at "
        "the same position: choose days, not months.",
    )
    repair_bytes_per_s: int = Field(
        default=32 * 1024**2,
        ge=1024,
        description="How fast a corrupt segment is checked and copied from other replicas. Until that is done, this replica does not serve "
        "the range, and the data has one copy less. Choose well above `scrub_bytes_per_s`, and below what appends leave of disk "
        "and network.",
    )
    repair_retry_s: float = Field(
        default=5.0,
        gt=0,
        description="Pause after the first failed attempt to repair a segment. Attempts usually fail because other replicas or the owner "
        "are not running yet, so choose about the time that they need to start.",
    )
    repair_retry_max_s: float = Field(
        default=300.0,
        gt=0,
        description="Longest pause between two attempts; pauses double up to it. A failed attempt reads the segment twice, so choose "
        "minutes. Data with one copy less should not wait for hours.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * 1024**2,
        ge=1024,
        description="How fast compacted views are built, one view at a time. It counts the bytes of the log that are folded and the bytes "
        "of view files that merges rewrite. Choose several times the append rate of compaction topics, because each value is "
        "rewritten a few times; otherwise views, and the trimming of their logs, fall behind. Choose less than appends leave of "
        "disk and processor.",
    )
    compaction_key_cache_bytes: int = Field(
        default=32 * 1024**2,
        ge=1 << 12,
        description="Memory for the keys of one step of a fold. One view is folded at a time, so it is the limit of the whole process. With "
        "less memory, a view has more and smaller files, which are merged later.",
    )
