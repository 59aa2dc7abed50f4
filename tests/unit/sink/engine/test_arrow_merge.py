"""MERGE by the Arrow engine: the newest row of each key, whatever the batches are; marks in its own commit; and what it leaves to Spark."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.unit.sink.engine.arrow_tables import creating, opened
from waltz_delta import high_water_marks
from waltz_delta.engine import commit_files
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_merge import _KEYS, ArrowMerge, refusal_of_merge
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken
from waltz_delta.engine.folds import DELETES
from waltz_delta.engine.newest import Newest
from waltz_delta.errors import KeyMoved, NotADeltaTable, SchemaMismatch
from waltz_delta.marks.marks import EPOCH_IDS, app_id

SCHEMA = pa.schema([("partition", pa.int32()), ("transaction_id", pa.int64()), ("k", pa.string()), ("n", pa.int32())])
SOURCE = SCHEMA.append(pa.field(DELETES, pa.bool_()))
MARK = app_id("key", 0)

Row = tuple[int | None, int | None, str | None, int | None]


MOMENTS = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2262, 4, 12), datetime(9999, 12, 31, 23, 59, 59, 999999)]


def table(rows: Sequence[Row]) -> Any:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def created(path: Path, rows: Sequence[Row] = ()) -> None:
    write_deltalake(str(path), table(rows))


def source(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Rows of partition, id, key, value, and whether they delete their key."""
    return pa.Table.from_pylist([dict(zip(SOURCE.names, (*row, False)[:5], strict=True)) for row in rows], schema=SOURCE)


def merge(path: Path, rows: Sequence[tuple[Any, ...]], mark: int, *, transaction: ArrowTransaction | None = None) -> int:
    found = ArrowTransaction(opened(path)) if transaction is None else transaction
    found.version(MARK)
    return found.merge(upsert(source(rows)), {MARK: mark}, query="q", batch=1, metadata="{}")


def upsert(rows: Any, keys: Sequence[str] = ("k",), compression: str = "snappy") -> ArrowMerge:
    return ArrowMerge(rows, Newest("t", keys, "transaction_id", [name for name in rows.schema.names if name != DELETES]), compression)


