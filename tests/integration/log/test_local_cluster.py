"""A cluster of real processes under one directory: `LocalCluster`, `waltz dev`, and what the nodes refuse."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.in_process import waltz
from waltz_log.cli.dev import environment_file
from waltz_log.client import SyncWaltzClient
from waltz_log.core.topics.topic_names import name_id
from waltz_log.errors import ClusterUnavailable, InvalidRequest
from waltz_log.processes.local_cluster import LocalCluster

WALTZ = [sys.executable, "-m", "waltz_log.cli"]


def _node(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A node that ends by itself."""
    return subprocess.run([*WALTZ, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def _status(cluster: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(waltz("cluster", "status", cluster, "--output", "json", *arguments).stdout)
    return found


def _until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[LocalCluster]:
    with LocalCluster(directory, partitions=2, session_timeout_s=4) as cluster:  # long enough to reconnect on a busy machine
        yield cluster


def test_all_processes_run_and_every_partition_is_served(cluster: LocalCluster) -> None:
    names = {"zookeeper", "storage-0", "storage-1", "storage-2", "server-0", "server-1"}
    assert set(cluster.processes) == names
    kept = json.loads((cluster.directory / "dev.json").read_text())
    assert kept["cluster"] == cluster.cluster
    assert kept["pids"] == cluster.processes
    found = _status(cluster.coordinator)
    assert found["complete"]
    assert [each["partition"] for each in found["partitions"]] == [0, 1]
    assert {each["server_id"] for each in found["partitions"]} == {each["server_id"] for each in found["servers"]}, "work is shared"


def test_status_is_shown_as_a_table(cluster: LocalCluster) -> None:
    shown = waltz("cluster", "status", cluster.coordinator)
    assert shown.returncode == 0
    assert "storage-2" in shown.stdout


def test_topics_are_made_shown_changed_and_deleted(cluster: LocalCluster) -> None:
    def topic(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return waltz("topic", command, cluster.cluster, *arguments)

    made = ("shop/orders", "--partitions", "2", "--type", "compaction", "--property", "owner=shop", "--policy", "retention_bytes=1000000")
    assert "Would create shop/orders" in topic("create", *made, "--dry-run").stdout
    assert json.loads(topic("list", "--output", "json").stdout) == []
    for _ in range(2):  # the second finds the same
        assert topic("create", *made).stdout == "Created shop/orders: type=compaction log_partitions=0-1\n"
    other = topic("create", "shop/orders", "--partitions", "1")
    assert (other.returncode, "another topic of that name" in other.stderr) == (2, True)
    none_free = topic("create", "shop/seats", "--partitions", "1")
    assert (none_free.returncode, "the topic needs 1 log partitions and 0 are free" in none_free.stderr) == (2, True)
    reported = json.loads(topic("describe", "shop/orders", "--output", "json").stdout)
    assert (reported["log_partitions"], reported["keyed"], reported["policies"]["retention_bytes"]) == ([0, 1], True, 1_000_000)
    assert reported["topic_id"] == f"{name_id('orders'):#018x}"
    assert "on the disks of a majority" in topic("describe", "shop/orders").stdout
    changed = topic("alter-policy", "shop/orders", "--policy", "durability=quorum_memory")
    assert changed.stdout == "Set durability of shop/orders: quorum_memory, before quorum_sync\n"
    assert "the last 10000 ms" in json.loads(topic("describe", "shop/orders", "--output", "json").stdout)["loss_window"]
    wrong = topic("alter-policy", "shop/orders", "--policy", "retention=5")
    assert (wrong.returncode, "retention_ms" in wrong.stderr) == (2, True)
    unknown = topic("describe", "shop/order")
    assert (unknown.returncode, "shop/orders" in unknown.stderr) == (2, True)
    assert "Would delete shop/orders" in topic("delete", "shop/orders", "--dry-run").stdout
    assert topic("delete", "shop/orders").returncode == 0
    assert "shop/orders" not in topic("list").stdout


def test_a_killed_storage_node_is_reported_and_comes_back(cluster: LocalCluster) -> None:
    cluster.kill("storage-1")
    cluster.wait_ready()
    found = _status(cluster.coordinator)
    assert found["ready"]
    assert found["missing"] == "storage nodes that do not answer: storage-1"
    cluster.start("storage-1")
    cluster.wait_ready()
    assert _status(cluster.coordinator)["complete"]


def test_partitions_move_when_a_server_is_killed(cluster: LocalCluster) -> None:
    before = {each["partition"]: each["generation"] for each in _status(cluster.coordinator)["partitions"]}
    cluster.kill("server-0")
    cluster.wait_ready()
    _until(lambda: len(_status(cluster.coordinator)["servers"]) == 1)
    cluster.wait_ready()
    found = _status(cluster.coordinator)
    assert {each["server_id"] for each in found["partitions"]} == {found["servers"][0]["server_id"]}
    assert any(each["generation"] > before[each["partition"]] for each in found["partitions"])
    cluster.start("server-0")
    cluster.wait_ready()
    assert len(_status(cluster.coordinator)["servers"]) == 2, "the server that came back is registered"


def test_a_server_that_stood_still_joins_again_as_a_new_one(cluster: LocalCluster) -> None:
    address = f"127.0.0.1:{json.loads((cluster.directory / 'dev.json').read_text())['ports']['server-1']}"

    def server_id() -> int | None:
        """On a busy machine the session of the other server can end too."""
        return {each["address"]: each["server_id"] for each in _status(cluster.coordinator)["servers"]}.get(address)

    before = server_id()
    assert before is not None
    cluster.pause("server-1")
    _until(lambda: server_id() is None)
    cluster.resume("server-1")
    _until(lambda: server_id() not in (None, before))
    cluster.wait_ready()
    reported = cluster.log("server-1").read_text()
    assert "coordinator session ended" in reported
    assert ("level=error" in reported, "Traceback" in reported) == (False, False), "a session that is lost is expected"


def test_a_killed_zookeeper_costs_no_session(cluster: LocalCluster) -> None:
    before = _status(cluster.coordinator)["servers"]
    cluster.kill("zookeeper")
    cluster.start("zookeeper")
    cluster.wait_ready()
    assert {each["server_id"] for each in _status(cluster.coordinator)["servers"]} == {each["server_id"] for each in before}


def test_a_cluster_is_created_once(cluster: LocalCluster) -> None:
    again = waltz("cluster", "create", cluster.coordinator, "--name", "dev", "--partitions", "2", "--storages", "a,b,c")
    assert again.returncode == 2
    assert "there is a cluster already: name=dev" in again.stderr
    assert again.stderr.count("\n") == 1
    assert waltz("cluster", "create", cluster.coordinator, "--name", "x", "--partitions", "9", "--storages", "a", "--if-missing").returncode == 0


def test_a_second_cluster_in_the_same_directory_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidRequest, match="is already running"):
        LocalCluster(cluster.directory).open()


def test_a_directory_of_another_shape_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds a cluster of partitions=2, not 7"):
        LocalCluster(cluster.directory, partitions=7)
    (tmp_path / "dev.json").write_text("nonsense")
    with pytest.raises(InvalidRequest, match="is not what waltz dev writes"):
        LocalCluster(tmp_path)


class TestStorageNodeRefuses:
    @pytest.fixture
    def settings(self, cluster: LocalCluster, tmp_path: Path) -> dict[str, Any]:
        return {"coordinator": cluster.coordinator, "name": "storage-9", "directory": str(tmp_path / "data"), "listen": "127.0.0.1:0"}

    def _run(self, settings: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
        """One that is to be refused; where it is not, the timeout says so."""
        path = Path(settings["directory"]).with_suffix(".yaml")
        path.write_text(yaml.safe_dump(settings))
        return _node("storage", "--config", path, "--log-level", "error", *arguments)

    @contextlib.contextmanager
    def _serving(self, settings: dict[str, Any], *arguments: str) -> Iterator[None]:
        path = Path(settings["directory"]).with_suffix(".yaml")
        path.write_text(yaml.safe_dump(settings))
        with subprocess.Popen([*WALTZ, "storage", "--config", path, *arguments], stdout=subprocess.PIPE, text=True) as node:
            try:
                assert node.stdout is not None
                assert node.stdout.readline().startswith(f"ready storage name={settings['name']} address=127.0.0.1:")
                yield
            finally:
                node.terminate()
                assert node.wait(60) == 0

    def test_a_directory_of_another_cluster(self, cluster: LocalCluster, settings: dict[str, Any]) -> None:
        with self._serving(settings):
            pass
        other = cluster.coordinator.replace("/waltz/dev", "/waltz/other")
        assert waltz("cluster", "create", other, "--name", "other", "--partitions", "2", "--storages", "a", "--replication", "1").returncode == 0
        refused = self._run(settings | {"coordinator": other})
        assert refused.returncode == 4
        assert refused.stderr.startswith("waltz: cluster key mismatch: the two sides belong to different clusters")
        assert refused.stderr.count("\n") == 1

    def test_a_restored_copy_and_an_empty_directory_unless_that_is_meant(self, settings: dict[str, Any], tmp_path: Path) -> None:
        settings = settings | {"name": "storage-8"}
        data, copy = Path(settings["directory"]), tmp_path / "copy"
        with self._serving(settings):
            pass
        shutil.copytree(data, copy)
        for _ in range(2):
            with self._serving(settings):
                pass
        refused = self._run(settings | {"directory": str(copy)})
        assert refused.returncode == 4
        assert "mine=2 newer=3" in refused.stderr
        shutil.rmtree(data)
        refused = self._run(settings)
        assert refused.returncode == 2
        assert "--replace" in refused.stderr
        assert refused.stderr.count("\n") == 1
        with self._serving(settings, "--replace"):
            pass

    def test_a_directory_that_runs_already(self, cluster: LocalCluster, settings: dict[str, Any]) -> None:
        refused = self._run(settings | {"name": "storage-0"}, "--directory", str(cluster.directory / "storage-0"))
        assert refused.returncode == 2
        assert "in use by another process" in refused.stderr

    def test_an_address_that_is_in_use(self, settings: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            refused = self._run(settings | {"name": "storage-7", "listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        assert refused.returncode == 5
        assert refused.stderr.startswith("waltz: cannot listen on 127.0.0.1:")
        assert "another process listens there" in refused.stderr
        assert refused.stderr.count("\n") == 1, "and gRPC adds nothing"


@pytest.mark.parametrize("kind", ["server", "storage"])
def test_a_node_without_a_cluster_ends_in_time_and_names_the_address(cluster: LocalCluster, kind: str, tmp_path: Path) -> None:
    address = cluster.coordinator.replace("/waltz/dev", "/nobody/here")
    start = time.monotonic()
    more = ["--name", "storage-0", "--directory", str(tmp_path)] if kind == "storage" else []
    refused = _node(kind, "--coordinator", address, *more)
    assert time.monotonic() - start < 25
    assert refused.returncode == 3
    assert refused.stderr.count("\n") == 1
    assert address in refused.stderr


def test_a_log_in_use_grows_and_topics_are_made_of_what_is_new(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reported_by(*arguments: str) -> tuple[int, str]:
        address = {"cluster": cluster.coordinator, "topic": cluster.cluster}.get(arguments[0])
        done = waltz(*arguments) if address is None else waltz(*arguments[:2], address, *arguments[2:])
        return done.returncode, done.stdout + done.stderr

    at = cluster.cluster
    with SyncWaltzClient(at) as client:
        before = client.append(0, b"before").transaction_id
        client.append(1, b"what is there is no topic's")
        code, reported = reported_by("topic", "create", "shop/tea", "--partitions", "3", "--keyed")
        assert (code, "waltz cluster grow --partitions 5" in reported) == (2, True)
        code, reported = reported_by("cluster", "grow", "--partitions", "5", "--dry-run")
        assert (code, reported.splitlines()[0]) == (0, "would have 5 partitions, 2 to 4 new; before: 2")
        assert len(_status(cluster.coordinator)["partitions"]) == 2
        assert reported_by("cluster", "grow", "--partitions", "5")[0] == 0
        assert "nothing to do" in reported_by("cluster", "grow", "--partitions", "5")[1]
        assert reported_by("cluster", "grow", "--partitions", "4")[0] == 2
        assert reported_by("topic", "create", "shop/tea", "--partitions", "3", "--keyed")[1] == "Created shop/tea: type=regular log_partitions=2-4\n"
        topic = client.topic("shop/tea")  # of a client that was connected before
        receipts = {key: topic.append(b"of " + key, key=key) for key in (b"a", b"b", b"c", b"d", b"e", b"f")}
        assert {receipt.partition for receipt in receipts.values()} == {2, 3, 4}
        assert client.append(0, b"after").transaction_id == before + 1
    place = receipts[b"a"]
    assert reported_by("append", at, "by hand", "--topic", "shop/tea", "--key", "a")[1].startswith(f"partition={place.partition} transaction_id=")
    assert reported_by("append", at, "--topic", "shop/tea", "--key", "a", "--delete")[0] == 0
    code, reported = reported_by("read", at, "--topic", "shop/tea", "--key", "a", "--output", "json")
    rows = [json.loads(line) for line in reported.splitlines()]
    assert [(row["key"], row["data"]) for row in rows] == [("a", "of a"), ("a", "by hand"), ("a", "")]
    assert len(reported_by("read", at, "--topic", "shop/tea")[1].splitlines()) == 8
    assert len(reported_by("read", at, "--topic", "shop/tea", "-n", "2")[1].splitlines()) == 2
    (tmp_path / "lines").write_bytes(b"one\n\xfftwo\n")
    with (tmp_path / "lines").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert reported_by("append", at, "--partition", "1")[1].startswith("partition=1 lines=2 ")
    code, reported = reported_by("read", at, "--partition", "1", "--after", str(int(topic_id(reported_by("read", at, "-p", "1")[1])) - 2))
    assert [line.split()[-1] for line in reported.splitlines()] == ["one", "\\xfftwo"]
    for wrong in (("append", at, "x"), ("append", at, "x", "--key", "k"), ("append", at, "x", "--topic", "shop/tea"), ("read", at)):
        assert reported_by(*wrong)[0] == 2
    assert reported_by("read", at, "--topic", "shop/te")[0] == 2


def topic_id(lines: str) -> str:
    """Of the last transaction shown."""
    return lines.splitlines()[-1].split()[1]


# ---- the command -----------------------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dev(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`waltz dev` when it is ready, and what it said until then. In a process group of its own, so that Ctrl-C can be sent to all of it."""
    command = [*WALTZ, "dev", "--directory", str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as dev:
        try:
            said: list[str] = []
            assert dev.stdout is not None
            while not (said and said[-1].startswith("ready ")):
                said.append(dev.stdout.readline())
                assert said[-1], "waltz dev ended before it was ready"
            yield dev, said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dev.pid, signal.SIGKILL)


def _kept(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "dev.json").read_text())
    return found


def test_dev_runs_until_ctrl_c_and_brings_the_same_cluster_again(tmp_path: Path) -> None:
    with _dev(tmp_path, "--partitions", "1", "--servers", "1", "--storages", "1") as (dev, said):
        first = _kept(tmp_path)
        assert said[-1] == f"ready cluster={first['cluster']}\n"
        key = _status(first["coordinator"])["key"]
        os.killpg(dev.pid, signal.SIGINT)
        assert dev.wait(60) == 0
    assert not any(_alive(pid) for pid in first["pids"].values())
    assert _kept(tmp_path)["pids"] == {}
    with socket.create_server(("127.0.0.1", first["ports"]["storage-0"])), _dev(tmp_path) as (dev, _):
        second = _kept(tmp_path)
        assert (second["cluster"], second["partitions"], second["storages"], second["servers"]) == (first["cluster"], 1, 1, 1)
        assert second["ports"]["storage-0"] != first["ports"]["storage-0"], "another port where one is taken"
        assert _status(second["coordinator"])["key"] == key
        dev.kill()
        dev.wait()
        _until(lambda: not any(_alive(pid) for pid in second["pids"].values()))
    with _dev(tmp_path) as (dev, _):
        dev.terminate()
        assert dev.wait(60) == 0


def test_the_last_output_of_a_process_that_does_not_start_is_reported(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, partitions=1, servers=1, storages=1, server_settings={"block_bytes_max": 1})
    with pytest.raises(ClusterUnavailable, match=r"server-0 ended while starting: .*block_bytes_max"), cluster:
        pass
    assert cluster.processes == {}


def test_only_its_user_reads_the_files_of_a_secure_cluster_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "secure"
    before = os.umask(0)
    try:
        cluster = LocalCluster(folder, partitions=1, storages=1, servers=1, secure=True)
        cluster.open()
        try:
            cluster.wait_ready()
            environment_file(cluster)
        finally:
            cluster.close()
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*")) if not path.is_symlink()}
    assert modes[folder] == 0o700
    secrets = [path for path in modes if path.suffix in (".key", ".env", ".p12", ".jks")]
    assert {path.name for path in secrets} >= {"authority.key", "operator.env", "node-storage-0.key"}
    assert {path: mode for path, mode in modes.items() if path in secrets and mode != 0o600} == {}
    data = [path for path in modes if (folder / "storage-0") in path.parents]
    assert data
    assert {path: oct(modes[path]) for path in data if modes[path] & 0o077} == {}


def test_a_directory_that_holds_other_files_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    tmp_path.chmod(0o755)
    cluster = LocalCluster(tmp_path, partitions=1, storages=1, servers=1)
    cluster.open()
    cluster.close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
