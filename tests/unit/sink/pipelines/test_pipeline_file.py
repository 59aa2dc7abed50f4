"""Pipeline files: all mistakes are reported, with lines and the nearest name; what is right becomes settings and columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_delta.pipelines.pipeline import PipelineSettings, RestartSettings, batch_options
from waltz_delta.pipelines.pipeline_check import declared_columns
from waltz_delta.pipelines.pipeline_file import check_pipeline_file, load_pipeline
from waltz_delta.settings import DecodeSettings, OutputSettings, TargetSettings
from waltz_log.cli.main import run
from waltz_log.errors import InvalidSetting

Write = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[4]
GOOD = """\
source:
  cluster: ${CLUSTER:-h:1/w}
  partitions: 0-3
  maxTransactionsPerTrigger: 1000
  failOnDataLoss: false
  startingTransactionIds: {0: 5}
checkpoint: ${STATE}/legs
trigger: 2  seconds
outputs:
  - decode: {format: json, columns: "tail STRING NOT NULL, leg INT"}
    projection: {where: tail IS NOT NULL}
    target: {table: "${STATE}/tables/legs", layout: {cluster_by: [tail]}}
  - target: {table: raw}
dead_letters: {table: dead}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "legs") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return write


def problems(path: Path, **environment: str) -> list[str]:
    found, wrong = check_pipeline_file(path, environment)
    assert (found is None) == bool(wrong)
    return [str(problem) for problem in wrong]


def test_a_good_file_becomes_settings(write: Write) -> None:
    found = load_pipeline(write(GOOD), {"STATE": "/s"})
    assert found.name == "legs", "the file's name, where it says none"
    assert (found.checkpoint, found.trigger, found.tables) == ("/s/legs", "2 seconds", ["/s/tables/legs", "raw"])
    assert found.source == {
        "cluster": "h:1/w",
        "partitions": "0-3",
        "maxTransactionsPerTrigger": "1000",
        "failOnDataLoss": "false",
        "startingTransactionIds": '{"0": 5}',
    }
    assert found.options.starting.given == {0: 5}
    assert found.outputs[0].target.layout.cluster_by == ("tail",)
    assert load_pipeline(write(GOOD), {"STATE": "/s", "CLUSTER": "other:2/x"}).options.cluster == "other:2/x"
    assert load_pipeline(write("name: other\n" + GOOD), {"STATE": "$"}).name == "other"


def test_every_problem_is_reported_with_its_line_and_the_nearest_name(write: Write) -> None:
    path = write(
        """\
source:
  cluster: h:1/w
  maxTransactionPerTrigger: 5
triger: 1 second
checkpoint: /c
checkpoint: /d
trigger: sometimes
restart: {attempts_max: -1, pause: 3}
outputs:
  - target:
      table: a
      mode: upsrt
    decode:
      format: json
  - target: {table: "${NOPE}", mode: upsert}
  - {}
dead_letters: 5
"""
    )
    assert problems(path) == [
        "3: source.maxTransactionPerTrigger: no such option of the source (did you mean maxTransactionsPerTrigger?)",
        "4: triger: no such setting (did you mean trigger?)",
        "6: checkpoint: is set twice, first in line 5",
        "7: trigger: must be available-now or an interval such as '2 seconds', got 'sometimes'",
        "8: restart.attempts_max: must be greater than or equal to 0, got -1",
        "8: restart.pause: no such setting (did you mean pause_s?)",
        "12: outputs.0.target.mode: must be 'append', 'upsert' or 'history', got 'upsrt'",
        "14: outputs.0.decode: the format json needs columns",
        "15: variable NOPE is not set in the environment; set it, or write ${NOPE:-default}",
        "15: outputs.1.target: mode upsert needs keys",
        "16: outputs.2: target is required: the table",
        "17: dead_letters: must be settings, as in table: …",
    ]
    with pytest.raises(InvalidSetting) as caught:
        load_pipeline(path, {})
    assert (caught.value.name, caught.value.nearest) == (f"{path}:3: source.maxTransactionPerTrigger", "maxTransactionsPerTrigger")


