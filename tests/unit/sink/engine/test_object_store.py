"""Appends and merges on S3: conditional commits, a store that fails in every way, and the probe that refuses a store without conditions."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, commit, files, opened
from verification.lake import merge_table
from verification.lake.s3_server import Fault, S3Server
from verification.lake.store_faults import FAULTS, PERMANENT, from_then_on, is_commit, twice
from waltz_delta.engine import store_probe
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import Overtaken
from waltz_delta.engine.store_probe import require_conditional_put
from waltz_delta.errors import StoreUnavailable, UnsafeTable

PLACE = "s3://lake/tables/legs"


@pytest.fixture
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def fast(store: S3Server) -> dict[str, str]:
    """Gives up after one repetition, so that a test does not wait."""
    return {**store.storage, "max_retries": "1", "retry_timeout": "2s", "timeout": "2s", "connect_timeout": "2s"}


def ids(table: ArrowTable) -> list[int]:
    found = table.reopen()
    assert found is not None
    return sorted(found.delta_table.to_pyarrow_table()["id"].to_pylist())


def merged(storage: dict[str, str], first: int, end: int) -> int:
    return merge_table.merge(begin(opened(PLACE, storage)), merge_table.changes(first, end), end - 1)


def newest(storage: dict[str, str]) -> list[int]:
    found = opened(PLACE, storage).reopen()
    assert found is not None
    return sorted(found.delta_table.to_pyarrow_table()["transaction_id"].to_pylist())


def test_rows_and_marks_land_on_s3_without_a_directory_or_a_temporary_file(store: S3Server) -> None:
    table = opened(PLACE, store.storage)
    assert table.is_table() is False
    assert [append(table, first, first + 10) for first in (0, 10)] == [0, 1]
    assert begin(opened(PLACE, store.storage)).version(MARK) == 19
    assert ids(table) == list(range(20))
    assert sorted(key.rpartition("/")[2].partition("-")[0] for key in store.objects) == [*(f"{n:020d}.json" for n in range(2)), "part", "part"]


def test_of_two_drivers_on_s3_one_commits(store: S3Server) -> None:
    table = opened(PLACE, store.storage)
    append(table, 0, 1)
    start, won = threading.Barrier(3), list[int]()

    def race() -> None:
        own = opened(PLACE, store.storage)
        transaction, written = begin(own), files(own, 1, 2)
        start.wait()
        try:
            won.append(commit(transaction, written, 1))
        except Overtaken:
            won.append(-1)

    threads = [threading.Thread(target=race) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [-1, -1, 1]
    assert ids(table) == [0, 1]


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "a read of a data file fails"])
def test_a_fault_of_the_store_repeats_the_request_and_neither_loses_nor_repeats_rows(store: S3Server, name: str) -> None:
    table = opened(PLACE, store.storage)
    append(table, 0, 5)
    store.fault, met = twice(name)
    append(table, 5, 10)
    assert met
    assert ids(table) == list(range(10))
    assert begin(table).version(MARK) == 9


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_store_repeats_a_merge_and_neither_loses_nor_repeats_changes(store: S3Server, name: str) -> None:
    merge_table.create(PLACE, store.storage)
    merged(store.storage, 0, 6)
    store.fault, met = twice(name)
    assert merged(store.storage, 6, 13) == 2
    assert met
    assert newest(store.storage) == merge_table.rows_at(12)
    assert begin(opened(PLACE, store.storage)).version(MARK) == 12


@pytest.mark.parametrize("name", PERMANENT)
def test_a_permanent_fault_ends_with_one_sentence_that_names_it(store: S3Server, name: str) -> None:
    table = opened(PLACE, fast(store))
    append(table, 0, 5)
    fault, reason = PERMANENT[name]
    transaction, written = begin(table), files(table, 5, 10)
    store.fault = from_then_on(fault)
    for attempt in (lambda: commit(transaction, written, 9), lambda: begin(opened(PLACE, fast(store)))):
        with pytest.raises(StoreUnavailable) as failed:
            attempt()
        assert re.search(reason, str(failed.value))
        assert "\n" not in str(failed.value)
    store.fault = lambda method, key: None
    assert append(table, 5, 10) == 1
    assert ids(table) == list(range(10))


@pytest.mark.parametrize("name", PERMANENT)
def test_a_permanent_fault_of_a_merge_ends_with_one_sentence_and_the_batch_is_merged_later(store: S3Server, name: str) -> None:
    merge_table.create(PLACE, store.storage)
    merged(store.storage, 0, 6)
    fault, reason = PERMANENT[name]
    transaction = begin(opened(PLACE, fast(store)))
    store.fault = from_then_on(fault)
    with pytest.raises(StoreUnavailable) as failed:
        merge_table.merge(transaction, merge_table.changes(6, 13), 12)
    assert re.search(reason, str(failed.value))
    assert "\n" not in str(failed.value)
    store.fault = lambda method, key: None
    assert newest(store.storage) == merge_table.rows_at(5)
    merged(store.storage, 6, 13)
    assert newest(store.storage) == merge_table.rows_at(12)


@pytest.mark.parametrize("conditional", [True, False])
def test_the_condition_of_the_put_is_what_keeps_the_rows_of_two_drivers(conditional: bool) -> None:
    """A rival commits the version while our request for it is on its way. Without the condition the rival's rows are lost: the planted bug."""
    with S3Server(conditional=conditional) as store:
        table = opened(PLACE, store.storage)
        append(table, 0, 5)
        rivals: list[int] = []

        def overtake(method: str, key: str) -> Fault | None:
            if is_commit(method, key) and not rivals:
                rivals.append(1)
                append(opened(PLACE, store.storage), 5, 9)
            return None

        transaction, written = begin(table), files(table, 5, 7)
        store.fault = overtake
        try:
            commit(transaction, written, 6)
        except Overtaken:
            append(table, 9, 12)
        assert ids(table) == (list(range(12)) if conditional else list(range(7)))


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_probe, "_proven", set())
    with S3Server(conditional=False) as store:
        with pytest.raises(UnsafeTable, match="ignores the condition"):
            require_conditional_put(PLACE, PLACE, store.storage)
        assert not any(store.objects.values())
    with S3Server() as store:
        require_conditional_put(PLACE, PLACE, store.storage)
        assert not any(store.objects.values()), "the probe is removed; markers of its folder may stay"
        store.bucket_exists = False
        require_conditional_put(PLACE, PLACE, store.storage)
    require_conditional_put("/lake/legs", "/lake/legs", {})


def test_a_store_that_does_not_answer_the_probe_is_named(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_probe, "_proven", set())
    store.bucket_exists = False
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        require_conditional_put(PLACE, PLACE, fast(store))
