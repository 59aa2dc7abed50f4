"""Compaction by the engine: larger files with the same rows, whatever commits beside it, and whatever wrote the files."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, creating, files, held, opened
from verification.lake.s3_server import S3Server
from waltz_delta.engine import compaction
from waltz_delta.engine.arrow_table import OpenedTable
from waltz_delta.engine.compaction import COMPACTION, Compacted, compact
from waltz_delta.engine.compaction_plan import Bin, bins, target_bytes
from waltz_delta.engine.vacuum import Vacuumed, vacuum
from waltz_delta.errors import StoreUnavailable

SMALL = 32 << 20
MIB = 1 << 20


def living(*given: tuple[str, int, int, str | None]) -> pa.Table:
    """Files by path, size, time and partition value."""
    paths, sizes, times, values = zip(*given, strict=True)
    return pa.table(
        {
            "path": paths,
            "size_bytes": sizes,
            "modification_time": times,
            "num_records": [1] * len(given),
            "partition": pa.array([{"p": value} for value in values], pa.struct([("p", pa.string())])),
        }
    )


def paths(found: list[Bin]) -> list[list[str]]:
    return [[file.path for file in each.files] for each in found]


def test_small_files_of_one_partition_are_packed_in_the_order_of_their_times() -> None:
    files = living(
        ("c", 10, 3, "x"),
        ("a", 10, 1, "x"),
        ("large", 40, 2, "x"),
        ("b", 10, 2, "x"),
        ("d", 15, 4, "x"),
        ("other", 10, 5, "y"),
        ("none", 10, 6, None),
        ("none too", 10, 7, None),
        ("s3://elsewhere/e", 1, 0, None),
        ("/elsewhere/f", 1, 0, None),
    )
    assert paths(bins(files, 32, 30)) == [["none", "none too"], ["a", "b", "c"]], "a file alone stays"
    assert paths(bins(files, 32, 45)) == [["none", "none too"], ["a", "b", "c", "d"]]
    assert paths(bins(files, 50, 1000))[1] == ["a", "b", "large", "c", "d"]
    assert bins(files, 1, 1000) == []
    assert bins(files.slice(0, 0), 32, 30) == []


@pytest.mark.parametrize(
    ("given", "expected"), [({}, 256 * MIB), ({"delta.targetFileSize": "128mb"}, 128 * MIB), ({"DELTA.targetfilesize": "1000"}, 1000)]
)
def test_the_table_says_how_large_its_files_shall_be(given: dict[str, str], expected: int) -> None:
    assert target_bytes(given) == expected


def test_a_compaction_leaves_one_file_with_the_rows_the_marks_and_exact_statistics(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for first in range(0, 50, 10):
        append(table, first, first + 10)
    assert compact(table, SMALL) == Compacted(removed=5, added=1)
    assert held(tmp_path) == list(range(50))
    found = DeltaTable(str(tmp_path))
    assert (found.version(), len(found.file_uris())) == (5, 1)
    assert (found.transaction_version(MARK), found.transaction_version(COMPACTION)) == (49, 1)
    assert pa.table(found.get_add_actions()).select(["num_records", "min", "max"]).to_pylist() == [
        {"num_records": 50, "min": {"id": 0}, "max": {"id": 49}}
    ]
    lines = [json.loads(line) for line in (tmp_path / "_delta_log" / f"{5:020d}.json").read_text().splitlines()]
    assert {each[name]["dataChange"] for each in lines for name in ("add", "remove") if name in each} == {False}
    assert lines[0]["commitInfo"]["operation"] == "WRITE"
    assert compact(table, SMALL) == Compacted()
    assert DeltaTable(str(tmp_path)).version() == 5, "there is nothing to do"
    append(table, 50, 60)
    assert compact(opened(tmp_path), SMALL) == Compacted(removed=2, added=1)
    assert DeltaTable(str(tmp_path)).transaction_version(COMPACTION) == 2


def test_a_large_plan_is_committed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    for first in range(6):
        append(table, first, first + 1)
    size = pa.table(DeltaTable(str(tmp_path)).get_add_actions())["size_bytes"][0].as_py()
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.targetFileSize": str(2 * size)})
    monkeypatch.setattr(compaction, "COMMIT_BYTES", 4 * size)
    assert compact(table, SMALL) == Compacted(removed=6, added=3)
    assert DeltaTable(str(tmp_path)).transaction_version(COMPACTION) == 2
    assert held(tmp_path) == list(range(6))


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "day": (pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31)]),
    "moment": (pa.timestamp("us", "UTC"), [datetime(1, 1, 2, tzinfo=UTC), None, datetime(9999, 12, 30, 1, 2, 3, 4, tzinfo=UTC)]),
    "money": (pa.decimal128(38, 10), [Decimal("-1e-10"), None, Decimal("1234567890123456789012345678.0123456789")]),
    "number": (pa.float64(), [float("nan"), None, float("-inf")]),
    "text": (pa.string(), ["", None, "x" * 40 + "\U0001f600"]),
    "bytes": (pa.binary(), [b"", None, b"\x00\xff"]),
    "some": (pa.list_(pa.string()), [[], None, ["a", None]]),
    "named": (pa.map_(pa.string(), pa.int64()), [[], None, [("a", 1), ("b", None)]]),
    "inner": (pa.struct([("n", pa.int64()), ("t", pa.string())]), [{"n": 1, "t": None}, None, {"n": None, "t": "x"}]),
    "p": (pa.string(), ["a b/%é", None, "x"]),
}


@pytest.mark.parametrize("partition_by", [[], ["p"], ["day", "p"]])
def test_rows_of_every_type_that_another_library_wrote_stay_as_they_are(tmp_path: Path, partition_by: list[str]) -> None:
    rows = pa.table({name: pa.array(values, kind) for name, (kind, values) in VALUES.items()})
    for _ in range(3):
        write_deltalake(tmp_path, rows, partition_by=partition_by, mode="append")
    before = repr(in_order(tmp_path))
    partitions = 3 if partition_by else 1
    assert compact(opened(tmp_path), SMALL) == Compacted(removed=3 * partitions, added=partitions)
    assert repr(in_order(tmp_path)) == before
    assert len(DeltaTable(str(tmp_path)).file_uris()) == partitions
    found = pa.table(DeltaTable(str(tmp_path)).get_add_actions())
    assert found["num_records"].to_pylist() == [9 // partitions] * partitions
    if not partition_by:
        (bounds,) = found.select(["min", "max"]).to_pylist()
        assert (bounds["max"]["text"], bounds["min"].get("number")) == ("x" * 32 + "\U0010ffff", None)


def in_order(path: Path) -> list[str]:
    rows = DeltaTable(str(path)).to_pyarrow_table()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def test_a_column_that_was_added_later_is_null_in_the_rows_before(tmp_path: Path) -> None:
    table = opened(tmp_path)
    append(table, 0, 2)
    append(table, 2, 4)
    DeltaTable(str(tmp_path)).alter.add_columns([Field("more", PrimitiveType("string"))])
    write_deltalake(tmp_path, pa.table({"id": [4], "more": ["x"]}), mode="append")
    assert compact(table, SMALL) == Compacted(removed=3, added=1)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id")
    assert rows["more"].to_pylist() == [None] * 4 + ["x"]


def strange(path: Path, change: Callable[[pa.Table, Path], None]) -> Path:
    """Rewrites the newest data file of a table as another writer would have, and gives it the size in the log."""
    name: str
    (name,) = (each["add"]["path"] for each in newest(path) if "add" in each)
    rows = parquet.ParquetFile(path / name).read()
    change(rows, path / name)
    log = path / "_delta_log" / f"{DeltaTable(str(path)).version():020d}.json"
    lines = newest(path)
    for each in lines:
        if "add" in each:
            each["add"]["size"] = (path / name).stat().st_size
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path / name


def newest(path: Path) -> list[dict[str, Any]]:
    log = path / "_delta_log" / f"{DeltaTable(str(path)).version():020d}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


def written_in_1500(rows: pa.Table, file: Path) -> None:
    with parquet.ParquetWriter(file, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"org.apache.spark.legacyDateTime": ""})


STRANGE: dict[str, Callable[[pa.Table, Path], None]] = {
    "another number of rows than the log says": lambda rows, file: parquet.write_table(rows.slice(1), file),
    "another type": lambda rows, file: parquet.write_table(rows.cast(pa.schema([("id", pa.float64())])), file),
    "a column more": lambda rows, file: parquet.write_table(rows.append_column("extra", rows["id"]), file),
    "an old calendar": lambda rows, file: written_in_1500(rows, file),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_file_that_this_engine_would_not_write_so_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    for first in (0, 5, 10):
        append(opened(tmp_path), first, first + 5)
    file = strange(tmp_path, STRANGE[name])
    before = file.read_bytes()
    assert compact(opened(tmp_path), SMALL) == Compacted(removed=2, added=1, left=1)
    assert any(uri.endswith(file.name) for uri in DeltaTable(str(tmp_path)).file_uris())
    assert file.read_bytes() == before


def test_a_column_of_a_partition_in_a_file_is_left_out(tmp_path: Path) -> None:
    """Spark puts it there. Its values are in the log."""
    for number in range(2):
        write_deltalake(tmp_path, pa.table({"p": ["x"], "id": [number]}), partition_by=["p"], mode="append")
    strange(tmp_path, lambda rows, file: parquet.write_table(rows.append_column("p", pa.array(["another"])), file))
    assert compact(opened(tmp_path), SMALL) == Compacted(removed=2, added=1)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table()["p"].to_pylist() == ["x", "x"]
    (uri,) = DeltaTable(str(tmp_path)).file_uris()
    assert parquet.read_schema(uri).names == ["id"]


def test_memory_does_not_follow_the_size_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in parts, and row groups are written as they fill."""
    for _ in range(2):
        write_deltalake(tmp_path, pa.table({"id": range(40_000)}), mode="append")
    monkeypatch.setattr(compaction, "BATCH_ROWS_MAX", 1000)
    monkeypatch.setattr("waltz_delta.engine.parquet_files.ROW_GROUP_BYTES", 8 * 10_000)
    read = compaction._as_schema
    parts: list[int] = []

    def watched(rows: pa.Table, *given: Any) -> pa.Table:
        parts.append(rows.num_rows)
        return read(rows, *given)

    monkeypatch.setattr(compaction, "_as_schema", watched)
    compact(opened(tmp_path), SMALL)
    assert max(parts) <= 1000
    (uri,) = DeltaTable(str(tmp_path)).file_uris()
    assert parquet.read_metadata(uri).num_row_groups == 8
    assert held(tmp_path) == sorted([*range(40_000)] * 2)


