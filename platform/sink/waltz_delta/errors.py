"""What the sink adds to the platform's errors. All survive pickling; each says what to do."""

from __future__ import annotations

from waltz_log.errors import InvalidRequest, WaltzError

__all__ = [
    "GapInTable",
    "KeyMoved",
    "NotADeltaTable",
    "PositionForgotten",
    "PositionNotReached",
    "RestoreOvertaken",
    "SchemaMismatch",
    "TableReplaced",
    "TableRestored",
    "Undecodable",
    "UnsafeTable",
    "UnsupportedDelta",
    "WriteContended",
]


class NotADeltaTable(InvalidRequest):
    """The path holds something that is not a Delta table. Nothing was written; choose another path, or move away what is there."""

    text = "not a delta table"
    path: str
    reason: str


class SchemaMismatch(WaltzError):
    """The table at the path holds other columns. Nothing was written; choose another table, or change this one or the query to fit."""

    text = "table holds another schema"
    path: str
    column: str
    reason: str


class GapInTable(WaltzError):
    """The batch begins after what the table holds: writing it would leave out transactions for good. Nothing was written.

    The checkpoint is ahead of the table (the table was removed, restored or replaced). Start with a new checkpoint: the table says where to go on."""

    text = "batch begins after the table's mark"
    advice = "delete the checkpoint; the query then starts where the table ends"
    path: str
    partition: int
    first: int
    last: int


class TableReplaced(WaltzError):
    """The table at the path is not the one that this checkpoint filled: it was removed, recreated or restored from elsewhere. Nothing was written.

    `expected` and `found` are Delta's table ids; `found` is empty where there is no table. Start with a new checkpoint: the table says where to go
    on, and one without marks is filled from the configured start."""

    text = "the table is not the one that this checkpoint filled"
    advice = "delete the checkpoint; the query then starts where the table ends"
    path: str
    expected: str
    found: str


class TableRestored(WaltzError):
    """A RESTORE brought the table back to `restored_version` while the query ran. Nothing was written after it.

    Start with a new checkpoint: the marks go back with the table, and what the RESTORE took away is read from the log again."""

    text = "the table was restored while the query was running"
    advice = "delete the checkpoint and start the query again; it goes on where the restored table ends"
    path: str
    restored_version: int


class RestoreOvertaken(WaltzError):
    """A batch was committed in the moment after a RESTORE, by a writer that had not seen it. The table holds that batch and lacks the transactions
    between the restored version and it.

    With all queries of the table stopped, restore `version` once more, which takes the batch away again; then delete the checkpoint and start."""

    text = "a batch was committed right after a RESTORE that its writer had not seen"
    advice = "stop the table's queries, restore the named version once more, delete the checkpoint, and start again"
    path: str
    version: int


class WriteContended(WaltzError):
    """Others committed to the table each time this batch tried to. Nothing of this batch was written; the query goes on when it is started again."""

    text = "table is contended"
    retriable = True
    path: str
    attempts: int


class PositionNotReached(WaltzError):
    """The table does not hold this transaction yet, nor after `waited_s` of waiting. Wait longer, or see whether its job runs. `mark` is the last
    transaction of the partition that the table holds, -1 for none."""

    text = "the table has not reached the log position"
    retriable = True
    path: str
    partition: int
    transaction_id: int
    mark: int
    waited_s: float


class PositionForgotten(WaltzError):
    """The table holds the position, but the log of the versions that may have held it first was cleaned up. `oldest_version`, which the log still
    tells, holds it too; a longer `delta.logRetentionDuration` keeps more."""

    text = "the version that first held the log position was cleaned from the table's log"
    path: str
    oldest_version: int


class KeyMoved(WaltzError):
    """A key is in two log partitions, and transaction ids of different partitions have no order. Nothing of this batch was written.

    Append a key to one partition always (hash it), or name a sequence of the data that orders its rows across partitions."""

    text = "key in two log partitions"
    path: str
    reason: str


class Undecodable(WaltzError):
    """A transaction is not what was declared, and nothing was declared for that case. Nothing of this batch was written.

    Correct the declared columns, or declare dead letters."""

    text = "data does not decode"
    advice = (
        "correct the columns; or set dead_letters in the pipeline, --dead-letters PATH of a job, to keep such transactions aside and go on; "
        "or undecodable, --undecodable, to skip to forget them"
    )
    path: str
    reason: str


class UnsafeTable(WaltzError):
    """Rows could be lost at this table whatever the sink does: its store lets two drivers write one version, or a catalog holds commits that the
    table's log does not show. Nothing was written. The reason says what to set; otherwise choose another table."""

    text = "table cannot be written safely"
    path: str
    reason: str


class UnsupportedDelta(WaltzError):
    """The session's Delta is missing or of a version that this sink was not verified with. Use the pinned one."""

    text = "unsupported delta"
    expected: str
    got: str
