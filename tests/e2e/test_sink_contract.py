"""What the sink relies on in Delta's and Spark's internals, call by call. A failure here means: another Delta; read it first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

from waltz_delta.base import internal
from waltz_delta.base.checkpoints import CHECKPOINTS, Checkpoints

REPORTED: dict[str, Any] = {"query": "q", "batch": 1, "metadata": ""}


def append(
    transaction: internal.TableTransaction, rows: Any, versions: dict[str, int], *, properties: dict[str, str] | None = None, **reported: Any
) -> int:
    return transaction.commit(transaction.write(rows, partition_by=(), properties=properties or {}), versions, **{**REPORTED, **reported})


def rows(spark: Any, first: int, end: int) -> Any:
    return spark.range(first, end).selectExpr("cast(0 AS INT) AS partition", "id AS transaction_id")


def test_the_pinned_delta_is_the_one_that_runs(spark: Any) -> None:
    internal.check_versions(spark)
    assert spark._jvm.io.delta.package.VERSION() == internal.DELTA_VERSION == "4.4.0"


def test_rows_and_identifiers_stand_in_one_commit_that_makes_the_table(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    transaction = internal.TableTransaction(spark, path)
    assert not transaction.exists
    assert transaction.version("a") is None
    version = append(transaction, rows(spark, 0, 10), {"a": 9, "b": 2**40}, metadata="reported", properties={"delta.appendOnly": "false"})
    assert version == 0
    actions = [json.loads(line) for line in (tmp_path / "t" / "_delta_log" / "00000000000000000000.json").read_text().splitlines()]
    assert {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a} == {"a": 9, "b": 2**40}
    assert sum(json.loads(a["add"]["stats"])["numRecords"] for a in actions if "add" in a) == 10
    assert internal.transaction_versions(spark, path) == {"a": 9, "b": 2**40}
    history = DeltaTable.forPath(spark, path).history(1).collect()[0]
    assert (history.operation, history.userMetadata) == ("STREAMING UPDATE", "reported")


def test_another_schema_is_refused_by_the_writer_itself(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    append(internal.TableTransaction(spark, path), rows(spark, 0, 1), {"a": 1})
    with pytest.raises(Exception, match="DELTA_METADATA_MISMATCH"):
        append(internal.TableTransaction(spark, path), spark.range(1).selectExpr("id AS other"), {"a": 2})
    assert internal.transaction_versions(spark, path) == {"a": 1}


def test_two_transactions_that_read_one_identifier_cannot_both_commit(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    append(internal.TableTransaction(spark, path), rows(spark, 0, 1), {"a": 0})
    first, second, apart = (internal.TableTransaction(spark, path) for _ in range(3))
    for transaction, name in ((first, "a"), (second, "a"), (apart, "c")):
        transaction.version(name)
    append(first, rows(spark, 1, 2), {"a": 1})
    with pytest.raises(Exception, match="DELTA_CONCURRENT_TRANSACTION") as caught:
        append(second, rows(spark, 1, 2), {"a": 1})
    assert second.lost_to_another(caught.value)
    apart.mark({"c": 5}, query="q", batch=1, metadata="")
    assert internal.transaction_versions(spark, path) == {"a": 1, "c": 5}
    assert not internal.TableTransaction(spark, path).lost_to_another(ValueError("another"))


def test_identifiers_of_the_checksum_file_are_those_of_the_state(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(12):
        transaction = internal.TableTransaction(spark, path)
        transaction.mark({"a": n, f"b{n}": 7}, query="q", batch=1, metadata="") if n else append(transaction, rows(spark, 0, 1), {"a": 0, "b0": 7})
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    fresh = internal.TableTransaction(spark, path)
    state = dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(fresh._transaction.snapshot().transactions()))
    assert fresh._transaction.snapshot().checksumOpt().get().setTransactions().isDefined()
    assert fresh.versions() == state == {"a": 11} | {f"b{n}": 7 for n in range(12)}
    (tmp_path / "t" / "_delta_log" / "00000000000000000011.crc").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert internal.transaction_versions(spark, path) == state, "a table without checksum files works as well"


def test_any_thread_reads_identifiers_of_a_table_whose_last_commit_has_no_checksum(spark: Any, tmp_path: Path) -> None:
    """A writer that is killed right after its commit leaves such a table. Rebuilding the state from a checkpoint needs a session of the thread, which
    a pipeline's thread does not have from the start."""
    path, log = str(tmp_path / "t"), tmp_path / "t" / "_delta_log"
    for end in (10, 20, 30, 40):
        append(internal.TableTransaction(spark, path), rows(spark, end - 10, end), {"a": end - 1}, properties={"delta.checkpointInterval": "2"})
    assert CHECKPOINTS.settle(60)
    assert (log / "_last_checkpoint").exists()
    checksum = log / "00000000000000000003.crc"
    checksum.unlink()
    checksum.with_name(f".{checksum.name}.crc").unlink(missing_ok=True)
    forget = spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache
    forget()
    assert not internal.TableTransaction(spark, path)._transaction.snapshot().checksumOpt().isDefined()
    forget()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(internal.transaction_versions, spark, path).result(60) == {"a": 39}
        assert other.submit(lambda: internal.TableTransaction(spark, path).versions_at(2)).result(60) == {"a": 29}


