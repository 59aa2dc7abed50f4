"""The lock of a local table's directory, in a real session: a commit holds it, and waits while another process holds it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from delta.tables import DeltaTable

from tests.unit.sink.base.lock_holders import another_process
from waltz_delta import DeltaAppend, DeltaUpsert
from waltz_delta.base import internal, log_store
from waltz_delta.base.local_lock import locked
from waltz_delta.base.log_store import one_committer
from waltz_delta.errors import NotADeltaTable, TableLocked
from waltz_delta.jobs.maintain import Needs, maintain_table
from waltz_delta.jobs.maintained_tables import Tables
from waltz_delta.settings import DeleteSettings

KEY = "00000000-0000-0000-0000-000000000001"


def rows(spark: Any, first: int, *more: str) -> Any:
    return spark.range(first, first + 2).selectExpr("0 AS partition", "id AS transaction_id", "id AS k", "timestamp'2026-01-01' AS timestamp", *more)


def versions(place: Path) -> set[tuple[str, int]]:
    """Each version of each table below."""
    return {(path.parent.parent.name, int(path.stem)) for path in place.glob("**/_delta_log/*.json") if path.stem.isdecimal()}


def test_every_version_that_the_sink_creates_is_created_within_the_lock(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within: set[tuple[str, int]] = set()

    @contextmanager
    def observed(directory: str) -> Iterator[None]:
        with locked(directory):
            before = versions(Path(directory))
            yield
            within.update(versions(Path(directory)) - before)

    monkeypatch.setattr(log_store, "locked", observed)
    appended, keyed = str(tmp_path / "appended"), str(tmp_path / "keyed")
    DeltaAppend(appended, KEY, engine="arrow").write(rows(spark, 0))
    DeltaAppend(appended, KEY, engine="arrow", evolution="add_columns").write(rows(spark, 2, "1 AS added"))
    DeltaAppend(str(tmp_path / "by_spark"), KEY, engine="spark").write(rows(spark, 0))
    maintain_table(Tables(spark), appended, Needs(), small_bytes=1 << 20)
    deletes = DeleteSettings(where="k = 1", tombstones=str(tmp_path / "tombstones"))
    DeltaUpsert(keyed, KEY, ["k"], deletes=deletes, remember_deletes=True, engine="spark").write(rows(spark, 0))
    assert within == versions(tmp_path)
    operations = {row[0] for row in DeltaTable.forPath(spark, appended).history().select("operation").collect()}
    assert operations >= {"CREATE TABLE", "ADD COLUMN", "WRITE", "OPTIMIZE", "VACUUM START", "VACUUM END"}


def marks(spark: Any, path: str) -> int:
    return internal.TableTransaction(spark, path).mark({"a": 1}, query="q", batch=0, metadata="{}")


WAYS: dict[str, Callable[[Any, str], object]] = {
    "append": lambda spark, path: DeltaAppend(path, KEY, engine="spark").write(rows(spark, 2)),
    "marks": marks,
    "compaction": lambda spark, path: maintain_table(Tables(spark), path, Needs(), small_bytes=1 << 20, vacuum=False),
}


def test_a_commit_waits_for_another_process_that_holds_the_lock(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "legs"
    DeltaAppend(str(table), KEY, engine="spark").write(rows(spark, 0))
    for way, commit in WAYS.items():
        waits, before = Event(), versions(table)

        def sleep(seconds: float, waits: Event = waits) -> None:
            waits.set()
            Event().wait(seconds)

        monkeypatch.setattr(log_store, "locked", partial(locked, within_s=120, sleep=sleep))
        with another_process(table) as holder, ThreadPoolExecutor(1) as other:
            committed = other.submit(commit, spark, str(table))
            try:
                assert waits.wait(60), f"{way} did not wait"
                assert versions(table) == before, way
            finally:
                holder.communicate("")
            committed.result(60)
        assert len(versions(table)) == len(before) + 1, way


def test_all_paths_of_one_table_have_one_lock(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "legs"
    table.mkdir()
    (tmp_path / "link").symlink_to(table)

    def attempt() -> None:
        with locked(str(table), within_s=0):
            pytest.fail("locked twice")

    for path in (f"file:{table}", f"file://{tmp_path}/link", f"{table}/"):
        with one_committer(spark, path), ThreadPoolExecutor(1) as other, pytest.raises(TableLocked):
            other.submit(attempt).result(10)


def of_another(checksum: Path) -> bytes:
    """A hidden checksum file that does not fit."""
    held = checksum.read_bytes()
    return held[:-1] + bytes([held[-1] ^ 1])


def test_a_checksum_file_of_another_commit_is_named(spark: Any, tmp_path: Path) -> None:
    """As two processes leave it that write one version at once without the lock."""
    table = tmp_path / "legs"
    log = table / "_delta_log"
    DeltaAppend(str(table), KEY, engine="spark").write(rows(spark, 0))
    opened = internal.TableTransaction(spark, str(table))
    beside = log / f".{0:020d}.json.crc"
    beside.write_bytes(of_another(beside))
    named = rf"\.{0:020d}\.json\.crc"
    with pytest.raises(NotADeltaTable, match=named):
        list(opened.commits(1))
    with pytest.raises(NotADeltaTable, match=named):
        opened.refuse_strange_checksum()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(NotADeltaTable, match=named) as raised:
        DeltaAppend(str(table), KEY, engine="spark").write(rows(spark, 2))
    assert raised.value.path == str(table)
    beside.unlink()  # as the error says
    DeltaAppend(str(table), KEY, engine="spark").write(rows(spark, 2))


def test_a_commit_that_meets_such_a_commit_names_it_too(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "legs"
    log = table / "_delta_log"
    DeltaAppend(str(table), KEY, engine="spark").write(rows(spark, 0))
    behind = internal.TableTransaction(spark, str(table))
    behind.version("a")
    shutil.copy(log / f"{0:020d}.json", log / f"{1:020d}.json")
    (log / f".{1:020d}.json.crc").write_bytes(of_another(log / f".{0:020d}.json.crc"))
    with pytest.raises(NotADeltaTable, match=rf"\.{1:020d}\.json\.crc"):
        behind.mark({"a": 1}, query="q", batch=0, metadata="{}")
