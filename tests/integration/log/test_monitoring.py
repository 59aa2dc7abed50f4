"""All processes of a cluster scraped and probed while clients append: with one process for each node, and with several."""

from __future__ import annotations

import asyncio
import http.client
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.free_ports import free_port
from tests.integration.monitoring.named_metrics import families_in, named_metrics
from tests.integration.monitoring.promtool import HOW_TO_INSTALL, promtool
from waltz_log.client import SyncWaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import survey
from waltz_log.monitoring.exposition import families_of
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = pytest.mark.timeout(240)

PARTITIONS = 4
APPENDED = "waltz_server_appended_transactions_total"
PATIENCE_S = 60.0
SCRAPE_DEADLINE_S = 10.0
"""Prometheus' own."""

_PHASE = re.compile(r"^\[-\](?:process failed: )?(starting|stopping|partition)", re.MULTILINE)

Metrics = dict[str, dict[frozenset[tuple[str, str]], float]]


@pytest.fixture(scope="module", params=[1, 2], ids=lambda workers: f"workers={workers}")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"workers": request.param}
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(
        directory, partitions=PARTITIONS, storages=3, servers=1, session_timeout_s=2, server_settings=settings, storage_settings=settings, http=True
    ) as cluster:
        yield cluster


async def _endpoints(cluster: LocalCluster) -> dict[str, str]:
    """Name and `host:port` of each process that answers, as a status call shows them."""
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
    try:
        found = await survey(coordinator, GrpcNetwork(), cluster.coordinator)
    finally:
        await coordinator.close()
    addresses = {f"server-{number}": each.statistics.http for number, each in enumerate(found.servers) if each.answers}
    addresses |= {each.name: each.statistics.http for each in found.storages if each.answers}
    return {name: address for name, address in addresses.items() if address is not None}


def _get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=SCRAPE_DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _scrape(address: str) -> Metrics:
    status, text = _get(address, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text)
    found: Metrics = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)


@contextmanager
def _appending(cluster: LocalCluster) -> Iterator[Callable[[], int]]:
    """Clients append to all partitions; gives how many transactions are committed by now."""
    stop = threading.Event()
    committed = 0

    def append() -> None:
        nonlocal committed
        with SyncWaltzClient(cluster.cluster) as client:
            while not stop.is_set():
                for partition in range(PARTITIONS):
                    client.append(partition, b"x" * 100)
                    committed += 1

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield lambda: committed
    finally:
        stop.set()
        thread.join()


def test_every_process_shows_what_happens_under_load(cluster: LocalCluster) -> None:
    endpoints = asyncio.run(_endpoints(cluster))
    assert set(endpoints) == {"server-0", *cluster.storage_names}
    server, storages = endpoints["server-0"], [endpoints[name] for name in cluster.storage_names]
    before = _scrape(server)[APPENDED]
    with _appending(cluster) as committed:
        _until(lambda: committed() > 100)
        for address in endpoints.values():
            began = time.monotonic()
            assert _get(address, "/livez") == (200, "livez check passed\n")
            _until(lambda address=address: _get(address, "/readyz")[0] == 200)  # type: ignore[misc]
            _until(lambda address=address: _scrape(address)["waltz_ready"][frozenset()] == 1)  # type: ignore[misc]
            assert time.monotonic() - began < PATIENCE_S
    # A snapshot is used for a moment, so the last appends show a little later.
    _until(lambda: sum(_scrape(server)[APPENDED].values()) - sum(before.values()) == committed())
    assert {dict(labels)["partition"] for labels in _scrape(server)[APPENDED]} == {str(each) for each in range(PARTITIONS)}
    scraped = _scrape(server)
    assert scraped["waltz_server_append_seconds_count"][frozenset({("stage", "commit")})] > 0
    assert scraped["waltz_server_append_seconds_count"][frozenset({("stage", "replicate")})] > 0
    assert scraped["waltz_server_cluster_partitions"][frozenset()] == PARTITIONS
    _until(lambda: all(_healthy(cluster, name, "waltz.Server" if name == "server-0" else "waltz.Storage") for name in endpoints))
    assert scraped["waltz_server_recovery_seconds_count"][frozenset()] >= PARTITIONS
    assert scraped["waltz_server_sessions_total"][frozenset()] >= PARTITIONS
    for address in storages:
        assert _scrape(address)["waltz_storage_write_seconds_sum"][frozenset()] > 0
        assert _scrape(address)["waltz_storage_sync_seconds_sum"][frozenset()] > 0
        _until(lambda address=address: sum(_scrape(address)["waltz_storage_written_transactions_total"].values()) >= committed())  # type: ignore[misc]
        assert _scrape(address)["waltz_storage_disk_free_bytes"][frozenset()] > 0


