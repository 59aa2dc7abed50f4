"""The records that loading returns, in columns, in the order in which they count, without those that were deleted later.

A record becomes an object only when it is accessed, so loading a million records does not create a million objects. The ledger decides which records
are live: a row is live while its place is one of its record's parts. Dead rows are dropped when they are half of all rows, so live records bound the
memory. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, compress, repeat
from typing import Final, NamedTuple, overload

from waltz_log.journal.record_ledger import Ledger

__all__ = ["LivingRecords", "LoadedRecord", "Rows"]

DEAD_ROWS_MIN: Final = 4096
"""Fewer dead rows are not dropped."""


class LoadedRecord(NamedTuple):
    """One part of a live record: its add, or an update. `user_type`: the number that the caller gave the part."""

    record_id: int
    user_type: int
    body: bytes
    is_update: bool


_loaded_record = partial(tuple.__new__, LoadedRecord)
"""From a tuple of its fields, without a call of Python's."""


class _Run(NamedTuple):
    """Rows in columns. Updates have their flag, adds that came in a run have none."""

    places: Sequence[int]
    record_ids: list[int]
    user_types: list[int]
    bodies: list[bytes]
    updates: list[bool] | None

    def records(self) -> Iterator[LoadedRecord]:
        return map(_loaded_record, zip(self.record_ids, self.user_types, self.bodies, self.updates or repeat(False), strict=False))


class LivingRecords(Sequence[LoadedRecord]):
    """A list of `LoadedRecord`, made as it is read."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._ends = list(accumulate(len(run.record_ids) for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[LoadedRecord]:
        return chain.from_iterable(run.records() for run in self._runs)

    @overload
    def __getitem__(self, index: int) -> LoadedRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[LoadedRecord]: ...
    def __getitem__(self, index: int | slice) -> LoadedRecord | list[LoadedRecord]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        place = bisect_right(self._ends, at)
        run = self._runs[place]
        at -= self._ends[place] - len(run.record_ids)
        return LoadedRecord(run.record_ids[at], run.user_types[at], run.bodies[at], run.updates is not None and run.updates[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class Rows:
    """Gathers what counts, in order; `living` gives what is left of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: list[_Run] = []
        self._loose: _Run | None = None
        self._held = 0

    def add_all(self, places: Sequence[int], record_ids: list[int], user_types: list[int], bodies: list[bytes]) -> None:
        self._runs.append(_Run(places, record_ids, user_types, bodies, None))
        self._loose = None
        self._held += len(record_ids)

    def add(self, place: int, record_id: int, user_type: int, body: bytes, is_update: bool) -> None:
        if self._loose is None:
            self._loose = _Run([], [], [], [], [])
            self._runs.append(self._loose)
        places, record_ids, user_types, bodies, updates = self._loose
        assert isinstance(places, list)
        assert updates is not None
        places.append(place)
        record_ids.append(record_id)
        user_types.append(user_type)
        bodies.append(body)
        updates.append(is_update)
        self._held += 1

    def drop_dead(self) -> None:
        """Forgets the rows that ended, once they are half of what is held."""
        if self._held - self._ledger.live >= max(DEAD_ROWS_MIN, self._held // 2):
            self._drop()

    def _drop(self) -> None:
        living = [self._living_of(run) for run in self._runs]
        self._runs, self._loose = [run for run in living if run.record_ids], None
        self._held = sum(len(run.record_ids) for run in self._runs)

    def _living_of(self, run: _Run) -> _Run:
        parts = self._ledger.places
        now = [parts.get(record_id) for record_id in run.record_ids]
        if now == list(run.places):
            return run
        pairs = zip(now, run.places, strict=True)
        lives = [part == place if isinstance(part, int) else part is not None and place in part for part, place in pairs]
        return _Run(
            list(compress(run.places, lives)),
            list(compress(run.record_ids, lives)),
            list(compress(run.user_types, lives)),
            list(compress(run.bodies, lives)),
            None if run.updates is None else list(compress(run.updates, lives)),
        )

    def living(self) -> LivingRecords:
        if self._held != self._ledger.live:
            self._drop()
        return LivingRecords(self._runs)
