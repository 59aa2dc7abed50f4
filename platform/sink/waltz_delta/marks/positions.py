"""A log position corresponds to a table version: which version first held it, the table as of it, and a cut that is consistent over several tables.

A position gives the last transaction id of each log partition, as `high_water_marks` does; a partition without an entry is at its beginning. A table
holds a position when its marks are at or above it. Each commit advances a table by a whole batch, so the version that first holds a position may hold
more. A table that keeps every transaction (append) can still be read up to the position exactly, by its columns `partition` and `transaction_id`. A
merged table no longer holds earlier states: it is exact only at positions where one of its batches ended.

Reads only logs and marks, and writes nothing (`positions_log`). VACUUM may have removed data files of a version that the log still lists. Reading
that version fails; `maintain` prevents this for the positions that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any  # Any: pyarrow has no types

from waltz_delta.base.dataset import open_dataset
from waltz_delta.errors import PositionForgotten, PositionNotReached
from waltz_delta.marks.marks import cluster_key_among, marks_among, merge_app_id
from waltz_delta.marks.positions_given import Position, checked_position, expect_partitions
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.marks.positions_restored import current_identifiers
from waltz_log.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Cut", "consistent_cut", "dataframe_at", "dataset_at", "reached", "version_at"]

CUT_VERSIONS_SEARCHED = 1000
"""Versions to search back from the newest one, for a position that several merged tables have in common."""


def reached(marks: Mapping[int, int], position: Mapping[int, int]) -> bool:
    return all(marks.get(partition, -1) >= last for partition, last in position.items())


class _Table:
    """The marks of one cluster among a table's identifiers, over its versions."""

    def __init__(self, path: str, cluster_key: str | None, storage_options: dict[str, str] | None) -> None:
        self.path = path
        self.log = TableLog(path, storage_options)
        self._newest = newest = current_identifiers(self.log)
        self._key = cluster_key or cluster_key_among(newest, path)
        self.merged = self._key is not None and newest.get(merge_app_id(self._key), 0) > 0

    def marks(self, identifiers: Mapping[str, int]) -> dict[int, int]:
        return {} if self._key is None else marks_among(identifiers, self._key)

    @property
    def newest(self) -> dict[int, int]:
        return self.marks(self._newest)

    def version_at(self, position: Mapping[int, int]) -> int:
        expect_partitions(self.path, position, self.newest)
        if not reached(self.newest, position):
            partition = next(partition for partition, last in sorted(position.items()) if self.newest.get(partition, -1) < last)
            mark = self.newest.get(partition, -1)
            raise PositionNotReached(path=self.path, partition=partition, transaction_id=position[partition], mark=mark, waited_s=0.0)
        version, first = self.log.first_version(lambda identifiers: reached(self.marks(identifiers), position))
        if not first:
            raise PositionForgotten(path=self.path, oldest_version=version)
        return version

    def exact_version_at(self, position: Mapping[int, int]) -> int:
        """Like `version_at`, but for a merged table only if a batch ends at the position."""
        version = self.version_at(position)
        if self.merged:
            held = next(self.marks(found) for at, found in self.log.newest_first() if at == version)
            if held != {partition: last for partition, last in position.items() if last >= 0}:
                reason = f"the merged table {self.path} has no version of exactly this position; version {version} holds it and more, up to {held}"
                raise InvalidRequest(reason=f"{reason}: say exact=False to read that")
        return version


def version_at(path: str, position: Position, *, cluster_key: str | None = None, storage_options: dict[str, str] | None = None) -> int:
    """The first version of the table that holds the position.

    Raises `PositionNotReached` if none does yet; `PositionForgotten` if older versions, which may have held it already, were cleaned from the table's
    log; `InvalidRequest` if there is no table (`NotADeltaTable`) or it holds nothing of a partition that the position names."""
    last = checked_position(position)
    return _Table(path, cluster_key, storage_options).version_at(last)


