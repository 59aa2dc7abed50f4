"""Marks of tables and of dead letters over commits that are made up: who has told what, and what a RESTORE takes back. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from waltz_delta.dead_letters import NOWHERE, DeadLetters
from waltz_delta.marks import app_id, merge_app_id, merged_app_id
from waltz_delta.restored import follow_restore, marks_as_restored, told_by

KEY, OTHER = "k", "other"


class Table:
    """Commits with what they tell and the identifiers that they set. Stands for a `TableTransaction` of itself."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = [{"operation": "CREATE TABLE"}]
        self.sets: list[dict[str, int]] = [{}]

    def commit(self, written: Any, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        parameters = {"queryId": query, "epochId": str(batch)}
        return self.add({"operation": "STREAMING UPDATE", "operationParameters": parameters, "userMetadata": metadata}, versions)

    def mark(self, versions: Mapping[str, int], **told: Any) -> int:
        return self.commit((), versions, **told)

    def land(self, cluster: str, versions: Mapping[str, int]) -> int:
        return self.commit((), versions, query="waltz", batch=0, metadata=told_by(cluster))

    def restore(self, version: int) -> int:
        return self.add({"operation": "RESTORE", "operationParameters": {"version": version}})

    def add(self, told: dict[str, Any], versions: Mapping[str, int] | None = None) -> int:
        self.told.append(told)
        self.sets.append(dict(versions or {}))
        return self.read_version

    @property
    def read_version(self) -> int:
        return len(self.told) - 1

    def versions_at(self, version: int) -> dict[str, int]:
        return {name: at for each in self.sets[: version + 1] for name, at in each.items()}

    def versions(self) -> dict[str, int]:
        return self.versions_at(self.read_version)

    def version(self, name: str) -> int | None:
        return self.versions().get(name)

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from sorted(enumerate(self.told), reverse=True)[:count]

    def write(self, rows: Any, **_: Any) -> Any:
        return rows


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr("waltz_delta.internal.TableTransaction", lambda spark, path: made)
    monkeypatch.setattr(DeadLetters, "_rows", lambda self, rows, target: rows)
    monkeypatch.setattr("waltz_delta.dead_letters.reduce", lambda union, frames: list(frames))
    return made


def tell(letters: DeadLetters, ends: dict[int, int], *targets: str) -> dict[str, dict[int, int]]:
    """The marks above which the letters of each target were asked for."""
    asked: dict[str, dict[int, int]] = {}

    def of(target: str) -> Any:
        def rows(marks: Mapping[int, int]) -> Any:
            asked[target] = dict(marks)
            return object()

        return rows

    spark: Any = None
    assert letters.write(spark, ends, {target: of(target) for target in targets}, 1) == set(asked)
    return asked


def test_a_restore_takes_back_marks_and_merges_go_on_with_their_number(table: Table) -> None:
    spark: Any = None
    merge, merged = merge_app_id(KEY), merged_app_id(KEY)
    then = table.land(KEY, {app_id(KEY, 0): 9, merge: 1, merged: 1})
    table.land(KEY, {app_id(KEY, 0): 19, app_id(KEY, 1): 5, merge: 2})
    table.land(OTHER, {app_id(OTHER, 0): 7})
    table.restore(then)
    before = table.read_version
    assert marks_as_restored(spark, "t", KEY) == {0: 9, 1: -1}
    assert table.read_version == before, "nothing is written"
    follow_restore(spark, "t", KEY)
    assert table.versions() == {app_id(KEY, 0): 9, app_id(KEY, 1): -1, merge: 2, merged: 2, app_id(OTHER, 0): 7}
    follow_restore(spark, "t", KEY)
    assert table.read_version == before + 1, "a restore is followed once"
    table.land(KEY, {app_id(KEY, 0): 12})
    assert marks_as_restored(spark, "t", KEY) == {0: 12, 1: -1}
    follow_restore(spark, "t", OTHER)
    assert table.version(app_id(OTHER, 0)) == -1, "each cluster by itself"


def test_letters_of_a_restored_table_are_told_again_whatever_another_cluster_told_since(table: Table) -> None:
    spark: Any = None
    letters, others = DeadLetters("dead", KEY, ["t"]), DeadLetters("dead", OTHER, ["t"])
    assert tell(letters, {0: 9}, "t", NOWHERE) == {"t": {}, NOWHERE: {}}
    then = table.read_version
    assert tell(letters, {0: 19}, "t") == {"t": {0: 9}}
    assert tell(letters, {0: 19}, "t") == {}, "told once"
    table.restore(then)
    assert tell(others, {0: 4}, "t") == {"t": {}}
    letters.follow_restore(spark)
    assert tell(letters, {0: 25}, "t", NOWHERE) == {"t": {0: 9}, NOWHERE: {0: 9}}


def test_what_no_route_takes_is_told_by_each_landing_and_once_though_its_outputs_change(table: Table) -> None:
    def landing(*tables: str) -> DeadLetters:
        return DeadLetters("dead", KEY, tables)

    assert tell(landing("a", "b"), {0: 99}, NOWHERE) == {NOWHERE: {}}
    assert tell(landing("c"), {0: 50}, NOWHERE) == {NOWHERE: {}}, "another landing, which is behind"
    assert tell(landing("new", "b"), {0: 99}, NOWHERE) == {}
    assert tell(landing("new", "b"), {0: 120}, NOWHERE) == {NOWHERE: {0: 99}}
    assert tell(landing("new"), {0: 130}, NOWHERE) == {NOWHERE: {0: 120}}
    assert tell(landing("c"), {0: 60}, NOWHERE) == {NOWHERE: {0: 50}}
