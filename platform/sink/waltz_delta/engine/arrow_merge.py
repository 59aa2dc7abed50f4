"""An upsert by `deltalake`'s MERGE: the rows of a batch reduced to one for each key, and the statement.

The order of two rows of a key is that of their transaction ids, then that of their places in a transaction (`waltz_delta.landing.upsert`). A key in
two log partitions has no order. Within a batch the reduction refuses it; between batch and table the statement does, by a cast that fails with the
facts.

Source for what MERGE does here: `deltalake` 1.6, and the tests of this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final  # `deltalake` and pyarrow have no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.file_statistics import DECIMAL_DIGITS_MAX
from waltz_delta.errors import KeyMoved
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID

__all__ = ["DELETES", "MOVED", "TABLE_BYTES_MAX", "ArrowMerge", "newest_rows", "refusal_of_merge"]

pc: Any = _pc
DELETES: Final = "_waltz_deletes"
"""Whether a row of the source deletes its key."""
MOVED: Final = "waltz_delta: a key is in two log partitions: "
"""Prefix of the error that the condition of a MERGE raises, in both engines."""

TABLE_BYTES_MAX: Final = 4 << 30
"""A MERGE runs in the driver. Above this size of its files, a table is merged by Spark's executors."""

_KEYS: Final = frozenset({"binary", "boolean", "byte", "date", "integer", "long", "short", "string", "timestamp", "timestamp_ntz"})
"""Types whose equal values are equal for Spark, pyarrow and `deltalake`. Floats are not: -0.0, NaN."""


_CODECS: Final[Mapping[str, Any]] = {"none": "UNCOMPRESSED", "snappy": "SNAPPY", "gzip": "GZIP", "zstd": "ZSTD", "lz4": "LZ4_RAW"}
"""Codecs by pyarrow's names, with those of `deltalake`."""

_PLACE: Final = frozenset({PARTITION, TRANSACTION_ID, ROW})


def refusal_of_merge(shape: TableShape, keys: Sequence[str]) -> str | None:
    """Why the Arrow engine does not merge into this table; None if it does. `allowed` has accepted it."""
    if shape.partition_by:
        return "the Arrow engine does not merge into partitioned tables"
    properties = {name.lower(): value.lower() for name, value in shape.properties.items()}
    if properties.get("delta.appendonly") == "true":
        return "the table is append-only"
    if properties.get("delta.enablechangedatafeed") == "true":
        return "the Arrow engine writes no change data feed"
    wanted = {key.lower() for key in keys}
    for field in shape.schema["fields"]:
        kind = field["type"]
        if field["name"] not in _PLACE and field["name"].lower() in _PLACE:
            return f"the Arrow engine merges by the column {field['name'].lower()} of the log, which the table calls {field['name']}"
        if field["name"].lower() in wanted and kind not in _KEYS:
            return f"the Arrow engine does not merge by {field['name']}, a key of another type than text, whole numbers, dates and times"
        if not field["nullable"]:
            return f"the Arrow engine does not merge into a table with a NOT NULL column: {field['name']}"
        if found := _imprecise(kind):
            return f"MERGE of deltalake would write statistics of {field['name']} that readers must not trust: {found}"
    return None


def _imprecise(kind: Any) -> str | None:
    """A type whose values MERGE does not describe exactly: readers skip files by such statistics, and miss rows."""
    if isinstance(kind, str):
        digits = int(kind[len("decimal(") :].partition(",")[0]) if kind.startswith("decimal(") else 0
        return kind if kind in ("double", "float") or digits > DECIMAL_DIGITS_MAX else None
    if kind["type"] == "struct":
        return next((found for field in kind["fields"] if (found := _imprecise(field["type"]))), None)
    return None  # lists and maps have no statistics


