"""Which records are live, in which files their parts are, and which files are no longer needed.

Pure bookkeeping: no I/O. It holds one place for each live record and no body, so its memory is bounded by the live records. The same calls are made
while records are appended and while they are loaded, so that a restart reaches the same result as the running journal.

A file can be freed (reused or removed) when it holds no live record, nothing of an open transaction, and every file that it must outlive is freed,
too:

- a delete must outlive the parts of the record it cancels, or they would be loaded again ("zombie adds");
- what replaces a part (a later update of a replaceable type, a record written again by compaction) must outlive that part, likewise;
- a commit or rollback must outlive the records of its transaction: without it they would be undecided again.

Invariants: `live` of a file is the number of adds and updates in it that are some living record's; no file is freed before those that it must
outlive. Source: the layout's "Holes on Transactions"; docs/internals/journal.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

__all__ = ["JournalFile", "Ledger", "reclaimable"]

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class JournalFile:
    """A file of the ring. `serial` counts the uses of files since the journal was opened, in the order of their ids, which wrap; `serial` does
    not."""

    __slots__ = ("bytes", "damaged", "end", "gone", "id", "live", "name", "outlives", "pins", "records", "serial", "size")

    def __init__(self, name: str, file_id: int, size: int, serial: int) -> None:
        self.name = name
        self.id = file_id
        self.size = size
        self.serial = serial
        self.end = 0
        """Behind the last record; 0 if there is none."""
        self.records = 0
        self.bytes = 0
        """Adds and updates written to it, and their bytes."""
        self.live = 0
        self.pins = 0
        """Open transactions that have something in it."""
        self.outlives: dict[JournalFile, None] = {}
        self.damaged = False
        self.gone = False

    @property
    def base(self) -> int:
        """The place of its first byte; a place is `base + offset`, and places compare as the order of writing."""
        return self.serial << OFFSET_BITS

    @property
    def live_bytes(self) -> int:
        """An estimate: the share of its records that live, of their bytes."""
        return self.bytes * self.live // self.records if self.records else 0

    def must_outlive(self, other: JournalFile) -> None:
        if other is not self and not other.gone:
            self.outlives[other] = None


def reclaimable(living: Sequence[int], outlives: Sequence[Collection[int]]) -> list[bool]:
    """Which files can go. `living`: what still lives in each or belongs to an open transaction; `outlives`: the files that each must outlive,
    by index. The largest set such that nothing lives in it and all that its members must outlive is in it."""
    can = [count <= 0 for count in living]
    settled = False
    while not settled:
        settled = True
        for file, others in enumerate(outlives):
            if can[file] and not all(can[other] for other in others):
                can[file] = False
                settled = False
    return can


class Ledger:
    """`places`: record id to the place of its add, or to the places of its add and updates in order. To be read by others, changed by the methods."""

    def __init__(self, replaceable_types: Collection[int] = ()) -> None:
        self.places: dict[int, int | list[int]] = {}
        self.files: dict[int, JournalFile] = {}
        """All files with records, by serial."""
        self._replaceable_types = frozenset(replaceable_types)
        self._replaceable: dict[int, dict[int, int]] = {}
        """Record id to the place of the last update of each replaceable type."""

    @property
    def live(self) -> int:
        """How many parts all living records have."""
        return sum(file.live for file in self.files.values())

    def parts(self, record_id: int) -> list[int]:
        found = self.places.get(record_id, [])
        return [found] if isinstance(found, int) else found

    def file_of(self, place: int) -> JournalFile:
        return self.files[place >> OFFSET_BITS]

    # ---- what happened to a record ---------------------------------------------------------------------------------------------------------------

    def add(self, record_id: int, file: JournalFile, offset: int) -> None:
        """Records the first part of a record. If the record was live already, it was written again, and this part replaces it."""
        if record_id in self.places:
            self.delete(record_id, file)
        self.places[record_id] = file.base + offset
        file.live += 1

    def add_all(self, record_ids: Sequence[int], places: Sequence[int], file: JournalFile) -> None:
        """Many that did not live before."""
        self.places.update(zip(record_ids, places, strict=True))
        file.live += len(record_ids)

    def update(self, record_id: int, user_type: int, file: JournalFile, offset: int) -> None:
        """One more part. A record that is not known is legal where its add is lost: then it consists of updates."""
        parts = self.parts(record_id)
        place = file.base + offset
        if user_type in self._replaceable_types:
            latest = self._replaceable.setdefault(record_id, {})
            before = latest.get(user_type)
            if before is not None:
                parts.remove(before)
                self._cancel(before, file)
            latest[user_type] = place
        parts.append(place)
        self.places[record_id] = parts
        file.live += 1

    def delete(self, record_id: int, by: JournalFile) -> None:
        """The record ends; `by` holds what ends it. Nothing happens where it is not known."""
        found = self.places.pop(record_id, None)
        if isinstance(found, int):
            self._cancel(found, by)
        elif found is not None:
            self._replaceable.pop(record_id, None)
            for place in found:
                self._cancel(place, by)

    def _cancel(self, place: int, by: JournalFile) -> None:
        file = self.files[place >> OFFSET_BITS]
        file.live -= 1
        if file is not by:
            by.must_outlive(file)

    # ---- what can go -----------------------------------------------------------------------------------------------------------------------------

    def reclaim(self, current: JournalFile | None) -> list[JournalFile]:
        """Removes the files that can be freed from the ledger, in the order in which they must be overwritten. Never the current one. All that was
        appended must be on the medium, because the records that cancel a file's contents allow it to be overwritten."""
        files = list(self.files.values())
        for file in files:
            file.outlives = {other: None for other in file.outlives if not other.gone}
        place = {file: index for index, file in enumerate(files)}
        living = [file.live + file.pins + (file is current) for file in files]
        can = reclaimable(living, [[place[other] for other in file.outlives] for file in files])
        waiting = sorted((file for file, go in zip(files, can, strict=True) if go), key=lambda file: file.serial)
        going: list[JournalFile] = []
        progress = True
        while progress:
            # Once through in the order of age is nearly always all: a record that cancels comes after the record that it cancels.
            progress, stuck = False, []
            for file in waiting:
                if all(other.gone for other in file.outlives):
                    file.gone = progress = True
                    del self.files[file.serial]
                    going.append(file)
                else:
                    stuck.append(file)
            waiting = stuck
        return going
