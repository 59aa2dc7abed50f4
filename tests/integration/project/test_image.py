"""The container image, built and run: `make image-test`. It needs root, podman, mmdebstrap and a Debian mirror, and about five minutes.

No registry and no container runtime is needed. mmdebstrap makes the base; the build gets no package index, only the wheelhouse. The processes of
compose.yaml then run from the image's files, each with a read-only root, as the image's user, at a loopback address of its own instead of a network
of its own. ZooKeeper runs outside.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.project.mount_namespaces import needs
from tools.image import prepare
from waltz_log.coordination import embedded
from waltz_log.processes.children import Processes

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "conf" / "deploy" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CLUSTER = "zookeeper:2181/waltz/main"
SERVERS = "waltz-server-0:5101,waltz-server-1:5101,waltz-server-2:5101"
USER = 10001
TIMEOUT_S = 120.0


pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(1500),
    *needs(["podman", "mmdebstrap"], "the image is built and run by root only; run make image-test as root"),
]

RUN = """
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$hosts" "$root/etc/hosts"
mount --bind "$data" "$root/var/lib/waltz"
exec /usr/sbin/chroot --userspec=10001:10001 "$root" "$@"
"""
"""What a container engine does for a service, in a mount namespace that ends with the process."""


class Image:
    """The built image: its configuration, and its files below `root`."""

    def __init__(self, folder: Path) -> None:
        # Podman accepts no path of more than 50 characters here, and a worker's folder for temporary files has more.
        self._run = tempfile.mkdtemp(prefix="waltz-", dir="/tmp")
        self._podman = ["podman", f"--root={folder / 'store'}", f"--runroot={self._run}", "--storage-driver=vfs"]
        base = folder / "base.tar"
        self._call(["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,ca-certificates", "bookworm", str(base)])
        self._call([*self._podman, "import", str(base), "localhost/waltz-base"])
        base.unlink()
        context = prepare(ROOT, folder / "context", wheelhouse=True)
        arguments = ["--build-arg", "BASE=localhost/waltz-base", "--build-arg", "PIP_OPTIONS=--no-index"]
        form = ["--isolation=chroot", "--layers=false", "--format=docker"]
        self._call([*self._podman, "build", *form, *arguments, "--target", "node", "--tag", "localhost/waltz", str(context)])
        (found,) = json.loads(self._call([*self._podman, "image", "inspect", "localhost/waltz"]))
        self.config: dict[str, Any] = found["Config"]
        self.healthcheck: list[str] = (found.get("Healthcheck") or found["HealthCheck"])["Test"]  # by the version of podman
        self.root = Path(self._call([*self._podman, "image", "mount", "localhost/waltz"]).strip())
        (self.root / "etc" / "hosts").touch()

    def close(self) -> None:
        self._call([*self._podman, "image", "unmount", "--force", "localhost/waltz"])
        shutil.rmtree(self._run, ignore_errors=True)

    @staticmethod
    def _call(command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout


def _aliases(name: str) -> list[str]:
    """In all networks: here there is one."""
    networks = SERVICES[name]["networks"]
    return [alias for each in networks.values() for alias in each.get("aliases", ())] if isinstance(networks, dict) else []


class Compose:
    """The services of compose.yaml, from the files of the image. `node` is the number of the loopback network that they share."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.image, self._folder = image, folder
        network = f"127.{random.SystemRandom().randrange(16, 250)}.{random.SystemRandom().randrange(250)}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(SERVICES, 1)}
        first = random.SystemRandom().randrange(20_000, 30_000)
        self.probe_ports = {name: first + number for number, name in enumerate(SERVICES)}
        """One each, because the services share the machine's own address too."""
        self._hosts = folder / "hosts"
        names = {name: " ".join([name, *_aliases(name)]) for name in SERVICES}
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {names[name]}\n" for name, address in self.addresses.items()))
        self._hosts.chmod(0o644)
        self.processes = Processes(folder / "logs")
        self._starts: dict[str, int] = {}

    def environment(self, name: str) -> dict[str, str]:
        variables: dict[str, str] = dict(each.partition("=")[::2] for each in self.image.config["Env"]) | SERVICES[name].get("environment", {})
        # Not 0.0.0.0: the services share the machine's network here.
        http = f"{{host: {self.addresses[name]}, port: 9100, probe_port: {self.probe_ports[name]}}}"
        return variables | {"WALTZ_STORAGE_HTTP": http, "WALTZ_SERVER_HTTP": http}

    def command(self, name: str, words: list[str]) -> list[str]:
        data = self._folder / "volumes" / name
        if not data.exists():
            data.mkdir(parents=True)
            os.chown(data, USER, USER)
        given = {"root": self.image.root, "hosts": self._hosts, "data": data, "PATH": os.environ["PATH"]} | self.environment(name)
        settings = [f"{variable}={value}" for variable, value in given.items()]
        return ["/usr/bin/env", "-i", *settings, "unshare", "--mount", "--propagation=private", "sh", "-ec", RUN, "sh", *words]

    def start(self, name: str) -> None:
        self._starts[name] = self._starts.get(name, 0) + 1
        self.processes.start(name, self.command(name, [*self.image.config["Entrypoint"], *shlex.split(SERVICES[name]["command"])]))

    def wait_serving(self) -> None:
        """Returns when every process that was started has printed that it serves."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.processes.log(name).read_text().count("ready ") < count for name, count in self._starts.items()):
            assert time.monotonic() < deadline, self._starts
            time.sleep(0.1)

    def run(self, name: str, *words: str, data: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(name, list(words)), input=data, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def waltz(self, *arguments: str, data: str = "") -> str:
        done = self.run("waltz", *self.image.config["Entrypoint"], *arguments, data=data)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    folder.parent.chmod(0o755)  # the processes of the image are no longer root
    built = Image(folder)
    try:
        yield built
    finally:
        built.close()
        for part in ("store", "context"):
            shutil.rmtree(folder / part, ignore_errors=True)


@pytest.fixture(scope="module")
def compose(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    folder = tmp_path_factory.mktemp("compose")
    folder.chmod(0o755)
    made = Compose(image, folder)
    host = made.addresses["zookeeper"]
    made.processes.start("zookeeper", embedded.prepare(folder / "zookeeper", 2181, host))
    try:
        embedded.wait_until_answering(host, 2181, TIMEOUT_S)
        made.waltz(*shlex.split(SERVICES["create"]["command"]))
        nodes = [name for name, service in SERVICES.items() if service.get("command") in ("storage", "server")]
        for name in nodes:
            made.start(name)
        made.waltz("cluster", "status", CLUSTER, "--complete", "--wait", "90")
        yield made
        made.wait_serving()  # a process that still starts cannot end in order
        ended = made.processes.stop(nodes, 30)
        assert ended == dict.fromkeys(nodes, 0), "each ends by itself when it is asked"
    finally:
        made.processes.close()


def test_the_image_is_for_a_user_without_rights_and_has_what_an_engine_needs(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["waltz"]
    assert set(image.config["ExposedPorts"]) == {"5001/tcp", "5002/tcp", "5101/tcp", "5102/tcp", "9100/tcp"}
    assert not list(image.root.rglob("pip/__init__.py")), "nothing is installed in a container that runs"
    compiled = list((image.root / "opt" / "waltz").rglob("site-packages/waltz_log/**/*.pyc"))
    assert len(compiled) > 100, "a read-only root cannot keep compiled modules"


def test_a_cluster_of_the_image_appends_reads_and_keeps_its_data(compose: Compose) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    compose.waltz("append", SERVERS, "--partition", "3", data=lines)
    compose.processes.kill("storage-1")
    compose.waltz("append", SERVERS, "--partition", "3", "with one node less")
    compose.start("storage-1")
    compose.waltz("cluster", "status", CLUSTER, "--complete", "--wait", "90")
    read = [json.loads(line) for line in compose.waltz("read", SERVERS, "--partition", "3", "--output", "json").splitlines()]
    assert [each["data"] for each in read] == [*lines.splitlines(), "with one node less"]


def test_the_health_check_of_the_image_passes_while_the_node_lives(compose: Compose) -> None:
    kind, *words = compose.image.healthcheck
    assert kind == "CMD"
    for name in ("storage-0", "server-0"):
        check = [word.replace(":9101", f":{compose.probe_ports[name]}") for word in words]
        assert compose.run(name, *check).returncode == 0
    compose.processes.signal("storage-2", signal.SIGSTOP)
    try:
        check = [word.replace(":9101", f":{compose.probe_ports['storage-2']}") for word in words]
        done = compose.run("waltz", *check)
        assert done.returncode != 0
        assert "TimeoutError" in done.stderr
    finally:
        compose.processes.signal("storage-2", signal.SIGCONT)


def test_a_node_is_no_root_and_cannot_write_to_its_root(compose: Compose) -> None:
    status = Path(f"/proc/{compose.processes.pids['storage-0']}/status").read_text()
    (uids,) = [line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")]
    assert uids == [str(USER)] * 4
    program = "import os\nfor path in ('/x', '/opt/waltz/x', '/etc/x', '/tmp/x', '/var/lib/waltz/x'):\n"
    program += "    try: open(path, 'w').close(); print(path)\n    except OSError: pass"
    assert compose.run("storage-0", "python", "-c", program).stdout.split() == ["/tmp/x", "/var/lib/waltz/x"]
    with suppress(FileNotFoundError):
        (compose.image.root / "x").unlink()


def test_a_server_that_is_killed_is_replaced_by_another(compose: Compose) -> None:
    compose.processes.kill("server-0")
    deadline = time.monotonic() + TIMEOUT_S
    compose.waltz("cluster", "status", CLUSTER, "--wait", "60")
    for partition in range(12):
        compose.waltz("append", SERVERS, "--partition", str(partition), "after the kill", "--timeout", "60")
    assert time.monotonic() < deadline
    compose.start("server-0")
    compose.waltz("cluster", "status", CLUSTER, "--complete", "--wait", "90")
