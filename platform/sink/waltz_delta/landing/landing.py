"""One query over the log into one or several tables: which rows go to which table, and in which order the tables commit.

Each table decides by its own marks. If a driver dies between the commits of two tables, the next run of the batch finishes it: the tables that hold
the batch drop it. The dead letters of a batch are committed before the first table whose mark covers them. A batch is first staged for every table
(files written, rows reduced and held), which shows whether there are dead letters; then come the commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any  # Any: keyword arguments of the sinks

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pyspark_waltz.options import Positions
from pyspark_waltz.range_rows import transactions_schema
from waltz_delta.base.job_outcome import brief_errors
from waltz_delta.decode.decode import DATA, PROBLEM, refuse
from waltz_delta.decode.transactions import Transactions
from waltz_delta.errors import Undecodable, WriteContended
from waltz_delta.landing.append import ATTEMPTS, DeltaAppend
from waltz_delta.landing.batch_traces import BatchTraces
from waltz_delta.landing.constrained import ConstrainedOutput
from waltz_delta.landing.dead_letters import NO_TARGET, DeadLetters, Letters
from waltz_delta.landing.history import DeltaHistory
from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.landing.output_rows import OutputRows, Prepared
from waltz_delta.landing.routing import unrouted
from waltz_delta.landing.start import FROM_THE_EARLIEST
from waltz_delta.landing.upsert import DeltaUpsert
from waltz_delta.marks.batch import LostRace, above, batch_range, undecodable_in
from waltz_delta.marks.marks import BatchRange
from waltz_delta.marks.restored import follow_restore, marks_as_restored
from waltz_delta.settings import LandingSettings, OutputSettings
from waltz_delta.tables.column_names import check_columns
from waltz_delta.tables.time_zone import depends_on_zone, refuse_other_zone
from waltz_log.statistics import Summed, snapshot

__all__ = ["Landing", "LandingStatistics", "needs_delta", "resulting_schemas", "sink_for"]

REASON_MAX = 500
"""Most characters in the error of a query over undecodable data. Reasons are shorter; the rest of Spark's line is cut."""


@snapshot
@dataclass(frozen=True, slots=True)
class LandingStatistics:
    """Counted since this `Landing` was created."""

    batches: Summed[int] = 0
    """Batches that every table holds."""
    dead_letters: Summed[int] = 0
    """Transactions written to the table of dead letters, once for each table they were meant for."""


