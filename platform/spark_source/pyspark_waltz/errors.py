"""What the source adds to the platform's errors; both say what a data engineer can do.

They survive pickling like all `WaltzError`s: Spark carries them from executors and planner processes to the driver as text and as objects.
"""

from __future__ import annotations

from waltz_log.errors import WaltzError

__all__ = ["DataLost", "RangeUnreadable"]


class DataLost(WaltzError):
    """Transactions that the query still had to read are no longer in the log (trimmed), or never were (a log that was reset).

    The rows are gone for this query. Set `failOnDataLoss` to false to go on without them, or start a new query where the log begins."""

    text = "transactions lost to this query"
    advice = "option failOnDataLoss=false goes on without them"
    partition: int
    first: int
    last: int
    reason: str


class RangeUnreadable(WaltzError):
    """No replica could serve a range within `fetchTimeoutMs`. Nothing is lost; the query goes on from here when it is started again."""

    text = "no replica could serve the range"
    retriable = True
    partition: int
    first: int
    last: int
    waited_ms: int
    attempts: str
