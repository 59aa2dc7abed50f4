"""`jobs/ingest.py` as users submit it, on a store that fails while it runs: its tables are those of the log, and its last line says why it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.legs_landed import LegsLog, pipeline_text
from tests.e2e.submitted import Submit, finished
from verification.lake.store_faults import DRAWN, NONE, PERMANENT, FaultyStore, faulty_store
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(900)

LIVES_MAX = 12
SENTENCE = re.compile(r"ingest: the table's store is unavailable: [^\n]+: path=\S+")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), partitions=2) as running:
        yield running


@pytest.fixture(scope="module")
def log(cluster: LocalCluster) -> LegsLog:
    """Of all tests: each fills tables of its own from the beginning."""
    return LegsLog(cluster.cluster)


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    with faulty_store() as running:
        yield running


def last_line(out: str) -> str:
    return out.rstrip().rpartition("\n")[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_faults_that_are_drawn_while_a_job_runs_change_nothing(
    cluster: LocalCluster, log: LegsLog, store: FaultyStore, submit: Submit, tmp_path: Path, seed: int
) -> None:
    place, pipeline = "s3a://lake/tables", tmp_path / "legs.yaml"
    pipeline.write_text(pipeline_text(cluster.cluster, place, tmp_path / "checkpoint", store.patient, restarts=2))
    log.append(180)
    met = 0
    for life in range(LIVES_MAX):
        met += store.fail(DRAWN, seed=100 * seed + life)
        code, out = finished(submit("jobs/ingest.py", f"--pipeline={pipeline}"))
        print(f"life {life}: exit code {code}: {last_line(out)}")
        if code == OK:
            break
        assert code == UNAVAILABLE, out
        assert SENTENCE.fullmatch(last_line(out)), out
    met += store.fail(NONE)
    print(f"{met} requests met a fault")
    assert met > 10
    assert code == OK
    assert log.differences(place, store.storage) == []


ENDS = [
    ("credentials expire", "all/part-"),
    ("the bucket disappears", "newest/part-"),
    ("credentials expire", "versions/_delta_log/"),
    ("the bucket disappears", "dead/part-"),
    ("credentials expire", ""),
]
"""What fails for good, and the file whose write it begins with: one by a task, one by the driver, a commit, one of dead letters; at once if empty."""


@pytest.mark.slow
def test_a_job_whose_store_fails_for_good_ends_with_one_sentence_and_the_next_one_goes_on(
    cluster: LocalCluster, log: LegsLog, store: FaultyStore, submit: Submit, tmp_path: Path
) -> None:
    place, pipeline = "s3a://lake/tables", tmp_path / "legs.yaml"
    pipeline.write_text(pipeline_text(cluster.cluster, place, tmp_path / "checkpoint", store.hasty))
    for fault, begins in ENDS:
        log.append(120)
        store.fail(fault, begins=begins)
        code, out = finished(submit("jobs/ingest.py", f"--pipeline={pipeline}"))
        assert store.fail(NONE) > 0, out
        assert code == UNAVAILABLE, out
        assert SENTENCE.fullmatch(last_line(out)), out
        assert re.search(PERMANENT[fault][1], last_line(out)), out
    code, out = finished(submit("jobs/ingest.py", f"--pipeline={pipeline}"))
    assert code == OK, out
    assert log.differences(place, store.storage) == []
