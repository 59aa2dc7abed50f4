"""Log positions as table versions, on real Delta tables that are written without a JVM: compared with what deltalake says of each version."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_delta import (
    NotADeltaTable,
    PositionForgotten,
    PositionNotReached,
    consistent_cut,
    dataset_at,
    high_water_marks,
    version_at,
    wait_reached,
    wait_reached_async,
    wait_visible,
    wait_visible_async,
)
from waltz_delta.errors import StoreUnavailable
from waltz_delta.marks import visible
from waltz_delta.marks.marks import app_id, merge_app_id
from waltz_delta.marks.positions_log import TableLog
from waltz_log.client import Receipt
from waltz_log.errors import InvalidRequest, NotAppended

KEY = "5e7b1f0c-54d1-4f3c-9c59-0b8ac2f7f0a1"
_names = itertools.count()


class Table:
    """A table that is filled as the sink does it: rows and marks in one commit."""

    def __init__(self, directory: Path, *, merged: bool = False, key: str = KEY) -> None:
        self.path = str(directory / f"t{next(_names)}")
        self.key, self.merged = key, merged
        self.marks: dict[int, int] = {}

    def land(self, ends: Mapping[int, int]) -> int:
        """Rows up to the given last ids."""
        places = [(partition, at) for partition, last in sorted(ends.items()) for at in range(self.marks.get(partition, -1) + 1, last + 1)]
        rows = pa.table({"partition": pa.array([p for p, _ in places], pa.int32()), "transaction_id": pa.array([at for _, at in places], pa.int64())})
        self.marks |= ends
        found = [Transaction(app_id(self.key, partition), last) for partition, last in ends.items()]
        if self.merged:
            found.append(Transaction(merge_app_id(self.key), sum(self.marks.values())))
        write_deltalake(self.path, rows, mode="append", commit_properties=CommitProperties(app_transactions=found))
        return DeltaTable(self.path).version()

    def note(self) -> None:
        """A commit of another writer."""
        write_deltalake(self.path, pa.table({"partition": pa.array([], pa.int32()), "transaction_id": pa.array([], pa.int64())}), mode="append")

    def clean_before(self, version: int) -> None:
        """What Delta's log cleanup leaves: a checkpoint and what comes after it."""
        DeltaTable(self.path, version=version).create_checkpoint()
        for number in range(version):
            for name in Path(self.path, "_delta_log").glob(f"{number:020d}.*"):
                name.unlink()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_marks_need_no_key_where_one_cluster_fills_the_table(table: Table) -> None:
    table.land({0: 4})
    table.land({0: 9, 11: 3})
    assert high_water_marks(table.path) == high_water_marks(table.path, KEY) == {0: 9, 11: 3}
    assert high_water_marks(table.path, "another") == {}
    table.key = "another"
    table.land({5: 7})
    assert high_water_marks(table.path, "another") == {5: 7}
    with pytest.raises(InvalidRequest, match="say which: cluster_key="):
        high_water_marks(table.path)


@pytest.mark.parametrize(
    "commit",
    [
        '{"commitInfo":{"timest',
        '["commitInfo"]',
        "damaged",
        '{"commitInfo":{}}\n{"txn":{"appId":"a"}}',
        '{"txn":"a"}',
        '{"commitInfo":{}}\n{"txn":' + "[" * 99_999,
    ],
)
def test_a_commit_that_cannot_be_parsed_is_named(table: Table, commit: str) -> None:
    table.land({0: 4})
    Path(table.path, "_delta_log", f"{1:020d}.json").write_text(commit)
    with pytest.raises(StoreUnavailable, match=r"the commit 0+1\.json cannot be parsed"):
        high_water_marks(table.path)


def test_a_table_without_marks_has_none_and_no_table_is_reported(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "plain"), pa.table({"x": [1]}))
    assert high_water_marks(str(tmp_path / "plain")) == {}
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NotADeltaTable):
            high_water_marks(str(path))


steps = st.lists(st.one_of(st.dictionaries(st.integers(0, 2), st.integers(1, 3), min_size=1), st.just("checkpoint"), st.just("note")), max_size=14)