def test_settings_that_do_not_go_together_are_reported_where_they_stand(write: Write) -> None:
    twice = GOOD.replace("table: raw", "table: /s/tables/legs/")
    assert problems(write(twice), STATE="/s") == ["1: two outputs of one table would drop each other's rows: ${STATE}/tables/legs"]
    assert problems(write(GOOD.replace("0-3", "3-0")), STATE="/s")[0].startswith("3: source.partitions: range 3-0 is empty")
    assert problems(write(GOOD.replace("  cluster", "  # cluster")), STATE="/s")[0].startswith("3: source.cluster: is required")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "1: is empty"),
        ("a: [", "1: is not YAML: "),
        ("a: {b: ${X}}", "1: is not YAML: "),
        ("a: b\n---\nc: d", "2: is not YAML: but found another document"),
        ("- a", "1: must be settings, as in outputs: …"),
        ("a: !!python/object:os.system x", "1: a: no such setting"),
        ("\tx: 1", "1: is not YAML: "),
    ],
)
def test_a_file_without_a_pipeline_is_reported(write: Write, text: str, reported: str) -> None:
    assert problems(write(text))[0].startswith(reported)


def test_a_file_that_is_not_there_or_has_no_name_is_reported(write: Write, tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["1: cannot be read: No such file or directory"]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert problems(tmp_path / "bytes.yaml") == ["1: cannot be read: it is not text in UTF-8, at byte 0"]
    assert problems(write(GOOD, "two words"), STATE="/s") == ["1: name: the file's name 'two words' is none for a pipeline; give one"]


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
keys = st.sampled_from([*PipelineSettings.model_fields, "target", "decode", "table", "mode", "x", "route", "headers", "layout"])
trees = st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=5)), max_leaves=12)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_nothing_that_yaml_can_say_ends_in_anything_but_settings_or_problems(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    path = tmp_path_factory.mktemp("p") / "x.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    found, wrong = check_pipeline_file(path, {})
    assert (found is None) == bool(wrong)
    assert all(problem.line >= 1 and problem.reason for problem in wrong)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab:{}[]-$!&*'\"\n \t#|>%@`?,", max_size=40))
def test_no_text_ends_in_anything_but_settings_or_problems(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("p") / "x.yaml"
    path.write_text(text, encoding="utf-8")
    assert problems(path, a="b")


def test_columns_are_reported_without_spark_where_no_sql_makes_them() -> None:
    def columns(ddl: str) -> list[tuple[str, str]]:
        output = OutputSettings(target=TargetSettings(table="t"), decode=DecodeSettings(format="json", columns=ddl))
        found = declared_columns(output)
        assert found is not None
        return found[4:]

    assert columns("tail STRING NOT NULL, `odd``name`: int, d DECIMAL(3, 2) COMMENT 'a, b'")[0] == ("tail", "STRING")
    assert columns("a struct<x: INT, y: array<STRING>>, b map<STRING, INT> NOT NULL") == [
        ("a", "struct<x: INT, y: array<STRING>>"),
        ("b", "map<STRING, INT>"),
    ]
    raw = declared_columns(OutputSettings(target=TargetSettings(table="t")))
    assert raw == [("partition", "INT"), ("transaction_id", "BIGINT"), ("timestamp", "TIMESTAMP"), ("header", "INT"), ("data", "BINARY")]
    assert declared_columns(OutputSettings(target=TargetSettings(table="t", mode="upsert", keys=("a",)))) is None


def test_columns_of_an_avro_schema_are_reported_without_spark_and_a_bad_schema_is_a_problem(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "leg.avsc"
    schema.write_text('{"type": "record", "name": "Leg", "fields": [{"name": "tail", "type": "string"}, {"name": "leg", "type": ["null", "int"]}]}')
    text = (
        "name: legs\nsource: {cluster: [localhost:1]}\ncheckpoint: /c\n"
        f"outputs: [{{target: {{table: /t, engine: auto}}, decode: {{format: avro, avro_schema: {schema}}}}}]\n"
    )
    assert run(["pipeline", "check", str(write(text)), "--output", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found["tables"]["/t"].items())[4:] == [("tail", "STRING"), ("leg", "INT")]
    assert found["engines"] == {"/t": "arrow"}
    schema.write_text('{"type": "record", "name": "Leg", "fields": [{"name": "tail", "type": "text"}]}')
    assert run(["pipeline", "check", str(write(text)), "--output", "json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)
    assert [(problem["where"], problem["reason"]) for problem in found["problems"]] == [
        ("decode.avro_schema", "is not the schema of an Avro record: text")
    ]


def test_check_reports_columns_or_problems_and_an_exit_code(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(GOOD.replace("${STATE}", "/s"))
    assert run(["pipeline", "check", str(good)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "legs" in out
    assert "tail STRING, leg INT" in out
    write(GOOD.replace("${STATE}", "/s"), "other")
    assert run(["pipeline", "check", str(tmp_path), "--output", "json"]) == 2
    found = {Path(each["file"]).name: each for each in json.loads(capsys.readouterr().out)}
    assert found["legs.yaml"]["tables"]["raw"]["data"] == "BINARY"
    assert [problem["where"] for problem in found["other.yaml"]["problems"]] == ["checkpoint", "table", "table"]
    assert run(["pipeline", "check", str(write("outputs: 5", "bad"))]) == 2
    assert f"{tmp_path / 'bad.yaml'}:1: outputs: must be a list" in capsys.readouterr().out
    assert run(["pipeline", "schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)["properties"]) == set(PipelineSettings.model_fields)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (
            "outputs: [{target: {table: /t, engine: arrow, layout: {cluster_by: [header]}}}]",
            ("outputs.0.target.engine", "clustered tables: table=/t"),
        ),
        ("outputs: [{target: {table: 'hdfs:/t', engine: arrow}}]", ("outputs.0.target.engine", "does not write to hdfs: paths: table=hdfs:/t")),
        ("outputs: [{target: {table: /t}}]\ndead_letters: {table: 'hdfs:/d', engine: arrow}", ("dead_letters.engine", "paths: table=hdfs:/d")),
        ("outputs: [{target: {table: /t, engine: arrow}}]\ndead_letters: {table: /d, engine: arrow}", None),
        ("outputs: [{target: {table: 'hdfs:/t', engine: auto}}]\ndead_letters: {table: 'hdfs:/d'}", None),
    ],
)
def test_check_reports_what_a_job_refuses_because_the_file_names_the_arrow_engine(
    write: Write, capsys: pytest.CaptureFixture[str], tables: str, problem: tuple[str, str] | None
) -> None:
    text = f"name: legs\nsource: {{cluster: [localhost:1]}}\ncheckpoint: /c\n{tables}\n"
    assert run(["pipeline", "check", str(write(text)), "--output", "json"]) == (0 if problem is None else 2)
    (found,) = json.loads(capsys.readouterr().out)
    assert [each["where"] for each in found["problems"]] == ([] if problem is None else [problem[0]])
    assert problem is None or (found["problems"][0]["reason"].startswith("is arrow, and ") and problem[1] in found["problems"][0]["reason"])


@pytest.mark.parametrize("named", ["outputs: [{target: {%s}}]", "outputs: [{target: {table: /t}}]\ndead_letters: {%s}"])
def test_options_of_a_store_that_sparks_engine_would_not_read_are_refused(write: Write, named: str) -> None:
    text = "name: legs\nsource: {cluster: [localhost:1]}\ncheckpoint: /c\n" + named % "table: 's3a://b/t', storage: {AWS_REGION: eu}, engine: %s"
    assert "storage has options of the engine arrow, and engine is spark" in problems(write(text % "spark"))[0]
    for engine in ("arrow", "auto"):
        assert problems(write(text % engine)) == []


def test_the_pipelines_that_the_project_brings_are_right() -> None:
    files = sorted((ROOT / "conf" / "pipelines").glob("*.yaml"))
    assert files
    for path in files:
        assert check_pipeline_file(path, {})[1] == []


def test_pauses_double_up_to_their_bound() -> None:
    restart = RestartSettings(pause_s=0.5, pause_max_s=3.0)
    assert [restart.pause_after(failures) for failures in (1, 2, 3, 4, 5, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_a_batch_read_gets_the_options_that_mean_something_to_it() -> None:
    given = {"cluster": "c", "partitions": "0-1", "startingTransactionIds": "latest", "maxTransactionsPerTrigger": "5", "minPartitions": "4"}
    assert batch_options(given) == {"cluster": "c", "partitions": "0-1", "minPartitions": "4"}
    with pytest.raises(InvalidSetting):
        batch_options({"partitions": "0"})


SECRET = "hunter2-in-the-environment"
NEEDED = {"STATE": "/s", "CLUSTER": "h:1/w"}


@pytest.mark.parametrize(
    "line",
    [
        "trigger: ${HIDDEN}",
        "trigger: every ${HIDDEN} minutes",
        "max_retries: ${HIDDEN}",
        "restart: {attempts: '${HIDDEN}'}",
        "name: ${HIDDEN}/x",
        "${HIDDEN}: 1",
        "dead_letters: {table: '${HIDDEN}', ${HIDDEN}: 2}",
        "trigger: !!int ${HIDDEN}",
        'checkpoint: ["${HIDDEN}"]',
        "spark: {conf: ['${HIDDEN}']}",
    ],
)
@pytest.mark.parametrize("long", [False, True])
def test_an_error_shows_the_name_of_a_variable_and_never_its_value(write: Write, line: str, *, long: bool) -> None:
    value = SECRET * 20 if long else SECRET
    other = "".join(f"{each}\n" for each in GOOD.splitlines() if not each.startswith(line.partition(":")[0]))
    found = problems(write(f"{other}{line}\n"), HIDDEN=value, **NEEDED)
    assert found
    assert "hunter2" not in " ".join(found)


def test_values_of_source_options_are_not_shown_either(write: Write) -> None:
    text = GOOD.replace("partitions: 0-3", "partitions: ${HIDDEN}").replace("{0: 5}", "${HIDDEN}").replace("false", "${HIDDEN}")
    found = problems(write(text), HIDDEN=SECRET, **NEEDED)
    assert found
    assert "hunter2" not in " ".join(found)
    assert "${HIDDEN}" in " ".join(found)


def test_a_number_that_is_out_of_range_is_explained_without_its_value(write: Write) -> None:
    text = GOOD.replace("maxTransactionsPerTrigger: 1000", "maxTransactionsPerTrigger: ${HIDDEN}")
    (found,) = problems(write(text), HIDDEN="-31337", **NEEDED)
    assert "31337" not in found


@pytest.mark.parametrize("name", ["DB_PASSWORD", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "API_KEY", "MY_CREDENTIALS"])
def test_a_variable_whose_name_declares_a_secret_is_not_inserted(write: Write, name: str) -> None:
    text = GOOD.replace("${STATE}/legs", f"/s/${{{name}}}")
    found = problems(write(text), **{name: SECRET}, **NEEDED)
    assert any("declares a secret" in each for each in found)
    assert "hunter2" not in " ".join(found)
    assert check_pipeline_file(write(text), {name: SECRET, **NEEDED})[0] is None


def test_aliases_repeat_values_within_a_limit_and_never_hold_themselves(write: Write) -> None:
    landing = "  - &landing\n    decode: {format: bytes}\n    target: {table: /s/tables/one}\n"
    assert problems(write(f"source: {{cluster: 'h:1/w'}}\ncheckpoint: /s/c\noutputs:\n{landing}"), **NEEDED) == []
    bomb = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)])
    assert len(bomb) < 637
    (found,) = problems(write(bomb))
    assert "more than 20000 nodes" in found
    (found,) = problems(write("a: &a [*a]"))
    assert "holds itself" in found
