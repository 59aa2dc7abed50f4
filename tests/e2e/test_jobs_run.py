"""The jobs as users submit them, over a real cluster: a driver killed at the worst moment, SIGTERM, and the one line that says what is wrong."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.submitted import PATIENCE_S, ROOT, Submit, append_legs, finished
from tests.integration.monitoring.named_metrics import families_in, named_metrics
from tests.integration.monitoring.promtool import promtool
from waltz_delta import high_water_marks
from waltz_delta.errors import GapInTable, NotADeltaTable, SchemaMismatch, StoreUnavailable
from waltz_delta.jobs import job
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import ClusterUnavailable, Unavailable
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), partitions=2) as running:
        yield running


def key_of(cluster: LocalCluster) -> str:
    with ClusterInspector(cluster.cluster) as inspector:
        return str(inspector.parameters.key)


def marks_of(table: Path, cluster: LocalCluster) -> dict[int, int]:
    try:
        return high_water_marks(str(table), key_of(cluster))
    except NotADeltaTable:
        return {}


def rows_of(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(table)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))


@pytest.mark.slow  # as one of the gaps of test_chaos_kills, which is marked long
def test_a_driver_killed_between_commit_and_checkpoint_loses_and_repeats_nothing(cluster: LocalCluster, submit: Submit, tmp_path: Path) -> None:
    append_legs(cluster, range(1, 21))
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    shared = [f"--cluster={cluster.cluster}", f"--table={table}", f"--checkpoint={checkpoint}", "--schema=tail STRING, leg INT"]
    code, out = finished(submit("tests/e2e/killed_driver.py", *shared, "--trigger=1 second", "--max-transactions-per-trigger=60"))
    assert code == -signal.SIGKILL, out
    written = DeltaTable(str(table)).version()
    assert sorted(path.name for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()) == ["0"], "batch 1 is in the table only"
    append_legs(cluster, range(21, 23))
    cluster.kill("storage-1")
    try:
        code, out = finished(submit("jobs/ingest.py", *shared, "--trigger=available-now"))
    finally:
        cluster.start("storage-1")
    assert code == 0, out
    assert rows_of(table, "partition", "transaction_id") == [(partition, at) for partition in range(2) for at in range(110)]
    assert rows_of(table, "tail", "leg") == sorted((f"N{tail}", leg) for tail in range(10) for leg in range(1, 23))
    assert high_water_marks(str(table), key_of(cluster)) == {0: 109, 1: 109}
    assert DeltaTable(str(table)).version() == written + 1, "the replayed batch was dropped whole"


def test_upsert_follows_the_log_until_sigterm_and_stops_in_good_order(cluster: LocalCluster, submit: Submit, tmp_path: Path) -> None:
    append_legs(cluster, range(1, 4))
    table = tmp_path / "aircraft"
    shared = [f"--cluster={cluster.cluster}", f"--table={table}", f"--checkpoint={tmp_path / 'checkpoint'}"]
    running = submit("jobs/upsert.py", *shared, "--schema=tail STRING, leg INT", "--keys=tail", "--select=tail, leg AS legs")
    with ClusterInspector(cluster.cluster) as inspector:
        until = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    deadline = time.monotonic() + PATIENCE_S
    while marks_of(table, cluster) != until:
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    running.send_signal(signal.SIGTERM)
    code, out = finished(running)
    assert code == 0, out
    assert f"ready upsert table={table}" in out
    assert "Traceback" not in out
    assert rows_of(table, "tail", "legs") == [(f"N{tail}", 3) for tail in range(10)]


PIPELINE = """\
source: {{cluster: "{cluster}"}}
checkpoint: {directory}/checkpoints/{name}
trigger: 1 second
outputs:
  - decode: {{format: json, columns: "tail STRING, leg INT"}}
    target: {{table: "{directory}/{name}"{more}}}
