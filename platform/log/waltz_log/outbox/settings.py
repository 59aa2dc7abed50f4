"""Settings of an outbox. Values only; the disk, the cluster and the handlers are separate arguments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["OutboxSettings"]


class OutboxSettings(Settings):
    """Settings of an outbox: how much it stores, and how it retries."""

    bytes_max: int = Field(
        default=128 * 1024 * 1024,
        ge=64 * 1024,
        description="Intents and dead letters, with 64 bytes for each. They are also held in memory, and need up to four times as much "
        "space on disk. Choose the rate of submits times the longest outage of the log to survive.",
    )
    age_max_s: float | None = Field(
        default=None, gt=0, description="If the oldest intent is older, the outbox counts as full. None: only bytes count."
    )
    when_full: Literal["block", "refuse"] = Field(
        default="block",
        description="What `submit` does if the outbox is full: wait for room, or raise `OutboxFull` immediately. In a web service, choose `refuse`.",
    )
    submit_timeout_s: float = Field(default=30.0, gt=0, description="How long a blocked `submit` waits before it raises `OutboxFull`.")
    attempts_max: int = Field(
        default=50,
        ge=1,
        description="Runs of a handler, or refused appends of data, before an intent becomes a dead letter. Lost answers, and a log without "
        "room, do not count.",
    )
    intent_age_max_s: float | None = Field(
        default=None, gt=0, description="An older intent is not sent any more and becomes a dead letter. None: no limit."
    )
    retry_base_s: float = Field(
        default=0.05, gt=0, description="Upper limit of the first pause before a handler runs again. It doubles, with full jitter."
    )
    retry_cap_s: float = Field(
        default=30.0, gt=0, description="Longest pause before a handler runs again, and before the client searches for the cluster again."
    )
    handler_timeout_s: float = Field(default=30.0, gt=0, description="A run of a handler that lasts longer has failed. It is cancelled if possible.")
    calls_max: int = Field(
        default=32,
        ge=1,
        description="Concurrent calls of one partition; fewer while they conflict. 1: in the order of submission, also for different keys.",
    )
    resolve_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="How long the owner can search the log for what is in doubt. It reads the header of every transaction since the oldest one.",
    )
    statistics_every_s: float = Field(
        default=1.0, gt=0, description="How often ages are checked, and the statistics file for `waltz outbox status` is written."
    )
    file_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        le=1 << 30,
        description="Size of a journal file in the ring. An intent must fit into one.",
    )
