"""Marks of tables and of dead letters over commits that are made up: who has reported what, and what a RESTORE undoes back. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from waltz_delta.errors import RestoreOvertaken, TableReplaced, TableRestored
from waltz_delta.landing.append import DeltaAppend
from waltz_delta.landing.dead_letters import NO_TARGET, DeadLetters
from waltz_delta.landing.merge import MergedTable
from waltz_delta.landing.merge_sink import _StagedMerge
from waltz_delta.landing.start import starts_after
from waltz_delta.marks.marks import (
    BatchRange,
    app_id,
    clusters_now,
    epoch_app_id,
    marks_among,
    merge_app_id,
    merged_app_id,
    refuse_gaps,
    superseded_app_id,
)
from waltz_delta.marks.restored import commit_metadata, follow_restore, marks_as_restored
from waltz_delta.tables.table_watch import TableWatch

KEY, OTHER = "k", "other"


class Table:
    """Commits with their operations and the identifiers that they set. Stands for a `TableTransaction` of itself."""

    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = [{"operation": "CREATE TABLE"}]
        self.sets: list[dict[str, int]] = [{}]
        self.table_id = "first"
        self.exists = True

    def commit(self, written: Any, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        parameters = {"queryId": query, "epochId": str(batch)}
        return self.add({"operation": "STREAMING UPDATE", "operationParameters": parameters, "userMetadata": metadata}, versions)

    def mark(self, versions: Mapping[str, int], **reported: Any) -> int:
        return self.commit((), versions, **reported)

    def land(self, cluster: str, versions: Mapping[str, int]) -> int:
        return self.commit((), versions, query="waltz", batch=0, metadata=commit_metadata(cluster))

    def restore(self, version: int) -> int:
        return self.add({"operation": "RESTORE", "operationParameters": {"version": version}})

    def add(self, reported: dict[str, Any], versions: Mapping[str, int] | None = None) -> int:
        self.reported.append(reported)
        self.sets.append(dict(versions or {}))
        return self.read_version

    @property
    def read_version(self) -> int:
        return len(self.reported) - 1

    def versions_at(self, version: int) -> dict[str, int]:
        return {name: at for each in self.sets[: version + 1] for name, at in each.items()}

    def versions(self) -> dict[str, int]:
        return self.versions_at(self.read_version)

    def version(self, name: str) -> int | None:
        return self.versions().get(name)

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from sorted(enumerate(self.reported), reverse=True)[:count]

    def refuse_strange_checksum(self) -> None:
        pass

    def write(self, rows: Any, **_: Any) -> Any:
        return rows


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr("waltz_delta.base.internal.TableTransaction", lambda spark, path: made)
    monkeypatch.setattr(DeadLetters, "_rows", lambda self, rows, target: rows)
    monkeypatch.setattr(DeadLetters, "_late", lambda *_: SimpleNamespace(count=lambda: 0))
    monkeypatch.setattr("waltz_delta.landing.dead_letters.reduce", lambda union, frames: list(frames))
    monkeypatch.setattr("waltz_delta.base.internal.counted", lambda frames: (frames, lambda: sum(type(each) is object for each in frames)))
    return made


def announce(letters: DeadLetters, ends: dict[int, int], *targets: str) -> dict[str, dict[int, int]]:
    """The marks above which the letters of each target were asked for."""
    asked: dict[str, dict[int, int]] = {}

    def of(target: str) -> Any:
        def rows(marks: Mapping[int, int]) -> Any:
            asked[target] = dict(marks)
            return object()

        return rows

    spark: Any = None
    covered = BatchRange({p: end + 1 for p, end in ends.items()}, ends, exact=True)
    assert letters.write(spark, covered, {target: of(target) for target in targets}, 1) == len(asked)
    return asked


def test_a_restore_lowers_marks_and_merges_continue_with_their_number(table: Table) -> None:
    spark: Any = None
    merge, merged = merge_app_id(KEY), merged_app_id(KEY)
    then = table.land(KEY, {app_id(KEY, 0): 9, merge: 1, merged: 1})
    table.land(KEY, {app_id(KEY, 0): 19, app_id(KEY, 1): 5, merge: 2})
    table.land(OTHER, {app_id(OTHER, 0): 7})
    table.restore(then)
    before = table.read_version
    assert marks_as_restored(spark, "t", KEY) == {0: 9}
    assert table.read_version == before, "nothing is written"
    follow_restore(spark, "t", KEY)
    assert table.versions() == {app_id(KEY, 0): 9, app_id(KEY, 1): -1, merge: 2, merged: 2, app_id(OTHER, 0): 7}
    follow_restore(spark, "t", KEY)
    assert table.read_version == before + 1, "a restore is followed once"
    table.land(KEY, {app_id(KEY, 0): 12})
    assert marks_as_restored(spark, "t", KEY) == {0: 12}
    follow_restore(spark, "t", OTHER)
    assert table.version(app_id(OTHER, 0)) == -1, "each cluster by itself"


@pytest.mark.parametrize("started", [KEY, OTHER])
def test_a_restore_undoes_a_takeover_whichever_cluster_starts_first(table: Table, started: str) -> None:
    spark: Any = None
    then = table.land(KEY, {app_id(KEY, 0): 9})
    table.land(OTHER, {superseded_app_id(KEY): 1})
    table.land(OTHER, {epoch_app_id(OTHER): 1})
    table.land(OTHER, {app_id(OTHER, 0): 3, merge_app_id(OTHER): 1, merged_app_id(OTHER): 1})
    table.restore(then)
    follow_restore(spark, "t", started)
    assert clusters_now(table.versions()) == [KEY]
    assert marks_among(table.versions(), OTHER) == {}
    assert marks_among(table.versions(), KEY) == {0: 9}
    before = table.read_version
    follow_restore(spark, "t", started)
    assert table.read_version == before
    if started == KEY:
        assert table.version(superseded_app_id(KEY)) == -1, "it may go on"
        return
    table.land(OTHER, {epoch_app_id(OTHER): 1})
    table.land(OTHER, {app_id(OTHER, 0): 5})
    follow_restore(spark, "t", KEY)
    assert clusters_now(table.versions()) == [OTHER], "which has inherited the table again since"
    assert marks_among(table.versions(), OTHER) == {0: 5}


def test_letters_of_a_restored_table_are_reported_again_whatever_another_cluster_reported_since(table: Table) -> None:
    spark: Any = None
    letters, others = DeadLetters("dead", KEY, ["t"], engine="spark"), DeadLetters("dead", OTHER, ["t"], engine="spark")
    assert announce(letters, {0: 9}, "t", NO_TARGET) == {"t": {}, NO_TARGET: {}}
    then = table.read_version
    assert announce(letters, {0: 19}, "t") == {"t": {0: 9}}
    assert announce(letters, {0: 19}, "t") == {}, "told once"
    table.restore(then)
    assert announce(others, {0: 4}, "t") == {"t": {}}
    letters.follow_restore(spark)
    assert announce(letters, {0: 25}, "t", NO_TARGET) == {"t": {0: 9}, NO_TARGET: {0: 9}}


def test_transactions_without_a_route_are_reported_once_by_each_landing_even_if_its_outputs_change(table: Table) -> None:
    def landing(*tables: str) -> DeadLetters:
        return DeadLetters("dead", KEY, tables, engine="spark")

    assert announce(landing("a", "b"), {0: 99}, NO_TARGET) == {NO_TARGET: {}}
    assert announce(landing("c"), {0: 50}, NO_TARGET) == {NO_TARGET: {}}, "another landing, which is behind"
    assert announce(landing("new", "b"), {0: 99}, NO_TARGET) == {}
    assert announce(landing("new", "b"), {0: 120}, NO_TARGET) == {NO_TARGET: {0: 99}}
    assert announce(landing("new"), {0: 130}, NO_TARGET) == {NO_TARGET: {0: 120}}
    assert announce(landing("c"), {0: 60}, NO_TARGET) == {NO_TARGET: {0: 50}}


def test_of_several_tables_the_one_that_is_furthest_ahead_says_what_was_reported_without_a_route(table: Table) -> None:
    def landing(*tables: str) -> DeadLetters:
        return DeadLetters("dead", KEY, tables, engine="spark")

    announce(landing("a"), {0: 99}, NO_TARGET)
    announce(landing("c"), {0: 50}, NO_TARGET)
    assert announce(landing("a", "c"), {0: 120}, NO_TARGET) == {NO_TARGET: {0: 99}}
    assert announce(landing("c", "a"), {0: 120}, NO_TARGET) == {}


def test_the_first_transaction_of_the_log_alone_is_reported(table: Table) -> None:
    letters = DeadLetters("dead", KEY, ["t"], engine="spark")
    assert announce(letters, {0: 0}, "t") == {"t": {}}
    assert announce(letters, {0: 0}, "t") == {}
    assert announce(letters, {0: 1, 1: 0}, "t") == {"t": {0: 0}}


def test_a_restore_to_before_a_partitions_first_batch_leaves_no_mark_of_it(table: Table) -> None:
    """The log may begin above 0, trimmed or as a topic's: a mark of -1 would make the query begin at id 0, which is lost, or find a gap."""
    spark: Any = None
    then = table.read_version
    table.land(KEY, {app_id(KEY, 0): 899, merge_app_id(KEY): 1, merged_app_id(KEY): 1})
    table.restore(then)
    follow_restore(spark, "t", KEY)
    assert starts_after(marks_as_restored(spark, "t", KEY)) == "earliest"
    assert table.version(app_id(KEY, 0)) == -1
    marks = MergedTable("t", KEY).state(spark).marks
    assert marks == marks_among(table.versions(), KEY) == marks_as_restored(spark, "t", KEY) == {}
    refuse_gaps("t", BatchRange({0: 900}, {0: 800}, exact=True, origins={0: 800}), marks)


