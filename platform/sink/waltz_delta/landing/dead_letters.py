"""The table of dead letters: transactions that did not decode, with their position in the log, the reason, and the unchanged data.

Each letter is written exactly once, as rows of any table: the commit that adds the rows has one transaction identifier per log partition. The
identifiers belong to one target (`waltz:<cluster key>:<partition>@<target>`), because several landings can share the table, and each advances at its
own pace. Transactions without a route have marks for each table of their landing, and the highest one counts, so the landing is recognized even if
its outputs change. A batch without dead letters commits nothing. So these marks can lag, and no dead letter lies in between.

A batch that runs again can judge its rows otherwise: its columns were corrected, or its target got a constraint. So letters at or below the marks,
which are above those of the target then, are compared with those that the table holds.

Order: the dead letters of a batch are committed before the table whose mark covers them. If a driver dies between the two commits, the batch runs
again, and the marks drop its dead letters then. In the other order, a lost checkpoint would lose them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from waltz_delta.base import internal
from waltz_delta.base.session import session_properties
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.decode.decode import DATA, PROBLEM
from waltz_delta.engine.allowed import refusal_of_new
from waltz_delta.engine.arrow_table import NotOpened
from waltz_delta.engine.arrow_transaction import new_shape
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.errors import WriteContended
from waltz_delta.landing.append import ATTEMPTS
from waltz_delta.landing.engine_tables import create_by_engine
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID
from waltz_delta.marks.marks import BatchRange, overlap
from waltz_delta.marks.restored import commit_metadata, follow_restore
from waltz_delta.settings import DeadLetterSettings
from waltz_delta.tables.evolution import fitting_columns, held_schema
from waltz_delta.tables.table import create_empty, is_table
from waltz_delta.tables.table_watch import TableWatch

__all__ = ["NO_TARGET", "SCHEMA", "DeadLetters", "Letters"]

SCHEMA = StructType(
    [
        StructField("cluster", StringType()),
        StructField("target", StringType()),
        StructField(PARTITION, IntegerType()),
        StructField(TRANSACTION_ID, LongType()),
        StructField("timestamp", TimestampType()),
        StructField("header", IntegerType()),
        StructField("data", BinaryType()),
        StructField("reason", StringType()),
        StructField("failed_at", TimestampType()),
        StructField("replayed_at", TimestampType()),
    ]
)
"""`target`: path of the table they were meant for, empty if no route accepts them. `replayed_at`: when a replay landed it."""

_PLACE = [PARTITION, TRANSACTION_ID]

NO_TARGET = ""
"""The target of transactions that no route accepts."""

Letters = Callable[[Mapping[int, int]], DataFrame]
"""Returns the dead letters of a batch for one target, above the given marks."""


class DeadLetters:
    """`tables`: all tables that the landing fills. `engine` and `storage`: as in `TargetSettings`."""

    def __init__(
        self,
        path: str,
        cluster_key: str,
        tables: Sequence[str] = (),
        *,
        engine: EngineChoice = "auto",
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.cluster_key = cluster_key
        self.engine = TableEngine(path, engine, storage or {})
        self._tables = tuple(tables)
        self._watch = TableWatch(path)

    @classmethod
    def declared(cls, settings: DeadLetterSettings, cluster_key: str, tables: Sequence[str] = ()) -> DeadLetters:
        return cls(settings.table, cluster_key, tables, engine=settings.engine, storage=settings.storage)

    def exists(self, spark: SparkSession) -> bool:
        """Whether there is a table. Raises `NotADeltaTable` for any other content of the path, and what `TableEngine.begin` raises."""
        table = self.engine.arrow(spark)
        if table is not None:
            with suppress(NotOpened):  # for a reason that leaves the table to Spark's engine
                return table.is_table()
        return is_table(spark, self.path)

    def prepare(self, spark: SparkSession) -> None:
        """Creates the table, without rows and marks, so that its first letters are committed like all others. Raises `UnsupportedDelta`,
        `NotADeltaTable`, `SchemaMismatch`, `UnsafeTable`."""
        shape = new_shape(SCHEMA, (), {}, session_properties(spark))
        self.engine.choose(spark, refusal_of_new(shape, ()))
        table = self.engine.arrow(spark)
        if table is None:
            internal.check_versions(spark)
        if not self.exists(spark):
            if table is None:
                create_empty(spark, self.path, SCHEMA, {})
            else:
                create_by_engine(self.begin(spark), table, shape, {}, metadata=commit_metadata(self.cluster_key))
        fitting_columns(self.path, held_schema(self.begin(spark).schema_text()), SCHEMA, "fail")

    def begin(self, spark: SparkSession) -> TableTransaction:
        """A transaction on the table, by the engine that writes it."""
        return self.engine.begin(spark)

    def follow_restore(self, spark: SparkSession) -> None:
        """If this table was restored together with the tables that its dead letters were meant for, the log is read again, and the dead letters
        must be written again too. From now on `write` compares the table's id with the present one and inspects the commits since."""
        self._watch.begin(follow_restore(spark, self.path, self.cluster_key, partial(self.begin, spark)))
        self._watch.check(spark, self.begin(spark), None)

    def app_id(self, target: str, partition: int) -> str:
        return f"waltz:{self.cluster_key}:{partition}@{hashlib.sha256(target.encode()).hexdigest()[:16]}"

    def write(self, spark: SparkSession, covered: BatchRange, letters: Mapping[str, Letters], batch_id: int | None) -> int:
        """Writes the dead letters of each target above its marks, in one commit with the marks at the end of the batch; below them those that the
        table lacks. Returns how many it wrote.

        Raises `TableReplaced`, `TableRestored`, `RestoreOvertaken`: without the last commits of dead letters, the marks that belong to them are
        wrong."""
        batch, ends = -1 if batch_id is None else batch_id, covered.marks()
        for _ in range(ATTEMPTS):
            transaction = self.begin(spark)
            seen = transaction.read_version
            self._watch.check(spark, transaction, None)
            versions: dict[str, int] = {}
            frames: list[DataFrame] = []
            late: list[DataFrame] = []
            for target, rows in sorted(letters.items()):
                names = {partition: self._names(target, partition) for partition in sorted(ends)}
                held = {p: [mark for name in each if (mark := transaction.version(name)) is not None and mark >= 0] for p, each in names.items()}
                marks = {p: max(found) for p, found in held.items() if found}
                ahead = {name: end for p, end in ends.items() if end > marks.get(p, -1) for name in names[p]}
                if ahead:
                    versions |= ahead
                    frames.append(self._rows(rows(marks), target))
                if passed := overlap(covered, marks):
                    late.append(self._late(rows, target, {p: (covered.starts[p], mark) for p, mark in passed.items()}, transaction))
            added = sum(frame.count() for frame in late)
            if added:
                versions[self._late_id] = (transaction.version(self._late_id) or 0) + 1
            if not versions:
                return 0
            counted, count = internal.counted(reduce(DataFrame.unionByName, [*frames, *late]))
            try:
                written = transaction.write(counted, partition_by=(), properties={})
                committed = transaction.commit(written, versions, query="waltz dead letters", batch=batch, metadata=commit_metadata(self.cluster_key))
            except Exception as error:
                if not transaction.lost_to_another(error):
                    raise
            else:
                if committed > seen + 1:
                    self._watch.check_overtaken(self.begin(spark), seen, committed)
                return count()
        raise WriteContended(path=self.path, attempts=ATTEMPTS)

    @property
    def _late_id(self) -> str:
        """Counts the commits of letters below marks, so that two drivers do not both write them."""
        return f"waltz:{self.cluster_key}:late"

    def _late(self, rows: Letters, target: str, passed: Mapping[int, tuple[int, int]], transaction: TableTransaction) -> DataFrame:
        """The letters at or below marks that the table lacks, as the transaction sees it. The first attempt at a batch judged its rows by other
        rules, such as before the target got a constraint, and ended between its letters and its commit. `passed`: the first and the last transaction
        of the batch that the marks cover, by partition. Executors compare the places, and the driver holds none of them."""
        below = f.lit(False)
        for partition, (first, mark) in sorted(passed.items()):
            below = below | ((f.col(PARTITION) == partition) & f.col(TRANSACTION_ID).between(first, mark))
        candidates = rows({}).where(below)
        held = transaction.rows(candidates.sparkSession, ["cluster", "target", *_PLACE]).where(below)
        there = held.where((f.col("cluster") == self.cluster_key) & (f.col("target") == target)).select(*_PLACE)
        return self._rows(candidates, target).join(there, _PLACE, "left_anti")

    def _names(self, target: str, partition: int) -> list[str]:
        """The identifiers that may hold a mark of a target."""
        if target != NO_TARGET or not self._tables:
            return [self.app_id(target, partition)]
        return [self.app_id(f"{NO_TARGET}\n{table}", partition) for table in self._tables]

    def _rows(self, bad: DataFrame, target: str) -> DataFrame:
        never = f.lit(None).cast("timestamp")
        added = {"cluster": f.lit(self.cluster_key), "target": f.lit(target), "failed_at": f.current_timestamp(), "replayed_at": never}
        return bad.withColumnsRenamed({DATA: "data", PROBLEM: "reason"}).withColumns(added).select(*SCHEMA.fieldNames())
