"""The jobs' command line: each argument, each refusal, and what an error becomes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_waltz.options import EARLIEST
from waltz_delta.jobs.job_arguments import parse_arguments
from waltz_delta.pipelines.metrics_port import MetricsSettings
from waltz_delta.pipelines.pipeline import PipelineSettings, RestartSettings
from waltz_delta.pipelines.pipeline_file import load_pipeline
from waltz_log.errors import InvalidSetting

NEEDED = ["--cluster=h:1/w", "--table=/t", "--checkpoint=/c"]


def test_everything_given_reaches_the_job() -> None:
    found = parse_arguments(
        "upsert",
        [
            *NEEDED,
            "--keys=tail, day",
            "--sequence=leg",
            "--partitions=0-1",
            "--starting",
            '{"1": 5}',
            "--max-transactions-per-trigger=60",
            "--engine=spark",
            "--trigger=available-now",
            "--schema=tail STRING",
            "--where=tail IS NOT NULL",
            "--select=tail, concat(a, ',') AS b",
            "--option",
            "minPartitions=4",
        ],
        upsert=True,
    )
    (pipeline,) = found.pipelines
    (output,) = pipeline.outputs
    target = output.target
    assert (pipeline.name, pipeline.checkpoint, pipeline.once, pipeline.restart) == ("upsert", "/c", True, RestartSettings())
    assert (target.table, target.mode, target.keys, target.sequence) == ("/t", "upsert", ("tail", "day"), "leg")
    assert target.engine == "spark"
    assert pipeline.source == {
        "cluster": "h:1/w",
        "startingTransactionIds": '{"1": 5}',
        "partitions": "0-1",
        "maxTransactionsPerTrigger": "60",
        "minPartitions": "4",
    }
    assert pipeline.options.starting.given == {1: 5}
    assert (output.decode.format, output.decode.columns) == ("json", "tail STRING")
    assert (output.projection.where, output.projection.select) == ("tail IS NOT NULL", "tail, concat(a, ',') AS b")


def test_defaults_follow_the_log_from_its_beginning() -> None:
    found = parse_arguments("ingest", NEEDED, upsert=False)
    (pipeline,) = found.pipelines
    assert (pipeline.trigger, pipeline.once, pipeline.outputs[0].target.mode) == ("1 second", False, "append")
    assert pipeline.outputs[0].target.engine == "auto"
    assert pipeline.outputs[0].decode.format == "bytes"
    assert pipeline.source == {"cluster": "h:1/w"}
    assert pipeline.options.starting.default == EARLIEST


def test_a_job_from_arguments_may_start_at_a_time() -> None:
    found = parse_arguments("ingest", [*NEEDED, "--option", "startingTimestamp=1700000000000"], upsert=False)
    times = found.pipelines[0].options.starting_times
    assert times is not None
    assert times.of(0) == 1_700_000_000_000
    with pytest.raises(InvalidSetting, match="startingTimestamp cannot be together with startingTransactionIds=latest"):
        parse_arguments("ingest", [*NEEDED, "--starting=latest", "--option=startingTimestamp=1700000000000"], upsert=False)


@pytest.mark.parametrize("job", ["ingest", "upsert"])
def test_a_job_from_arguments_is_the_pipeline_that_a_file_declares(job: str, tmp_path: Path) -> None:
    keys = ["--keys=tail"] if job == "upsert" else []
    given = [
        *NEEDED,
        *keys,
        "--schema=tail STRING, at TIMESTAMP, placed TIMESTAMP, n INT",
        "--timestamp-unit=ms",
        "--timestamp-unit=placed=s",
        "--earliest-timestamp=2000-01-01",
        "--latest-timestamp=9999-12-31",
        "--numeric-strings=lossless",
        "--headers=1, 2",
        "--dead-letters=/dead",
        "--undecodable=skip",
        "--restart-attempts=3",
        "--former-cluster=c01c17d8-1b9f-4697-8df4-5dfb73afa426",
    ]
    target = "{table: /t, mode: upsert, keys: [tail]}" if job == "upsert" else "{table: /t}"
    file = tmp_path / f"{job}.yaml"
    file.write_text(f"""\
source: {{cluster: "h:1/w"}}
checkpoint: /c
outputs:
  - target: {target}
    route: {{headers: [1, 2]}}
    decode:
      format: json
      columns: tail STRING, at TIMESTAMP, placed TIMESTAMP, n INT
      timestamp_unit: ms
      timestamp_units: {{placed: s}}
      earliest_timestamp: 2000-01-01
      latest_timestamp: 9999-12-31
      numeric_strings: lossless
      undecodable: skip