@settings(max_examples=25, deadline=None)
@given(steps, st.dictionaries(st.integers(0, 2), st.integers(-1, 12)), st.integers(0, 13))
def test_every_version_reports_what_deltalake_reports(
    tmp_path_factory: pytest.TempPathFactory, steps: list[object], position: dict[int, int], cleaned: int
) -> None:
    table = Table(tmp_path_factory.mktemp("p"))
    table.land({0: 0})
    for step in steps:
        if step == "checkpoint":
            DeltaTable(table.path).create_checkpoint()
        elif step == "note":
            table.note()
        elif isinstance(step, dict):
            table.land({partition: table.marks.get(partition, -1) + more for partition, more in step.items()})
    newest = DeltaTable(table.path).version()
    truth = {}
    for version in range(newest + 1):
        at = DeltaTable(table.path, version=version)
        truth[version] = {p: mark for p in range(3) if (mark := at.transaction_version(app_id(KEY, p))) is not None}
    holds = [version for version, marks in truth.items() if all(marks.get(p, -1) >= last for p, last in position.items())]
    unknown = {p for p, last in position.items() if last >= 0} - set(truth[newest])
    if holds:
        assert version_at(table.path, position) == holds[0]
    elif unknown:
        with pytest.raises(InvalidRequest, match=f"holds nothing of this log partition: .* partition={min(unknown)} "):
            version_at(table.path, position)
    else:
        with pytest.raises(PositionNotReached) as caught:
            version_at(table.path, position)
        assert caught.value.mark == truth[newest].get(caught.value.partition, -1) < caught.value.transaction_id
    oldest = min(cleaned, newest)
    if oldest:
        table.clean_before(oldest)
    log = TableLog(table.path)
    assert {version: {int(name.rpartition(":")[2]): mark for name, mark in found.items()} for version, found in log.newest_first()} == {
        version: marks for version, marks in truth.items() if version >= oldest
    }
    if holds and oldest and holds[0] <= oldest:
        with pytest.raises(PositionForgotten) as forgotten:
            version_at(table.path, position)
        assert forgotten.value.oldest_version == oldest
    elif holds:
        assert version_at(table.path, position) == holds[0]


def test_a_log_cleaned_while_it_is_read_is_listed_again(table: Table) -> None:
    for last in range(6):
        table.land({0: last})
    log = TableLog(table.path)
    table.clean_before(4)
    assert log.first_version(lambda found: found[app_id(KEY, 0)] >= 5) == (5, True)
    table.land({0: 6})
    assert log.refresh()
    assert not log.refresh()
    assert (log.version, log.identifiers) == (6, {app_id(KEY, 0): 6})


def test_an_old_checkpoint_behind_missing_commits_reports_nothing(table: Table) -> None:
    for last in range(7):
        table.land({0: last})
    for version in (2, 5):
        DeltaTable(table.path, version=version).create_checkpoint()
    for version in (0, 1, 3):
        Path(table.path, "_delta_log", f"{version:020d}.json").unlink()
    assert [version for version, _ in TableLog(table.path).newest_first()] == [6, 5]
    with pytest.raises(PositionForgotten, match="oldest_version=5"):
        version_at(table.path, {0: 2})
    assert version_at(table.path, {0: 6}) == 6


def test_a_checkpoint_in_parts_counts_when_all_parts_are_there(table: Table) -> None:
    for last in range(3):
        table.land({0: last})
    table.clean_before(2)
    log = Path(table.path, "_delta_log")
    whole = log / f"{2:020d}.checkpoint.parquet"
    first = log / f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    whole.rename(first)
    with pytest.raises(NotADeltaTable, match="lacks commits below version 2"):
        high_water_marks(table.path)
    shutil.copy(first, log / f"{2:020d}.checkpoint.{2:010d}.{2:010d}.parquet")
    assert high_water_marks(table.path) == {0: 2}
    first.rename(log / f"{2:020d}.checkpoint.5e7b1f0c-54d1-4f3c-9c59-0b8ac2f7f0a1.parquet")
    assert high_water_marks(table.path) == {0: 2}


