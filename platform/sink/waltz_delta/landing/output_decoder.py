"""One output of a landing as a plan: the raw rows of the log, routed, decoded, marked as deletes, filtered, projected; and those that do not decode.

Rows that do not decode are counted while the good rows are read (`Observation`), so a batch without dead letters is decoded once. The sink also
relies on a side effect of the count: Spark moves no filter below it, which would decode every row twice.

What a condition for deletes needs is less than what a row needs. If it asks for the time, a second run for the letters could count as a row what was
a delete before, and the other way round; a transaction would then be neither in the table nor a letter. So such rows are decoded once and held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from pyspark_waltz.decode.declarations import holds_variant
from pyspark_waltz.decode.formats import read_schema
from waltz_delta.base import internal
from waltz_delta.base.direct_rows import DirectRows
from waltz_delta.base.session import session_zone
from waltz_delta.decode.decode import DATA, PROBLEM, decode, plan_of, project, refuse
from waltz_delta.decode.row_checks import MISSING, MISSING_KEY, Checks, partitioned_keys
from waltz_delta.decode.row_maker import RowMaker
from waltz_delta.decode.simple_projection import parse_select, parse_where
from waltz_delta.decode.transactions import Selection, Transactions
from waltz_delta.landing.key_values import unstored_key
from waltz_delta.landing.merge_source import AT, DELETED, hold
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID
from waltz_delta.settings import OutputSettings

__all__ = ["BAD", "OutputDecoder"]

BAD = "bad"


class OutputDecoder:
    """`undecodable` is resolved here: the output's own setting, otherwise dead letters if there is a table for them."""

    def __init__(self, output: OutputSettings, *, dead_letters: bool) -> None:
        self.output = output
        self._made: tuple[object, tuple[RowMaker, StructType] | None] | None = None
        self.undecodable = output.decode.undecodable or ("dead_letter" if dead_letters else "fail")

    def settled(self, raw: Transactions | DataFrame) -> DataFrame | None:
        """Decoded and held rows to give to `good` and `bad`, if a second run could decode otherwise: this runs a job, and the caller releases them.
        None if the transactions themselves will do."""
        deletes = self.output.target.deletes
        if deletes is None or deletes.where is None or self.undecodable == "fail":
            return None
        decoded = self._decoded(raw)
        return hold(decoded) if internal.varies(decoded) else None

    def direct(self, rows: Transactions) -> DirectRows | None:
        """The rows to land, made by tasks that read ranges of the log; None if Spark must make them: if they are no ranges, or for deletes, a VARIANT
        and conditions and select lists that are not simple."""
        if rows.selection is None or self.output.target.deletes is not None:
            return None
        made_for = (rows.schema, session_zone(rows.frame.sparkSession))
        if self._made is None or self._made[0] != made_for:
            self._made = (made_for, self._maker(rows))
        maker, selected = self._made[1], self._selected(rows).selection
        assert selected is not None
        return None if maker is None else DirectRows(rows.frame, maker[1], replace(maker[0], selection=selected))

    def _maker(self, rows: Transactions) -> tuple[RowMaker, StructType] | None:
        """How tasks make the rows, of all transactions, and the columns of the rows. None if Spark must make them."""
        projection, settings, plan, schema = self.output.projection, self.output.decode, None, rows.schema
        if settings.format != "bytes":
            plan = plan_of(rows, settings, self._checks(), self._schema)
            if holds_variant(plan.declared):
                return None
            schema = StructType([field for field in plan.result.fields if field.name not in (DATA, PROBLEM)])
        where = () if projection.where is None else parse_where(projection.where, schema)
        columns = [(name, name) for name in schema.names] if projection.select is None else _select(projection.select, schema)
        if where is None or columns is None:
            return None
        made = RowMaker(Selection(), plan, self.undecodable == "fail", where, tuple(columns))
        return made, StructType([StructField(name, schema[column].dataType, metadata=schema[column].metadata) for column, name in columns])

    def good(self, rows: Transactions | DataFrame, observation: Observation | None = None) -> DataFrame:
        """The rows to land. `observation` counts those that do not decode."""
        decoded = self._decoded(rows)
        if self.undecodable == "fail":
            decoded = refuse(decoded)
        if observation is not None:
            decoded = decoded.observe(observation, f.count(PROBLEM).alias(BAD))
        return self._projected(decoded.where(f.col(PROBLEM).isNull()).drop(DATA, PROBLEM))

    def bad(self, rows: Transactions | DataFrame) -> DataFrame:
        """The rows that do not decode: position, timestamp and header, data and reason; each transaction once, however many rows it would have
        been."""
        decoded = self._decoded(rows).where(f.col(PROBLEM).isNotNull())
        first = [f.first(name).alias(name) for name in ("timestamp", "header", DATA, PROBLEM)]
        return decoded.groupBy(PARTITION, TRANSACTION_ID).agg(*first)

    def _selected(self, rows: Transactions) -> Transactions:
        route = self.output.route
        return rows if route is None else rows.with_headers(route.headers)

    @cached_property
    def _schema(self) -> bytes | None:
        """The schema of the data, read once. If its file changed meanwhile, a task could count a transaction as undecodable that its letter then
        decodes, and nothing would hold it."""
        return read_schema(self.output.decode)

    def _checks(self) -> Checks:
        target = self.output.target
        both = tuple(sorted(partitioned_keys(target.keys, target.layout.partition_by)))
        return Checks(target.keys if target.deletes is not None else None, both)

    def _decoded(self, raw: Transactions | DataFrame) -> DataFrame:
        """`raw`: a DataFrame of transactions too, or of decoded ones, which stays as it is."""
        if isinstance(raw, DataFrame):
            if PROBLEM in raw.columns:
                return raw  # settled
            raw = Transactions.of(raw)
        target, deletes = self.output.target, self.output.target.deletes
        rows = decode(self._selected(raw), self.output.decode, self._checks(), self._schema)
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


def _select(text: str, schema: StructType) -> list[tuple[str, str]] | None:
    """The columns as `decode.project` orders them: the position in the log, then the select list; None if Spark must evaluate it."""
    found = parse_select(text, schema.names)
    if found is None:
        return None
    given = {name.lower() for _, name in found}
    own = [name for name in (PARTITION, TRANSACTION_ID, ROW) if name in schema.names and name not in given]
    return [*((name, name) for name in own), *found]
