"""A transaction that is not decided: its operations, their files and offsets, and the records that it holds.

Pure. The journal keeps one for each open or in-doubt transaction, loading one for each it meets. Bodies are not kept.
"""

from __future__ import annotations

from typing import NamedTuple

from waltz_log.journal.record_codec import DELETE_TX
from waltz_log.journal.record_ledger import JournalFile

__all__ = ["Element", "Transaction"]


class Element(NamedTuple):
    kind: int
    record_id: int
    user_type: int
    file: JournalFile
    place: int


class Transaction:
    """`counts`: its records in each file it touched, 0 if the file holds only its prepare; `lives`: whether a record it changed lives for it."""

    __slots__ = ("counts", "elements", "failure", "id", "lives", "prepared")

    def __init__(self, transaction_id: int) -> None:
        self.id = transaction_id
        self.elements: list[Element] = []
        self.counts: dict[JournalFile, int] = {}
        self.lives: dict[int, bool] = {}
        self.prepared = False
        self.failure: str | None = None

    def record(self, kind: int, record_id: int, user_type: int, file: JournalFile, offset: int) -> None:
        self.elements.append(Element(kind, record_id, user_type, file, file.base + offset))
        self.counts[file] = self.counts.get(file, 0) + 1
        self.lives[record_id] = kind != DELETE_TX

    def touch(self, file: JournalFile) -> bool:
        """The file holds something of it from now on. Whether that is new."""
        if file in self.counts:
            return False
        self.counts[file] = 0
        return True

    def summary(self) -> list[tuple[int, int]]:
        """What a prepare or commit lists: (file id, records in it)."""
        return [(file.id, count) for file, count in self.counts.items() if count]

    def in_order_of_effect(self) -> list[Element]:
        """Adds and updates in order, then deletes, as the layout's implementation has it."""
        return [each for each in self.elements if each.kind != DELETE_TX] + [each for each in self.elements if each.kind == DELETE_TX]

    def pin(self) -> None:
        """No file that holds something of it can go."""
        for file in self.counts:
            file.pins += 1

    def unpin(self) -> None:
        for file in self.counts:
            file.pins -= 1
