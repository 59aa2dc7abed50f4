"""The errors that the Delta sink adds. All survive pickling."""

from __future__ import annotations

from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE

__all__ = [
    "GapInTable",
    "KeyMoved",
    "ModeChanged",
    "NotADeltaTable",
    "PositionForgotten",
    "PositionNotReached",
    "RestoreOvertaken",
    "SchemaMismatch",
    "StoreUnavailable",
    "TableLocked",
    "TableReplaced",
    "TableRestored",
    "Undecodable",
    "UnreadableTable",
    "UnsafeTable",
    "UnsupportedDelta",
    "WriteContended",
]


class NotADeltaTable(InvalidRequest):
    """The path holds something that is not a Delta table. Nothing was written.

    To do: choose another path, or move the existing files away."""

    text = "not a delta table"
    path: str
    reason: str


class SchemaMismatch(WaltzError):
    """The table at the path has other columns. Nothing was written.

    To do: choose another table, or change this table or the query to fit."""

    text = "table holds another schema"
    exit_code = USAGE
    path: str
    column: str
    reason: str


class GapInTable(WaltzError):
    """The batch begins after the last transaction that the table holds: writing it would leave out transactions permanently. Nothing was written. The
    checkpoint is ahead of the table, because the table was removed, restored or replaced.

    To do: start with a new checkpoint. The query then continues where the table ends."""

    text = "batch begins after the table's mark"
    advice = "delete the checkpoint; the query then starts where the table ends"
    exit_code = REFUSED
    path: str
    partition: int
    first: int
    last: int


class TableReplaced(WaltzError):
    """The table at the path is not the one that this checkpoint filled: it was removed, recreated or restored from elsewhere. Nothing was written.
    `expected` and `found` are Delta's table ids; `found` is empty if there is no table.

    To do: start with a new checkpoint. The query then continues where the table ends; a table without marks is filled from the configured start."""

    text = "the table is not the one that this checkpoint filled"
    advice = "delete the checkpoint; the query then starts where the table ends"
    exit_code = REFUSED
    path: str
    expected: str
    found: str


class TableRestored(WaltzError):
    """A RESTORE set the table back to `restored_version` while the query was running. Nothing was written after it.

    To do: start with a new checkpoint. The marks go back with the table, and what the RESTORE removed is read from the log again."""

    text = "the table was restored while the query was running"
    advice = "delete the checkpoint and start the query again; it goes on where the restored table ends"
    exit_code = REFUSED
    path: str
    restored_version: int


class RestoreOvertaken(WaltzError):
    """A batch was committed right after a RESTORE, by a writer that had not seen it. The table holds that batch and lacks the transactions between
    the restored version and it.

    To do: stop all queries of the table, restore `version` once more, which removes the batch again; then delete the checkpoint and start."""

    text = "a batch was committed right after a RESTORE that its writer had not seen"
    advice = "stop the table's queries, restore the named version once more, delete the checkpoint, and start again"
    exit_code = REFUSED
    path: str
    version: int


class WriteContended(WaltzError):
    """Other writers committed to the table at each attempt of this batch. Nothing of this batch was written.

    To do: start the query again; it continues from here."""

    text = "table is contended"
    retriable = True
    exit_code = UNAVAILABLE
    path: str
    attempts: int


class StoreUnavailable(WaltzError):
    """The store of the table does not answer, or refuses: it is overloaded, its credentials expired, the bucket does not exist, or the disk is full.
    Each request to an object store was repeated. A commit whose answer was lost is in the table or not; the table's marks show which. VACUUM removes
    the files of one that is not.

    To do: repair what the reason names, and start the query again. It continues where the table ends."""

    text = "the table's store is unavailable"
    retriable = True
    exit_code = UNAVAILABLE
    path: str
    reason: str


class TableLocked(WaltzError):
    """Another process or thread has been committing to the table, which is in a directory of this machine, for `waited_s` seconds. Nothing of this
    batch was written to it. `holder` is the id of that process, None if it is unknown.

    To do: wait until its MERGE, OPTIMIZE or VACUUM is done, or end the process if it hangs; then start the query again. It continues from here."""

    text = "another process is committing to the table"
    advice = "wait for its MERGE, OPTIMIZE or VACUUM, or end the process if it hangs; then start again"
    retriable = True
    exit_code = UNAVAILABLE
    path: str
    waited_s: float
    holder: int | None


class PositionNotReached(WaltzError):
    """The table does not hold this transaction after `waited_s` of waiting. `mark` is the last transaction of the partition that the table holds,
    -1 for none.

    To do: wait longer, or check whether the table's job is running."""

    text = "the table has not reached the log position"
    retriable = True
    exit_code = FAILED
    path: str
    partition: int
    transaction_id: int
    mark: int
    waited_s: float


class PositionForgotten(WaltzError):
    """The table holds the position, but the log entries of the versions that may have held it first were cleaned up.

    To do: use `oldest_version`, the oldest version that the table's log still lists; it holds the position too. A longer
    `delta.logRetentionDuration` keeps more versions."""

    text = "the version that first held the log position was cleaned from the table's log"
    exit_code = FAILED
    path: str
    oldest_version: int


class KeyMoved(WaltzError):
    """A key is in two log partitions, and transaction ids of different partitions have no order. Nothing of this batch was written.

    To do: append a key to one partition always (hash it), or name a sequence in the data that orders its rows across partitions."""

    text = "key in two log partitions"
    exit_code = FAILED
    path: str
    reason: str


class ModeChanged(WaltzError):
    """The table was filled in another mode: appended rows would be updated together, or merged ones appended again. Nothing was written.
    `recorded`: how it was filled, "upsert or history" for a table that does not say which.

    To do: fill another table in the new mode, with a checkpoint of its own, and let readers use it; the log begins again where it is kept."""

    text = "the table is written in another mode"
    advice = "name another table and another checkpoint; the pipeline fills it from the log, or jobs/backfill.py does; then let readers change to it"
    exit_code = USAGE
    path: str
    recorded: str
    declared: str


class Undecodable(WaltzError):
    """A transaction does not have the declared form, or violates a constraint of its table, and nothing was declared for that case. Nothing of this
    batch was written.

    To do: correct the declared columns, drop the constraint, or declare dead letters."""

    text = "a transaction does not fit its table"
    advice = (
        "correct the columns, or drop the constraint; or set dead_letters in the pipeline, --dead-letters PATH of a job, to keep such transactions "
        "aside and go on; "
        "or undecodable, --undecodable, to skip to forget them"
    )
    exit_code = FAILED
    path: str
    reason: str


class UnreadableTable(InvalidRequest):
    """The table needs something of its readers that pyarrow does not do (column mapping, deletion vectors, widened types): it would show other rows
    than the table has. Nothing was read.

    To do: read it with Spark, where `dataframe_at` accepts the same position."""

    text = "table cannot be read without Spark"
    path: str
    reason: str


class UnsafeTable(WaltzError):
    """Rows could be lost at this table whatever the sink does: its store lets two drivers write one version, its file system has no lock that
    prevents this, or a catalog holds commits that the table's log does not show. Nothing was written.

    To do: set what the reason names, or choose another table."""

    text = "table cannot be written safely"
    exit_code = USAGE
    path: str
    reason: str


class UnsupportedDelta(WaltzError):
    """The session's Delta is missing, or of a version that this sink was not verified with.

    To do: use the pinned version."""

    text = "unsupported delta"
    exit_code = FAILED
    expected: str
    got: str
