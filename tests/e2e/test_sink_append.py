"""Append, exactly once: replays, lost and old checkpoints, a second driver, changed limits, other tables at the path."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as AnyWriter
from pyspark.sql import functions as f

from pyspark_waltz.options import LATEST, Positions
from pyspark_waltz.testing import StubCluster
from tests.e2e.committing import Lost, replace_commits
from waltz_delta import DeltaAppend, NotADeltaTable, SchemaMismatch, WriteContended, high_water_marks, shape, starting_transaction_ids
from waltz_delta.base import internal
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.engine.choice import EngineChoice
from waltz_log.errors import InvalidRequest, InvalidSetting

Stub = Callable[..., StubCluster]
KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"


def fill(cluster: StubCluster, partition: int, rows: int) -> None:
    start = cluster.marks().get(partition, -1) + 1
    cluster.append(partition, [json.dumps({"n": start + n, "name": f"row {start + n}"}).encode() for n in range(rows)])


def rows(spark: Any, partition: int, first: int, end: int) -> Any:
    return spark.range(first, end).selectExpr(f"cast({partition} AS INT) AS partition", "id AS transaction_id", "cast(id AS STRING) AS text")


def held(spark: Any, path: Path) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in spark.read.format("delta").load(str(path)).select("partition", "transaction_id").collect())


def ids(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, at) for at in range(first, end)]


class Pipeline:
    """An ingest as the job does it: source, JSON columns, append; the checkpoint may be lost, aged, or forget its last commit."""

    def __init__(self, spark: Any, cluster: StubCluster, directory: Path) -> None:
        self.spark, self.cluster = spark, cluster
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"
        self.engine: EngineChoice = "auto"

    def run(self, wrap: Callable[[DeltaAppend], Callable[[Any, int], None]] = lambda sink: sink, **options: str) -> None:
        start = starting_transaction_ids(self.spark, str(self.table), str(self.cluster.key))
        given = {"cluster": self.cluster.address, "startingTransactionIds": start, **options}
        stream = shape(self.spark.readStream.format("waltz_stub").options(**given).load(), schema="n BIGINT, name STRING")
        sink = DeltaAppend(str(self.table), str(self.cluster.key), engine=self.engine)
        sink.prepare(self.spark, stream.schema)
        query = stream.writeStream.foreachBatch(wrap(sink)).option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()

    def forget_commit(self) -> None:
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdecimal())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def versions(self) -> int:
        return len(list((self.table / "_delta_log").glob("*.json")))

    def check(self) -> None:
        expected = [row for p, mark in sorted(self.cluster.marks().items()) for row in ids(p, 0, mark + 1)]
        assert held(self.spark, self.table) == expected
        assert high_water_marks(str(self.table), str(self.cluster.key)) == self.cluster.marks()


def remove(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.table)
    pipeline.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture
def pipeline(spark: Any, stub: Stub, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, stub(), tmp_path)


def test_decoded_rows_land_with_their_place_in_the_log(pipeline: Pipeline) -> None:
    fill(pipeline.cluster, 0, 20)
    fill(pipeline.cluster, 1, 10)
    pipeline.run()
    pipeline.check()
    table = pipeline.spark.read.format("delta").load(str(pipeline.table))
    assert table.columns == ["partition", "transaction_id", "timestamp", "header", "n", "name"]
    assert table.where("n != transaction_id OR name != concat('row ', n)").count() == 0


def test_replays_of_the_last_batch_add_nothing_and_a_partition_that_was_empty_until_now_is_no_gap(pipeline: Pipeline) -> None:
    for partitions in ([0], [0, 1]):
        for partition in partitions:
            fill(pipeline.cluster, partition, 30 if partition == 0 else 7)
        pipeline.run(maxTransactionsPerTrigger="20")
        before = pipeline.versions()
        for _ in range(2):
            pipeline.forget_commit()
            pipeline.run()
        assert pipeline.versions() == before
        pipeline.check()


def test_a_deleted_checkpoint_goes_on_where_the_table_is(pipeline: Pipeline) -> None:
    fill(pipeline.cluster, 0, 30)
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    fill(pipeline.cluster, 0, 5)
    fill(pipeline.cluster, 1, 5)
    for node in pipeline.cluster.nodes:
        node.reads.clear()
    pipeline.run()
    pipeline.check()
    asked = [(partition, first) for node in pipeline.cluster.nodes for partition, first, _ in node.reads]
    assert min(first for partition, first in asked if partition == 0) == 30, "what the table holds need not even be read"


def test_an_older_checkpoint_is_replayed_and_dropped_whatever_its_limit(pipeline: Pipeline, tmp_path: Path) -> None:
    fill(pipeline.cluster, 0, 30)
    pipeline.run(maxTransactionsPerTrigger="20")
    shutil.copytree(pipeline.checkpoint, tmp_path / "older")
    fill(pipeline.cluster, 0, 30)
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    (tmp_path / "older").rename(pipeline.checkpoint)
    fill(pipeline.cluster, 0, 11)
    pipeline.run(maxTransactionsPerTrigger="13")
    pipeline.check()


def test_two_drivers_on_one_table_write_each_row_once(pipeline: Pipeline, tmp_path: Path) -> None:
    fill(pipeline.cluster, 0, 60)
    fill(pipeline.cluster, 1, 40)
    other = Pipeline(pipeline.spark, pipeline.cluster, tmp_path)
    other.checkpoint = tmp_path / "other"
    failures: list[BaseException] = []

    def run(each: Pipeline, limit: str) -> None:
        try:
            each.run(maxTransactionsPerTrigger=limit)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=arguments) for arguments in ((pipeline, "25"), (other, "35"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    pipeline.check()


@pytest.mark.parametrize("engine", ["spark", "arrow"])
@pytest.mark.parametrize("other", ["spark", "arrow"])
def test_a_batch_lost_to_another_writer_is_judged_again_by_the_new_marks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: EngineChoice, other: EngineChoice
) -> None:
    path = tmp_path / "t"
    sink, rival = DeltaAppend(str(path), KEY, engine=engine), DeltaAppend(str(path), KEY, engine=other)
    sink.write(rows(spark, 0, 0, 10))
    raced: list[bool] = []

    def slow(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            if not raced:
                raced.append(True)
                rival.write(rows(spark, 0, 10, 15))
            return original(*arguments, **named)

        return commit

    replace_commits(monkeypatch, slow)
    sink.write(rows(spark, 0, 5, 20))
    assert held(spark, path) == ids(0, 0, 20)
    assert high_water_marks(str(path), KEY) == {0: 19}


def test_a_writer_that_always_loses_fails_clearly(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    DeltaAppend(str(path), KEY).write(rows(spark, 0, 0, 1))

    def lose(*_: Any, **__: Any) -> int:
        raise Lost("lost")

    replace_commits(monkeypatch, lambda _: lose)
    with pytest.raises(WriteContended):
        DeltaAppend(str(path), KEY, attempts=2).write(rows(spark, 0, 1, 2))


def test_partial_overlap_keeps_only_what_is_new(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = DeltaAppend(str(path), KEY)
    sink.write(rows(spark, 0, 0, 120))
    sink.write(rows(spark, 0, 100, 150).unionAll(rows(spark, 3, 7, 9)))
    sink.write(rows(spark, 0, 100, 150))
    assert held(spark, path) == ids(0, 0, 150) + ids(3, 7, 9)
    assert json.loads(starting_transaction_ids(spark, str(path), KEY)) == {"0": 150, "3": 9}
    assert starting_transaction_ids(spark, str(path), "another cluster") == "earliest"
    mixed = starting_transaction_ids(spark, str(path), KEY, partitions=(0, 1, 2), otherwise=Positions(LATEST, {2: 7}))
    assert json.loads(mixed) == {"0": 150, "1": -1, "2": 7}


def test_a_table_behind_the_checkpoint_is_refused_with_what_it_would_miss(pipeline: Pipeline) -> None:
    fill(pipeline.cluster, 0, 10)
    pipeline.run()
    saved = shutil.copytree(pipeline.table, pipeline.table.with_name("saved"))
    fill(pipeline.cluster, 0, 10)
    pipeline.run()
    shutil.rmtree(pipeline.table)
    saved.rename(pipeline.table)
    pipeline.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    fill(pipeline.cluster, 0, 10)
    with pytest.raises(Exception, match=r"batch begins after the table's mark: .* partition=0 first=10 last=19"):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()


def test_marks_fall_with_a_restore_and_the_log_is_landed_again(pipeline: Pipeline) -> None:
    """RESTORE itself leaves them, and the rows it removed would be missing permanently."""
    for _ in range(2):
        fill(pipeline.cluster, 0, 10)
        pipeline.run()
    table = DeltaTable.forPath(pipeline.spark, str(pipeline.table))
    table.restoreToVersion(0)
    AnyWriter(str(pipeline.table)).alter.set_table_description("a commit of somebody else")
    newest = max((pipeline.table / "_delta_log").glob("*.json"))
    for number in range(1, 60):
        (newest.parent / f"{int(newest.stem) + number:020d}.json").write_text(newest.read_text())
    assert high_water_marks(str(pipeline.table)) == {0: 9}, "the marks describe the restored table before a query sets them"
    fill(pipeline.cluster, 0, 10)
    with pytest.raises(Exception, match=r"batch begins after the table's mark: .* partition=0 first=10 last=19"):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()
    versions = pipeline.versions()
    pipeline.run()
    assert pipeline.versions() == versions, "a restore is followed once"
    pipeline.check()


def test_a_table_that_was_removed_under_its_checkpoint_is_not_filled_from_the_middle(pipeline: Pipeline) -> None:
    fill(pipeline.cluster, 0, 10)
    pipeline.run()
    remove(pipeline)
    fill(pipeline.cluster, 0, 5)
    fill(pipeline.cluster, 1, 5)
    with pytest.raises(Exception, match=r"after the table's mark: .*partition=0 first=0 last=9 \(delete the checkpoint"):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()


def test_a_table_that_replaced_the_filled_one_is_refused(pipeline: Pipeline) -> None:
    """It may hold marks that fit: copied from elsewhere, or made by another query."""
    fill(pipeline.cluster, 0, 10)
    pipeline.run()
    remove(pipeline)
    aside = pipeline.checkpoint.rename(pipeline.checkpoint.with_name("aside"))
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    aside.rename(pipeline.checkpoint)
    fill(pipeline.cluster, 0, 10)
    before = pipeline.versions()
    with pytest.raises(Exception, match=r"not the one that this checkpoint filled: .*\(delete the checkpoint"):
        pipeline.run()
    assert pipeline.versions() == before
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()


def test_a_checksum_file_of_a_replaced_table_is_refused(spark: Any, tmp_path: Path) -> None:
    """Delta reads a table's id and its identifiers from it, so the marks would be those of the table that is gone."""
    ours, gone = tmp_path / "ours", tmp_path / "gone"
    for path, ends in ((ours, (10, 20)), (gone, (10, 15))):
        for first, end in zip((0, 10), ends, strict=True):
            DeltaAppend(str(path), KEY, engine="spark").write(rows(spark, 0, first, end))
    name = f"_delta_log/{1:020d}.crc"
    for left in (ours / "_delta_log").glob(f".{1:020d}.crc*"):
        left.unlink()
    shutil.copy(gone / name, ours / name)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(NotADeltaTable, match=r"00000001\.crc is of another table .* delete the file"):
        DeltaAppend(str(ours), KEY, engine="spark").prepare(spark, rows(spark, 0, 0, 1).schema)
    (ours / name).unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    DeltaAppend(str(ours), KEY).write(rows(spark, 0, 15, 25))
    assert held(spark, ours) == ids(0, 0, 25)


