"""The Arrow engine's commits without Spark's JVM: into a table of many files, and of a whole pipeline into a table on S3.

- `lake.commit_ms_10k_files`: a transaction from reading the mark to the commit on the disk, for a table that has 10,000 files.
- `lake.s3_visible_p50_s`, `lake.s3_visible_p95_s`: from the call of append to the row in the table, at a trigger of one second, as `delta.visible_*`;
  the store is an S3 server of this repository, in a process of its own on loopback.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement, percentile
from benchmarks.visible import TRIGGER, driver, latencies
from verification.lake.races import s3_place
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.written_files import WrittenFiles
from waltz_delta.marks.marks import app_id
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

FILES, FILES_QUICK = 10_000, 100
COMMITS, COMMITS_QUICK = 50, 3
COLUMNS = 14
APPENDS, APPENDS_QUICK = 160, 5
WARM_UP = 5
START_TIMEOUT_S = 180.0
MARK_EVERY_S = 0.1
"""How often the table on S3 is read for its marks: each time lists its log."""
_ROOT = Path(__file__).resolve().parent.parent


def run(directory: Path, conditions: Mapping[str, Any], *, quick: bool) -> list[Measurement]:
    files, commits = (FILES_QUICK, COMMITS_QUICK) if quick else (FILES, COMMITS)
    took_ms = _commits(directory / "many-files", files, commits)
    told = {**conditions, "files": files, "columns": COLUMNS, "commits": commits, "p95_ms": round(percentile(took_ms, 0.95), 1)}
    found = [Measurement("lake.commit_ms_10k_files", percentile(took_ms, 0.5), "ms", told)]
    appends = APPENDS_QUICK if quick else APPENDS
    with LocalCluster(directory / "s3-log", partitions=PARTITIONS, storages=3, servers=2) as cluster:
        seen_s = _visible_on_s3(cluster.cluster, directory / "s3", appends)
    told = {**conditions, "trigger": TRIGGER, "partitions": PARTITIONS, "transactions": appends, "store": "S3 server on loopback"}
    return [
        *found,
        Measurement("lake.s3_visible_p50_s", percentile(seen_s, 0.5), "s", told),
        Measurement("lake.s3_visible_p95_s", percentile(seen_s, 0.95), "s", {**told, "max_s": round(max(seen_s), 2)}),
    ]


def _commits(path: Path, files: int, commits: int) -> list[float]:
    """Milliseconds of each commit of one file. The files themselves do not exist: no commit reads one."""
    path.mkdir(parents=True)
    names = [f"c{n}" for n in range(COLUMNS)]
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names]
    shape = TableShape({"type": "struct", "fields": fields}, (), {"delta.checkpointInterval": "100"})
    bounds = dict.fromkeys(names, 1)
    statistics = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(names, 0)})
    table, mark = ArrowTable(str(path), str(path), {}, nullcontext), app_id("benchmark", 0)

    def commit(first: int, count: int) -> None:
        transaction = ArrowTransaction(table)
        transaction.version(mark)
        made = tuple(AddFile(f"part-{n}.parquet", 1000, {}, 1_700_000_000_000, statistics) for n in range(first, first + count))
        transaction.commit(WrittenFiles(made, shape), {mark: first}, query="benchmark", batch=first, metadata="{}")

    commit(0, files)
    took_ms = []
    for number in range(commits + 1):  # the first one opens the table
        start_s = time.perf_counter()
        commit(files + number, 1)
        took_ms.append((time.perf_counter() - start_s) * 1000)
    return took_ms[1:]


class _RemoteMarks:
    """The marks of a table in an object store, read at most every `MARK_EVERY_S`."""

    def __init__(self, location: str, storage: Mapping[str, str], cluster_key: str) -> None:
        self._location, self._storage, self._key = location, dict(storage), cluster_key
        self._table: DeltaTable | None = None
        self._read_s = 0.0
        self._version = -1
        self._marks: dict[int, int] = {}

    def mark(self, partition: int) -> int:
        if time.monotonic() > self._read_s + MARK_EVERY_S:
            try:
                if self._table is None:
                    self._table = DeltaTable(self._location, storage_options=self._storage)
                else:
                    self._table.update_incremental()
            except (TableNotFoundError, DeltaError):
                self._table = None
            self._read_s = time.monotonic()
        if self._table is None:
            return -1
        if self._table.version() != self._version:
            self._version, self._marks = self._table.version(), {}
        if partition not in self._marks:  # deltalake reads all commits since the last checkpoint for it
            found = self._table.transaction_version(app_id(self._key, partition))
            self._marks[partition] = -1 if found is None else int(found)
        return self._marks[partition]


def _visible_on_s3(cluster: str, folder: Path, appends: int) -> list[float]:
    folder.mkdir(parents=True)
    with ClusterInspector(cluster) as inspector:
        key = str(inspector.parameters.key)
    with s3_place() as place, SyncWaltzClient(cluster) as client:
        target = {"table": "s3a://lake/tables/visible", "engine": "arrow", "storage": _settings(place.storage)}
        pipeline = folder / "visible.yaml"  # JSON is YAML
        pipeline.write_text(
            json.dumps(
                {"source": {"cluster": cluster}, "checkpoint": str(folder / "checkpoint"), "trigger": TRIGGER, "outputs": [{"target": target}]}
            )
        )
        client.append(0, b"the first makes the table")
        marks = _RemoteMarks("s3://lake/tables/visible", place.storage, key)
        with driver([str(_ROOT / "jobs" / "ingest.py"), f"--pipeline={pipeline}"], folder, place.storage) as running:
            deadline = time.monotonic() + START_TIMEOUT_S
            while marks.mark(0) < 0:
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the Spark driver does not run: code={running.poll()}\n{(folder / 'driver.log').read_text()[-2000:]}")
                time.sleep(MARK_EVERY_S)
            return latencies(client, marks, WARM_UP + appends)[WARM_UP:]


def _settings(storage: Mapping[str, str]) -> dict[str, str]:
    """Without credentials, which a pipeline file must not have: they come from the environment."""
    return {name: value for name, value in storage.items() if "KEY" not in name}