def test_rows_as_of_a_position_are_exactly_those_at_or_below_it(table: Table) -> None:
    table.land({0: 9})
    table.land({0: 19, 1: 4})
    table.land({1: 30})

    def rows(position: dict[int, int], *, exact: bool = True) -> dict[int, int]:
        counted = dataset_at(table.path, position, exact=exact).to_table().group_by("partition").aggregate([("transaction_id", "count")])
        return {row["partition"]: row["transaction_id_count"] for row in counted.to_pylist()}

    assert rows({0: 14, 1: 2}) == {0: 15, 1: 3}
    assert rows({0: 14}) == {0: 15}
    assert rows({}) == {}
    assert rows({0: 14}, exact=False) == {0: 20, 1: 5}
    with pytest.raises(PositionNotReached, match="partition=0 transaction_id=20 mark=19"):
        rows({0: 20})


def test_a_merged_table_is_exact_only_where_a_batch_ended(tmp_path: Path) -> None:
    table = Table(tmp_path, merged=True)
    table.land({0: 4})
    table.land({0: 9})
    assert dataset_at(table.path, {0: 4}).count_rows() == 5
    with pytest.raises(InvalidRequest, match="version 1 holds it and more"):
        dataset_at(table.path, {0: 6})
    assert dataset_at(table.path, {0: 6}, exact=False).count_rows() == 10


def test_a_cut_is_what_every_table_holds(tmp_path: Path) -> None:
    first, second = Table(tmp_path), Table(tmp_path)
    for last in (3, 8, 15):
        first.land({0: last, 1: last})
    for last in (5, 11):
        second.land({0: last})
    cut = consistent_cut([first.path, second.path])
    assert (cut.position, cut.exact) == ({0: 11}, True), "partition 1 is at its beginning in one of them"
    assert cut.versions == {first.path: 2, second.path: 1}
    assert [dataset_at(path, cut.position).count_rows() for path in cut.versions] == [12, 12]
    empty = Table(tmp_path, key="another")
    empty.land({0: 1})
    with pytest.raises(InvalidRequest, match="different clusters"):
        consistent_cut([first.path, empty.path])


def test_merged_tables_are_cut_at_their_newest_common_position(tmp_path: Path) -> None:
    plain, one, two = Table(tmp_path), Table(tmp_path, merged=True), Table(tmp_path, merged=True)
    for table, ends in ((plain, (6, 14)), (one, (2, 5, 9, 12)), (two, (5, 8, 12))):
        for last in ends:
            table.land({0: last})
    cut = consistent_cut([plain.path, one.path, two.path])
    assert (cut.position, cut.exact, cut.versions) == ({0: 12}, True, {plain.path: 1, one.path: 3, two.path: 2})
    two.land({0: 13})
    one.land({0: 16})
    assert consistent_cut([plain.path, one.path, two.path]).position == {0: 12}
    apart = Table(tmp_path, merged=True)
    apart.land({0: 7})
    cut = consistent_cut([one.path, apart.path])
    assert (cut.position, cut.exact, cut.versions) == ({0: 7}, False, {one.path: 2, apart.path: 0})
    assert consistent_cut([plain.path, apart.path]).exact, "a table that keeps every transaction follows any other"
    behind = Table(tmp_path)
    behind.land({0: 10})
    assert consistent_cut([behind.path, one.path, two.path]).position == {0: 5}, "no table is asked for what it does not hold"


def test_waiting_ends_with_the_commit_that_holds_the_transaction(table: Table) -> None:
    def fill() -> None:
        for last in (3, 6, 12):
            time.sleep(0.05)
            table.land({0: last})

    filling = threading.Thread(target=fill)
    filling.start()
    assert wait_visible(Receipt(0, 5, 0), table.path, 30, expect_new=True) >= 1, "a table that is not there yet is waited for"
    filling.join()
    assert wait_visible(Receipt(0, 5, 0), table.path, 0) == 2
    with pytest.raises(PositionNotReached) as caught:
        wait_visible(Receipt(1, 0, 0), table.path, 0.05)
    assert (caught.value.partition, caught.value.mark, caught.value.retriable) == (1, -1, True)
    assert caught.value.waited_s >= 0.05


