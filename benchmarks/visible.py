"""From the call of append to the row in the Delta table, as a reader without Spark sees it, at a trigger of one second.

Single transactions at times unrelated to the trigger. deltalake reads the table repeatedly, and a transaction is visible when the table's mark of its
partition reaches its id: rows and mark come in one commit. deltalake reads only after the file of the next commit is there, because an observer that
always polls it needs about 8 % of two cores. The job is `jobs/ingest.py` as users submit it.

The appends go on for more than two minutes. At this trigger the sink writes a checkpoint of the table's log every minute, and the batches beside it
are slow, so several checkpoints must fall within the measured time. The conditions state how many the table's log had at its end.

Then the driver is started again on its checkpoint, with one new transaction in the log: the time from the start of `spark-submit` to that row. In
turn with it, a stream of Spark's own rows into Delta's own sink is started again on its checkpoint, until its next commit.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement, percentile
from waltz_delta.marks.marks import app_id
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes import launch
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["TRIGGER", "Marks", "driver", "latencies", "run"]

TRIGGER = "1 second"
PAUSES_S = (0.1, 0.7)
"""Pauses between two appends: uneven, so that appends are spread over the whole interval of the trigger."""

APPENDS, APPENDS_QUICK = 320, 10
"""With the pauses, 320 need 130 s: the checkpoints of the first and the second minute."""
WARM_UP = 10
RESTARTS, RESTARTS_QUICK = 5, 1
POLL_EVERY_S = 0.03
START_TIMEOUT_S, TIMEOUT_S = 180.0, 60.0
_HERE = Path(__file__).resolve().parent
SUBMIT = [
    *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),  # the driver ends when this process ends, for any reason
    *(
        str(Path(sys.executable).parent / "spark-submit"),
        f"--properties-file={_HERE.parent / 'conf' / 'spark-defaults.conf'}",
        "--master=local[2]",
    ),
]


class Marks(Protocol):
    """The marks of a table that another process writes."""

    def mark(self, partition: int) -> int: ...


class _Table:
    """`Marks` of a table on this machine."""

    def __init__(self, path: Path, cluster_key: str) -> None:
        self._path, self._key, self._log = path, cluster_key, path / "_delta_log"
        self._table: DeltaTable | None = None

    def mark(self, partition: int) -> int:
        if self._table is None:
            try:
                self._table = DeltaTable(str(self._path))
            except TableNotFoundError:
                return -1
        elif self._has_commit(self._table.version() + 1):
            self._table.update_incremental()
        found = self._table.transaction_version(app_id(self._key, partition))
        return -1 if found is None else int(found)

    def checkpoints(self) -> int:
        """The checkpoint files in the table's log."""
        return len(list(self._log.glob("*.checkpoint*.parquet")))

    def _has_commit(self, version: int) -> bool:
        return (self._log / f"{version:020d}.json").exists()

    def wait(self, partition: int, transaction_id: int, driver: subprocess.Popen[bytes], folder: Path) -> None:
        """Waits until the table's mark reaches the transaction. Raises `RuntimeError` if the driver ends or does not reach it in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.mark(partition) < transaction_id:
            if driver.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Spark driver does not run: code={driver.poll()}\n{(folder / 'driver.log').read_text()[-2000:]}")
            time.sleep(POLL_EVERY_S)


def run(directory: Path, conditions: Mapping[str, Any], *, quick: bool) -> list[Measurement]:
    appends = APPENDS_QUICK if quick else APPENDS
    with LocalCluster(directory / "visible-log", partitions=PARTITIONS, storages=3, servers=2) as cluster:
        latencies_s, checkpoints, first_rows_s, own_first_rows_s = _measure(
            cluster.cluster, directory / "visible", appends, RESTARTS_QUICK if quick else RESTARTS
        )
    own = {**conditions, "trigger": TRIGGER, "partitions": PARTITIONS, "transactions": appends, "looked_every_ms": round(POLL_EVERY_S * 1000)}
    own["checkpoints"] = checkpoints
    first_row, own_first_row = (
        Measurement(
            name,
            percentile(times_s, 0.5),
            "s",
            {**conditions, "trigger": TRIGGER, "starts": len(times_s), "max_s": round(max(times_s), 2), "from": "spark-submit"},
        )
        for name, times_s in (("delta.first_row_s", first_rows_s), ("delta.own_first_row_s", own_first_rows_s))
    )
    return [
        Measurement("delta.visible_p50_s", percentile(latencies_s, 0.5), "s", own),
        Measurement("delta.visible_p95_s", percentile(latencies_s, 0.95), "s", {**own, "max_s": round(max(latencies_s), 2)}),
        own_first_row,
        first_row.compared_with(own_first_row.value, "delta.own_first_row_s"),
    ]


def _measure(cluster: str, folder: Path, appends: int, restarts: int) -> tuple[list[float], int, list[float], list[float]]:
    """The latencies, the checkpoints in the table's log after the last of them, and the times of the first rows, ours and Spark's own."""
    folder.mkdir(parents=True)
    with ClusterInspector(cluster) as inspector:
        key = str(inspector.parameters.key)
    table = _Table(folder / "table", key)
    with SyncWaltzClient(cluster) as client:
        client.append(0, b"the first makes the table")
        with driver(_ingest(cluster, folder), folder) as running:
            table.wait(0, 0, running, folder)
            latencies_s = latencies(client, table, WARM_UP + appends)[WARM_UP:]
            checkpoints = table.checkpoints()
        own, commits = folder / "own", 0
        first_rows_s, own_first_rows_s = list[float](), list[float]()
        for number in range(restarts + 1):  # the first start of Spark's own stream makes its table
            start_s = time.perf_counter()
            with driver(_own_stream(own), folder) as running:
                _wait_for_commit(own / "table", commits, running, folder)
                own_first_rows_s += [time.perf_counter() - start_s] if number else []
            commits = len(list((own / "table" / "_delta_log").glob("*.json")))
            if not number:
                continue
            receipt = client.append(0, b"appended while no driver runs")
            start_s = time.perf_counter()
            with driver(_ingest(cluster, folder), folder) as running:
                table.wait(0, receipt.transaction_id, running, folder)
                first_rows_s.append(time.perf_counter() - start_s)
    return latencies_s, checkpoints, first_rows_s, own_first_rows_s


def _wait_for_commit(table: Path, version: int, driver: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits until the table has this version. Raises `RuntimeError` if the driver ends or does not reach it in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (table / "_delta_log" / f"{version:020d}.json").exists():
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the Spark driver does not run: code={driver.poll()}\n{(folder / 'driver.log').read_text()[-2000:]}")
        time.sleep(POLL_EVERY_S)


@contextmanager
def driver(command: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of Spark, with these environment variables too, until the end of the block."""
    with (folder / "driver.log").open("ab") as output:
        running = subprocess.Popen([*SUBMIT, *command], cwd=_HERE.parent, env={**_environment(), **(variables or {})}, stdout=output, stderr=output)
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def latencies(client: SyncWaltzClient, table: Marks, appends: int) -> list[float]:
    """In the order of the appends. A separate thread appends, so that checking the table delays no append."""
    pending: dict[tuple[int, int], float] = {}
    found: dict[float, float] = {}
    lock = threading.Lock()
    failed: list[BaseException] = []

    def append() -> None:
        rng = random.Random(1)
        try:
            for _ in range(appends):
                start_s = time.perf_counter()
                receipt = client.append(rng.randrange(PARTITIONS), rng.randbytes(200))
                with lock:
                    pending[receipt.partition, receipt.transaction_id] = start_s
                time.sleep(rng.uniform(*PAUSES_S))
        except BaseException as error:
            failed.append(error)

    appender = threading.Thread(target=append)
    appender.start()
    quiet_s = time.monotonic()
    while appender.is_alive() or pending:
        marks = {partition: table.mark(partition) for partition in range(PARTITIONS)}
        now_s = time.perf_counter()
        with lock:
            visible = [place for place in pending if place[1] <= marks[place[0]]]
            for place in visible:
                start_s = pending.pop(place)
                found[start_s] = now_s - start_s
        if visible or not pending:
            quiet_s = time.monotonic()
        if failed or time.monotonic() > quiet_s + TIMEOUT_S:
            raise RuntimeError(f"transactions do not become visible: appended={len(found) + len(pending)} visible={len(found)} error={failed}")
        time.sleep(POLL_EVERY_S)
    return [found[start_s] for start_s in sorted(found)]


def _ingest(cluster: str, folder: Path) -> list[str]:
    job = [str(_HERE.parent / "jobs" / "ingest.py"), f"--cluster={cluster}", f"--table={folder / 'table'}"]
    return [*job, f"--checkpoint={folder / 'checkpoint'}", f"--trigger={TRIGGER}"]


def _own_stream(folder: Path) -> list[str]:
    return [str(_HERE / "own_stream_session.py"), str(folder / "table"), str(folder / "checkpoint"), TRIGGER]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