dead_letters: {{table: /dead}}
restart: {{attempts_max: 3}}
former_clusters: [c01c17d8-1b9f-4697-8df4-5dfb73afa426]
""")
    (found,) = parse_arguments(job, given, upsert=job == "upsert").pipelines
    assert found == load_pipeline(file)
    (plain,) = parse_arguments(job, [*NEEDED, *keys], upsert=job == "upsert").pipelines
    assert (plain.restart, plain.dead_letters, plain.outputs[0].route) == (PipelineSettings.model_fields["restart"].default, None, None)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["--timestamp-unit=ms"], "--timestamp-unit needs --schema"),
        (["--numeric-strings=lossless"], "--numeric-strings needs --schema"),
        (["--schema=at TIMESTAMP", "--timestamp-unit=minutes"], "--timestamp-unit must be s, ms or us, or COLUMN=s, got 'minutes'"),
        (["--schema=at TIMESTAMP", "--timestamp-unit==ms"], "--timestamp-unit must be"),
        (["--schema=at TIMESTAMP", "--earliest-timestamp=5"], "--earliest-timestamp"),
        (["--schema=at TIMESTAMP", "--earliest-timestamp=2027-01-01", "--latest-timestamp=2026-01-01"], "earliest_timestamp is after"),
        (["--schema=n INT", "--numeric-strings=loose"], "--numeric-strings"),
        (["--headers=one"], "--headers must be whole numbers"),
        (["--undecodable=dead_letter"], "--undecodable: dead_letter needs --dead-letters"),
        (["--dead-letters=/t"], "two outputs of one table"),
        (["--restart-attempts=-1"], "--restart-attempts must be 0 or more"),
        (["--former-cluster=orders"], "--former-cluster: invalid UUID value: 'orders'"),
        (["--restart-attempts=0", "--pipeline=x"], "is set in the pipeline file"),
    ],
)
def test_invalid_arguments_are_reported_by_their_own_names(given: list[str], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(reported)):
        parse_arguments("ingest", [*NEEDED, *given], upsert=False)


@pytest.mark.parametrize(
    ("given", "name", "nearest"),
    [
        (["--tabel=/t"], "--tabel", "--table"),
        ([*NEEDED, "--max-transaction-per-trigger=5"], "--max-transaction-per-trigger", "--max-transactions-per-trigger"),
        ([*NEEDED, "--keys=a"], "--keys", None),
        ([*NEEDED, "stray"], "stray", None),
        (NEEDED[:2], "--checkpoint", None),
        ([*NEEDED, "--trigger=sometimes"], "--trigger", None),
        ([*NEEDED, "--partitions=x"], "partitions", None),
        ([*NEEDED, "--starting=erliest"], "startingTransactionIds", None),
        ([*NEEDED, "--option=cluster=x"], "--option", None),
        ([*NEEDED, "--option=minPartition=2"], "minPartition", "minPartitions"),
        ([*NEEDED, "--option=endingTransactionIds=latest"], "endingTransactionIds", None),
        ([*NEEDED, "--table"], "--table", None),
    ],
)
def test_a_wrong_argument_is_named_with_the_nearest_known_one(given: list[str], name: str, nearest: str | None) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_arguments("ingest", given, upsert=False)
    assert caught.value.name == name
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_pipeline_files_stand_in_place_of_arguments(tmp_path: Path) -> None:
    text = "source: {{cluster: h:1/w}}\ncheckpoint: /c/{0}\noutputs: [{{target: {{table: /t/{0}}}}}]\n"
    for name in ("legs", "fleet"):
        (tmp_path / f"{name}.yaml").write_text(text.format(name))
    found = parse_arguments("ingest", [f"--pipeline={tmp_path}", "--trigger=available-now", "--metrics-port=9000"], upsert=False)
    assert [(each.name, each.checkpoint, each.once, each.restart.attempts_max) for each in found.pipelines] == [
        ("fleet", "/c/fleet", True, 10),
        ("legs", "/c/legs", True, 10),
    ]
    assert found.metrics == MetricsSettings(9000)
    served = ["--metrics-host=0.0.0.0", "--metrics-client=a", "--metrics-client=b", "--insecure", "--metrics-file=m.prom"]
    found = parse_arguments("ingest", [f"--pipeline={tmp_path}", *served], upsert=False)
    assert found.metrics == MetricsSettings(None, Path("m.prom"), "0.0.0.0", ("a", "b"), insecure=True)
    with pytest.raises(InvalidSetting, match="--table is set in the pipeline file"):
        parse_arguments("ingest", [f"--pipeline={tmp_path}", "--table=/t"], upsert=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidSetting, match=r"no \.yaml file in"):
        parse_arguments("ingest", [f"--pipeline={empty}"], upsert=False)


def test_an_upsert_needs_keys() -> None:
    with pytest.raises(InvalidSetting, match="--keys"):
        parse_arguments("upsert", NEEDED, upsert=True)
