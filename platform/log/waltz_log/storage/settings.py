"""Settings of a storage node. Read from YAML, then `WALTZ_STORAGE_<NAME>`, then arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

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
    listen: str = Field(default="127.0.0.1:0", description="Address that servers, peers and readers reach this node at. Port 0 takes a free one.")
    segment_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=4096,
        le=1 << 40,
        description="What does not fit below this begins a new segment. Trimming, scrubbing and copying go by segments; opening reads the last.",
    )
    read_bytes_max: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records in one answer block where the reader does not ask for less. Larger costs memory per reader, smaller costs throughput.",
    )
    pending_bytes_max: int = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Received and not yet on disk, per partition's owner. Full, it slows the owner; it bounds the memory a slow disk can cost.",
    )
    disk_threads: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Blocking disk calls at once. At least two, or a reader of cold data delays appends; more for several disks.",
    )
    disk_warn_free_bytes: int = Field(
        default=2 * 1024**3, ge=0, description="Below this a warning is logged. Choose what leaves you the time to add space or trim."
    )
    disk_refuse_free_bytes: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="Below this appends are refused and reads go on, until there is space again. Room for what must be written to recover.",
    )
