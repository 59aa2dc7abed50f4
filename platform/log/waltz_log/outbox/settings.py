"""Settings of an outbox. Values only; the disk, the cluster and the handlers are given to it beside them."""

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
        description="Intents and dead letters, with 64 bytes for each. All of it is held in memory too, and needs up to four times as much on "
        "disk while it is scattered over files: choose the rate of submits times the longest absence of the log to live through.",
    )
    age_max_s: float | None = Field(
        default=None, gt=0, description="With the oldest intent older than this the outbox counts as full. None: only bytes fill it."
    )
    when_full: Literal["block", "refuse"] = Field(
        default="block", description="What `submit` does then: wait for room, or raise `OutboxFull` at once. A web service refuses."
    )
    submit_timeout_s: float = Field(default=30.0, gt=0, description="How long a blocked `submit` waits before it raises `OutboxFull`.")
    attempts_max: int = Field(
        default=50,
        ge=1,
        description="Runs of a handler, or refused sendings of data, before an intent becomes a dead letter. Lost answers, and a log without "
        "room, do not count.",
    )
    intent_age_max_s: float | None = Field(
        default=None, gt=0, description="An intent older than this is not sent any more but becomes a dead letter. None: intents do not age."
    )
    retry_base_s: float = Field(default=0.05, gt=0, description="First pause before a handler runs again, at most; it doubles, with full jitter.")
    retry_cap_s: float = Field(
        default=30.0, gt=0, description="Longest pause before a handler runs again, and before the client searches for the cluster again."
    )
    handler_timeout_s: float = Field(
        default=30.0, gt=0, description="A run of a handler that lasts longer has failed. It is cancelled, if it can be."
    )
    calls_max: int = Field(
        default=32,
        ge=1,
        description="Calls of one partition that are on their way at once; fewer while they conflict. 1: in the order of submission, key or not.",
    )
    resolve_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="How long the owner may search the log for what is in doubt: it reads the header of every transaction since the first of those.",
    )
    statistics_every_s: float = Field(
        default=1.0, gt=0, description="How often the statistics file is written, which `waltz outbox status` reads, and ages are checked."
    )
    file_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        le=1 << 30,
        description="Size of a journal file, which is written in a ring. An intent must fit into one.",
    )
