"""Settings of a journal. They are values of the one who opens it; the directory keeps its check, whatever these say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from waltz_log.settings import Settings

__all__ = ["GroupCommitSettings", "JournalSettings"]


class JournalSettings(Settings):
    """How a journal uses its disk. It uses at most `files_max` files of `file_bytes`, plus the files that were set aside as damaged."""

    file_bytes: int = Field(
        default=10 * 1024 * 1024,
        ge=1024,
        le=1 << 30,
        description="Size of a file, reserved when it is created. A record must fit into one; loading holds one in memory. Smaller ones are "
        "reclaimed sooner and changed more often, each change costing some syncs.",
    )
    files_min: int = Field(default=2, ge=2, description="Files that are there from the start, so that the first appends need not make any.")
    files_pool: int = Field(
        default=10, ge=0, description="Reclaimed files are kept for reuse while there are at most so many in all; choose what usual load needs."
    )
    files_max: int = Field(
        default=100,
        ge=3,
        le=1 << 20,
        description="Files at most, hence the bound of the disk. Reached, adds and updates are refused until deletes free a file; deletes have room "
        "kept for them.",
    )
    check: Literal["hash", "size"] = Field(
        default="hash",
        description="How a new journal seals its records: `hash` notices every damage and cannot be imitated by a payload; `size` is the layout of "
        "the document, for readers with other tools. An existing journal keeps its own.",
    )
    buffer_bytes: int = Field(
        default=512 * 1024,
        ge=4096,
        le=64 * 1024 * 1024,
        description="Records that were not synced are written when so many bytes have gathered. It bounds memory, and the size of one write.",
    )
    replaceable_types: frozenset[int] = Field(
        default=frozenset(),
        description="User types whose updates replace the one before of the same record and type: only the last is kept and loaded.",
    )
    compact_files_min: int = Field(
        default=10, ge=0, description="Files with data below which nothing is compacted by itself; 0 switches that off, `compact()` stays."
    )
    compact_percent: int = Field(
        default=30,
        ge=1,
        le=90,
        description="Files are compacted when at most this share of them lives. Higher frees space sooner and copies more for it.",
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
        description="A sync begins at the earliest so long after the one before began, unless `group_bytes` have gathered. 0: a caller that "
        "arrives while a "
        "sync runs shares the next. More saves syncs on a slow disk and delays a single caller.",
    )
    group_bytes: int = Field(default=256 * 1024, ge=512, description="Bytes that are worth a sync at once, whatever `linger_s` says.")
    flush_s: float = Field(
        default=0.005,
        gt=0,
        le=60,
        description="Records without a waiting caller are synced after this time at the latest. A crash can lose so much of them.",
    )
    unsynced_bytes_max: int = Field(
        default=16 * 1024 * 1024,
        ge=4096,
        description="Appends wait while so many bytes are not synced: a slow disk slows its users instead of gathering what a crash would lose.",
    )
