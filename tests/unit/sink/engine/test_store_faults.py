"""Histories, compactions and maintenance on a store that fails in every way: afterwards the table holds what the log says, no more and no less."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, opened
from verification.lake import history_table
from verification.lake.s3_server import Fault, S3Server
from verification.lake.store_faults import FAULTS, NONE, PERMANENT, FaultyStore, faulty_store, from_then_on, is_commit, twice
from waltz_delta.engine.compaction import COMPACTION, Compacted, compact
from waltz_delta.engine.stores import file_system
from waltz_delta.errors import StoreUnavailable
from waltz_delta.jobs.maintain import Maintained, Needs, maintain_table
from waltz_delta.jobs.maintained_tables import Tables
from waltz_delta.marks.positions_log import TableLog

PLACE = "s3://lake/tables/legs"
SMALL = 1 << 20


@pytest.fixture
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with faulty_store() as running:
        yield running


def hasty(store: S3Server) -> dict[str, str]:
    return {**store.storage, "max_retries": "1", "retry_timeout": "2s", "timeout": "2s", "connect_timeout": "2s"}


def rows(storage: dict[str, str]) -> Any:
    found = opened(PLACE, storage).reopen()
    assert found is not None
    return found.delta_table.to_pyarrow_table()


def merged(storage: dict[str, str], first: int, end: int) -> None:
    history_table.merge(begin(opened(PLACE, storage)), first, end)


@dataclass(frozen=True)
class Work:
    """What is done to a table while its store fails. `prepare`: before that. `held`: what the table shows of itself; `wanted`: before and after."""

    prepare: Callable[[dict[str, str]], None]
    run: Callable[[dict[str, str]], object]
    held: Callable[[dict[str, str]], object]
    before: object
    after: object


def history(storage: dict[str, str]) -> None:
    history_table.create(PLACE, storage)
    merged(storage, 0, 7)


def appended(storage: dict[str, str]) -> None:
    for first in range(0, 12, 3):
        append(opened(PLACE, storage), first, first + 3)


def history_held(storage: dict[str, str]) -> object:
    return history_table.rows_of(rows(storage)), begin(opened(PLACE, storage)).version(MARK)


def compacted_held(storage: dict[str, str]) -> object:
    transaction = begin(opened(PLACE, storage))
    found = opened(PLACE, storage).open()
    assert found is not None
    return sorted(rows(storage)["id"].to_pylist()), len(found.delta_table.file_uris()), transaction.version(COMPACTION)


WORK = {
    "history": Work(
        history,
        lambda storage: merged(storage, 7, 16),
        history_held,
        (history_table.versions_at(6), 6),
        (history_table.versions_at(15), 15),
    ),
    "compaction": Work(
        appended, lambda storage: compact(opened(PLACE, storage), SMALL), compacted_held, (list(range(12)), 4, None), (list(range(12)), 1, 1)
    ),
}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_neither_loses_nor_repeats_a_row(store: S3Server, kind: str, name: str) -> None:
    work = WORK[kind]
    work.prepare(store.storage)
    assert work.held(store.storage) == work.before
    store.fault, met = twice(name)
    work.run(store.storage)
    assert met
    store.fault = lambda method, key: None
    assert work.held(store.storage) == work.after


def first_write(method: str, key: str) -> bool:
    return method != "GET" and key.endswith(".parquet")


def first_read(method: str, key: str) -> bool:
    return method == "GET" and key.endswith(".parquet")


MOMENTS: dict[str, Callable[[str, str], bool]] = {
    "at the start": lambda method, key: True,
    "when a file is read": first_read,
    "when a file is written": first_write,
    "when it is committed": is_commit,
}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", PERMANENT)
def test_a_fault_that_stays_is_one_sentence_and_the_work_is_done_later(store: S3Server, kind: str, moment: str, name: str) -> None:
    work, (fault, reason) = WORK[kind], PERMANENT[name]
    work.prepare(store.storage)
    store.fault = from_then_on(fault, MOMENTS[moment])
    with pytest.raises(StoreUnavailable) as failed:
        work.run(hasty(store))
    assert re.search(reason, str(failed.value)), str(failed.value)
    assert "\n" not in str(failed.value)
    store.fault = lambda method, key: None
    assert work.held(store.storage) == work.before
    work.run(store.storage)
    assert work.held(store.storage) == work.after


@pytest.mark.parametrize("kind", WORK)
def test_a_commit_that_landed_before_the_store_failed_for_good_is_not_made_again(store: S3Server, kind: str) -> None:
    """The answer is lost, and nothing can be read after it. So only the marks of the table show it, at the next start."""
    work = WORK[kind]
    work.prepare(store.storage)
    begun = list[str]()

    def lost(method: str, key: str) -> Fault | None:
        executed = is_commit(method, key) and not begun
        if executed:
            begun.append(key)
        return Fault(500, "InternalError", executed=executed) if begun else None

    store.fault = lost
    with pytest.raises(StoreUnavailable):
        work.run(hasty(store))
    store.fault = lambda method, key: None
    assert work.held(store.storage) == work.after
    if kind == "compaction":
        assert compact(opened(PLACE, store.storage), SMALL) == Compacted()
        assert DeltaTable(PLACE, storage_options=store.storage).version() == 4


def test_files_of_a_merge_whose_commit_is_refused_are_written_once(store: S3Server) -> None:
    """A store or a disk that fails has no use for further copies."""
    history(store.storage)
    refused: list[str] = []

    def three_times(method: str, key: str) -> Fault | None:
        if is_commit(method, key) and len(refused) < 3:
            refused.append(key)
            return Fault(403, "AccessDenied")  # not repeated by `deltalake`
        return None

    before = sum(key.endswith(".parquet") for key in store.objects)
    store.fault = three_times
    merged(store.storage, 7, 16)
    assert len(refused) == 3
    assert sum(key.endswith(".parquet") for key in store.objects) == before + 1
    assert history_held(store.storage) == WORK["history"].after


def test_a_file_that_the_store_has_not_as_it_was_written_is_not_committed(store: S3Server) -> None:
    """Some stores leave an empty file if the end of an upload is repeated. A reader would find no row, and no error."""
    table = opened(PLACE, store.storage)
    append(table, 0, 3)

    def emptied(method: str, key: str) -> Fault | None:
        if method == "HEAD" and key.endswith(".parquet"):
            store.objects[key] = b""
        return None

    store.fault = emptied
    with pytest.raises(StoreUnavailable, match=r"the store has 0 of the \d+ bytes that were written"):
        append(table, 3, 6)
    store.fault = lambda method, key: None
    append(table, 3, 6)
    assert sorted(rows(store.storage)["id"].to_pylist()) == list(range(6))


# ---- maintenance -----------------------------------------------------------------------------------------------------------------------------------


def maintained(storage: dict[str, str]) -> Maintained:
    """As `jobs/maintain.py` does it, without Spark, which such a table does not need."""
    spark: Any = None
    tables = Tables(spark, {PLACE: opened(PLACE, storage)})
    return maintain_table(tables, PLACE, Needs(hours=0.0, positions=({0: 5},)), small_bytes=SMALL)


@pytest.fixture
def small_files(server: FaultyStore) -> FaultyStore:
    """A table of four files."""
    server.fail(NONE)
    files, root = file_system(PLACE, server.storage)
    files.delete_dir_contents(root, missing_dir_ok=True)
    appended(server.storage)
    return server


@pytest.mark.parametrize("name", FAULTS)
def test_maintenance_goes_on_after_a_fault_that_passes(small_files: FaultyStore, name: str) -> None:
    storage = small_files.storage
    small_files.fail(name)
    done = maintained(storage)
    assert small_files.fail(NONE) > 0
    assert done.compacted == Compacted(removed=4, added=1)
    assert compacted_held(storage) == WORK["compaction"].after


@pytest.mark.parametrize("begins", ["", ".parquet", ".json", "checkpoint"])
@pytest.mark.parametrize("name", PERMANENT)
def test_maintenance_ends_with_one_sentence_if_the_fault_stays(small_files: FaultyStore, name: str, begins: str) -> None:
    small_files.fail(name, begins=begins)
    with pytest.raises(StoreUnavailable) as failed:
        maintained(small_files.hasty)
    assert small_files.fail(NONE) > 0
    assert re.search(PERMANENT[name][1], str(failed.value)), str(failed.value)
    assert "\n" not in str(failed.value)
    assert compacted_held(small_files.storage) == (WORK["compaction"].after if begins == "checkpoint" else WORK["compaction"].before)
    maintained(small_files.storage)
    assert compacted_held(small_files.storage) == WORK["compaction"].after


@pytest.mark.parametrize("name", PERMANENT)
def test_the_log_of_a_table_that_cannot_be_read_is_not_reported_as_missing(small_files: FaultyStore, name: str) -> None:
    known = TableLog(PLACE, small_files.hasty)
    small_files.fail(name)
    reads: list[Callable[[], object]] = [lambda: TableLog(PLACE, small_files.hasty), lambda: known.identifiers_at(1)]
    if name != "the bucket disappears":  # to a request for one object a store may say the same as for one that is not there
        reads.append(known.refresh)
    for read in reads:
        with pytest.raises(StoreUnavailable, match=f"{PERMANENT[name][1]}|403 Forbidden"):
            read()
    small_files.fail(NONE)
    assert known.refresh() is False
    assert known.identifiers_at(1) == {MARK: 5}