def newest_rows(rows: Any, keys: Sequence[str], path: str) -> Any:
    """Returns the newest row of each key of an Arrow table. Raises `KeyMoved` if a key is in two log partitions."""
    if not rows.num_rows:
        return rows
    order = [TRANSACTION_ID, *(name for name in (ROW,) if name in rows.column_names)]
    ordered = rows.sort_by([(name, "ascending") for name in order])
    # By names of our own: pyarrow reads ".a" and "[a" as paths into a struct, and a key can be called like a result.
    named = {f"key {place}": ordered[key] for place, key in enumerate(keys)}
    facts = pa.table({**named, "at": pa.array(np.arange(ordered.num_rows)), "place": ordered[PARTITION]})
    groups = facts.group_by(list(named), use_threads=False).aggregate([("at", "max"), ("place", "min"), ("place", "max")])
    lowest, highest = groups["place_min"].to_numpy(), groups["place_max"].to_numpy()
    newest = groups["at_max"].to_numpy()
    apart = np.flatnonzero(lowest != highest)
    if len(apart):
        at = int(apart[0])
        moved = ordered[TRANSACTION_ID][int(newest[at])].as_py()
        raise KeyMoved(path=path, reason=f"partitions {lowest[at]} and {highest[at]} {TRANSACTION_ID} {moved}")
    return ordered.take(np.sort(newest))


@dataclass(frozen=True, slots=True)
class ArrowMerge:
    """`source`: the columns of the table and `DELETES`, one row for each key. `columns`: those to set.
    `compression`: of the files, by pyarrow's name."""

    source: Any
    keys: Sequence[str]
    columns: Sequence[str]
    compression: str = "snappy"

    def run(self, handle: Any, commit: Any, hooks: Any) -> bool:
        """Commits what changes rows; False if nothing does, and nothing was committed. `commit`: the properties of the commit, with the marks. Raises
        `KeyMoved` and the errors of `deltalake`."""
        from deltalake import WriterProperties
        from deltalake.exceptions import DeltaError

        values = {_name(column): f"s.{_name(column)}" for column in self.columns}
        newer, deletes = f"({self._newer()})", f"s.{_name(DELETES)}"
        merge = handle.merge(
            self.source,
            predicate=self._same_key(),
            source_alias="s",
            target_alias="t",
            writer_properties=WriterProperties(compression=_CODECS[self.compression]),
            commit_properties=commit,
            post_commithook_properties=hooks,
        )
        merge = merge.when_matched_delete(f"{newer} AND {deletes}").when_matched_update(values, newer)
        before = handle.version()
        try:
            merge.when_not_matched_insert(values, f"NOT {deletes}").execute()
        except DeltaError as error:
            if MOVED not in str(error):
                raise
            raise KeyMoved(path=handle.table_uri, reason=str(error).split(MOVED)[1].split("'")[0]) from None
        return bool(handle.version() != before)

    def _same_key(self) -> str:
        return " AND ".join([*(f"(t.{_name(key)} IS NOT DISTINCT FROM s.{_name(key)})" for key in self.keys), *self._bounds()])

    def _bounds(self) -> list[str]:
        """The range of the first key, so that files outside of it are not read: `deltalake` derives none from the source."""
        values = self.source[self.keys[0]]
        if values.null_count or not self.source.num_rows or not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
            return []
        found = pc.min_max(values).as_py()
        lowest, highest = (value if isinstance(value, int) else "'" + value.replace("'", "''") + "'" for value in (found["min"], found["max"]))
        return [f"(t.{_name(self.keys[0])} BETWEEN {lowest} AND {highest})"]

    def _newer(self) -> str:
        """Whether the source's row is newer than the table's. A row that a user wrote without a place in the log is the oldest. An id below
        0 is of a former cluster, which may have had the key in another partition."""
        ids, places = (f"{side}.{_name(TRANSACTION_ID)}" for side in "ts"), (f"{side}.{_name(PARTITION)}" for side in "ts")
        (old_id, new_id), (old_place, new_place) = ids, places
        facts = f"'{MOVED}partitions ', {_text(old_place)}, ' and ', {_text(new_place)}, ' {TRANSACTION_ID} ', {_text(new_id)}"
        later = f"{old_id} IS NULL OR {new_id} > {old_id}"
        if ROW in self.columns:
            later += f" OR ({new_id} = {old_id} AND (t.{_name(ROW)} IS NULL OR s.{_name(ROW)} > t.{_name(ROW)}))"
        return f"CASE WHEN {new_place} <> {old_place} AND {old_id} >= 0 THEN CAST(concat({facts}) AS BIGINT) = 0 ELSE {later} END"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(expression: str) -> str:
    return f"CAST({expression} AS VARCHAR)"
