"""The outcome of a bulk append: ranges of entries that are in the log, and entries that are not. Only values."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from waltz_log.errors import WaltzError

__all__ = ["Appended", "BulkReceipt", "NotInLog", "joined"]


class Appended(NamedTuple):
    """A range of entries that are in the log: `length` entries from position `first` of the source, with consecutive ids from `transaction_id`."""

    first: int
    length: int
    transaction_id: int


class NotInLog(NamedTuple):
    """A range of entries that failed together: `length` entries from this position in the source, and their error: `LockConflict`, `NotAppended`,
    `InvalidRequest`, or `OutcomeUnknown`, which `resolve` settles, or `resolve_range` if there are several entries."""

    position: int
    error: WaltzError
    length: int = 1


@dataclass(slots=True)
class BulkReceipt:
    """The outcome of a bulk append. `submitted`: the number of entries that were read from the source: all, unless a failure ended the call.
    `appended` and `failed` are sorted by position."""

    partition: int
    submitted: int = 0
    appended: list[Appended] = field(default_factory=list)
    failed: list[NotInLog] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """The number of entries that are in the log."""
        return sum(each.length for each in self.appended)

    def transaction_id(self, position: int) -> int | None:
        """The transaction id of the entry at this position; None if it failed."""
        at = bisect_right(self.appended, position, key=lambda each: each.first) - 1
        if at < 0 or position >= self.appended[at].first + self.appended[at].length:
            return None
        return self.appended[at].transaction_id + position - self.appended[at].first

    def raise_failed(self) -> None:
        """Raises the first failure, if there is one."""
        if self.failed:
            raise self.failed[0].error


def joined(ranges: list[Appended]) -> list[Appended]:
    """The ranges by position, adjacent ones as one. Answers for entries that were sent twice arrive in any order."""
    found: list[Appended] = []
    for each in sorted(ranges):
        last = found[-1] if found else None
        if last is not None and each.first == last.first + last.length and each.transaction_id == last.transaction_id + last.length:
            found[-1] = Appended(last.first, last.length + each.length, last.transaction_id)
        else:
            found.append(each)
    return found