@pytest.mark.parametrize(
    ("position", "reported"),
    [
        ({7: 0}, "the table holds nothing of this log partition: path=.* partition=7 held=0,1"),
        ({"zero": 3}, "a position is a mapping from log partition to its last transaction id, .*: partition='zero'"),
        ({-1: 3}, "a position is a mapping .*: partition=-1"),
        ({True: 3}, "a position is a mapping .*: partition=True"),
        ({0: "3"}, "a position is a mapping .*: partition=0 transaction_id='3'"),
        ({0: True}, "a position is a mapping .*: partition=0 transaction_id=True"),
        ({0: -2}, "a position is a mapping .*: partition=0 transaction_id=-2"),
        ({0: 3, "0": 4}, "names a partition twice: partition=0"),
        ({"0": 3, "initial": True}, "this is an offset of a Spark query, which names the next id"),
        ('{"0": 3}', "a position is a mapping .*: given='.\"0\": 3.'"),
    ],
)
async def test_a_mistake_in_a_position_is_reported_at_once(table: Table, position: Any, reported: str) -> None:
    table.land({0: 3, 1: 3})
    began_s = time.monotonic()
    for call in (version_at, dataset_at, wait_reached):
        with pytest.raises(InvalidRequest, match=reported):
            call(table.path, position)
    with pytest.raises(InvalidRequest, match=reported):
        await wait_reached_async(table.path, position)
    assert time.monotonic() - began_s < visible.TIMEOUT_S / 2


async def test_a_path_without_a_table_is_reported_at_once(table: Table) -> None:
    for call in (version_at, dataset_at, wait_reached):
        with pytest.raises(InvalidRequest, match="no table there"):
            call(table.path, {0: 3})
    for receipt in (Receipt(0, 3, 0), SimpleNamespace(partition=0, outcome=lambda timeout_s: SimpleNamespace(transaction_id=7, dead=None))):
        with pytest.raises(NotADeltaTable):
            wait_visible(receipt, table.path)
    with pytest.raises(NotADeltaTable):
        await wait_visible_async(Receipt(0, 3, 0), table.path)
    with pytest.raises(PositionNotReached):
        wait_reached(table.path, {0: 3}, 0, expect_new=True)


def test_keys_of_a_position_may_be_strings_as_in_json(table: Table) -> None:
    table.land({0: 3, 11: 1})
    table.land({0: 9})
    assert wait_reached(table.path, json.loads('{"0": 9, "11": 1}'), 0) == 1
    assert version_at(table.path, {"0": 3}) == 0
    found = dataset_at(table.path, {"0": 4, "11": 0}).to_table().to_pylist()
    assert sorted((row["partition"], row["transaction_id"]) for row in found) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (11, 0)]


def test_the_first_transaction_of_a_partition_can_be_waited_for(table: Table) -> None:
    table.land({0: 3})
    filling = threading.Timer(0.1, lambda: table.land({1: 0}))
    filling.start()
    assert wait_reached(table.path, {1: 0}, 30, expect_new=True) == 1
    filling.join()


async def test_waiting_does_not_block_the_event_loop(table: Table) -> None:
    table.land({0: 3})
    waiting = asyncio.create_task(wait_visible_async(Receipt(0, 5, 0), table.path, 30))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await asyncio.to_thread(table.land, {0: 7})
    assert await waiting == 1