def held(path: Path) -> dict[str | None, tuple[Any, ...]]:
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    rows = {row["k"]: (row["partition"], row["transaction_id"], row["n"]) for row in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def test_the_newest_row_of_each_key_stays_and_the_mark_is_in_the_same_commit(tmp_path: Path) -> None:
    created(tmp_path, [(0, 1, "a", 1), (0, 2, "b", 2), (None, None, "user's", 3), (0, 3, None, 4)])
    assert merge(tmp_path, [(0, 5, "a", 5), (0, 4, "a", 4), (0, 1, "b", 9), (0, 6, "new", 6), (0, 7, "user's", 7), (0, 8, None, 8)], 8) == 1
    assert held(tmp_path) == {"a": (0, 5, 5), "b": (0, 2, 2), "new": (0, 6, 6), "user's": (0, 7, 7), None: (0, 8, 8)}
    assert high_water_marks(str(tmp_path), "key") == {0: 8}


def test_a_delete_removes_its_key_and_creates_none(tmp_path: Path) -> None:
    created(tmp_path, [(0, 1, "a", 1), (0, 5, "b", 5)])
    merge(tmp_path, [(0, 2, "a", None, True), (0, 3, "none", None, True), (0, 4, "b", None, True), (0, 6, "c", 1), (0, 7, "c", None, True)], 7)
    assert held(tmp_path) == {"b": (0, 5, 5)}, "its row is newer than its delete"


def test_a_merge_that_changes_no_row_still_moves_the_mark(tmp_path: Path) -> None:
    created(tmp_path, [(0, 5, "a", 1)])
    assert merge(tmp_path, [(0, 4, "a", 9), (0, 6, "none", None, True)], 6) == 1
    assert merge(tmp_path, [], 9) == 2
    assert high_water_marks(str(tmp_path), "key") == {0: 9}
    assert held(tmp_path) == {"a": (0, 5, 1)}


def test_a_key_in_two_partitions_is_refused_in_the_batch_and_against_the_table(tmp_path: Path) -> None:
    created(tmp_path, [(1, 3, "a", 1)])
    with pytest.raises(KeyMoved, match="partitions 0 and 1 transaction_id 8"):
        merge(tmp_path, [(0, 7, "b", 1), (1, 8, "b", 1)], 9)
    with pytest.raises(KeyMoved, match="partitions 1 and 0 transaction_id 9"):
        merge(tmp_path, [(0, 9, "a", 1)], 9)
    assert (held(tmp_path), high_water_marks(str(tmp_path), "key")) == ({"a": (1, 3, 1)}, {})


def test_a_row_of_a_former_cluster_is_older_in_any_partition(tmp_path: Path) -> None:
    created(tmp_path, [(1, 3 - EPOCH_IDS, "a", 1), (1, 4 - EPOCH_IDS, "b", 1)])
    merge(tmp_path, [(0, 0, "a", 2), (1, 0, "b", None, True)], 0)
    assert held(tmp_path) == {"a": (0, 0, 2)}
    with pytest.raises(KeyMoved, match="partitions 0 and 1 transaction_id 1"):
        merge(tmp_path, [(1, 1, "a", 3)], 0)
    merge(tmp_path, [(1, 5 - EPOCH_IDS, "a", 4), (1, 6 - EPOCH_IDS, "c", 5)], 0)
    assert held(tmp_path) == {"a": (0, 0, 2), "c": (1, 6 - EPOCH_IDS, 5)}, "also where a replay brings it late"


def test_keys_of_any_text_are_found_again(tmp_path: Path) -> None:
    keys = ["", "'", '"', "a'b''c", "%2F", "ü", "\U0001f600", "NULL", "null", "\\", "a\nb", " ", "x" * 5000]
    created(tmp_path)
    for turn in (1, 2):
        merge(tmp_path, [(0, turn * 100 + n, key, turn) for n, key in enumerate(keys)], turn * 100 + 50)
        for n, key in enumerate(keys):  # each alone, so that it is a bound of the statement
            merge(tmp_path, [(0, turn * 100 + n, key, turn)], turn * 100 + 51 + n)
    assert {key: value[2] for key, value in held(tmp_path).items()} == dict.fromkeys(keys, 2)


ODD_NAMES = (
    ("a.b", "e`f", "ü"),
    (".a", "[b]", "t.k"),
    ("a[0]", "$.a", "@x"),
    ('q"uote', "it's", "s.x"),
    ("partition_min", "place_max", "key 0"),
    ("\\", "%2F", "select"),
    ("K.", "Tail", "transaction_id.x"),
)


@pytest.mark.parametrize("names", ODD_NAMES)
def test_odd_names_of_columns_are_merged(tmp_path: Path, names: tuple[str, ...]) -> None:
    """pyarrow reads some names as paths, and DataFusion's SQL reads dots and quotes."""
    columns = pa.schema([*(SCHEMA.field(at) for at in range(2)), *((name, pa.string()) for name in names)])
    write_deltalake(str(tmp_path), columns.empty_table())
    for turn in range(2):
        given = [
            {"partition": 0, "transaction_id": 10 * turn + at, names[0]: key, names[1]: None, names[2]: f"{turn}{at}", DELETES: key == "gone"}
            for at, key in enumerate(("x", "y", "x", None, "gone"))
        ]
        rows = pa.Table.from_pylist(given, schema=columns.append(pa.field(DELETES, pa.bool_())))
        transaction = ArrowTransaction(opened(tmp_path))
        transaction.merge(upsert(rows, [names[0]]), {MARK: 10 * turn + 4}, query="q", batch=turn, metadata="{}")
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert {row[names[0]]: (row[names[1]], row[names[2]]) for row in found} == {"x": (None, "12"), "y": (None, "11"), None: (None, "13")}
    assert (len(found), high_water_marks(str(tmp_path), "key")) == (3, {0: 14})


@pytest.mark.parametrize("seed", range(6))
def test_a_table_is_what_a_dictionary_is_however_the_log_is_cut(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    created(tmp_path)
    expected: dict[str | None, tuple[Any, ...]] = {}
    position = 0
    for _ in range(12):
        rows = []
        for _ in range(drawn.randrange(8)):
            key, deletes = drawn.choice([None, "", "a", "b", "c", "d"]), drawn.random() < 0.3
            rows.append((0, position, key, None if deletes else position, deletes))
            expected.pop(key, None)
            if not deletes:
                expected[key] = (0, position, position)
            position += 1
        drawn.shuffle(rows)
        merge(tmp_path, rows, position)
    assert held(tmp_path) == expected


def test_of_drivers_that_merge_the_same_batch_exactly_one_commits(tmp_path: Path) -> None:
    created(tmp_path)
    for mark in range(1, 5):
        start = threading.Barrier(3)
        won: list[int] = []

        def race(mark: int = mark, start: threading.Barrier = start, won: list[int] = won) -> None:
            transaction = ArrowTransaction(opened(tmp_path))
            transaction.version(MARK)
            start.wait()
            with suppress(Overtaken):
                won.append(merge(tmp_path, [(0, mark, "a", mark)], mark, transaction=transaction))

        threads = [threading.Thread(target=race) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(won) == 1
        assert held(tmp_path) == {"a": (0, mark, mark)}


def test_a_merge_whose_answer_is_lost_is_found_by_its_own_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created(tmp_path, [(0, 1, "a", 1)])
    lost, put = itertools.count(), commit_files.create_commit

    def deaf(*given: Any) -> None:
        put(*given)
        next(lost)
        raise DeltaError("added new data")

    monkeypatch.setattr(commit_files, "create_commit", deaf)
    assert merge(tmp_path, [(0, 2, "a", 2)], 2) == 1
    assert next(lost) == 1, "it was not merged a second time"
    assert (held(tmp_path), high_water_marks(str(tmp_path), "key")) == ({"a": (0, 2, 2)}, {0: 2})


def test_another_commit_beside_a_merge_is_merged_into_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's rows: they change nothing that the merge was decided from, but one of them has a key of the batch."""
    created(tmp_path, [(0, 1, "a", 1)])
    user = pa.Table.from_pylist([{"partition": None, "transaction_id": None, "k": "b", "n": 7}], schema=SCHEMA)
    calls = []

    def beside(opened: OpenedTable, create: Callable[[], None]) -> None:
        calls.append(opened.version)
        if len(calls) == 1:
            write_deltalake(str(tmp_path), user, mode="append")
        create()

    with creating(monkeypatch, beside):
        assert merge(tmp_path, [(0, 2, "a", 2), (0, 3, "b", 3)], 3) == 2
    assert calls == [0, 1]
    assert held(tmp_path) == {"a": (0, 2, 2), "b": (0, 3, 3)}


def test_a_compaction_beside_a_merge_loses_and_repeats_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge loses, and is decided again from the compacted files. deltalake's own check would let two compactions commit."""
    created(tmp_path, [(0, 1, "a", 1)])
    for number, key in enumerate("bcd", 2):
        write_deltalake(str(tmp_path), table([(0, number, key, number)]), mode="append")
    seen: list[int] = []

    def beside(opened: OpenedTable, create: Callable[[], None]) -> None:
        seen.append(opened.version)
        if len(seen) == 1:
            assert DeltaTable(str(tmp_path)).optimize.compact()["numFilesRemoved"] == 4
        create()

    with creating(monkeypatch, beside):
        assert merge(tmp_path, [(0, 5, "a", 5), (0, 6, "b", None, True), (0, 7, "e", 7)], 7) == 5
    assert seen == [3, 4]
    assert held(tmp_path) == {"a": (0, 5, 5), "c": (0, 3, 3), "d": (0, 4, 4), "e": (0, 7, 7)}
    assert high_water_marks(str(tmp_path), "key") == {0: 7}


KEYS_OF_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "binary": (pa.binary(), [b"", b"\x00", b"\xff", None]),
    "boolean": (pa.bool_(), [False, True, None]),
    "byte": (pa.int8(), [-128, -1, 0, 127, None]),
    "date": (pa.date32(), [date(1, 1, 1), date(1582, 10, 4), date(1970, 1, 1), date(9999, 12, 31), None]),
    "integer": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), -1, 2**53 + 1, 2**63 - 1, None]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "string": (pa.string(), ["", "x", None]),
    "timestamp": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in MOMENTS] + [None]),
    "timestamp_ntz": (pa.timestamp("us"), [*MOMENTS, None]),
}