class Landing:
    """Lands one query in several tables: `foreachBatch(Landing(settings, cluster_key))`, and `write(rows)` for a batch DataFrame. Two queries must
    not share one: create one for each."""

    def __init__(self, settings: LandingSettings, cluster_key: str, traces: BatchTraces | None = None) -> None:
        """`traces`: completes the traces of appends whose transactions are landed."""
        self.settings = settings
        self._traces = traces
        self.cluster_key = cluster_key
        self._statistics = LandingStatistics()
        self._progress = LandingProgress()
        letters = settings.dead_letters
        tables = [output.target.table for output in settings.outputs]
        self._dead_letters = DeadLetters.declared(letters, cluster_key, tables) if letters is not None else None
        self._decoders = [OutputDecoder(output, dead_letters=letters is not None) for output in settings.outputs]
        self._constrained = [ConstrainedOutput(decoder) for decoder in self._decoders]
        former = [str(key) for key in settings.former_clusters]
        dead_letters = letters is not None
        self._sinks = [sink_for(output, cluster_key, dead_letters=dead_letters, former_clusters=former) for output in settings.outputs]
        self._unrouted = unrouted(output.route for output in settings.outputs) if settings.unrouted != "skip" else None
        self._prepared = False
        self.failed: Exception | None = None
        """The error that ended the last batch of the query. The query's own has only its first line."""

    def prepare(self, spark: SparkSession, schema: StructType, checkpoint: str | None = None) -> None:
        """Raises before the first batch if the landing can never work. `schema` is that of the source's rows. Creates the tables that merges need,
        the table of dead letters, and columns that are to be added. With the query's `checkpoint` it also refuses tables that another query filled
        there."""
        for decoder, sink in zip(self._decoders, self._sinks, strict=True):
            sink.prepare(spark, decoder.good(spark.createDataFrame([], schema)).schema)
            transaction = sink.begin(spark)
            if depends_on_zone(decoder.output):
                refuse_other_zone(spark, sink.path, transaction)
            if checkpoint is not None and transaction.exists:
                sink.watch.check(spark, transaction, checkpoint)
        if self._dead_letters is not None:
            self._dead_letters.prepare(spark)
            self._dead_letters.follow_restore(spark)
        self._prepared = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with brief_errors(self._failed):
            self._land(batch, batch_id)

    def _failed(self, error: Exception) -> None:
        self.failed = error

    def write(self, rows: DataFrame, covered: BatchRange | None = None) -> None:
        """Lands a batch DataFrame by the same rules. `covered`: the range of the log that the rows were read from, if it is known. Otherwise the
        range of the rows' ids is used, which costs a pass over them."""
        self._land(rows, None, covered)

    @property
    def outputs(self) -> Sequence[tuple[OutputDecoder, DeltaAppend | MergeSink]]:
        """For each output, in order: how its rows are selected and decoded, and the sink of its table."""
        return list(zip(self._decoders, self._sinks, strict=True))

    def statistics(self) -> LandingStatistics:
        """What this `Landing` has landed: counts of batches and dead letters."""
        return self._statistics

    def progress(self) -> LandingProgress:
        """How far the tables hold the log as of now, also while a batch runs. From any thread."""
        return replace(self._progress, dead_letters=self._statistics.dead_letters)

    def marks(self, spark: SparkSession) -> dict[str, dict[int, int]]:
        """The marks of each output's table, by its path. After a RESTORE those of the restored version. Writes nothing."""
        return {sink.path: marks_as_restored(spark, sink.path, self.cluster_key, partial(sink.begin, spark)) for sink in self._sinks}

    def starting_transaction_ids(
        self, spark: SparkSession, partitions: Iterable[int], *, otherwise: Positions = FROM_THE_EARLIEST, dry_run: bool = False
    ) -> str:
        """The source's `startingTransactionIds`: after the mark of the table that is furthest behind; `otherwise` for partitions of which some table
        holds nothing. After a RESTORE the marks are restored first; with `dry_run` only in the result."""
        found: dict[int, int] = {}
        if not dry_run:
            for sink in self._sinks:
                follow_restore(spark, sink.path, self.cluster_key, partial(sink.begin, spark))
        marks = self.marks(spark).values()
        for partition in sorted(partitions):
            known = [each.get(partition) for each in marks]
            lowest = min((mark for mark in known if mark is not None), default=None)
            if lowest is None or None in known:
                found[partition] = otherwise.of(partition)
            else:
                found[partition] = lowest + 1
                self._progress = self._progress.known({partition: lowest})
        return json.dumps({str(partition): at for partition, at in found.items()})

    def _land(self, batch: DataFrame, batch_id: int | None, covered: BatchRange | None = None) -> None:
        spark = batch.sparkSession
        if not self._prepared:
            self.prepare(spark, transactions_schema(batch.schema))
        covered = covered or batch_range(batch, batch_id)
        self._progress = self._progress.began(covered)
        for _ in range(ATTEMPTS):
            try:
                self._attempt(spark, batch, covered, batch_id)
            except LostRace:
                continue  # the tables that were committed hold the batch now
            self._statistics = replace(self._statistics, batches=self._statistics.batches + 1)
            self._progress = self._progress.ended(covered, batch_id)
            return
        raise WriteContended(path=", ".join(sink.path for sink in self._sinks), attempts=ATTEMPTS)

    def _attempt(self, spark: SparkSession, batch: DataFrame, covered: BatchRange, batch_id: int | None) -> None:
        with ExitStack() as held:
            ready: dict[int, Prepared] = {}
            for number in range(len(self._sinks)):
                found = self._stage(batch, covered, batch_id, number, held)
                if found is not None:
                    ready[number] = found
            self._write_dead_letters(spark, covered, batch_id, ready)
            began_s = time.perf_counter()
            for found in ready.values():
                found.staged.commit()
            if self._traces is not None and ready:
                ranges = {partition: (covered.starts[partition], mark) for partition, mark in covered.marks().items()}
                self._traces.landed(ranges, began_s, time.perf_counter(), batch_id, len(ready))

    def _stage(self, batch: DataFrame, covered: BatchRange, batch_id: int | None, number: int, held: ExitStack) -> Prepared | None:
        """The first output also counts the rows that no route accepts, because it reads every row. `held` releases what is held."""
        sink, watch = self._sinks[number], self._watched if number == 0 and self._unrouted is not None else None
        rows = OutputRows(self._decoders[number], self._constrained[number], Transactions.of(batch), watch, held)
        try:
            staged = sink.stage(batch.sparkSession, covered, rows, batch_id)
        except Exception as error:
            if (reason := undecodable_in(str(error))) is not None:
                raise Undecodable(path=sink.path, reason=reason[:REASON_MAX]) from None
            raise
        if staged is None:
            return None
        held.callback(staged.release)
        return rows.prepared(staged)

    def _watched(self, raw: DataFrame) -> DataFrame:
        """The raw rows, with a problem for each row that no route accepts."""
        assert self._unrouted is not None
        written = raw.withColumn(PROBLEM, f.when(self._unrouted, f.concat(f.lit("no route for header "), f.col("header").cast("string"))))
        return refuse(written) if self.settings.unrouted == "fail" else written

    def _write_dead_letters(self, spark: SparkSession, covered: BatchRange, batch_id: int | None, ready: Mapping[int, Prepared]) -> None:
        if self._dead_letters is None:
            return
        letters: dict[str, Letters] = {}
        for number, found in ready.items():
            decoder = self._decoders[number]
            if decoder.undecodable == "dead_letter" and (found.bad, found.violated) != (0, 0):
                target = self._sinks[number].path
                letters[target] = _letters(decoder, found)
            if number == 0 and self.settings.unrouted == "dead_letter" and found.unrouted != 0:
                letters[NO_TARGET] = self._unrouted_letters(found.raw)
        if letters:
            written = self._dead_letters.write(spark, covered, letters, batch_id)
            self._statistics = replace(self._statistics, dead_letters=self._statistics.dead_letters + written)

    def _unrouted_letters(self, batch: Transactions) -> Letters:
        return lambda marks: self._watched(batch.above(marks).rows()).where(f.col(PROBLEM).isNotNull()).withColumnRenamed("data", DATA)