def dataset_at(
    path: str,
    position: Position,
    *,
    exact: bool = True,
    cluster_key: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> Any:
    """The table as of a log position as a `pyarrow.dataset.Dataset`, without a JVM; no data is read yet.

    `exact`: no row above the position; raises `InvalidRequest` if a merged table cannot give that. Otherwise all rows of the first version that holds
    the position. Raises the errors of `version_at`, and `UnreadableTable` for a table that pyarrow would show other rows of than it has."""
    import pyarrow.dataset as datasets

    last_ids = checked_position(position)
    table = _Table(path, cluster_key, storage_options)
    version = table.exact_version_at(last_ids) if exact else table.version_at(last_ids)
    dataset = open_dataset(path, version=version, storage_options=storage_options)
    if not exact or table.merged:
        return dataset
    within: Any = datasets.field("transaction_id") < 0  # of former clusters
    for partition, last in sorted(last_ids.items()):
        within = within | ((datasets.field("partition") == partition) & (datasets.field("transaction_id") <= last))
    return dataset.filter(within)


def dataframe_at(spark: SparkSession, path: str, position: Position, *, exact: bool = True, cluster_key: str | None = None) -> DataFrame:
    """Like `dataset_at`, for Spark."""
    from pyspark.sql import functions as f

    last_ids = checked_position(position)
    table = _Table(path, cluster_key, None)
    version = table.exact_version_at(last_ids) if exact else table.version_at(last_ids)
    rows = spark.read.format("delta").option("versionAsOf", version).load(path)
    if not exact or table.merged:
        return rows
    within = f.col("transaction_id") < 0  # of former clusters
    for partition, last in sorted(last_ids.items()):
        within = within | ((f.col("partition") == partition) & (f.col("transaction_id") <= last))
    return rows.where(within)


@dataclass(frozen=True, slots=True)
class Cut:
    """A position that every table holds, and each table's version for it.

    `exact`: read through `dataset_at` or `dataframe_at` with `exact`, all tables show the same transactions. False if merged tables have no common
    position; each of them is then ahead of it by at most one batch."""

    position: dict[int, int]
    versions: dict[str, int]
    exact: bool


def consistent_cut(paths: Iterable[str], *, cluster_key: str | None = None, storage_options: dict[str, str] | None = None) -> Cut:
    """The newest position that all tables hold. Among merged tables it is the newest that is exact for each of them, if the last thousand versions
    have one. All tables are filled from one cluster's log. Raises `NotADeltaTable` for a path without a table."""
    tables = [_Table(path, cluster_key, storage_options) for path in dict.fromkeys(paths)]
    if not tables:
        raise InvalidRequest(reason="a cut needs at least one table")
    keys = {key for table in tables if (key := table._key) is not None}
    if len(keys) > 1:
        raise InvalidRequest(reason=f"the tables hold the logs of different clusters: {' and '.join(sorted(keys))}")
    common = _least([table.newest for table in tables])
    merged = [table for table in tables if table.merged]
    position = _newest_common(merged, common) if merged else common
    exact = position is not None
    chosen = common if position is None else position
    return Cut(chosen, {table.path: table.version_at(chosen) for table in tables}, exact)


def _least(marks: list[dict[int, int]]) -> dict[int, int]:
    everywhere = set.intersection(*(set(each) for each in marks))
    return {partition: min(each[partition] for each in marks) for partition in sorted(everywhere)}


def _newest_common(tables: list[_Table], bound: Mapping[int, int]) -> dict[int, int] | None:
    """The newest marks, within the bound, that every one of the tables had."""
    shared: dict[tuple[tuple[int, int], ...], None] | None = None
    for table in tables:
        stood: dict[tuple[tuple[int, int], ...], None] = {}
        for number, (_, identifiers) in enumerate(table.log.newest_first()):
            marks = table.marks(identifiers)
            if number >= CUT_VERSIONS_SEARCHED:
                break
            if marks and reached(bound, marks):
                stood.setdefault(tuple(sorted(marks.items())))
        shared = stood if shared is None else {marks: None for marks in shared if marks in stood}
    return dict(next(iter(shared))) if shared else None
