"""Folds of keyed tables: the rows of a table and those of a batch become what a plain loop over the whole log makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from waltz_delta.engine.filled import Filled
from waltz_delta.engine.folds import AT, DELETES, Fold, Keyed, newest_of, overtaken
from waltz_delta.engine.key_index import ABSENT, KeyIndex, ranks
from waltz_delta.engine.newest import Newest, SoftDeletes
from waltz_delta.engine.versions import Ranges, Versions
from waltz_delta.errors import KeyMoved
from waltz_delta.marks.marks import EPOCH_IDS

ROWS = pa.schema(
    [("partition", pa.int32()), ("transaction_id", pa.int64()), ("row", pa.int32()), ("k", pa.string()), ("at", pa.int32()), ("n", pa.int32())]
)
BATCH = pa.schema([*ROWS, (DELETES, pa.bool_()), (AT, pa.timestamp("us", "UTC"))])
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
RANGES = Ranges("since", "until", "now")

Row = dict[str, Any]


def row(transaction_id: int, key: str | None, n: int | None = None, *, deletes: bool = False, **more: Any) -> Row:
    place = {"partition": 0, "transaction_id": transaction_id, "row": 0}
    return {**place, "k": key, "at": transaction_id, "n": n, DELETES: deletes, AT: MOMENT, **more}


def folded(fold: Fold, table: Any, rows: Sequence[Row]) -> Any:
    """The table after a batch, as `rewrite` makes it."""
    batch = pa.Table.from_pylist([dict(each) for each in rows], schema=BATCH)
    index = KeyIndex(batch, fold.keys)
    codes = index.codes(table)
    there = np.flatnonzero(codes != ABSENT)
    held = table.select(list(fold.reads(table.schema))).take(pa.array(there))
    found = fold.fold(Keyed(held, codes[there]), Keyed(batch, index.of_batch), table.schema)
    stays = np.ones(table.num_rows, dtype=bool)
    stays[there] = found.keep
    return pa.concat_tables([table.filter(pa.array(stays)), found.added])


def newest(schema: pa.Schema = ROWS, sequence: str = "transaction_id", soft: SoftDeletes | None = None) -> Newest:
    return Newest("t", ["k"], sequence, [name for name in ROWS.names if name in schema.names], soft)


def by_key(table: Any) -> dict[Any, Any]:
    rows = {each["k"]: each for each in table.to_pylist()}
    assert len(rows) == table.num_rows, "a key is there twice"
    return rows


# ---- keys ------------------------------------------------------------------------------------------------------------------------------------------


def test_keys_of_several_columns_are_found_and_null_is_a_value() -> None:
    batch = pa.table({"a": ["x", None, "y", "x"], "b": pa.array([1, 2, None, 1], pa.int64())})
    index = KeyIndex(batch, ["a", "b"])
    assert (index.count, index.of_batch[0] == index.of_batch[3], len({*index.of_batch})) == (3, True, 3)
    asked = pa.table({"a": ["x", None, None, "y", "y", "z", "x"], "b": pa.array([1, 2, 1, None, 1, 1, 2], pa.int64())})
    first, second, third = index.of_batch[:3]
    assert index.codes(asked).tolist() == [first, second, ABSENT, third, ABSENT, ABSENT, ABSENT]
    assert index.codes(asked.slice(0, 0)).tolist() == []
    assert KeyIndex(batch.slice(0, 0), ["a", "b"]).codes(asked).tolist() == [ABSENT] * 7


@pytest.mark.parametrize("seed", range(5))
def test_codes_are_those_of_a_dictionary(seed: int) -> None:
    drawn = random.Random(seed)
    domain = [None, *range(-2, 3)]
    kinds = {"a": pa.int64(), "b": pa.string(), "c": pa.binary()}

    def drawn_rows(count: int) -> Any:
        texts = [None if (value := drawn.choice(domain)) is None else str(value) for _ in range(2 * count)]
        binary = [None if text is None else text.encode() for text in texts[count:]]
        return pa.table({"a": [drawn.choice(domain) for _ in range(count)], "b": texts[:count], "c": binary}, schema=pa.schema(kinds))

    batch, table = drawn_rows(20), drawn_rows(500)
    index = KeyIndex(batch, list(kinds))
    known = {tuple(each.values()): code for each, code in zip(batch.to_pylist(), index.of_batch.tolist(), strict=True)}
    assert index.codes(table).tolist() == [known.get(tuple(each.values()), ABSENT) for each in table.to_pylist()]


def test_ranks_are_those_of_sorted_values_with_null_below() -> None:
    one, other = ranks(pa.array([Decimal("1.0"), None]), pa.chunked_array([[Decimal("1.0"), Decimal("-3.5")], [None]]))
    assert one[1] == other[2] < other[1] < one[0] == other[0]
    days, more = ranks(pa.array([date(1, 1, 1), None]), pa.array([date(9999, 12, 31)]))
    assert days[1] < days[0] < more[0]
    flags, texts = ranks(pa.array([True, False, None]))[0], ranks(pa.array(["b", "ab", "", None]))[0]
    assert flags[2] < flags[1] < flags[0]
    assert texts[3] < texts[2] < texts[1] < texts[0]
    assert ranks(pa.chunked_array([], pa.string()))[0].tolist() == []


# ---- upsert ----------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_upsert_is_what_a_dictionary_is_however_the_log_is_cut(seed: int) -> None:
    drawn = random.Random(seed)
    table, expected = ROWS.empty_table(), dict[Any, Any]()
    position = 0
    for _ in range(12):
        rows = []
        for _ in range(drawn.randrange(8)):
            key, deletes = drawn.choice([None, "", "a", "b", "c"]), drawn.random() < 0.3
            rows.append(row(position, key, position, deletes=deletes))
            expected.pop(key, None)
            if not deletes:
                expected[key] = position
            position += 1
        drawn.shuffle(rows)
        table = folded(newest(), table, rows)
    assert {key: each["n"] for key, each in by_key(table).items()} == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_named_sequence_decides_in_whatever_order_rows_come(seed: int) -> None:
    """Also across log partitions; of equal sequences the higher id counts."""
    drawn = random.Random(seed)
    rows = [row(n, drawn.choice("abc"), n, at=drawn.choice([None, 1, 2, 3]), partition=drawn.randrange(2)) for n in range(40)]
    table = ROWS.empty_table()
    waiting = drawn.sample(rows, len(rows))
    while waiting:
        count = drawn.randrange(1, 9)
        table, waiting = folded(newest(sequence="at"), table, waiting[:count]), waiting[count:]
    expected = {key: max((-1 if each["at"] is None else each["at"], each["n"]) for each in rows if each["k"] == key) for key in "abc"}
    assert {key: each["n"] for key, each in by_key(table).items()} == {key: n for key, (_, n) in expected.items()}


def test_a_row_of_the_table_stays_if_the_batch_has_the_same_again() -> None:
    table = folded(newest(), ROWS.empty_table(), [row(5, "a", 1)])
    assert by_key(folded(newest(), table, [row(5, "a", 2), row(4, "a", 3)]))["a"]["n"] == 1
    assert by_key(folded(newest(), table, [row(5, "a", 2, row=1)]))["a"]["n"] == 2, "the next row of the same transaction"


def test_rows_without_a_place_are_the_oldest_and_columns_of_users_stay() -> None:
    schema = pa.schema([*ROWS, ("note", pa.string())])
    users = {**dict.fromkeys(schema.names), "k": "a", "n": 1, "note": "mine"}
    table = pa.Table.from_pylist([users], schema=schema)
    found = by_key(folded(newest(), table, [row(0, "a", 2), row(1, "b", 3)]))
    assert [(key, each["n"], each["note"]) for key, each in sorted(found.items())] == [("a", 2, "mine"), ("b", 3, None)]


@pytest.mark.parametrize("sequence", ["transaction_id", "at"])
def test_a_key_in_two_partitions_is_refused_unless_a_sequence_orders_it(sequence: str) -> None:
    table = pa.Table.from_pylist([row(3, "a", 1, partition=1)], schema=ROWS)
    rule = newest(sequence=sequence)
    if sequence == "at":
        assert by_key(folded(rule, table, [row(9, "a", 2)]))["a"]["n"] == 2
        return
    with pytest.raises(KeyMoved, match="partitions 1 and 0 transaction_id 9"):
        folded(rule, table, [row(9, "a", 2)])
    with pytest.raises(KeyMoved, match="partitions 1 and 0 transaction_id 2"):
        folded(rule, table, [row(2, "a", 2)])
    with pytest.raises(KeyMoved, match="partitions 0 and 1 transaction_id 8"):
        folded(rule, table, [row(7, "b"), row(8, "b", partition=1)])
    former = pa.Table.from_pylist([row(3 - EPOCH_IDS, "a", 1, partition=1, at=0)], schema=ROWS)
    assert by_key(folded(rule, former, [row(0, "a", 2)]))["a"]["n"] == 2, "a former cluster may have had it elsewhere"


SOFT = SoftDeletes("gone", "gone_at")
SOFT_ROWS = pa.schema([*ROWS, ("gone", pa.bool_()), ("gone_at", pa.timestamp("us", "UTC"))])


def test_a_soft_delete_keeps_the_last_values_and_has_its_own_place() -> None:
    rule = newest(SOFT_ROWS, soft=SOFT)
    table = folded(rule, SOFT_ROWS.empty_table(), [row(0, "a", 1), row(1, "b", 2), row(2, "b", None, deletes=True), row(3, "c", None, deletes=True)])
    found = by_key(table)
    assert {key: (each["n"], each["transaction_id"], each["gone"], each["gone_at"]) for key, each in found.items()} == {
        "a": (1, 0, False, None),
        "b": (2, 2, True, MOMENT),
        "c": (None, 3, True, MOMENT),
    }
    found = by_key(folded(rule, table, [row(4, "a", None, deletes=True), row(5, "b", 7), row(6, "c", 8), row(7, "c", None, deletes=True)]))
    assert {key: (each["n"], each["transaction_id"], each["gone"]) for key, each in found.items()} == {
        "a": (1, 4, True),
        "b": (7, 5, False),
        "c": (8, 7, True),
    }


def test_a_soft_delete_keeps_the_value_of_the_table_if_the_batch_has_only_older_ones() -> None:
    rule = newest(SOFT_ROWS, "at", SOFT)
    table = folded(rule, SOFT_ROWS.empty_table(), [row(0, "a", 5, at=5)])
    (found,) = folded(rule, table, [row(1, "a", 3, at=3), row(2, "a", None, at=9, deletes=True)]).to_pylist()
    assert (found["n"], found["at"], found["gone"]) == (5, 9, True)


def test_a_column_is_filled_where_it_is_null_and_only_for_the_named_rows() -> None:
    table = pa.Table.from_pylist([row(0, "a", 1), row(1, "b", None), row(2, "c", None)], schema=ROWS)
    found = folded(Filled(["k"], "n"), table, [row(9, "b", 7), row(9, "a", 8), row(9, "d", 9)])
    assert [(each["k"], each["n"], each["transaction_id"]) for each in found.to_pylist()] == [("a", 1, 0), ("c", None, 2), ("b", 7, 1)]
    assert folded(Filled(["k"], "n"), table, []).to_pylist() == table.to_pylist()


# ---- history ---------------------------------------------------------------------------------------------------------------------------------------


def history(sequence: str = "at") -> tuple[Versions, Any]:
    kind = ROWS.field(sequence).type
    schema = pa.schema([*ROWS, ("since", kind), ("until", kind), ("now", pa.bool_())])
    return Versions("t", ["k"], sequence, ROWS.names, RANGES), schema.empty_table()


def versions_of(rows: Sequence[Row], sequence: str) -> set[tuple[Any, ...]]:
    """What is valid when, by a loop over the whole log. Of rows with one sequence the last one counts."""
    found = set()
    for key in {each["k"] for each in rows}:
        last: dict[int, Row] = {}
        for each in sorted((each for each in rows if each["k"] == key), key=lambda each: each["transaction_id"]):
            last[each[sequence]] = each
        times = sorted(last)
        for begin, end in zip(times, [*times[1:], None], strict=True):
            if not last[begin][DELETES]:
                found.add((key, begin, end, last[begin]["n"], end is None))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_history_is_that_of_the_whole_log_however_it_is_cut_and_ordered(seed: int) -> None:
    drawn = random.Random(seed)
    sequence, in_order = drawn.choice([("at", True), ("at", False), ("transaction_id", True)])
    times = [drawn.randrange(15) for _ in range(40)] if in_order else drawn.sample(range(60), 40)
    rows = [row(n, drawn.choice("abc"), n, at=at, deletes=drawn.random() < 0.3) for n, at in enumerate(times)]
    rule, table = history(sequence)
    waiting = rows if in_order else drawn.sample(rows, len(rows))
    while waiting:
        count = drawn.randrange(1, 9)
        table, waiting = folded(rule, table, waiting[:count]), waiting[count:]
        found = [each for each in table.to_pylist() if each["until"] is None or each["until"] > each["since"]]
        assert len({(each["k"], each["since"]) for each in table.to_pylist()}) == table.num_rows
        landed = [each for each in rows if each not in waiting]
        assert {(each["k"], each["since"], each["until"], each["n"], each["now"]) for each in found} == versions_of(landed, sequence)


def test_a_delete_that_ends_nothing_keeps_an_older_row_from_being_current() -> None:
    rule, table = history()
    table = folded(rule, table, [row(0, "a", None, at=5, deletes=True)])
    assert [(each["since"], each["until"], each["now"]) for each in table.to_pylist()] == [(5, 5, False)]
    found = folded(rule, table, [row(1, "a", 3, at=3)]).to_pylist()
    assert sorted((each["since"], each["until"], each["now"], each["n"]) for each in found if each["n"] is not None) == [(3, 5, False, 3)]


def test_only_versions_that_change_are_written_again() -> None:
    rule, table = history("transaction_id")
    table = folded(rule, table, [row(n, "a", n) for n in range(50)])
    batch = pa.Table.from_pylist([dict(row(50, "a", 50))], schema=BATCH)
    index = KeyIndex(batch, ["k"])
    found = rule.fold(Keyed(table, index.codes(table)), Keyed(batch, index.of_batch), table.schema)
    assert (found.keep.sum(), found.added.num_rows) == (49, 2)


def test_columns_of_users_stay_with_their_version() -> None:
    rule, table = history("transaction_id")
    table = folded(rule, table, [row(0, "a", 1)])
    table = table.append_column("note", pa.array(["mine"]))
    found = folded(rule, table, [row(2, "a", 2)]).to_pylist()
    assert sorted((each["since"], each["until"], each["note"] or "") for each in found) == [(0, 2, "mine"), (2, None, "")]


def test_a_key_of_a_history_in_two_partitions_is_refused() -> None:
    rule, table = history("transaction_id")
    table = folded(rule, table, [row(3, "a", 1, partition=1)])
    with pytest.raises(KeyMoved, match="partitions 1 and 0 transaction_id 9"):
        folded(rule, table, [row(9, "a", 2)])


# ---- deletes that are remembered -------------------------------------------------------------------------------------------------------------------


def keyed(rows: Sequence[Row], index: KeyIndex) -> Keyed:
    table = pa.Table.from_pylist([dict(each) for each in rows], schema=BATCH)
    return Keyed(table, index.codes(table))


@pytest.mark.parametrize("sequence", ["transaction_id", "at"])
def test_rows_that_are_older_than_a_remembered_delete_are_found(sequence: str) -> None:
    rows = [row(5, "a"), row(7, "a"), row(7, "a", row=1), row(7, "b", at=None), row(0, None), row(9, "c")]
    index = KeyIndex(pa.Table.from_pylist([dict(each) for each in rows], schema=BATCH), ["k"])
    dead = keyed([row(7, "a"), row(8, "b"), row(1, None)], index)
    assert overtaken(dead, keyed(rows, index), sequence).tolist() == [True, False, False, True, True, False]
    assert overtaken(keyed([], index), keyed(rows, index), sequence).tolist() == [False] * 6
    assert overtaken(dead, keyed([], index), sequence).tolist() == []


def test_the_newest_row_of_each_key_is_found_by_its_sequence() -> None:
    rows = [row(1, "a", at=9), row(2, "a", at=3), row(3, "b", at=1), row(4, "b", at=1)]
    index = KeyIndex(pa.Table.from_pylist([dict(each) for each in rows], schema=BATCH), ["k"])
    assert sorted(newest_of(keyed(rows, index), "at").tolist()) == [0, 3]
    assert sorted(newest_of(keyed(rows, index), "transaction_id").tolist()) == [1, 3]
    assert newest_of(keyed([], index), "at").tolist() == []
