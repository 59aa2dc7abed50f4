"""Data that cannot be read: not in the log, corrupt, or without the form that its topic promises."""

from __future__ import annotations

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import MACHINE, UNAVAILABLE, USAGE

__all__ = ["CorruptData", "EnvelopeBroken", "NotCommittedYet", "OutOfRange", "Trimmed"]


class OutOfRange(WaltzError):
    """The range is not in the log, or no longer. The log holds the transactions from `first` to `last`.

    To do: choose a position within the log."""

    text = "out of range: the log does not hold this transaction, only those from first to last"
    exit_code = USAGE
    partition: int
    asked: int
    first: int
    last: int


class NotCommittedYet(OutOfRange):
    """No transaction of this id is committed. The log ends at `last`.

    To do: check the id; if it is that of an append without an answer yet, try again later."""

    text = "not committed yet: the log ends at last"
    exit_code = UNAVAILABLE
    retriable = True


class Trimmed(OutOfRange):
    """Retention removed the transaction. The log begins at `first`.

    To do: nothing brings it back to the log. Search for it in a table or in a backup."""

    text = "the transaction was trimmed by retention"


class CorruptData(WaltzError):
    """Stored or received bytes do not match their checksum or their place.

    To do: read from another replica, and repair this one."""

    text = "corrupt data"
    exit_code = MACHINE
    where: str
    offset: int
    transaction_id: int
    reason: str


class EnvelopeBroken(WaltzError):
    """A transaction of a keyed topic does not begin with a key: a client appended it to the log partition and not to the topic. It is complete, and
    the same on every replica.

    To do: read on above its id to leave it out. `client.feed` of the log partition shows who appended it."""

    text = "the data does not begin with a key: a client appended it to the log partition and not to the topic; read on above its id to leave it out"
    exit_code = MACHINE
    topic: str
    partition: int
    transaction_id: int
