"""Bugs to plant in how a client settles the rows of its bulk appends (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.client.append.pending_rows import PendingRows
from waltz_log.client.append.sent_frame import SentRows
from waltz_log.errors import WaltzError

__all__: list[str] = []


@bug
def ranges_settled_off_by_one() -> None:
    """The rows of a range that begins within a frame's rows are reported under the id after their own."""

    def commit(self: SentRows, start: int, stop: int, partition: int, transaction_id: int, *given: Any) -> int:
        settled: int = original(self, start, stop, partition, transaction_id + (start > 0), *given)
        return settled

    original: Any = change(SentRows, "commit", commit)


@bug
def conflicts_settled_off_by_one() -> None:
    """A conflict is reported at the position before its own."""

    def fail(self: PendingRows, row: int, count: int, error: WaltzError) -> None:
        original(self, row - (count == 1 and row > self.start), count, error)

    original: Any = change(PendingRows, "fail", fail)
