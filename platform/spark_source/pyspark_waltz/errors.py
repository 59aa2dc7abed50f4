"""The errors that the Spark source adds.

They survive pickling like every `WaltzError`: Spark passes them from executors and planner processes to the driver as text and as objects.
"""

from __future__ import annotations

from waltz_log.errors import WaltzError
from waltz_log.exit_codes import FAILED, UNAVAILABLE

__all__ = ["DataLost", "DoesNotDecode", "RangeUnreadable"]


class DataLost(WaltzError):
    """Transactions that the query still had to read are no longer in the log (trimmed), or never were (a log that was reset). The rows are lost to
    this query.

    To do: set `failOnDataLoss` to false to continue without them, or start a new query where the log begins."""

    text = "transactions lost to this query"
    advice = "option failOnDataLoss=false goes on without them"
    exit_code = FAILED
    partition: int
    first: int
    last: int
    reason: str


class RangeUnreadable(WaltzError):
    """No replica could serve a range within `fetchTimeoutMs`. Nothing is lost.

    To do: start the query again; it continues from here."""

    text = "no replica could serve the range"
    retriable = True
    exit_code = UNAVAILABLE
    partition: int
    first: int
    last: int
    waited_ms: int
    attempts: str


class DoesNotDecode(WaltzError):
    """With `undecodable=fail`, a transaction does not decode to the declared columns. Nothing is lost.

    To do: correct `columns` or `decode`, or set `undecodable` to `keep` and decide in the query."""

    text = "the transaction does not decode"
    advice = "option undecodable=keep reads on"
    exit_code = FAILED
    partition: int
    transaction_id: int
    reason: str
