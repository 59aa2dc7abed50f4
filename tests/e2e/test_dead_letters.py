"""What does not decode: out of the way exactly once, whatever is cut off between which commits, and put through again after a fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

from tests.e2e.committing import Lost, replace_commits
from tests.e2e.letters import KEY, ROWS, STRAY, Died, landing, letters, one_commit_each, raw, table
from waltz_delta.base import internal
from waltz_delta.dead_letters_replay import Replayed, replay
from waltz_delta.errors import Undecodable
from waltz_delta.landing.landing import Landing, resulting_schemas
from waltz_delta.settings import LandingSettings
from waltz_log.errors import InvalidSetting

BURIED = [
    ("", 0, 2, "no route for header 7"),
    ("all", 0, 1, "n is not INT: two"),
    ("all", 0, 3, "n is not INT: three"),
    ("all", 1, 0, "is not UTF-8"),
    ("all", 1, 1, "is not one JSON object: Extra data at character 20"),
    ("keyed", 0, 1, "n is not INT: two"),
    ("keyed", 0, 3, "n is not INT: three"),
    ("keyed", 1, 0, "is not UTF-8"),
    ("keyed", 1, 1, "is not one JSON object: Extra data at character 20"),
]


@pytest.mark.long
def test_letters_are_reported_once_and_before_any_table_passes_them_even_if_drivers_die(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = raw(spark, ROWS)
    reached = []
    for _ in range(6):
        with monkeypatch.context() as patched:
            one_commit_each(patched)
            try:
                Landing(landing(tmp_path), KEY).write(batch)
            except Died:
                finished = False
            else:
                finished = True
        reached.append([bool(internal.transaction_versions(spark, str(tmp_path / name))) for name in ("dead", "all", "keyed")])
        assert letters(spark, tmp_path) == BURIED
        if finished:
            break
    assert finished
    assert reached[:2] == [[True, False, False], [True, True, True]], "letters first; then the table, and the merge that misses its marks"
    assert table(spark, tmp_path / "all", "partition", "transaction_id", "k", "n") == [(0, 0, "a", 1)]
    assert table(spark, tmp_path / "keyed", "transaction_id", "k", "n") == [(0, "a", 1)]
    _fixed_letters_go_through_once(spark, tmp_path, monkeypatch)


def _fixed_letters_go_through_once(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes on with the tables above: `n` may be text now, and what was astray has a route."""
    wrong = landing(tmp_path).model_dump()
    for output in wrong["outputs"]:
        output["decode"]["columns"] = "k STRING NOT NULL, n STRING"
        output["projection"]["select"] = "k, try_cast(n AS INT) AS n" + ("" if output["target"]["mode"] == "append" else ", timestamp, header")
        output["route"]["headers"] = (*output["route"]["headers"], STRAY)
    fixed = LandingSettings(**wrong)
    before = letters(spark, tmp_path)
    expected = [
        Replayed(str(tmp_path / "all"), 3, 2, 0, {"is not UTF-8": 1, "is not one JSON object": 1}),
        Replayed(str(tmp_path / "keyed"), 3, 2, 0, {"is not UTF-8": 1, "is not one JSON object": 1}),
    ]
    assert replay(spark, fixed, dry_run=True) == expected
    assert table(spark, tmp_path / "all", "transaction_id") == [(0,)], "a dry run changes nothing"
    with monkeypatch.context() as patched:

        def die(*_: Any) -> None:
            raise Died

        patched.setattr("waltz_delta.dead_letters_replay._mark", die)
        with pytest.raises(Died):
            replay(spark, fixed)
    for again in (expected, None):
        reports = replay(spark, fixed)
        assert [(each.landed, each.still) for each in reports] == ([(3, 2), (3, 2)] if again else [(0, 2), (0, 2)])
        assert table(spark, tmp_path / "all", "partition", "transaction_id", "k", "n") == [
            (0, 0, "a", 1),
            (0, 1, "a", None),
            (0, 2, "s", 7),
            (0, 3, "b", None),
        ]
        assert table(spark, tmp_path / "keyed", "transaction_id", "k", "n") == [(1, "a", None), (2, "s", 7)], "what was deleted later stays so"
    assert letters(spark, tmp_path) == before
    waiting = spark.read.format("delta").load(str(tmp_path / "dead")).where("replayed_at IS NULL")
    assert sorted((row.transaction_id, Path(row.target).name) for row in waiting.collect()) == [(0, "all"), (0, "keyed"), (1, "all"), (1, "keyed")]