async def test_the_outcome_of_an_intent_is_waited_for_first(table: Table) -> None:
    table.land({0: 7})

    def receipt(outcome: SimpleNamespace) -> SimpleNamespace:
        async def later() -> SimpleNamespace:
            await asyncio.sleep(0)
            return outcome

        return SimpleNamespace(partition=0, outcome=later)

    blocking = SimpleNamespace(partition=0, outcome=lambda timeout_s: SimpleNamespace(transaction_id=7, dead=None))
    assert wait_visible(blocking, table.path, 1) == 0
    assert await wait_visible_async(receipt(SimpleNamespace(transaction_id=7, dead=None)), table.path, 1) == 0
    assert await wait_visible_async(receipt(SimpleNamespace(transaction_id=None, dead=None)), table.path, 1) is None
    with pytest.raises(NotAppended, match="gave it up"):
        await wait_visible_async(receipt(SimpleNamespace(transaction_id=None, dead="too large")), table.path, 1)


def test_polling_becomes_rarer_and_stays_within_the_time_left() -> None:
    poller = visible._Poller("p", {0: 1}, 1000.0, None, None, new_table=True, new_partition=True)
    assert poller.pause_s == visible.PAUSE_MIN_S
    poller._began_s -= 5
    assert 0.5 <= poller.pause_s < 0.6
    poller._began_s -= 500
    assert poller.pause_s == visible.PAUSE_MAX_S
    poller._began_s -= 494.9
    assert poller.pause_s < 0.2


def test_waiting_needs_no_spark_and_no_data(table: Table) -> None:
    table.land({0: 7})
    for data in Path(table.path).glob("*.parquet"):
        data.unlink()
    code = f"import sys; from waltz_delta import wait_reached; wait_reached({table.path!r}, {{0: 7}}, 0); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
    assert wait_reached(table.path, {0: 7}, 0) == 0


# ---- after a RESTORE -------------------------------------------------------------------------------------------------------------------------------


def landed(table: Table, ends: Mapping[int, int]) -> int:
    """As `Table.land`, and the commit says that it is the sink's."""
    places = [(partition, at) for partition, last in sorted(ends.items()) for at in range(table.marks.get(partition, -1) + 1, last + 1)]
    rows = pa.table({"partition": pa.array([p for p, _ in places], pa.int32()), "transaction_id": pa.array([at for _, at in places], pa.int64())})
    table.marks |= ends
    reported = {"userMetadata": json.dumps({"waltz": {"cluster": table.key}})}
    found = [Transaction(app_id(table.key, partition), last) for partition, last in ends.items()]
    write_deltalake(table.path, rows, mode="append", commit_properties=CommitProperties(custom_metadata=reported, app_transactions=found))
    return DeltaTable(table.path).version()


@pytest.mark.parametrize("by", ["version", "time"])
def test_after_a_restore_the_marks_are_those_of_the_restored_version(tmp_path: Path, by: str) -> None:
    table = Table(tmp_path)
    first = landed(table, {0: 9})
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    landed(table, {0: 19, 1: 4})
    DeltaTable(table.path).restore(first if by == "version" else between)
    assert high_water_marks(table.path) == {0: 9}
    with pytest.raises(PositionNotReached):
        wait_reached(table.path, {0: 15}, 0)
    assert wait_reached(table.path, {0: 9}, 0) == DeltaTable(table.path).version()
    assert consistent_cut([table.path]).position == {0: 9}
    assert dataset_at(table.path, {0: 9}).to_table().num_rows == 10
    for number in range(60):
        DeltaTable(table.path).alter.set_table_description(f"commit {number} of somebody else")
    assert high_water_marks(table.path) == {0: 9}, "commits of others bring back no rows, however many"
    table.marks = {0: 9}
    landed(table, {0: 12})
    assert high_water_marks(table.path) == {0: 12, 1: 4}, "a commit of ours is decided by the marks that the query set"


def test_a_restore_is_judged_for_each_cluster_by_its_own_commits(tmp_path: Path) -> None:
    table = Table(tmp_path)
    first = landed(table, {0: 9})
    other = Table(tmp_path, key="another")
    other.path = table.path
    landed(other, {0: 3})
    landed(table, {0: 19})
    DeltaTable(table.path).restore(first)
    landed(other, {0: 5})
    assert high_water_marks(table.path, KEY) == {0: 9}
    assert high_water_marks(table.path, "another") == {0: 5}
