"""A row that violates a constraint of its table is a dead letter that names the constraint, or ends the query and names its transaction. The good
rows of its batch land."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from tests.e2e.committing import replace_commits
from tests.e2e.letters import raw
from waltz_delta import Landing, Undecodable, dead_letters_replay
from waltz_delta.base.job_outcome import Failure
from waltz_delta.base.session import TIME_ZONE
from waltz_delta.dead_letters_replay import replay
from waltz_delta.jobs.audit import _Expected, _Letters
from waltz_delta.jobs.audit_compare import PieceOfLog, compare_appended
from waltz_delta.jobs.audited_tables import AuditedTable
from waltz_delta.landing.dead_letters import DeadLetters
from waltz_delta.settings import LandingSettings
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
PLACE = "partition INT, transaction_id BIGINT"
FEW = "violates CHECK few (n < 5)"
MODES: dict[str, dict[str, Any]] = {
    "keyed": {"mode": "upsert", "keys": ["k"], "deletes": {"headers": [9]}},
    "history": {"mode": "history", "keys": ["k"], "deletes": {"headers": [9]}},
}


def settings(path: Path, *names: str, letters: bool = True, columns: str = "k STRING, n INT", **output: Any) -> LandingSettings:
    made = [{"target": {"table": str(path / name), "engine": "auto", **MODES.get(name, {})}} for name in names]
    outputs = [{"decode": {"format": "json", "columns": columns}, **each, **output} for each in made]
    return LandingSettings.model_validate({"outputs": outputs, "dead_letters": {"table": str(path / "dead")} if letters else None})


def rows(spark: Any, first: int, *values: tuple[Any, Any], header: int = 1) -> Any:
    texts = [(0, first + at, header, f'{{"k": "{k}", "n": {"null" if n is None else n}}}'.encode()) for at, (k, n) in enumerate(values)]
    return raw(spark, texts)


def held(spark: Any, path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in spark.read.format("delta").load(str(path)).select("k", "n").collect()), key=repr)


def letters(spark: Any, path: Path) -> list[tuple[Any, ...]]:
    found = spark.read.format("delta").load(str(path / "dead")).collect()
    return sorted((Path(row.target).name, row.transaction_id, bytes(row.data), row.reason.partition(":")[0]) for row in found)


def constrain(spark: Any, table: Path, name: str, condition: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT {name} CHECK ({condition})")


def test_a_violating_row_of_a_merged_table_is_a_letter_and_lands_when_the_constraint_is_gone(spark: Any, tmp_path: Path) -> None:
    landing = Landing(settings(tmp_path, *MODES), KEY)
    landing.write(rows(spark, 0, ("a", 1)))
    for name in MODES:
        constrain(spark, tmp_path / name, "few", "n < 5")
    landing.write(rows(spark, 1, ("a", 9), ("b", 2), ("c", None)).union(raw(spark, [(0, 4, 1, b"{")])).union(rows(spark, 5, ("a", 7), header=9)))
    assert held(spark, tmp_path / "history") == [("a", 1), ("b", 2)], "the landing ran already"
    assert held(spark, tmp_path / "keyed") == [("b", 2)], "a delete writes no values, so it violates nothing"
    bad = [(1, b'{"k": "a", "n": 9}', FEW), (3, b'{"k": "c", "n": null}', FEW), (4, b"{", "is not one JSON object")]
    assert letters(spark, tmp_path) == sorted((name, *each) for name in MODES for each in bad)
    assert landing.statistics().dead_letters == 6
    strict = Landing(settings(tmp_path, "keyed", letters=False), KEY)
    with pytest.raises(Undecodable, match=r"transaction 6 of partition 0: violates CHECK few \(n < 5\)"):
        strict.write(rows(spark, 6, ("d", 7)))
    for name in MODES:
        spark.sql(f"ALTER TABLE delta.`{tmp_path / name}` DROP CONSTRAINT few")
    reports = replay(spark, settings(tmp_path, *MODES))
    assert [(each.landed, each.still, each.reasons) for each in reports] == [(2, 1, {"is not one JSON object": 1})] * 2
    assert held(spark, tmp_path / "keyed") == [("b", 2), ("c", None)], "the delete came later"
    assert held(spark, tmp_path / "history") == [("a", 1), ("a", 9), ("b", 2), ("c", None)]


@pytest.mark.parametrize("name", ["all", pytest.param("keyed", marks=pytest.mark.slow)])
def test_a_constraint_that_comes_between_the_letters_and_the_commit_of_a_batch_loses_no_row(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    landing = Landing(settings(tmp_path, name), KEY)
    landing.write(rows(spark, 0, ("a", 1)))

    def constraining(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            version = original(*arguments, **named)
            if named["query"] == "waltz dead letters" and version == 1:
                constrain(spark, tmp_path / name, "few", "n < 5")
            return version

        return commit

    replace_commits(monkeypatch, constraining)
    landing.write(rows(spark, 1, ("b", 9), ("c", 2)).union(raw(spark, [(0, 3, 1, b"{")])))
    assert held(spark, tmp_path / name) == [("a", 1), ("c", 2)]
    expected = [(name, 1, b'{"k": "b", "n": 9}', FEW), (name, 3, b"{", "is not one JSON object")]
    assert letters(spark, tmp_path) == expected
    assert landing.statistics().dead_letters == 2
    if name == "all":
        (report,) = replay(spark, settings(tmp_path, name), dry_run=True)
        assert (report.landed, report.still) == (0, 2)
        assert report.reasons == {FEW: 1, "is not one JSON object": 1}
        spark.sql(f"ALTER TABLE delta.`{tmp_path / name}` DROP CONSTRAINT few")
        assert [(each.landed, each.still) for each in replay(spark, settings(tmp_path, name))] == [(1, 1)]
        assert held(spark, tmp_path / name) == [("a", 1), ("b", 9), ("c", 2)]


def test_a_row_that_violates_a_constraint_only_until_its_letter_is_written_is_not_lost(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a row that is ahead of the clock by a second. Here the time zone changes, for which no test need wait."""
    landing = Landing(settings(tmp_path, "all", columns="k STRING, n STRING"), KEY)
    landing.write(rows(spark, 0, ("now", '"UTC"')))
    constrain(spark, tmp_path / "all", "here", "n = current_timezone()")
    write = DeadLetters.write

    def later(*arguments: Any) -> Any:
        spark.conf.set(TIME_ZONE, "Asia/Tokyo")
        return write(*arguments)

    monkeypatch.setattr(DeadLetters, "write", later)
    try:
        landing.write(rows(spark, 1, ("soon", '"Asia/Tokyo"')))
    finally:
        spark.conf.set(TIME_ZONE, "UTC")
    assert held(spark, tmp_path / "all") == [("now", "UTC")]
    ((_, at, _, reason),) = letters(spark, tmp_path)
    assert (at, reason.replace(" ", "")) == (1, "violatesCHECKhere(n=current_timezone())"), "Delta adds spaces"


