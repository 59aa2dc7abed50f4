"""Settings of compaction, for a node that runs a compactor. Each says how to choose it."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["CompactionSettings"]


class CompactionSettings(Settings):
    key_cache_bytes: int = Field(
        default=32 << 20,
        ge=1 << 12,
        description="Memory for the keys of one step, with what each costs to keep. A step folds as much of the log as its keys fit in here: less "
        "means more, smaller files that are merged later, never a wrong result. Every compactor that runs at once needs as much.",
    )
    segment_bytes: int = Field(
        default=1 << 30,
        ge=1 << 12,
        description="Files of the view are not merged beyond this. Larger ones are rewritten less often, and each rewrite is longer.",
    )
    dead_ratio: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A file is rewritten when more than this part of it are values that were replaced by newer ones. Lower: less disk, more writing.",
    )
    tombstone_retention_s: int = Field(
        default=24 * 3600,
        ge=0,
        description="How long the end of a key stays in the view. Longer than a reader needs from the start of the view to its end in the log.",
    )