"""


@pytest.mark.slow
def test_pipelines_are_filled_run_and_audited_as_files(cluster: LocalCluster, submit: Submit, tmp_path: Path) -> None:
    files = tmp_path / "pipelines"
    files.mkdir()
    for name, more in (("legs", ""), ("fleet", ", mode: upsert, keys: [tail]"), ("blocked", "")):
        (files / f"{name}.yaml").write_text(PIPELINE.format(cluster=cluster.cluster, directory=tmp_path, name=name, more=more))
    (tmp_path / "blocked").write_text("a file")
    append_legs(cluster, range(30, 34))
    code, out = finished(submit("jobs/backfill.py", f"--pipeline={files / 'legs.yaml'}", "--transactions-per-commit=30"))
    assert code == 0, out
    assert "into " in out
    filled = DeltaTable(str(tmp_path / "legs")).version()
    assert filled >= 1, "several commits"
    append_legs(cluster, range(34, 36))
    metrics = tmp_path / "metrics.prom"
    code, out = finished(submit("jobs/ingest.py", f"--pipeline={files}", "--trigger=available-now", f"--metrics-file={metrics}"))
    assert code == 2, out
    assert "ingest: blocked: given up: not a delta table" in out
    assert DeltaTable(str(tmp_path / "legs")).version() == filled + 1, "the stream began where the backfill ended"
    with ClusterInspector(cluster.cluster) as inspector:
        until = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    assert marks_of(tmp_path / "legs", cluster) == marks_of(tmp_path / "fleet", cluster) == until
    assert rows_of(tmp_path / "legs", "partition", "transaction_id") == [(p, at) for p, last in sorted(until.items()) for at in range(last + 1)]
    assert 'waltz_pipeline_lag_transactions{pipeline="legs"} 0.0' in metrics.read_text()
    named = {name for name in named_metrics() if name.startswith(("waltz_pipeline_", "process_", "waltz_time", "waltz_build"))}
    assert named - families_in([metrics.read_text()]) == set()
    if shutil.which("promtool") is not None:
        promtool("check", "metrics", text=metrics.read_text())
    DeltaTable(str(tmp_path / "legs")).delete("partition = 1 AND transaction_id = 5")
    code, out = finished(submit("jobs/audit.py", f"--pipeline={files / 'legs.yaml'}"))
    assert code == 1, out
    assert [line.strip() for line in out.splitlines() if "missing" in line] == ["missing: partition=1 transaction_id=5"]


def direct(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without spark-submit: what is wrong shows before a JVM is started."""
    command = [sys.executable, str(ROOT / "jobs" / "ingest.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)


def test_an_unknown_argument_is_one_line_with_the_nearest_and_code_2(spark_environment: dict[str, str]) -> None:
    done = direct(spark_environment, "--cluster=x", "--tabel=/t")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["ingest: --tabel: no such argument (did you mean --table?)"]


def test_no_cluster_at_the_address_is_one_line_that_names_it_in_time(spark_environment: dict[str, str]) -> None:
    start = time.monotonic()
    done = direct(spark_environment, "--cluster=127.0.0.1:1", "--table=/t", "--checkpoint=/c")
    assert done.returncode == 3
    warned, *lines = done.stderr.splitlines()
    assert "no log server answers yet, retrying" in warned
    assert len(lines) == 1
    assert "127.0.0.1:1" in done.stderr
    assert time.monotonic() - start < 120, "interpreter and imports included, on a busy machine"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SchemaMismatch(path="p", column="c", reason="r"), 2, "table holds another schema: r: path=p column=c"),
        (ClusterUnavailable(address="a", reason="r"), 3, "cluster unavailable: r: address=a"),
        (StoreUnavailable(path="p", reason="503"), 3, "the table's store is unavailable: 503: path=p"),
        (StoreUnavailable(path="p", reason="No space left on device"), 5, None),
        (RuntimeError("z\nwaltz_delta.errors.StoreUnavailable: the table's store is unavailable: 403: path=p\n at"), 3, None),
        (RuntimeError("boom\nat somewhere"), 1, "boom"),
        (RuntimeError(f"[STREAM_FAILED] x\n  waltz_delta.errors.GapInTable: {GapInTable(path='p', partition=0, first=1, last=2)}\n at"), 4, None),
        (RuntimeError(f"y\nwaltz_log.errors.Unavailable: {Unavailable(reason='nobody')}\n"), 3, "unavailable: nobody"),
        (RuntimeError("z\npyspark_waltz.errors.RangeUnreadable: no replica could serve the range: partition=0\n"), 3, None),
        (RuntimeError("z\npyspark_waltz.errors.DataLost: transactions lost to this query: partition=0\n"), 1, None),
    ],
)
def test_every_error_becomes_one_line_and_a_code(
    error: Exception, code: int, line: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(job, "run_pipelines", fail)
    assert job.ingest(["--cluster=x", "--table=t", "--checkpoint=c"]) == code
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert reported[0].startswith("ingest: ")
    if line is not None:
        assert reported == [f"ingest: {line}"]