def test_letters_in_the_table_are_not_reported_again_and_count_once_even_after_a_lost_race(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that became stricter make no letters of rows that landed, though their batch comes again with letters behind."""
    outputs = landing(tmp_path, columns="k STRING NOT NULL, n STRING").model_dump()["outputs"][:1]
    Landing(landing(tmp_path, outputs=outputs, unrouted="skip"), KEY).write(raw(spark, ROWS[:2]))
    outputs[0]["decode"]["columns"] = "k STRING NOT NULL, n INT"
    outputs[0]["projection"]["select"] = "k, cast(n AS STRING) AS n"
    strict = Landing(landing(tmp_path, outputs=outputs, unrouted="skip"), KEY)
    lost: list[bool] = []

    def losing(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            if named["query"] == "waltz" and not lost:
                lost.append(True)
                raise Lost("lost")
            return original(*arguments, **named)

        return commit

    replace_commits(monkeypatch, losing)
    strict.write(raw(spark, ROWS[:4]))
    assert lost
    assert letters(spark, tmp_path) == [("all", 0, 3, "n is not INT: three")]
    assert strict.statistics().dead_letters == 1
    assert table(spark, tmp_path / "all", "transaction_id", "n") == [(0, "1"), (1, "two")]


def test_letters_of_a_driver_that_died_before_the_table_passed_them_are_not_counted_again_in_a_larger_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = landing(tmp_path, outputs=landing(tmp_path).model_dump()["outputs"][:1], unrouted="skip")
    with monkeypatch.context() as patched:
        one_commit_each(patched)
        with pytest.raises(Died):
            Landing(settings, KEY).write(raw(spark, ROWS[:2]))
    assert letters(spark, tmp_path) == [("all", 0, 1, "n is not INT: two")]
    again = Landing(settings, KEY)
    again.write(raw(spark, ROWS[:4]))
    assert letters(spark, tmp_path) == [("all", 0, 1, "n is not INT: two"), ("all", 0, 3, "n is not INT: three")]
    assert again.statistics().dead_letters == 1
    assert table(spark, tmp_path / "all", "transaction_id") == [(0,)]


@pytest.mark.slow
def test_letters_are_reported_again_where_their_table_was_restored_together_with_its_target(spark: Any, tmp_path: Path) -> None:
    """As after all tables were set back to yesterday: the log comes again, and nothing else remembers its letters."""
    settings = landing(tmp_path, outputs=landing(tmp_path).model_dump()["outputs"][:1], unrouted="skip")
    Landing(settings, KEY).write(raw(spark, ROWS[:1]))
    empty = internal.table_version(spark, str(tmp_path / "dead"))
    Landing(settings, KEY).write(raw(spark, ROWS[:4]))
    reported = [("all", 0, 1, "n is not INT: two"), ("all", 0, 3, "n is not INT: three")]
    assert letters(spark, tmp_path) == reported
    DeltaTable.forPath(spark, str(tmp_path / "all")).restoreToVersion(0)
    DeltaTable.forPath(spark, str(tmp_path / "dead")).restoreToVersion(empty)
    elsewhere = settings.model_dump()
    elsewhere["outputs"][0]["target"]["table"] = str(tmp_path / "of another cluster")
    Landing(LandingSettings(**elsewhere), "another cluster").write(raw(spark, ROWS[1:2]))
    Landing(settings, KEY).write(raw(spark, ROWS[:4]))
    found = spark.read.format("delta").load(str(tmp_path / "dead"))
    both = [*reported, ("of another cluster", 0, 1, "n is not INT: two")]
    assert letters(spark, tmp_path) == both, "the other cluster's is its own"
    assert found.where("cluster != 'another cluster'").count() == 2
    Landing(settings, KEY).write(raw(spark, ROWS[:4]))
    assert letters(spark, tmp_path) == both


def test_landings_that_share_a_dead_letter_table_each_report_what_their_own_routes_miss(spark: Any, tmp_path: Path) -> None:
    """The first one to get so far reported for both: what the other's routes do not match was nowhere."""
    first, second = landing(tmp_path).model_dump()["outputs"]
    second["route"]["headers"] = (STRAY,)
    rows = raw(spark, ROWS[:5])
    Landing(landing(tmp_path, outputs=[first]), KEY).write(rows)
    nowhere = [("", 0, 2, "no route for header 7"), ("", 0, 4, "no route for header 9")]
    assert [each for each in letters(spark, tmp_path) if not each[0]] == nowhere
    Landing(landing(tmp_path, outputs=[second]), KEY).write(rows)
    nowhere += [("", 0, at, "no route for header 1") for at in (0, 1, 3)] + [nowhere[1]]
    assert [each for each in letters(spark, tmp_path) if not each[0]] == sorted(nowhere, key=repr)
    other = {**first, "target": {**first["target"], "table": str(tmp_path / "more")}}
    Landing(landing(tmp_path, outputs=[other, first]), KEY).write(rows)
    assert [each for each in letters(spark, tmp_path) if not each[0]] == sorted(nowhere, key=repr), (
        "a new output before the others tells nothing twice"
    )


def test_without_dead_letters_the_query_fails_and_names_the_transaction_and_skip_forgets_it(spark: Any, tmp_path: Path) -> None:
    failing = landing(tmp_path, dead_letters=None, unrouted="skip")
    with pytest.raises(Undecodable, match="transaction 1 of partition 0: n is not INT"):
        Landing(failing, KEY).write(raw(spark, ROWS[:2]))
    with pytest.raises(Undecodable, match="no route for header 7"):
        Landing(landing(tmp_path, dead_letters=None, unrouted="fail"), KEY).write(raw(spark, ROWS[2:3]))
    forgetting = failing.model_dump()
    forgetting["outputs"] = forgetting["outputs"][:1]
    forgetting["outputs"][0]["decode"]["undecodable"] = "skip"
    landed = Landing(LandingSettings(**forgetting), KEY)
    landed.write(raw(spark, ROWS[:2]))
    assert table(spark, tmp_path / "all", "transaction_id", "n") == [(0, 1)]
    assert landed.statistics().dead_letters == 0
    with pytest.raises(InvalidSetting, match="are not declared"):
        replay(spark, failing)


def test_the_resulting_columns_need_no_data(spark: Any, tmp_path: Path) -> None:
    found = resulting_schemas(spark, landing(tmp_path))
    assert {Path(path).name: schema.simpleString() for path, schema in found.items()} == {
        "all": "struct<partition:int,transaction_id:bigint,k:string,n:int>",
        "keyed": "struct<partition:int,transaction_id:bigint,timestamp:timestamp,header:int,k:string,n:int>",
    }
    assert not (tmp_path / "keyed").exists()