@pytest.mark.parametrize("cached", [True, False])
def test_a_commit_into_a_table_that_was_just_replaced_is_found_and_named(spark: Any, tmp_path: Path, cached: bool) -> None:
    """The log of the new table then holds its own first commit and one of the query's, with a hole between them."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    sink = DeltaAppend(str(ours), KEY, properties={"delta.checkpointInterval": "2"}, engine="spark")
    for first in range(0, 40, 10):
        sink.write(rows(spark, 0, first, first + 10))
    assert CHECKPOINTS.settle(60)
    assert list((ours / "_delta_log").glob("*.checkpoint*.parquet")), "Delta's cache names a file that is about to go"
    DeltaAppend(str(other), KEY, engine="spark").write(rows(spark, 0, 0, 10))
    shutil.copy(ours / "_delta_log" / f"{3:020d}.json", other / "_delta_log")
    shutil.rmtree(ours)
    other.rename(ours)
    if not cached:
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(NotADeltaTable, match=r"its log lacks commits; move away what is left of the table"):
        DeltaAppend(str(ours), KEY, engine="spark").write(rows(spark, 0, 40, 50))


def test_a_checkpoint_that_is_due_does_not_bring_back_a_removed_table(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, due = tmp_path / "t", list[Callable[[], None]]()
    monkeypatch.setattr(CHECKPOINTS, "schedule", lambda _, write: due.append(write))
    sink = DeltaAppend(str(path), KEY, properties={"delta.checkpointInterval": "1"}, engine="spark")
    for first in (0, 10):
        sink.write(rows(spark, 0, first, first + 10))
    shutil.rmtree(path)
    due.pop()()
    assert not list(path.rglob("*.parquet"))
    with pytest.raises(NotADeltaTable):
        high_water_marks(str(path), KEY)


def test_a_restore_under_a_running_query_ends_it_and_nothing_is_left_out(pipeline: Pipeline) -> None:
    fill(pipeline.cluster, 0, 40)
    table = str(pipeline.table)

    def restore_after_the_third(sink: DeltaAppend) -> Callable[[Any, int], None]:
        def each(batch: Any, batch_id: int) -> None:
            sink(batch, batch_id)
            if batch_id == 2:
                DeltaTable.forPath(pipeline.spark, table).restoreToVersion(0)

        return each

    with pytest.raises(Exception, match=r"restored while the query was running: .*restored_version=0 \(delete the checkpoint"):
        pipeline.run(wrap=restore_after_the_third, maxTransactionsPerTrigger="10")
    assert held(pipeline.spark, pipeline.table) == ids(0, 0, 10), "nothing was written over the restored table"
    with pytest.raises(Exception, match=r"batch begins after the table's mark: .* first=10 last=29"):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()


@pytest.mark.slow
def test_a_batch_that_is_committed_right_after_a_restore_says_so_now_and_at_every_start(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.engine = "spark"  # the Arrow engine makes no such commit
    for _ in range(2):
        fill(pipeline.cluster, 0, 10)
        pipeline.run()
    written = internal.TableTransaction.write

    def restore_after_the_check(self: internal.TableTransaction, *arguments: Any, **named: Any) -> Any:
        found = written(self, *arguments, **named)
        DeltaTable.forPath(pipeline.spark, str(pipeline.table)).restoreToVersion(0)
        return found

    fill(pipeline.cluster, 0, 10)
    with monkeypatch.context() as patched:
        patched.setattr(internal.TableTransaction, "write", restore_after_the_check)
        with pytest.raises(Exception, match=r"right after a RESTORE .*version=2 \(.*restore the named version once more"):
            pipeline.run()
    assert held(pipeline.spark, pipeline.table) == ids(0, 0, 10) + ids(0, 20, 30)
    for look in (pipeline.run, lambda: high_water_marks(str(pipeline.table))):
        with pytest.raises(Exception, match=r"right after a RESTORE .* version=2"):
            look()
    DeltaTable.forPath(pipeline.spark, str(pipeline.table)).restoreToVersion(2)
    assert high_water_marks(str(pipeline.table)) == {0: 9}
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    pipeline.check()


def test_rows_that_a_filter_drops_count_as_seen(spark: Any, stub: Stub, tmp_path: Path) -> None:
    cluster = stub()
    fill(cluster, 0, 10)
    path = str(tmp_path / "t")
    stream = spark.readStream.format("waltz_stub").option("cluster", cluster.address).load()
    shaped = shape(stream, schema="n BIGINT", where="n < 4", select="n * 2 AS twice, concat(n, ',') AS text")
    sink = DeltaAppend(path, str(cluster.key))
    query = shaped.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(row.twice for row in spark.read.format("delta").load(path).collect()) == [0, 2, 4, 6]
    assert high_water_marks(path, str(cluster.key)) == {0: 9}


def test_a_path_that_is_no_delta_table_is_refused_before_the_first_batch(spark: Any, tmp_path: Path) -> None:
    schema = rows(spark, 0, 0, 1).schema
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, reported in (("other", "notes.txt"), ("file", "a file")):
        with pytest.raises(NotADeltaTable, match=reported):
            DeltaAppend(str(tmp_path / name), KEY).prepare(spark, schema)
    (tmp_path / "empty").mkdir()
    DeltaAppend(str(tmp_path / "empty"), KEY).prepare(spark, schema)
    with pytest.raises(NotADeltaTable):
        high_water_marks(str(tmp_path / "empty"), KEY)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_a_table_of_another_schema_is_refused_before_the_first_batch(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.sql("SELECT 0 AS partition, 1L AS transaction_id, 'x' AS text, 5 AS extra").write.format("delta").save(path)
    sink = DeltaAppend(path, KEY)
    sink.prepare(spark, rows(spark, 0, 0, 1).schema)
    for changed in (rows(spark, 0, 0, 1).withColumn("more", f.lit(1)), rows(spark, 0, 0, 1).withColumn("text", f.lit(1))):
        with pytest.raises(SchemaMismatch):
            sink.prepare(spark, changed.schema)
    with pytest.raises(InvalidRequest, match="must keep the column transaction_id"):
        sink.prepare(spark, spark.range(1).selectExpr("id AS partition").schema)


def test_columns_are_added_left_out_or_refused_as_declared_also_when_they_change_under_a_running_sink(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaAppend(path, KEY, cluster_by=["transaction_id"]).write(rows(spark, 0, 0, 1))
    more = rows(spark, 0, 1, 2).withColumn("more", f.lit("m"))
    with pytest.raises(SchemaMismatch, match="column=more"):
        DeltaAppend(path, KEY).write(more)
    same = DeltaAppend(path, KEY, evolution="off")
    same.write(more)
    adding = DeltaAppend(path, KEY, evolution="add_columns")
    deep = f.array(f.struct(f.lit(1).alias("user-agent"), f.create_map(f.lit("k"), f.struct(f.lit(2).alias("a-b"))).alias("m")))
    adding.write(rows(spark, 0, 2, 3).withColumns({"more": f.lit("n"), "deep-one": deep}))
    assert spark.read.format("delta").load(path).where("transaction_id = 2").collect()[0]["deep-one"][0]["user-agent"] == 1
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (mine INT)")
    same.write(rows(spark, 0, 3, 4).withColumn("more", f.lit("o")))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN text")
    with pytest.raises(SchemaMismatch, match="column=text"):
        DeltaAppend(path, KEY).write(rows(spark, 0, 4, 5))
    found = spark.read.format("delta").load(path).orderBy("transaction_id").collect()
    assert [(row.transaction_id, row.more, row.mine) for row in found] == [(0, None, None), (1, None, None), (2, "n", None), (3, "o", None)]
    assert high_water_marks(path, KEY) == {0: 3}


def test_optimize_vacuum_columns_and_writes_of_users_between_two_batches_change_nothing(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    sink = DeltaAppend(path, KEY, properties={"delta.enableDeletionVectors": "true"})
    for first, end in ((0, 20), (15, 40)):
        sink.write(rows(spark, 0, first, end))
    table = DeltaTable.forPath(spark, path)
    table.delete("transaction_id = 7")
    table.update("transaction_id = 8", {"text": "'mine'"})
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (9, 0, 'a row of nobody')")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)")
    table.optimize().executeCompaction()
    with spark_settings(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        table.vacuum(0)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for each in (sink, DeltaAppend(path, KEY)):
        each.write(rows(spark, 0, 5, 50))
    assert held(spark, tmp_path / "t") == [at for at in ids(0, 0, 50) if at != (0, 7)] + [(9, 0)], "what users removed stays so, and what they wrote"
    texts = {row.transaction_id: row.text for row in spark.read.format("delta").load(path).where("partition = 0").collect()}
    assert texts == {at: "mine" if at == 8 else str(at) for at in range(50) if at != 7}
    assert high_water_marks(path, KEY) == {0: 49}


@contextmanager
def spark_settings(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_data_that_is_not_the_declared_json_fails_the_query_and_a_log_column_cannot_be_redefined(spark: Any) -> None:
    raw = spark.sql("SELECT 0 AS partition, 0L AS transaction_id, current_timestamp() AS timestamp, 0 AS header, CAST('{\"n\": ' AS BINARY) AS data")
    with pytest.raises(Exception, match="does not decode: transaction 0 of partition 0: is not one JSON object"):
        shape(raw, schema="n BIGINT").collect()
    with pytest.raises(InvalidSetting, match="already a column of the log"):
        shape(raw, schema="header BIGINT")