def test_each_metric_of_a_live_scrape_is_declared_and_process_metrics_are_there(cluster: LocalCluster) -> None:
    endpoints = asyncio.run(_endpoints(cluster))
    for name, address in endpoints.items():
        families = list(text_string_to_metric_families(_get(address, "/metrics")[1]))
        declared = {family.name.removesuffix("_total") for family in families_of("server" if name == "server-0" else "storage")}
        shown = {family.name for family in families if family.name.startswith("waltz_")}
        assert shown <= declared
        assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= {family.name for family in families}


def test_rules_and_dashboards_name_only_metrics_of_a_live_scrape_and_promtool_accepts_it(cluster: LocalCluster) -> None:
    endpoints = asyncio.run(_endpoints(cluster))
    texts = {name: _get(address, "/metrics")[1] for name, address in endpoints.items()}
    named = {name for name in named_metrics() if not name.startswith("waltz_pipeline_")}
    workers = {name for name in named if name.startswith("waltz_worker_")}
    several = "waltz_worker_up" in families_in(texts.values())  # the cluster runs with and without workers
    assert named - families_in(texts.values()) == (set() if several else workers)
    if shutil.which("promtool") is None:
        pytest.skip(HOW_TO_INSTALL)
    for text in texts.values():
        promtool("check", "metrics", text=text)


def test_stopped_storage_nodes_make_only_the_server_unready(cluster: LocalCluster) -> None:
    endpoints = asyncio.run(_endpoints(cluster))
    server = endpoints["server-0"]
    _until(lambda: _get(server, "/readyz")[0] == 200)
    cluster.stop("storage-1")
    with _appending(cluster) as committed:  # a majority is left
        _until(lambda: _live(server, "storage-1") == 0)
        _until(lambda: _get(server, "/readyz")[0] == 200)
        first = committed()
        _until(lambda: committed() > first)
    cluster.stop("storage-2")
    try:
        _until(lambda: _get(server, "/readyz")[0] == 503)
        status, reason = _get(server, "/readyz")
        assert (status, "[-]partition 0 failed: " in reason) == (503, True)
        _until(lambda: not _healthy(cluster, "server-0", "waltz.Server"))
        assert _healthy(cluster, "storage-0", "waltz.Storage")
        assert "storage-1" in reason or "recovering" in reason
        assert _get(server, "/livez")[0] == 200
        assert _get(endpoints["storage-0"], "/readyz")[0] == 200
        _until(lambda: _scrape(server)["waltz_ready"][frozenset()] == 0)
    finally:
        cluster.start("storage-1")
        cluster.start("storage-2")
    cluster.wait_ready()
    _until(lambda: _get(server, "/readyz")[0] == 200)
    _until(lambda: _healthy(cluster, "server-0", "waltz.Server"))


def test_a_storage_node_whose_disk_refuses_appends_is_not_ready(tmp_path: Path) -> None:
    """As of a disk that is full: the node still serves reads."""
    storage_settings = {"http": {"port": 0}, "disk_warn_free_bytes": 1 << 60, "disk_refuse_free_bytes": 1 << 60}
    cluster = LocalCluster(tmp_path, partitions=1, storages=1, servers=1, storage_settings=storage_settings)
    try:
        cluster.open()
        _until(lambda: "storage-0" in asyncio.run(_endpoints(cluster)))
        endpoint = asyncio.run(_endpoints(cluster))["storage-0"]
        status, reason = _get(endpoint, "/readyz")
        assert (status, "[-]disk failed: the disk has less free space" in reason) == (503, True)
        assert "[+]process ok" in _get(endpoint, "/readyz?verbose")[1]
        _until(lambda: not _healthy(cluster, "storage-0", "waltz.Storage"))
        assert _get(endpoint, "/livez")[0] == 200
    finally:
        cluster.close()


