"""Settings of an application on an SQL database. Values only; the engine is a separate argument."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["SqlSettings"]


class SqlSettings(Settings):
    """Settings of an `SqlApplication`."""

    table: str = Field(
        default="waltz_high_water_marks",
        min_length=1,
        max_length=63,
        description="Table of the marks, created if it is missing. Change the name only if it is in use.",
    )
    batch_transactions: int = Field(
        default=256,
        ge=1,
        description="Transactions of the log applied in one database transaction, at most. More is faster; other processes wait for one that long.",
    )
    retry_s: float = Field(
        default=30.0,
        ge=0,
        description="How long a database that is locked or away is tried again before the error counts. Choose it longer than its fail-over.",
    )
    retry_base_s: float = Field(default=0.01, gt=0, description="First pause before that, at most; it doubles up to the maximum, with full jitter.")
    retry_cap_s: float = Field(default=1.0, gt=0, description="Longest pause.")