@pytest.mark.parametrize("kind", KEYS_OF_TYPES)
def test_keys_at_the_edges_of_each_type_are_found_again(tmp_path: Path, kind: str) -> None:
    arrow, keys = KEYS_OF_TYPES[kind]
    types = pa.schema([pa.field("k", arrow) if field.name == "k" else field for field in SCHEMA])
    write_deltalake(str(tmp_path), types.empty_table())

    def put(turn: int, chosen: Sequence[Any]) -> None:
        rows = [{"partition": 0, "transaction_id": turn * 100 + at, "k": key, "n": turn, DELETES: False} for at, key in enumerate(chosen)]
        made = pa.Table.from_pylist(rows, schema=types.append(pa.field(DELETES, pa.bool_())))
        transaction = ArrowTransaction(opened(tmp_path))
        transaction.version(MARK)
        transaction.merge(upsert(made), {MARK: turn}, query="q", batch=1, metadata="{}")

    put(1, keys)
    put(2, keys)
    for turn, key in enumerate(keys, 3):
        put(turn, [key])
    found = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(found["n"].to_pylist()) == list(range(3, 3 + len(keys)))
    assert {row["k"]: row["n"] for row in found.to_pylist()} == {key: turn for turn, key in enumerate(keys, 3)}


def test_every_type_of_a_key_is_tested() -> None:
    assert set(KEYS_OF_TYPES) == _KEYS


