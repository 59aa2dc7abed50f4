"""Dead letters put through again after a fix, by the job and where a table was restored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

from tests.e2e.letters import KEY, ROWS, Died, landing, letters, one_commit_each, raw, table, table_rows
from waltz_delta.base import internal
from waltz_delta.dead_letters_replay import Replayed, replay
from waltz_delta.landing.landing import Landing

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180
"""The job starts a JVM: ten seconds alone, a minute on a machine that does other things."""


def test_a_letter_beyond_its_table_is_left_to_the_stream(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = landing(tmp_path, outputs=landing(tmp_path).model_dump()["outputs"][:1], unrouted="skip")
    with monkeypatch.context() as patched:
        one_commit_each(patched)
        with pytest.raises(Died):
            Landing(settings, KEY).write(raw(spark, ROWS[:2]))
    assert replay(spark, settings) == [Replayed(str(tmp_path / "all"), 0, 0, 1, {})]
    Landing(settings, KEY).write(raw(spark, ROWS[:4]))
    assert letters(spark, tmp_path) == [("all", 0, 1, "n is not INT: two"), ("all", 0, 3, "n is not INT: three")], (
        "once, though more came with it this time"
    )


PIPELINE = """\
source: {{cluster: "127.0.0.1:1/nobody"}}
checkpoint: {directory}/checkpoint
dead_letters: {{table: {directory}/dead}}
outputs:
  - decode: {{format: json, columns: "k STRING NOT NULL, n STRING"}}
    projection: {{select: "k, try_cast(n AS INT) AS n"}}
    route: {{headers: [1]}}
    target: {{table: {directory}/all}}
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "dry_run",
    [pytest.param(False, marks=pytest.mark.slow, id="at-once"), pytest.param(True, marks=pytest.mark.long, id="after-a-dry-run")],
)
def test_the_job_reports_what_would_land_and_then_does_it(spark: Any, spark_environment: dict[str, str], tmp_path: Path, dry_run: bool) -> None:
    outputs = landing(tmp_path).model_dump()["outputs"][:1]
    Landing(landing(tmp_path, outputs=outputs, unrouted="skip"), KEY).write(raw(spark, ROWS))
    pipeline = tmp_path / "all.yaml"
    pipeline.write_text(PIPELINE.format(directory=tmp_path))

    def job(*arguments: str) -> list[str]:
        submit = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
        command = [*submit, str(ROOT / "jobs" / "replay_dead_letters.py"), f"--pipeline={pipeline}", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=spark_environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        # spark-submit writes what the program says on stderr, its progress and its log, to stdout as well
        return [line for line in done.stdout.splitlines() if not (line.startswith("replay of cluster") or "[info " in line)]

    reported = [f"table={tmp_path / 'all'} landed=2 still=2 waiting=0", "  1 is not UTF-8", "  1 is not one JSON object"]
    if dry_run:  # starts a JVM of its own
        assert job("--dry-run") == [f"would land {reported[0]}", *reported[1:]]
        assert table(spark, tmp_path / "all", "transaction_id") == [(0,)], "a dry run changes nothing"
        assert spark.read.format("delta").load(str(tmp_path / "dead")).where("replayed_at IS NOT NULL").count() == 0
    assert job() == [f"landed {reported[0]}", *reported[1:]]
    assert table(spark, tmp_path / "all", "transaction_id", "k", "n") == [(0, "a", 1), (1, "a", None), (3, "b", None)]
    done = spark.read.format("delta").load(str(tmp_path / "dead")).where("replayed_at IS NOT NULL")
    assert table_rows(done, "transaction_id", "reason") == [(1, "n is not INT: two"), (3, "n is not INT: three")]


def test_a_replay_makes_no_table_where_there_is_none(spark: Any, tmp_path: Path) -> None:
    for dry_run in (True, False):
        assert replay(spark, landing(tmp_path), dry_run=dry_run) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_after_a_restore_letters_wait_until_the_stream_has_come_so_far_again(spark: Any, tmp_path: Path) -> None:
    """Otherwise they would come twice: put through, and by the stream, which decodes them now."""
    outputs = landing(tmp_path).model_dump()["outputs"][:1]
    wrong = landing(tmp_path, outputs=outputs, unrouted="skip")
    Landing(wrong, KEY).write(raw(spark, ROWS[:1]))
    Landing(wrong, KEY).write(raw(spark, ROWS[:4]))
    DeltaTable.forPath(spark, str(tmp_path / "all")).restoreToVersion(0)
    outputs[0]["decode"]["columns"] = "k STRING NOT NULL, n STRING"
    outputs[0]["projection"]["select"] = "k, try_cast(n AS INT) AS n"
    fixed = landing(tmp_path, outputs=outputs, unrouted="skip")
    restored = internal.table_version(spark, str(tmp_path / "all"))
    assert replay(spark, fixed, dry_run=True) == [Replayed(str(tmp_path / "all"), 0, 0, 2, {})]
    assert Landing(fixed, KEY).starting_transaction_ids(spark, [0], dry_run=True) == '{"0": 1}'
    assert internal.table_version(spark, str(tmp_path / "all")) == restored, "a dry run takes no mark back either"
    assert replay(spark, fixed) == [Replayed(str(tmp_path / "all"), 0, 0, 2, {})]
    assert internal.table_version(spark, str(tmp_path / "all")) == restored + 1
    Landing(fixed, KEY).write(raw(spark, ROWS[:4]))
    assert replay(spark, fixed) == [Replayed(str(tmp_path / "all"), 2, 0, 0, {})]
    assert table(spark, tmp_path / "all", "transaction_id") == [(0,), (1,), (3,)]