BESIDE: dict[str, tuple[Callable[[Path], object], list[int], int]] = {
    "an append": (lambda path: append(opened(path), 20, 22), [*range(22)], 2),
    "a DELETE": (lambda path: DeltaTable(str(path)).delete("id = 3"), [id for id in range(20) if id != 3], 1),
    "another compaction": (lambda path: compact(opened(path), SMALL), [*range(20)], 1),
    "a property": (lambda path: DeltaTable(str(path)).alter.set_table_properties({"delta.targetFileSize": "64mb"}), [*range(20)], 1),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_commit_beside_a_compaction_loses_and_repeats_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, expected, files_after = BESIDE[name]
    append(opened(tmp_path), 0, 10)
    append(opened(tmp_path), 10, 20)
    met: list[int] = []

    def beside(_: OpenedTable, create: Callable[[], None]) -> None:
        if not met:
            met.append(1)
            change(tmp_path)
        create()

    with creating(monkeypatch, beside):
        compact(opened(tmp_path), SMALL)
    assert met
    assert held(tmp_path) == expected
    assert len(DeltaTable(str(tmp_path)).file_uris()) == files_after


def test_a_compaction_that_always_loses_ends_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(opened(tmp_path), 0, 10)
    append(opened(tmp_path), 10, 20)
    rewrite, lost = compaction._rewrite, list[int]()

    def beaten(table: Any, transaction: Any, *given: Any) -> Any:
        transaction.version(COMPACTION)
        lost.append(len(lost))
        begin(opened(tmp_path)).mark({COMPACTION: 100 + len(lost)}, query="another", batch=-1, metadata="{}")
        return rewrite(table, transaction, *given)

    monkeypatch.setattr(compaction, "_rewrite", beaten)
    with pytest.raises(StoreUnavailable, match="other commits came before each of 8 compactions"):
        compact(opened(tmp_path), SMALL)
    assert len(lost) == compaction.ATTEMPTS
    assert held(tmp_path) == list(range(20))


RACES, APPENDS = 20, 6


@pytest.mark.long
@pytest.mark.parametrize("place", ["a directory", "S3"])
def test_races_of_two_compactors_beside_an_appender_keep_the_rows_of_every_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power fails here
    with S3Server() as server:
        for number in range(RACES if place == "a directory" else 2):
            location = str(tmp_path / str(number)) if place == "a directory" else f"s3://lake/tables/{number}"
            race(location, {} if place == "a directory" else server.storage)


def race(location: str, storage: dict[str, str]) -> None:
    for first in range(4):
        append(opened(location, storage), first, first + 1)
    start, done, failed = threading.Barrier(3), threading.Event(), list[BaseException]()

    def compactor() -> None:
        start.wait()
        while not done.is_set():
            try:
                compact(opened(location, storage), SMALL)
            except StoreUnavailable:  # it lost each time
                continue
            except BaseException as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=compactor) for _ in range(2)]
    for thread in threads:
        thread.start()
    start.wait()
    try:
        for first in range(4, 4 + APPENDS):
            append(opened(location, storage), first, first + 1)
    finally:
        done.set()
    for thread in threads:
        thread.join(120)
    assert failed == []
    compact(opened(location, storage), SMALL)
    newest_version = DeltaTable(location, storage_options=storage or None).version()
    compactions = 0
    for version in range(3, newest_version + 1):
        table = DeltaTable(location, version=version, storage_options=storage or None)
        mark = table.transaction_version(MARK)
        assert mark is not None
        assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(mark + 1)), version
        compactions = table.transaction_version(COMPACTION) or 0
    assert compactions == newest_version + 1 - 4 - APPENDS, "each commit is an append or a compaction"
    assert compactions >= 1


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """A table with three removed files, one living, one of a batch that died long ago, and foreign ones. All but those of the last batch are old."""
    table = opened(tmp_path)
    for first in (0, 5, 10):
        append(table, first, first + 5)
    compact(table, SMALL)
    files(table, 20, 25)
    for name in ("notes.txt", "_waltz_probe/p.parquet", ".hidden.parquet", "a b%20.parquet", "_changes/c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    old = time.time() - 400 * 3600
    for each in tmp_path.rglob("*"):
        if each.is_file() and "_delta_log" not in each.parts:
            os.utime(each, (old, old))
    files(table, 30, 35)
    return tmp_path


def data_files(path: Path) -> int:
    return len(list(path.glob("part-*.parquet")))


def test_a_vacuum_removes_what_no_version_needs_and_neither_foreign_nor_fresh_files(cleaned: Path) -> None:
    assert data_files(cleaned) == 6
    assert vacuum(opened(cleaned), 200.0, (), dry_run=True) == Vacuumed(removed=1, others=2)
    assert data_files(cleaned) == 6
    assert vacuum(opened(cleaned), 200.0, (), dry_run=False) == Vacuumed(removed=1, others=2)
    assert data_files(cleaned) == 5, "the files that were removed from the table a moment ago, the living one and that of a running batch"
    assert held(cleaned) == list(range(15))
    assert DeltaTable(str(cleaned), version=2).to_pyarrow_table().num_rows == 15
    assert (cleaned / "notes.txt").exists()
    assert (cleaned / "a b%20.parquet").exists()
    version = DeltaTable(str(cleaned)).version()
    assert vacuum(opened(cleaned), 0.0, (2,), dry_run=False) == Vacuumed(removed=1, others=2)
    assert DeltaTable(str(cleaned), version=2).to_pyarrow_table().num_rows == 15, "a version that is kept"
    assert vacuum(opened(cleaned), 0.0, (), dry_run=False) == Vacuumed(removed=3, others=2)
    assert data_files(cleaned) == 1
    assert (held(cleaned), DeltaTable(str(cleaned)).version()) == (list(range(15)), version)


def test_a_vacuum_keeps_living_files_of_escaped_paths(tmp_path: Path) -> None:
    for _ in range(2):
        write_deltalake(tmp_path, pa.table({"p": ["a b", "50%", "x/y", "plain"], "q": [1, 2, 3, 4]}), partition_by=["p"], mode="append")
    before = in_order(tmp_path)
    old = time.time() - 400 * 3600
    for each in tmp_path.rglob("*.parquet"):
        os.utime(each, (old, old))
    vacuum(opened(tmp_path), 1.0, (), dry_run=False)
    assert in_order(tmp_path) == before
    compact(opened(tmp_path), SMALL)
    found = vacuum(opened(tmp_path), 0.0, (), dry_run=False)
    assert found.removed == 2, "those of the plain path"
    assert in_order(tmp_path) == before


def test_a_vacuum_on_s3_deletes_the_objects_and_no_other(tmp_path: Path) -> None:
    with S3Server() as store:
        place = "s3://lake/tables/t"
        for first in (0, 5):
            append(opened(place, store.storage), first, first + 5)
        assert compact(opened(place, store.storage), SMALL) == Compacted(removed=2, added=1)
        store.put("tables/other/part-1.parquet", b"x", only_new=False)
        assert vacuum(opened(place, store.storage), 200.0, (), dry_run=False) == Vacuumed(removed=0, others=0)
        assert vacuum(opened(place, store.storage), 0.0, (), dry_run=False) == Vacuumed(removed=2, others=0)
        assert sorted(key for key in store.objects if key.endswith(".parquet"))[0] == "tables/other/part-1.parquet"
        assert sum(key.startswith("tables/t/part-") for key in store.objects) == 1
        found = opened(place, store.storage).open()
        assert found is not None
        assert sorted(found.delta_table.to_pyarrow_table()["id"].to_pylist()) == list(range(10))