def test_two_transactions_that_make_the_table_conflict(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    first, second = (internal.TableTransaction(spark, path) for _ in range(2))
    for transaction in (first, second):
        transaction.version("a")
    append(first, rows(spark, 0, 1), {"a": 0})
    with pytest.raises(Exception, match="DELTA_") as caught:
        append(second, rows(spark, 0, 1), {"a": 0})
    assert second.lost_to_another(caught.value)


def test_identifiers_survive_user_writes_compaction_and_vacuum(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(3):
        append(internal.TableTransaction(spark, path), rows(spark, n, n + 1), {"a": n})
    table = DeltaTable.forPath(spark, path)
    table.update("transaction_id = 0", {"partition": "partition + 1"})
    table.optimize().executeCompaction()
    table.vacuum()
    assert internal.transaction_versions(spark, path) == {"a": 2}


def test_restore_leaves_identifiers_and_the_commits_report_of_it(spark: Any, tmp_path: Path) -> None:
    """Should RESTORE bring them back some day, `waltz_delta/marks/restored.py` is not needed any more."""
    path = str(tmp_path / "t")
    append(internal.TableTransaction(spark, path), rows(spark, 0, 1), {"a": 0})
    append(internal.TableTransaction(spark, path), rows(spark, 1, 2), {"a": 1}, metadata="reported")
    DeltaTable.forPath(spark, path).restoreToVersion(0)
    transaction = internal.TableTransaction(spark, path)
    assert transaction.versions() == {"a": 1}
    assert [transaction.versions_at(version) for version in range(3)] == [{"a": 0}, {"a": 1}, {"a": 1}]
    (last, restore), (_, own_append), *more = transaction.commits(10)
    assert (last, restore["operation"], restore["operationParameters"]["version"]) == (2, "RESTORE", 0)
    assert (own_append["operationParameters"]["queryId"], own_append["userMetadata"]) == ("q", "reported")
    assert [version for version, _ in more] == [0]
    assert [version for version, _ in transaction.commits(2)] == [2, 1]
    assert internal.table_version(spark, path) == 2
    assert internal.table_version(spark, str(tmp_path / "none")) == -1


def test_no_commit_waits_for_the_checkpoint_that_is_due(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, log = str(tmp_path / "t"), tmp_path / "t" / "_delta_log"
    due: list[Any] = []
    now_s = 0.0
    checkpoints = Checkpoints(lambda: now_s)
    monkeypatch.setattr(checkpoints, "schedule", lambda _, write: due.append(write))
    monkeypatch.setattr(internal, "CHECKPOINTS", checkpoints)
    for version in range(12):
        assert not due, "ten commits alone are not enough"
        now_s = 60.0 if version == 11 else 0.0
        append(internal.TableTransaction(spark, path), rows(spark, version, version + 1), {"a": version})
    assert not list(log.glob("*.checkpoint*.parquet"))
    with ThreadPoolExecutor(1) as other:  # it has no session of its own
        other.submit(due.pop()).result()
    assert [each.name for each in log.glob("*.checkpoint*.parquet")] == [f"{11:020d}.checkpoint.parquet"]
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 11
    append(internal.TableTransaction(spark, path), rows(spark, 12, 13), {"a": 12})
    assert internal.transaction_versions(spark, path) == {"a": 12}
    assert spark.read.format("delta").load(path).count() == 13


def test_a_merge_whose_version_was_used_is_skipped_and_gives_no_row(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows(spark, 0, 3).write.format("delta").save(path)

    def merge(version: int, source: Any = None) -> list[Any]:
        settings = {"write.txnAppId": "m", "write.txnVersion": str(version), "commitInfo.userMetadata": f"at {version}"}
        for name, value in settings.items():
            spark.conf.set(f"spark.databricks.delta.{name}", value)
        try:
            into = DeltaTable.forPath(spark, path).alias("t")
            given = rows(spark, 2, 5) if source is None else source
            found = into.merge(given.alias("s"), "t.transaction_id = s.transaction_id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
            return list(found.execute().collect())
        finally:
            for name in settings:
                spark.conf.unset(f"spark.databricks.delta.{name}")

    assert [row.num_inserted_rows for row in merge(5)] == [2]
    assert merge(5) == []
    assert merge(4) == []
    assert internal.transaction_versions(spark, path) == {"m": 5}
    assert DeltaTable.forPath(spark, path).history(1).collect()[0].userMetadata == "at 5"
    assert len(merge(6, rows(spark, 0, 0))) == 1
    assert internal.transaction_versions(spark, path) == {"m": 6}, "also a merge of nothing uses its number"


def test_a_plan_over_a_table_sees_what_comes_later_unless_it_names_a_version(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows(spark, 0, 3).write.format("delta").save(path)
    moving = spark.read.format("delta").load(path)
    fixed = spark.read.format("delta").option("versionAsOf", internal.table_version(spark, path)).load(path)
    rows(spark, 3, 5).write.format("delta").mode("append").save(path)
    assert (moving.count(), fixed.count()) == (5, 3)


def test_offsets_of_a_batch_are_those_of_the_checkpoint(spark: Any, stub: Any, tmp_path: Path) -> None:
    cluster = stub()
    cluster.append(0, [b"x"] * 10)
    found = []

    def keep(batch: Any, batch_id: int) -> None:
        found.append((batch_id, internal.batch_offsets(batch, batch_id)))

    stream = spark.readStream.format("waltz_stub").option("cluster", cluster.address).option("maxTransactionsPerTrigger", "6").load()
    query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    logged = [(tmp_path / "c" / "offsets" / str(n)).read_text().splitlines()[-1] for n in range(2)]
    assert found == [(0, (None, logged[0])), (1, (logged[0], logged[1]))]
    assert internal.batch_offsets(spark.range(1), 0) is None