def test_a_row_that_is_a_delete_by_a_condition_only_until_its_letter_is_written_or_replayed_is_not_lost(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete needs no `n`. As a row whose condition asks for the time; here the time zone changes, for which no test need wait."""
    declared = settings(tmp_path, "keyed", columns="k STRING NOT NULL, n STRING NOT NULL").model_dump()
    declared["outputs"][0]["target"]["deletes"] = {"where": "n IS NULL AND current_timezone() = 'Asia/Tokyo'"}
    known = LandingSettings.model_validate(declared)
    landing = Landing(known, KEY)

    def in_tokyo(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            spark.conf.set(TIME_ZONE, "Asia/Tokyo")
            return function(*arguments)

        return changed

    lacking = [("keyed", 0, b'{"k": "a"}', "n is missing or null")]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetters, "write", in_tokyo(DeadLetters.write))
            landing.write(raw(spark, [(0, 0, 1, b'{"k": "a"}'), (0, 1, 1, b'{"k": "b", "n": "1"}')]))
        assert letters(spark, tmp_path) == lacking
        spark.conf.set(TIME_ZONE, "UTC")
        landing.write(raw(spark, [(0, 2, 1, b"{")]))
        with monkeypatch.context() as patched:
            patched.setattr(dead_letters_replay, "_done", in_tokyo(dead_letters_replay._done))
            replay(spark, known)
    finally:
        spark.conf.set(TIME_ZONE, "UTC")
    waiting = spark.read.format("delta").load(str(tmp_path / "dead")).where("replayed_at IS NULL")
    assert sorted(row.transaction_id for row in waiting.collect()) == [0, 2], "neither landed"
    assert held(spark, tmp_path / "keyed") == [("b", "1")]


def test_every_kind_of_constraint_of_a_users_table_is_named_whichever_engine_writes_it(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable.create(spark).location(str(tmp_path / "user")).addColumns(spark.createDataFrame([], PLACE).schema)
    table = table.addColumn("k", "VARCHAR(3)").addColumn("n", "BIGINT", nullable=False)
    table = table.addColumn("s", "STRUCT<x: INT NOT NULL, l: ARRAY<STRUCT<c: CHAR(2)>>>").addColumn("part", "DOUBLE", generatedAlwaysAs="12 / n")
    table.addColumn("twice", "BIGINT", generatedAlwaysAs="n * 2").execute()
    constrain(spark, tmp_path / "user", "small", "twice < 10")
    constrain(spark, tmp_path / "user", "ratio", "12 / n + 12 / n > 1 AND CAST(coalesce(s.l[0].c, '7') AS INT) = 7")
    constrain(spark, tmp_path / "user", "parts", "part > 2")
    nested = "s STRUCT<x: INT, l: ARRAY<STRUCT<c: STRING>>>"
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'arrow'}` ({PLACE}, k STRING, n INT NOT NULL, {nested}) USING delta")
    found = settings(tmp_path, "user", "arrow", columns=f"k STRING, n INT, {nested}", projection={"select": "k, n, s"}).model_dump()
    found["outputs"][1]["target"]["engine"] = "arrow"
    landing = Landing(LandingSettings.model_validate(found), KEY)
    data = [
        *('{"k": "ab ", "n": 4, "s": {"x": 0}}', '{"k": "abc", "n": 1, "s": {"x": 1}}', '{"k": "ab  ", "n": 1, "s": {"x": 1}}'),
        *('{"k": "a"}', '{"n": 1, "s": {}}', '{"n": 5, "s": {"x": 2}}', '{"n": 2, "s": {"x": 3}}', '{"n": 2}'),
        *('{"n": 0, "s": {"x": 4}}', '{"n": 2, "s": {"x": 4, "l": [{"c": "no"}]}}', '{"n": 2, "s": {"x": 4, "l": [{}, {"c": "abc"}]}}'),
    ]
    landing.write(raw(spark, [(0, at, 1, text.encode()) for at, text in enumerate(data)]))
    assert [(target, at, reason) for target, at, _, reason in letters(spark, tmp_path)] == [
        ("arrow", 3, "violates NOT NULL of n"),
        ("user", 2, "violates VARCHAR(3) of k"),
        ("user", 3, "violates NOT NULL of n"),
        ("user", 4, "violates NOT NULL of s.x"),
        ("user", 5, "violates CHECK small (twice < 10)"),
        ("user", 7, "violates NOT NULL of s.x"),
        ("user", 8, "violates CHECK parts (part > 2)"),
        ("user", 9, "violates CHECK ratio (12 / n + 12 / n > 1 AND CAST ( coalesce ( s . l [ 0 ] . c , '7' ) AS INT ) = 7)"),
        ("user", 10, "violates CHAR(2) of s.l.element.c"),
    ]
    user = spark.read.format("delta").load(str(tmp_path / "user")).orderBy("transaction_id")
    assert [(row.transaction_id, row.twice) for row in user.collect()] == [(0, 8), (1, 2), (6, 4)]
    assert spark.read.format("delta").load(str(tmp_path / "arrow")).count() == 10


def test_the_first_batch_of_a_table_that_it_creates_with_constraints_is_judged_too(spark: Any, tmp_path: Path) -> None:
    declared = settings(tmp_path, "all").model_dump()
    declared["outputs"][0]["target"]["properties"] = {"delta.constraints.few": "n < 5"}
    landing = Landing(LandingSettings.model_validate(declared), KEY)
    landing.write(rows(spark, 0, ("a", 1), ("b", 9)))
    assert held(spark, tmp_path / "all") == [("a", 1)]
    assert letters(spark, tmp_path) == [("all", 1, b'{"k": "b", "n": 9}', FEW)]
    assert landing.statistics().dead_letters == 1
    declared["outputs"][0]["target"] |= {"table": str(tmp_path / "arrow"), "engine": "arrow"}
    with pytest.raises(InvalidSetting, match="has the CHECK constraint few, which the Arrow engine does not evaluate"):
        Landing(LandingSettings.model_validate(declared), KEY).write(rows(spark, 0, ("a", 1)))


def packed(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"k": pa.array(list(map(str, values))), "n": pa.array(values, pa.int32())})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_delete_whose_transaction_is_refused_before_the_merge_leaves_no_tombstone(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constraint comes after the rows were judged. With the tombstone, older rows of the key would be dropped, and no delete is in the table."""
    declared = settings(tmp_path, "keyed").model_dump()
    declared["outputs"][0]["decode"] = {"format": "arrow", "columns": "k STRING, n INT"}
    declared["outputs"][0]["target"]["deletes"] = {"where": "n < 0"}
    landing = Landing(LandingSettings.model_validate(declared), KEY)
    landing.write(raw(spark, [(0, 0, 1, packed(1, 2))]))

    def constraining(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            version = original(*arguments, **named)
            if named["query"] == "waltz dead letters" and version == 1:
                constrain(spark, tmp_path / "keyed", "few", "n < 5")
            return version

        return commit

    replace_commits(monkeypatch, constraining)
    landing.write(raw(spark, [(0, 1, 1, packed(-7, 9)), (0, 2, 1, b"no stream"), (0, 3, 1, packed(-8))]))
    assert [each[1:2] + each[3:] for each in letters(spark, tmp_path)][:1] == [(1, FEW)]
    tombstones = spark.read.format("delta").load(str(tmp_path / "keyed_tombstones"))
    assert [(row.k, row.transaction_id) for row in tombstones.collect()] == [("-8", 3)]
    assert held(spark, tmp_path / "keyed") == [("1", 1), ("2", 2)]


def test_all_rows_of_a_transaction_go_with_the_one_that_violates(spark: Any, tmp_path: Path) -> None:
    outputs = settings(tmp_path, "all").model_dump()
    outputs["outputs"][0]["decode"] = {"format": "arrow", "columns": "k STRING, n INT"}
    landing = Landing(LandingSettings.model_validate(outputs), KEY)
    landing.write(raw(spark, [(0, 0, 1, packed(1))]))
    constrain(spark, tmp_path / "all", "few", "n < 5")
    landing.write(raw(spark, [(0, 1, 1, packed(1, 9, 2, 8)), (0, 2, 1, packed(3, 4))]))
    assert held(spark, tmp_path / "all") == [("1", 1), ("3", 3), ("4", 4)]
    assert [(each[1], each[3]) for each in letters(spark, tmp_path)] == [(1, FEW)]
    assert landing.statistics().dead_letters == 1


def test_an_audit_misses_what_has_no_letter_and_nothing_that_has_one(spark: Any, tmp_path: Path) -> None:
    declared = settings(tmp_path, "all")
    landing, log = Landing(declared, KEY), rows(spark, 0, ("a", 1), ("b", 9), ("c", 8), ("d", 2))
    landing.write(log.where("transaction_id = 0"))
    constrain(spark, tmp_path / "all", "few", "n < 5")
    landing.write(log.where("transaction_id > 0"))

    def differences(meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        before, target = _Letters(spark, declared), AuditedTable(spark, str(tmp_path / "all"), "auto", {})
        table = target.rows(target.version())
        meanwhile()
        expected = _Expected(declared, declared.outputs[0], KEY, target, table, before).rows(log)
        return [str(each) for each in compare_appended(expected, table, PieceOfLog({0: 0}, {0: 4}), 20)[1]]

    assert differences() == []
    DeltaTable.forPath(spark, str(tmp_path / "dead")).delete("transaction_id = 2")
    assert differences() == ["missing: partition=0 transaction_id=2"]
    skipping = declared.model_dump()
    skipping["outputs"][0]["decode"]["undecodable"] = "skip"
    declared = LandingSettings.model_validate(skipping)
    assert differences() == []
    declared = settings(tmp_path, "all")
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'all'}` DROP CONSTRAINT few")
    assert differences(lambda: replay(spark, declared)) == ["missing: partition=0 transaction_id=2"], "the letter was replayed into a later version"
    assert differences() == ["missing: partition=0 transaction_id=2"]


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("k, CAST(1 / n AS INT) AS n", "DIVIDE_BY_ZERO"),
        ("k, n, n + 3 AS twice", "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|Generated Column"),
        ("k, CAST(NULL AS INT) AS n, other", "UNRESOLVED_COLUMN"),
    ],
)
def test_a_fault_that_no_restart_helps_ends_the_query_at_once_with_one_sentence(spark: Any, tmp_path: Path, select: str, reason: str) -> None:
    table = DeltaTable.create(spark).location(str(tmp_path / "all")).addColumns(spark.createDataFrame([], PLACE).schema)
    table.addColumn("k", "STRING").addColumn("n", "INT").addColumn("twice", "INT", generatedAlwaysAs="n * 2").execute()
    landing = Landing(settings(tmp_path, "all", projection={"select": select}), KEY)
    with pytest.raises(RuntimeError, match=reason) as raised:
        landing(rows(spark, 0, ("a", 0)), 0)
    assert len(str(raised.value)) < 600
    assert landing.failed is not None
    failure = Failure.of(landing.failed)
    assert failure.final
    assert "\n" not in failure.line
    assert spark.read.format("delta").load(str(tmp_path / "all")).count() == 0
