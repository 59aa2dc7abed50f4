"""The faults, one after the other, each with the alerts that it must raise. `run` reports how long each alert needed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_waltz.log_view import LogView
from pyspark_waltz.options import SourceOptions
from verification.alerts.landings import HangingPipeline, log_view
from verification.alerts.prometheus import Prometheus
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.log_watch import LogWatch
from waltz_delta.pipelines.metrics import PrometheusMetrics
from waltz_delta.pipelines.metrics_port import MetricsSettings
from waltz_log.client import ClientSettings, Draft, Lock, LockConflict, SyncWaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.metadata import CLUSTER
from waltz_log.errors import Unavailable
from waltz_log.processes.local_cluster import START_TIMEOUT_S, WALTZ, LocalCluster
from waltz_log.security.authority import DevelopmentAuthority

__all__ = ["Pace", "Report", "run"]

PARTITIONS = 2
LOCK_ENTRIES = 1000
ALERT_TIMEOUT_S = 60.0
"""The longest time until an alert must fire."""

STAYS = {"WaltzCorruptionFound", "WaltzDeadLetters", "WaltzWorkerRestarted"}
"""Alerts about past events. They stay for a while after the event is over."""

CLOCK = """
import time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + 3600
time.time_ns = lambda: real_ns() + 3600 * 10**9
"""
"""As `sitecustomize` of a process, this sets the clock of the process an hour ahead."""


@dataclass(frozen=True)
class Pace:
    """`factor`: divides the waits of the rules in conf/monitoring; 1 uses them unchanged."""

    interval_s: float = 5.0
    factor: float = 1.0
    quiet_s: float = 300.0


@dataclass
class Report:
    """`alerted`: seconds until each alert fired, by fault and alert. `problems`: what should not have happened."""

    alerted: dict[tuple[str, str], float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _World:
    def __init__(self, directory: Path, pace: Pace, report: Report, progress: Callable[[str], None]) -> None:
        self.directory = directory
        self.pace = pace
        self.report = report
        self.progress = progress
        self.board = StatusBoard()
        self.pipelines: list[HangingPipeline] = []
        storage = {"segment_bytes": 65_536, "scrub_pause_s": 1.0, "repair_retry_s": 1.0, "repair_retry_max_s": 2.0}
        self.cluster = LocalCluster(
            directory / "cluster",
            partitions=PARTITIONS,
            storages=3,
            servers=1,
            secure=True,
            session_timeout_s=2,
            storage_settings=storage,
            server_settings={"lock_entries_max": LOCK_ENTRIES},
            http=True,
        )

    @contextmanager
    def running(self) -> Iterator[Prometheus]:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            pipelines = stack.enter_context(PrometheusMetrics(self.board, MetricsSettings(port=0)))
            self.cluster.certificate("application", "alerts")  # before threads ask for it
            self.pipelines = [stack.enter_context(each) for each in self.planned_pipelines()]
            for each in self.pipelines:
                self.board.add(each.settings.name, each.progress)
            stack.enter_context(LogWatch(self.board, [each.settings for each in self.pipelines], connect=self.log_view))
            targets = self.directory / "pipelines.json"
            targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{pipelines.port}"], "labels": {"job": "waltz-pipelines"}}]))
            limits = {"waltz:table_lag_seconds:limit": 2.0}
            found = [self.cluster.targets_file, targets]
            yield stack.enter_context(
                Prometheus(self.directory / "prometheus", found, interval_s=self.pace.interval_s, limits=limits, factor=self.pace.factor)
            )

    def client(self) -> SyncWaltzClient:
        return SyncWaltzClient(self.cluster.cluster, ClientSettings(tls=self.cluster.certificate("application", "alerts")))

    def log_view(self, options: SourceOptions) -> LogView:
        return log_view(options, self.cluster.certificate("application", "alerts"))

    def planned_pipelines(self) -> list[HangingPipeline]:
        """One of each number of tables."""
        return [HangingPipeline(name, self.cluster.cluster, tables, self.log_view) for name, tables in (("legs", 1), ("planes", 2))]

    def expect(self, prometheus: Prometheus, fault: str, began: float, alerts: Mapping[str, Mapping[str, str]]) -> None:
        """Waits until the alerts fire, each with at least these labels."""
        missing = dict(alerts)
        while missing and time.monotonic() - began < ALERT_TIMEOUT_S:
            firing = prometheus.firing()
            for name, labels in list(missing.items()):
                if any(each.name == name and labels.items() <= dict(each.labels).items() for each in firing):
                    self.report.alerted[fault, name] = round(time.monotonic() - began, 1)
                    self.progress(f"{fault}: {name} after {self.report.alerted[fault, name]:g} s")
                    del missing[name]
            time.sleep(0.2)
        self.report.problems += [f"{fault}: {name} {dict(labels)} did not fire within {ALERT_TIMEOUT_S:g} s" for name, labels in missing.items()]

    def expect_quiet(self, prometheus: Prometheus, fault: str) -> None:
        """Waits until the fault's alerts have ended."""
        deadline = time.monotonic() + 2 * ALERT_TIMEOUT_S
        while True:
            firing = {each.name for each in prometheus.firing()} - STAYS
            if not firing:
                return
            if time.monotonic() > deadline:
                self.report.problems.append(f"{fault}: still firing after it was repaired: {', '.join(sorted(firing))}")
                return
            time.sleep(0.2)

    def wait_serving(self, name: str) -> None:
        """Waits until a node that was started shows its statistics."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://{self.cluster.http_addresses[name]}/metrics", timeout=10) as answer:
                if b"waltz_statistics_up 1.0" in answer.read():
                    return
            time.sleep(0.1)
        raise Unavailable(reason=f"{name} does not serve: {self.cluster.how_ended(name) if name in self.cluster.ended else 'it still starts'}")

    def start_with(self, name: str, **environment: str) -> None:
        """Starts a node of the cluster with additional environment variables."""
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            self.cluster.start(name)
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(directory: Path, pace: Pace, progress: Callable[[str], None] = lambda _: None) -> Report:
    report = Report()
    world = _World(directory, pace, report, progress)
    with world.running() as prometheus:
        _quiet(world, prometheus)
        for fault in (_pipeline, _certificate, _storage_nodes, _server, _disk_and_clock, _lock_table, _coordinator_value, _corruption):
            fault(world, prometheus)
    return report


def _quiet(world: _World, prometheus: Prometheus) -> None:
    """Clients append. Waits until everything is scraped and until the quiet period is over, in which no alert may fire."""
    deadline = time.monotonic() + world.pace.quiet_s
    with world.client() as client:
        while time.monotonic() < deadline or prometheus.value("sum(up)") != [5.0]:
            if time.monotonic() > deadline + ALERT_TIMEOUT_S:
                world.report.problems.append("not every process was scraped")
                return
            for partition in range(PARTITIONS):
                client.append(partition, b"x" * 500)
            firing = prometheus.firing()
            world.report.problems += [f"in the quiet period: {each.name} {dict(each.labels)}" for each in firing]
            if firing:
                return
            time.sleep(0.2)
    world.progress(f"quiet for {world.pace.quiet_s:g} s")


def _pipeline(world: _World, prometheus: Prometheus) -> None:
    """A batch of a pipeline with one table hangs and there are dead letters; so does one with two tables, of which one commits. Then a query ends."""
    with world.client() as client:
        for pipeline in world.pipelines:
            name = pipeline.settings.name
            began = time.monotonic()
            pipeline.hang()
            client.append_many(0, [Draft(b"missing in a table")] * 1000)
            pipeline.dead += 3
            alerts = {"WaltzTableLag": {"pipeline": name}, "WaltzDeadLetters": {"pipeline": name}}
            world.expect(prometheus, f"a batch of {len(pipeline.tables)} tables hangs", began, alerts)
            pipeline.resume()
            world.expect_quiet(prometheus, f"a batch of {len(pipeline.tables)} tables hangs")
    _expect_counted_once(world, prometheus)
    began = time.monotonic()
    world.board.ended("legs", failed=True)
    world.expect(prometheus, "a pipeline ends", began, {"WaltzPipelineDown": {"pipeline": "legs"}})
    world.board.add("legs", world.pipelines[0].progress)
    world.expect_quiet(prometheus, "a pipeline")


def _expect_counted_once(world: _World, prometheus: Prometheus) -> None:
    """Every pipeline has as many rows as the log has transactions, whatever the number of its tables."""
    deadline = time.monotonic() + ALERT_TIMEOUT_S
    while True:
        rows = prometheus.value("waltz_pipeline_rows_total")
        ends = [float(sum(each.log.values())) for each in world.board.statuses().values()]
        if sorted(rows) == sorted(ends):
            return
        if time.monotonic() > deadline:
            world.report.problems.append(f"pipelines count {rows} rows, and their logs have {ends} transactions")
            return
        time.sleep(0.2)


def _certificate(world: _World, prometheus: Prometheus) -> None:
    """The certificate of a running node is replaced by one that expires tomorrow, then by one that is valid for a year."""
    name = "storage-0"
    authority = DevelopmentAuthority(world.cluster.certificate("node", name).certificate.parent)
    began = time.monotonic()
    authority.issue("node", name, days=1)
    world.expect(prometheus, "a certificate expires", began, {"WaltzCertificateExpires": {"instance": world.cluster.http_addresses[name]}})
    authority.issue("node", name)
    world.expect_quiet(prometheus, "a certificate")


def _storage_nodes(world: _World, prometheus: Prometheus) -> None:
    """One server is killed, then a second one."""
    cluster = world.cluster
    began = time.monotonic()
    cluster.kill("storage-2")
    with world.client() as client:
        client.append(0, b"the owner notices when it appends")
        client.append(1, b"the owner notices when it appends")
    down = {"instance": cluster.http_addresses["storage-2"]}
    alerts: dict[str, dict[str, str]] = {"WaltzProcessDown": down, "WaltzReplicaMissing": {"replica": "storage-2"}, "WaltzMajorityAtRisk": {}}
    world.expect(prometheus, "a storage node is killed", began, alerts)
    began = time.monotonic()
    cluster.kill("storage-1")
    world.expect(prometheus, "a second storage node is killed", began, {"WaltzPartitionUnserved": {"partition": "0"}})
    cluster.start("storage-1")
    cluster.start("storage-2")
    cluster.wait_ready()
    world.expect_quiet(prometheus, "storage nodes")


def _server(world: _World, prometheus: Prometheus) -> None:
    """The only server is killed, so no server reports that the partitions are not served."""
    began = time.monotonic()
    world.cluster.kill("server-0")
    alerts = {"WaltzPartitionUnserved": {"partition": "1"}, "WaltzProcessDown": {"job": "waltz-servers"}}
    world.expect(prometheus, "the only server is killed", began, alerts)
    world.cluster.start("server-0")
    world.cluster.wait_ready()
    world.expect_quiet(prometheus, "the server")


def _disk_and_clock(world: _World, prometheus: Prometheus) -> None:
    """One disk runs low, another one is full, and a clock is wrong: one fault on each storage node."""
    cluster = world.cluster
    wrong = world.directory / "wrong_clock"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(CLOCK)
    much = str(1 << 60)
    planted = {
        "storage-0": {"WALTZ_STORAGE_DISK_WARN_FREE_BYTES": much},
        "storage-1": {"WALTZ_STORAGE_DISK_WARN_FREE_BYTES": much, "WALTZ_STORAGE_DISK_REFUSE_FREE_BYTES": much},
        "storage-2": {"PYTHONPATH": str(wrong)},
    }
    for name, environment in planted.items():
        cluster.stop(name)
        world.start_with(name, **environment)
    for name in planted:
        world.wait_serving(name)
    began = time.monotonic()  # the faults begin when the nodes serve with them, however slowly this machine starts processes
    at = cluster.http_addresses
    alerts = {
        "WaltzDiskLow": {"instance": at["storage-0"]},
        "WaltzDiskRefusesAppends": {"instance": at["storage-1"]},
        "WaltzClockOff": {"instance": at["storage-2"]},
    }
    world.expect(prometheus, "a disk low, a disk full, a clock wrong", began, alerts)
    for name in planted:
        cluster.stop(name)
        cluster.start(name)
    cluster.wait_ready()
    world.expect_quiet(prometheus, "disks and clock")


def _lock_table(world: _World, prometheus: Prometheus) -> None:
    """More locks than the table holds, and a client with an old mark."""
    began = time.monotonic()
    with world.client() as client:
        client.append_many(0, [Draft(b"", write_locks=(Lock("row", str(number)),)) for number in range(2 * LOCK_ENTRIES)])
        number = 0
        while time.monotonic() - began < ALERT_TIMEOUT_S and not any(each.name == "WaltzLockTableFull" for each in prometheus.firing()):
            number += 1
            try:
                client.append(0, b"", write_locks=[Lock("free", str(number))], high_water_mark=0)
            except LockConflict:
                continue
    world.expect(prometheus, "a lock table is full", began, {"WaltzLockTableFull": {"partition": "0"}})
    world.expect_quiet(prometheus, "a lock table")


def _coordinator_value(world: _World, prometheus: Prometheus) -> None:
    """The parameters of the cluster are damaged in ZooKeeper, and `waltz cluster repair` writes back what nodes know."""
    cluster = world.cluster

    async def damage() -> None:
        coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, timeout_s=START_TIMEOUT_S, tls=cluster.certificate("operator", "dev"))
        try:
            await coordinator.set(CLUSTER, b"{", -1)
        finally:
            await coordinator.close()

    began = time.monotonic()
    asyncio.run(damage())
    refused = {"instance": cluster.http_addresses["server-0"], "value": "parameters"}
    world.expect(prometheus, "a value of ZooKeeper is damaged", began, {"WaltzCoordinatorValueRefused": refused})
    command = [*WALTZ, "cluster", "repair", cluster.coordinator]
    repaired = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, env=cluster.environment("operator"))
    if repaired.returncode != 0:
        world.report.problems.append(f"a value of ZooKeeper is damaged: it was not repaired: {repaired.stderr}")
    world.expect_quiet(prometheus, "a value of ZooKeeper")


def _corruption(world: _World, prometheus: Prometheus) -> None:
    """The same byte of an old segment is damaged on all replicas, so that none can repair another. Comes last, because it cannot be undone."""
    cluster = world.cluster
    with world.client() as client:
        for _ in range(4):
            client.append_many(1, [Draft(bytes(30_000))] * 4)  # a few segments
    began = time.monotonic()
    for name in cluster.storage_names:
        oldest = min((cluster.directory / name / "1").glob("*.seg"))
        with oldest.open("r+b") as file:
            file.seek(oldest.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0xFF]))
    world.expect(prometheus, "a segment is damaged everywhere", began, {"WaltzCorruptionFound": {}, "WaltzCorruptionUnrepaired": {}})
