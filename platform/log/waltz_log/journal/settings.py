"""Settings of a journal. They are values of the one who opens it; the directory keeps its check, whatever these say."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from waltz_log.settings import Settings

__all__ = ["FILE_BYTES_MAX", "GroupCommitSettings", "JournalSettings"]

FILE_BYTES_MAX: Final = 1 << 30
"""For one file, which loading holds in memory."""


class JournalSettings(Settings):
    """How a journal uses its disk. It uses at most `files_max` files of `file_bytes`, plus the files that were set aside as damaged."""

    file_bytes: int = Field(
        default=10 * 1024 * 1024,
        ge=1024,
        le=FILE_BYTES_MAX,
        description="Size of a file, reserved when it is created. A record must fit into one; loading holds one in memory. Smaller files "
        "are reclaimed sooner and replaced more often, and each replacement costs some syncs.",
    )
    files_min: int = Field(default=2, ge=2, description="Files that are created at the start, so the first appends need not create any.")
    files_pool: int = Field(
        default=10, ge=0, description="Reclaimed files are kept for reuse up to this total number of files. Choose what the usual load needs."
    )
    files_max: int = Field(
        default=100,
        ge=3,
        le=1 << 20,
        description="Largest number of files, which limits the disk space. At the limit, adds and updates are refused until deletes free a "
        "file. Space for deletes is reserved.",
    )
    check: Literal["hash", "size"] = Field(
        default="hash",
        description="How a new journal protects its records. `hash` detects every corruption and cannot be imitated by a payload; `size` is "
        "the layout of the specification, for other tools. An existing journal keeps its own.",
    )
    buffer_bytes: int = Field(
        default=512 * 1024,
        ge=4096,
        le=64 * 1024 * 1024,
        description="How many bytes of unsynced records gather before they are written. It limits memory, and the size of one write.",
    )
    replaceable_types: frozenset[int] = Field(
        default=frozenset(),
        description="User types whose updates replace the previous update of the same record and type: only the last one is kept and loaded.",
    )
    compact_files_min: int = Field(
        default=10, ge=0, description="With fewer files that contain data, the journal does not compact itself. 0: never; `compact()` still works."
    )
    compact_percent: int = Field(
        default=30,
        ge=1,
        le=90,
        description="Files are compacted when at most this share of them is live. A higher share frees space sooner and copies more.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> JournalSettings:
        if self.files_min > self.files_max:
            raise ValueError("files_min is above files_max")
        if not all(0 <= each <= 255 for each in self.replaceable_types):
            raise ValueError("replaceable_types are user types, 0 to 255")
        return self


class GroupCommitSettings(Settings):
    """What a group commit waits for. `waltz journal measure` suggests values for a disk."""

    linger_s: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Shortest time between the starts of two syncs, unless `group_bytes` have gathered. 0: callers that arrive during a "
        "sync share the next one. A longer time saves syncs on a slow disk, and delays a single caller.",
    )
    group_bytes: int = Field(default=256 * 1024, ge=512, description="Bytes that cause a sync immediately, whatever `linger_s` is.")
    flush_s: float = Field(
        default=0.005,
        gt=0,
        le=60,
        description="Records without a waiting caller are synced after this time at the latest. A crash can lose the records of that time.",
    )
    unsynced_bytes_max: int = Field(
        default=16 * 1024 * 1024,
        ge=4096,
        description="Appends wait while this many bytes are not synced: a slow disk slows its users, instead of growing what a crash loses.",
    )