@pytest.mark.parametrize(("kind", "low", "high"), [(pa.string(), ["a", "b"], ["x", "y"]), (pa.int64(), [-5, 7], [8, 2**62])])
def test_a_merge_reads_no_file_outside_of_the_range_of_its_keys(tmp_path: Path, kind: pa.DataType, low: list[Any], high: list[Any]) -> None:
    """A file that is not there cannot be read. The metrics of deltalake are not proof: the number of files that it scanned was once wrong."""
    types = pa.schema([pa.field("k", kind) if field.name == "k" else field for field in SCHEMA])
    for keys in (low, high):
        rows = [{"partition": 0, "transaction_id": at, "k": key, "n": 1} for at, key in enumerate(keys)]
        write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, schema=types), mode="append")
    listed = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
    (outside,) = (add["path"] for add in listed if add["min.k"] == high[0])
    (tmp_path / outside).rename(tmp_path / "elsewhere")
    made = [{"partition": 0, "transaction_id": 9, "k": low[1], "n": 2, DELETES: False}]
    source = pa.Table.from_pylist(made, schema=types.append(pa.field(DELETES, pa.bool_())))
    transaction = ArrowTransaction(opened(tmp_path))
    assert transaction.merge(upsert(source), {MARK: 9}, query="q", batch=1, metadata="{}") == 2
    (tmp_path / "elsewhere").rename(tmp_path / outside)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert {row["k"]: row["n"] for row in found} == {low[0]: 1, low[1]: 2, high[0]: 1, high[1]: 1}


def shape(fields: Mapping[str, Any], partition_by: Sequence[str] = (), **properties: str) -> TableShape:
    return TableShape({"type": "struct", "fields": [{"name": n, "type": k, "nullable": True} for n, k in fields.items()]}, partition_by, properties)


def test_what_a_merge_does_not_do_is_left_to_spark() -> None:
    plain = {
        "k": "string",
        "n": "integer",
        "m": "decimal(15,2)",
        "l": {"type": "array", "elementType": "double", "containsNull": True},
        "d": "double",
    }
    for sequence in ("n", "k", "m", "transaction_id"):
        assert refusal_of_merge(shape(plain, ("n",)), ["k", "n"], sequence) is None
    for refused, keys, sequence, reason in (
        (shape(plain, **{"delta.enableChangeDataFeed": "true"}), ["k"], "n", "change data feed"),
        (shape(plain, **{"delta.appendOnly": "true"}), ["k"], "n", "the table is append-only"),
        (shape({"k": "double"}), ["k"], "n", "merge by k"),
        (shape(plain), ["M"], "n", "merge by m"),
        (shape({**plain, "Partition": "integer"}), ["k"], "n", "column partition of the log, which the table calls Partition"),
        (shape(plain), ["k"], "D", "order rows by d, which has the type double"),
        (shape(plain), ["k"], "l", "order rows by l, which has the type of nested values"),
    ):
        found = refusal_of_merge(refused, keys, sequence)
        assert found is not None
        assert re.search(reason, found)


