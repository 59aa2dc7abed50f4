"""One output of a landing as a plan: the raw rows of the log, routed, decoded, marked as deletes, filtered, projected; and those that do not decode.

Rows that do not decode are counted while the good rows are read (`Observation`), so a batch without dead letters is decoded once. The sink also
relies on a side effect of the count: Spark moves no filter below it, which would decode every row twice.

What a condition for deletes needs is less than what a row needs. If it asks for the time, a second run for the letters could count as a row what was
a delete before, and the other way round; a transaction would then be neither in the table nor a letter. So such rows are decoded once and held.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.decode.decode import DATA, PROBLEM, decode, project, refuse
from waltz_delta.decode.decoded_source import as_decoded, is_decoded
from waltz_delta.decode.row_checks import MISSING, MISSING_KEY, Checks, partitioned_keys
from waltz_delta.landing.key_values import unstored_key
from waltz_delta.landing.merge_source import AT, DELETED, hold
from waltz_delta.landing.routing import routed
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID
from waltz_delta.settings import OutputSettings

__all__ = ["BAD", "OutputDecoder"]

BAD = "bad"


class OutputDecoder:
    """`undecodable` is resolved here: the output's own setting, otherwise dead letters if there is a table for them."""

    def __init__(self, output: OutputSettings, *, dead_letters: bool) -> None:
        self.output = output
        self.undecodable = output.decode.undecodable or ("dead_letter" if dead_letters else "fail")

    def settled(self, raw: DataFrame) -> DataFrame:
        """The rows to give to `good` and `bad`: decoded and held, if a second run could decode otherwise. Then this runs a job, and the caller
        releases them. Otherwise the raw rows themselves."""
        deletes = self.output.target.deletes
        if deletes is None or deletes.where is None or self.undecodable == "fail":
            return raw
        decoded = self._decoded(raw)
        return hold(decoded) if internal.varies(decoded) else raw

    def good(self, rows: DataFrame, observation: Observation | None = None) -> DataFrame:
        """The rows to land. `observation` counts those that do not decode."""
        decoded = self._decoded(rows)
        if self.undecodable == "fail":
            decoded = refuse(decoded)
        if observation is not None:
            decoded = decoded.observe(observation, f.count(PROBLEM).alias(BAD))
        return self._projected(decoded.where(f.col(PROBLEM).isNull()).drop(DATA, PROBLEM))

    def bad(self, rows: DataFrame) -> DataFrame:
        """The rows that do not decode: position, timestamp and header, data and reason; each transaction once, however many rows it would have
        been."""
        decoded = self._decoded(rows).where(f.col(PROBLEM).isNotNull())
        first = [f.first(name).alias(name) for name in ("timestamp", "header", DATA, PROBLEM)]
        return decoded.groupBy(PARTITION, TRANSACTION_ID).agg(*first)

    def _decoded(self, raw: DataFrame) -> DataFrame:
        if PROBLEM in raw.columns:
            return raw  # settled
        if is_decoded(raw, self.output.decode):
            return as_decoded(raw)
        target, deletes = self.output.target, self.output.target.deletes
        both = tuple(sorted(partitioned_keys(target.keys, target.layout.partition_by)))
        checks = Checks(target.keys if deletes is not None else None, both)
        rows = decode(routed(raw, self.output.route), self.output.decode, checks)
        problems = [f.col(PROBLEM)]
        if deletes is not None:
            deleted = f.expr(f"({deletes.where})") if deletes.where is not None else f.col("header").isin(list(deletes.headers))
            rows = rows.withColumns({DELETED: f.coalesce(deleted, f.lit(False)), AT: f.col("timestamp")})
            if MISSING in rows.columns:
                problems.append(f.when(f.col(DELETED), f.col(MISSING_KEY)).otherwise(f.col(MISSING)))
        if self.output.decode.format == "bytes":
            unstored = unstored_key(rows, target.keys, target.layout.partition_by)
            problems += [unstored] if unstored is not None else []
        return rows.withColumn(PROBLEM, f.coalesce(*problems)).drop(MISSING, MISSING_KEY) if len(problems) > 1 else rows

    def _projected(self, rows: DataFrame) -> DataFrame:
        """A delete passes the filter, since it may carry no more than its key."""
        projection, hidden = self.output.projection, self._hidden()
        where: Column | None = f.expr(f"({projection.where})") if projection.where is not None else None
        if where is not None and hidden:
            where = f.col(DELETED) | where
        return project(rows, where=where, select=projection.select, kept=hidden)

    def _hidden(self) -> Sequence[str]:
        return (DELETED, AT) if self.output.target.deletes is not None else ()