def _letters(decoder: OutputDecoder, found: Prepared) -> Letters:
    def rows(marks: Mapping[int, int]) -> DataFrame:
        settled = found.settled
        undecoded = decoder.bad(above(settled, marks) if isinstance(settled, DataFrame) else settled.above(marks))
        if found.judged is None or found.violated == 0:
            return undecoded
        return undecoded.unionByName(found.judged.bad(found.raw.above(marks).rows()))

    return rows


def resulting_schemas(spark: SparkSession, settings: LandingSettings, schema: StructType | None = None) -> dict[str, StructType]:
    """The columns of each table by its path, without any data: those that Spark derives from decoding, filter and projection, and those that the mode
    adds. `schema`: of the source's rows, if the source is asked for more than its usual columns. Raises `InvalidSetting` for names that no table can
    have."""
    from pyspark_waltz.source import SCHEMA

    empty = spark.createDataFrame([], schema if schema is not None else SCHEMA)
    found = {}
    for output in settings.outputs:
        rows = OutputDecoder(output, dead_letters=settings.dead_letters is not None).good(empty)
        sink = sink_for(output, "", dead_letters=settings.dead_letters is not None)
        found[output.target.table] = schema_of_table = sink.table_schema(rows.schema)
        check_columns(schema_of_table, output.target.properties, merged=output.target.mode != "append")
    return found


def needs_delta(settings: LandingSettings) -> bool:
    """Whether this needs Delta in Spark, whatever the tables are: for Spark's engine, or a takeover."""
    letters = settings.dead_letters is not None and settings.dead_letters.engine == "spark"
    return letters or bool(settings.former_clusters) or any(output.target.engine == "spark" for output in settings.outputs)


def sink_for(output: OutputSettings, cluster_key: str, *, dead_letters: bool, former_clusters: Sequence[str] = ()) -> DeltaAppend | MergeSink:
    """The sink of an output. With dead letters, a replay may land something older than a delete, so deletes are remembered."""
    target = output.target
    layout, evolution, properties = target.layout, target.evolution, target.properties
    if target.mode == "append":
        return DeltaAppend(
            target.table,
            cluster_key,
            partition_by=layout.partition_by,
            cluster_by=layout.cluster_by,
            properties=properties,
            evolution=evolution,
            engine=target.engine,
            storage=target.storage,
            former_clusters=former_clusters,
        )
    table: dict[str, Any] = {
        "partition_by": layout.partition_by,
        "cluster_by": layout.cluster_by,
        "properties": properties,
        "evolution": evolution,
        "engine": target.engine,
        "storage": target.storage,
        "former_clusters": former_clusters,
    }
    if target.mode == "history":
        return DeltaHistory(target.table, cluster_key, target.keys, sequence=target.sequence, deletes=target.deletes, names=target.history, **table)
    return DeltaUpsert(
        target.table, cluster_key, target.keys, sequence=target.sequence, deletes=target.deletes, remember_deletes=dead_letters, **table
    )