def _healthy(cluster: LocalCluster, name: str, service: str) -> bool:
    """What gRPC's health service of the process says, the same for the service and for the process."""
    settings = yaml.safe_load((cluster.directory / "conf" / f"{name}.yaml").read_text())
    with grpc.insecure_channel(settings["listen"]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = [stub.Check(health_pb2.HealthCheckRequest(service=each), timeout=SCRAPE_DEADLINE_S).status for each in (service, "")]
    assert answers[0] == answers[1]
    return bool(answers[0] == health_pb2.HealthCheckResponse.SERVING)


def _live(server: str, replica: str) -> float:
    return sum(value for labels, value in _scrape(server)["waltz_server_replica_live"].items() if dict(labels)["replica"] == replica)


def _is_silent(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=1)
    try:
        connection.request("GET", "/livez")
        connection.getresponse()
        return False
    except TimeoutError:
        return True
    finally:
        connection.close()


def test_a_suspended_process_does_not_answer_and_its_server_stays_ready(cluster: LocalCluster) -> None:
    endpoints = asyncio.run(_endpoints(cluster))
    cluster.pause("storage-0")
    try:
        _until(lambda: _is_silent(endpoints["storage-0"]))  # a signal needs a moment to arrive
        assert _get(endpoints["server-0"], "/livez")[0] == 200
    finally:
        cluster.resume("storage-0")
    _until(lambda: _get(endpoints["storage-0"], "/readyz")[0] == 200)


def test_scrapes_of_a_server_that_stops_starts_and_recovers_are_answered_in_time(cluster: LocalCluster) -> None:
    address, phases, majority = cluster.http_addresses["server-0"], set[str](), ("storage-0", "storage-1")
    slowest_s, ended = 0.0, threading.Event()

    def scrape() -> None:
        nonlocal slowest_s
        while not ended.is_set():
            with suppress(ConnectionError, http.client.HTTPException):  # between two processes, or in the last answer of one that ends
                phases.update(_PHASE.findall(_get(address, "/readyz")[1]))
                began_s = time.monotonic()
                assert _get(address, "/metrics")[0] == 200
                slowest_s = max(slowest_s, time.monotonic() - began_s)

    thread = threading.Thread(target=scrape)  # an assertion that fails in it fails the test
    thread.start()
    try:
        for name in ("server-0", *majority):  # a recovery that met all replicas could be shorter than the time between two scrapes
            assert cluster.stop(name) == 0
        cluster.pause("zookeeper")  # so that the start lasts until a scrape has met it
        try:
            cluster.start("server-0")
            _until(lambda: "starting" in phases or not thread.is_alive())
        finally:
            cluster.resume("zookeeper")
        _until(lambda: "partition" in phases or not thread.is_alive())
        for name in majority:
            cluster.start(name)
        cluster.wait_ready()
    finally:
        ended.set()
        thread.join()
    assert phases >= {"starting", "partition"}, "no scrape met the start and the recovery"
    assert 0 < slowest_s < SCRAPE_DEADLINE_S
    assert cluster.http_addresses["server-0"] == address


def test_the_endpoint_answers_while_its_process_starts(tmp_path: Path) -> None:
    """A node whose cluster does not answer is asked for its phase as long as it lives."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a coordinator that says nothing
        settings = ["--coordinator", f"127.0.0.1:{silent.getsockname()[1]}/waltz/none", "--name", "storage-9", "--directory", str(tmp_path)]
        environment = {"WALTZ_STORAGE_HTTP": f"{{port: {port}}}", "PATH": ""}
        node = subprocess.Popen([sys.executable, "-m", "waltz_log.cli", "storage", *settings], env=environment, stderr=subprocess.DEVNULL)
        try:
            _until(lambda: node.poll() is not None or _phase(port) == "[-]process failed: starting: reading the cluster")
            assert node.poll() is None, "it ended before it was asked"
            assert _get(f"127.0.0.1:{port}", "/livez")[0] == 200
            assert _scrape(f"127.0.0.1:{port}")["waltz_statistics_up"][frozenset()] == 0
        finally:
            node.kill()
            node.wait()


def _phase(port: int) -> str:
    try:
        return _get(f"127.0.0.1:{port}", "/readyz")[1].partition("\n")[0]
    except (ConnectionError, http.client.HTTPException):
        return ""