FLOATS = pa.schema([*SCHEMA, ("x", pa.float64()), ("m", pa.decimal128(38, 2))])


def test_floats_and_long_decimals_have_no_bounds_that_hide_rows(tmp_path: Path) -> None:
    """MERGE of deltalake would write rounded bounds, and some that omit NaN."""
    write_deltalake(str(tmp_path), FLOATS.empty_table())
    values = [(float("nan"), Decimal("12345678901234567890.12")), (-0.0, Decimal("0.01")), (float("inf"), None)]
    made = [{"partition": 0, "transaction_id": n, "k": str(n), "n": n, "x": x, "m": m, DELETES: False} for n, (x, m) in enumerate(values)]
    rows = pa.Table.from_pylist(made, schema=FLOATS.append(pa.field(DELETES, pa.bool_())))
    ArrowTransaction(opened(tmp_path)).merge(upsert(rows), {MARK: 2}, query="q", batch=1, metadata="{}")
    (action,) = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
    assert {name: action.get(name) for name in ("max.x", "max.m", "max.n")} == {"max.x": None, "max.m": None, "max.n": 2}


def test_null_in_a_column_that_must_not_be_null_is_refused(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("n", pa.int32(), nullable=False) if field.name == "n" else field for field in SCHEMA])
    write_deltalake(str(tmp_path), columns.empty_table())
    with pytest.raises(SchemaMismatch, match="must not be null"):
        merge(tmp_path, [(0, 1, "a", None)], 1)
    assert merge(tmp_path, [(0, 1, "a", 1)], 1) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    created(tmp_path, [(0, 1, "a", 1)])
    (file,) = DeltaTable(str(tmp_path)).file_uris()
    Path(file).write_bytes(b"no Parquet")
    with pytest.raises(NotADeltaTable, match="a file of it cannot be read"):
        merge(tmp_path, [(0, 2, "a", 2)], 2)


def test_a_merge_runs_while_the_lock_of_its_table_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's rename could replace a commit of this engine in a directory of this machine."""
    created(tmp_path, [(0, 1, "a", 1)])
    locked: list[bool] = []

    @contextmanager
    def lock() -> Iterator[None]:
        locked.append(True)
        yield
        locked.pop()

    def watched(_: OpenedTable, create: Callable[[], None]) -> None:
        assert locked == [True]
        create()

    transaction = ArrowTransaction(ArrowTable(str(tmp_path), str(tmp_path), {}, lock))
    with creating(monkeypatch, watched):
        assert merge(tmp_path, [(0, 2, "a", 2)], 2, transaction=transaction) == 1
    assert locked == []


@pytest.mark.parametrize(
    ("compression", "codec"), [("zstd", "ZSTD"), ("gzip", "GZIP"), ("none", "UNCOMPRESSED"), ("lz4", "LZ4"), ("snappy", "SNAPPY")]
)
def test_files_of_a_merge_are_compressed_as_the_table_says(tmp_path: Path, compression: str, codec: str) -> None:
    created(tmp_path, [(0, 1, "a", 1)])
    made = upsert(source([(0, 2, "a", 2)]), compression=compression)
    transaction = ArrowTransaction(opened(tmp_path))
    transaction.version(MARK)
    transaction.merge(made, {MARK: 2}, query="q", batch=1, metadata="{}")
    (file,) = DeltaTable(str(tmp_path)).file_uris()
    assert parquet.ParquetFile(file).metadata.row_group(0).column(0).compression == codec


def test_a_file_outside_of_the_table_is_found(tmp_path: Path) -> None:
    created(tmp_path / "t", [(0, 1, "a", 1)])
    assert ArrowTransaction(opened(tmp_path / "t")).files().outside is None
    commit = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    name = Path(unquote(DeltaTable(str(tmp_path / "t")).file_uris()[0])).name
    for place in (f"file://{tmp_path}/t/{name}", f"{tmp_path}/t/{name}", f"s3://lake/{name}"):
        held_text = commit.read_text()
        commit.write_text(held_text.replace(f'"{name}"', f'"{place}"'))
        files = ArrowTransaction(opened(tmp_path / "t")).files()
        commit.write_text(held_text)
        assert files.outside == place
        assert files.bytes > 0