def test_an_append_after_such_a_restore_begins_where_the_log_does(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    then = table.read_version
    table.land(KEY, {app_id(KEY, 0): 899})
    table.restore(then)
    follow_restore(spark, "t", KEY)
    sink = DeltaAppend("t", KEY, engine="spark")
    frame: Any = SimpleNamespace(schema=None, select=lambda *_: "rows")
    monkeypatch.setattr(DeltaAppend, "_columns", lambda *_: [])
    asked: list[Mapping[int, int]] = []

    class Asked:
        def frame(self, marks: Mapping[int, int], table: Any) -> Any:
            asked.append(marks)
            return frame

        def direct(self, marks: Mapping[int, int], table: Any) -> None:
            """Spark makes them."""

    staged = sink.stage(spark, BatchRange({0: 900}, {0: 800}, exact=True, origins={0: 800}), Asked(), 0)
    assert staged is not None
    staged.commit()
    assert (asked, table.version(app_id(KEY, 0))) == ([{}], 899)


def test_a_table_of_letters_that_was_restored_under_a_running_query_ends_it(table: Table) -> None:
    spark: Any = None
    letters = DeadLetters("dead", KEY, ["t"], engine="spark")
    letters.follow_restore(spark)
    announce(letters, {0: 9}, "t")
    then = table.read_version
    announce(letters, {0: 19}, "t")
    table.restore(then)
    table.add({"operation": "OPTIMIZE"})
    before = table.read_version
    for _ in range(2):
        with pytest.raises(TableRestored):
            announce(letters, {0: 29}, "t")
    assert table.read_version == before, "nothing is written"
    again = DeadLetters("dead", KEY, ["t"], engine="spark")
    again.follow_restore(spark)
    assert announce(again, {0: 29}, "t") == {"t": {0: 9}}


@pytest.mark.parametrize("found", ["second", ""])
def test_a_table_of_letters_that_was_replaced_or_removed_under_a_running_query_ends_it(table: Table, found: str) -> None:
    spark: Any = None
    letters = DeadLetters("dead", KEY, ["t"], engine="spark")
    letters.follow_restore(spark)
    table.table_id = found
    before = table.read_version
    with pytest.raises(TableReplaced) as raised:
        announce(letters, {0: 9}, "t")
    assert (raised.value.expected, raised.value.found) == ("first", found)
    assert table.read_version == before, "nothing is written"


def test_letters_that_were_committed_over_a_restore_say_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    letters = DeadLetters("dead", KEY, ["t"], engine="spark")
    letters.follow_restore(spark)
    announce(letters, {0: 9}, "t")
    monkeypatch.setattr(table, "write", lambda rows, **_: table.restore(0))
    with pytest.raises(RestoreOvertaken):
        announce(letters, {0: 19}, "t")


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_merge_overtakes_only_a_restore_before_its_own_marks(table: Table, monkeypatch: pytest.MonkeyPatch, overtaken: bool) -> None:
    """A RESTORE after them is the next batch's to find, whatever was committed above it."""
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None, unset=lambda *_: None))
    mark = table.mark

    def restored_around(versions: Mapping[str, int], **reported: Any) -> int:
        if overtaken:
            table.restore(0)
        committed = mark(versions, **reported)
        if not overtaken:
            table.restore(0)
            table.add({"operation": "OPTIMIZE"})
        return committed

    def execute() -> Any:
        table.add({"operation": "MERGE", "userMetadata": commit_metadata(KEY, merge=1, read=0)}, {merge_app_id(KEY): 1})
        return SimpleNamespace(collect=lambda: ["row"])

    def merge(*_: Any) -> Any:
        return SimpleNamespace(execute=execute)

    merged = MergedTable("t", KEY)
    state = merged.state(spark)
    monkeypatch.setattr(table, "mark", restored_around)
    monkeypatch.setattr("waltz_delta.landing.merge.one_committer", lambda *_: nullcontext())
    rule = SimpleNamespace(remember=lambda *_: None, merge=merge, merges_held_rows=True)
    sink: Any = SimpleNamespace(path="t", rule=rule, _table=merged, watch=TableWatch("t"))
    source: Any = SimpleNamespace(columns=[])
    judged_by: Any = table
    staged = _StagedMerge(sink, spark, state, {0: 9}, source, [], judged_by)
    if overtaken:
        with pytest.raises(RestoreOvertaken):
            staged.commit()
    else:
        staged.commit()
        assert table.version(app_id(KEY, 0)) == 9
