"""The fold of a history: every version of a key with the range in which it was valid (a slowly changing dimension of type 2). Pure.

A version is valid from its own sequence to that of the next version or delete, exclusive. Everything that starts or ends a version is an event: the
table's versions, their ends, and the rows of the batch. Of the events of one key and one sequence the last one counts: a version or a delete before
a mere end, then the one that is later in the log, and of equal ones that of the table.

An event that is no version becomes a row that was never valid (`valid_to` equals `valid_from`) if no version ends there: it keeps an older row that
arrives later from being the current one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # Any: pyarrow has no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.folds import DELETES, Both, Flags, Folded, Keyed, place_in, refuse_moved, together
from waltz_delta.engine.key_index import ABSENT, Codes, ranks
from waltz_delta.marks.batch import TRANSACTION_ID

__all__ = ["Ranges", "Versions"]

pc: Any = _pc


@dataclass(frozen=True, slots=True)
class Ranges:
    """Names of the table's columns that say when a version begins and ends, and whether it is the current one."""

    valid_from: str
    valid_to: str
    is_current: str


@dataclass(frozen=True, slots=True)
class Versions:
    """`columns`: of the table, which the rows of the batch set. `path`: of the table, for errors."""

    path: str
    keys: Sequence[str]
    sequence: str
    columns: Sequence[str]
    ranges: Ranges

    def reads(self, schema: pa.Schema) -> Sequence[str]:
        return list(schema.names)

    def fold(self, held: Keyed, batch: Keyed, schema: pa.Schema) -> Folded:
        if self.sequence == TRANSACTION_ID:
            refuse_moved(self.path, held, batch)
        events = _events(self, held, batch)
        groups = _groups(events)
        of_held = groups.of_event[: events.held]
        unchanged = ~groups.is_new[of_held] & self._is_same(held.rows.take(pa.array(events.rows[: events.held])), events, groups)
        keep = np.ones(held.rows.num_rows, dtype=bool)
        keep[events.rows[: events.held]] = unchanged
        return Folded(keep, self._added(Both(held.rows, batch.rows), schema, events, groups, unchanged))

    def _is_same(self, rows: Any, events: _Events, groups: _Groups) -> Flags:
        """Whether the held rows among the events end as before."""
        group = groups.of_event[: events.held]
        end = groups.end[group]
        was_open = np.asarray(pc.is_null(rows.column(self.ranges.valid_to)))
        same_end: Flags = np.where(was_open, end == ABSENT, (end != ABSENT) & (events.ends == events.begins[end]))
        same_flag: Flags = np.asarray(pc.fill_null(pc.equal(rows.column(self.ranges.is_current), pa.array(groups.is_current[group])), False))
        return same_end & same_flag

    def _added(self, both: Both, schema: pa.Schema, events: _Events, groups: _Groups, unchanged: Flags) -> Any:
        fresh = np.flatnonzero(groups.is_kept & groups.is_new)
        moved = np.flatnonzero(~groups.is_new[groups.of_event[: events.held]] & ~unchanged)
        bare = np.flatnonzero(groups.is_kept & ~groups.is_new & ~groups.has_held)
        group = np.concatenate([fresh, groups.of_event[moved], bare])
        copied = events.rows[moved]
        replaced = groups.held_row[fresh]
        nothing = np.full(len(bare), ABSENT)
        written = np.concatenate([events.rows[groups.won[fresh]], copied, nothing])
        keyed = np.concatenate([events.rows[groups.won[fresh]], copied, events.rows[groups.won[bare]]])
        other = np.concatenate([replaced, copied, nothing])
        columns = []
        for field in schema:
            if field.name == self.ranges.valid_from:
                column = events.moments.take(pa.array(groups.won[group]))
            elif field.name == self.ranges.valid_to:
                end = groups.end[group]
                column = events.moments.take(pa.array(end, mask=end == ABSENT))
            elif field.name == self.ranges.is_current:
                column = pa.array(groups.is_current[group])
            elif field.name in self.keys:
                column = both.values(field.name, keyed, field.type)
            else:
                column = both.values(field.name, written if field.name in self.columns else other, field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class _Events:
    """First `held` versions of the table, then their ends, then the rows of the batch. `rows`: for each the number of its row, where those of the
    batch follow those of the table. `begins`, `ends`: when it begins, and when the table's version ended, as numbers in the order of time.
    `moments`: the values for `begins`. `place`: the columns that decide between events of one begin, the most important one first."""

    held: int
    of_table: int
    """The number of events that are not of the batch."""
    rows: Codes
    codes: Codes
    begins: Codes
    ends: Codes
    moments: Any
    is_version: Flags
    place: Sequence[Codes]


def _events(fold: Versions, held: Keyed, batch: Keyed) -> _Events:
    """The versions of the table that begin or end before the first row of the batch with their key are not among them: nothing changes there."""
    began, ended = (held.rows.column(name) for name in (fold.ranges.valid_from, fold.ranges.valid_to))
    sequences = batch.rows.column(fold.sequence).cast(began.type)
    begins, ends, given = ranks(began, ended, sequences)
    since = np.full(1 + int(batch.codes.max(initial=-1)), np.iinfo(np.int64).max)
    np.minimum.at(since, batch.codes, given)
    has_end, has_begin = (np.asarray(pc.is_valid(column)) for column in (ended, began))
    reached = ~has_end | (ends >= since[held.codes]) | ~has_begin | (begins >= since[held.codes])
    versions = np.flatnonzero(reached)
    ending = np.flatnonzero(reached & has_end & (ends > begins))
    added = np.arange(batch.rows.num_rows)
    weights = np.repeat([1, 0, 1], [len(versions), len(ending), len(added)])
    place = [weights]
    for name in place_in(batch.rows):
        of_both = ranks(together(held.rows, batch.rows, name))[0]
        place.append(np.concatenate([of_both[versions], np.zeros(len(ending), dtype=np.int64), of_both[held.rows.num_rows :]]))
    place.append(np.repeat([1, 1, 0], [len(versions), len(ending), len(added)]))
    parts = [began.take(pa.array(versions)), ended.take(pa.array(ending)), sequences]
    return _Events(
        held=len(versions),
        of_table=len(versions) + len(ending),
        rows=np.concatenate([versions, ending, held.rows.num_rows + added]),
        codes=np.concatenate([held.codes[versions], held.codes[ending], batch.codes]),
        begins=np.concatenate([begins[versions], ends[ending], given]),
        ends=ends[versions],
        moments=pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=began.type),
        is_version=np.concatenate(
            [~has_end[versions] | (ends > begins)[versions], np.zeros(len(ending), dtype=bool), ~np.asarray(batch.rows.column(DELETES))]
        ),
        place=place,
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """The events of one key and one begin. `won`: the event that counts. `end`: the event at whose begin the group's row ends, `ABSENT` if none does.
    `is_new`: the event that counts is of the batch. `held_row`: the table's row, `ABSENT` if there is none. `is_kept`: the table has a row for
    it. `of_event`: for each event its group."""

    won: Codes
    end: Codes
    is_current: Flags
    is_new: Flags
    has_held: Flags
    held_row: Codes
    is_kept: Flags
    of_event: Codes


def _groups(events: _Events) -> _Groups:
    sort = np.lexsort((*reversed(events.place), events.begins, events.codes))
    codes, begins = events.codes[sort], events.begins[sort]
    is_last = np.ones(len(sort), dtype=bool)
    is_last[:-1] = (codes[1:] != codes[:-1]) | (begins[1:] != begins[:-1])
    last = np.flatnonzero(is_last)
    of_event = np.empty(len(sort), dtype=np.int64)
    of_event[sort] = np.searchsorted(last, np.arange(len(sort)))
    won = sort[last]
    has_next = np.zeros(len(last), dtype=bool)
    has_next[:-1] = codes[last][1:] == codes[last][:-1]
    is_version = events.is_version[won]
    after_version = np.zeros(len(last), dtype=bool)
    after_version[1:] = is_version[:-1] & has_next[:-1]
    held_row = np.full(len(last), ABSENT)
    held_row[of_event[: events.held]] = events.rows[: events.held]
    has_held = held_row != ABSENT
    return _Groups(
        won=won,
        end=np.where(is_version, np.where(has_next, np.roll(won, -1), ABSENT), won),
        is_current=is_version & ~has_next,
        is_new=won >= events.of_table,
        has_held=has_held,
        held_row=held_row,
        is_kept=is_version | has_held | ~after_version,
        of_event=of_event,
    )
