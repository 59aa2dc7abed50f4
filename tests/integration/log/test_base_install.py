"""The base install from the built wheel: an application in an environment without numpy, uvloop, typer, rich and Spark appends and reads.

Marked `install`: it builds the wheel, fetches a dozen packages from a package index, and starts a cluster of real processes (about 30 s).
The cluster runs in this project's own environment; only the application runs in the new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tools.dist import build_wheel
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.install, pytest.mark.timeout(280)]

ROOT = Path(__file__).resolve().parents[3]

LEFT_OUT = {
    "numpy",
    "uvloop",
    "typer",
    "rich",
    "pyspark",
    "delta-spark",
    "deltalake",
    "pandas",
    "pyarrow",
    "sqlalchemy",
    "prometheus-client",
    "grpcio-health-checking",
}

INSTALLED = "import importlib.metadata, json; print(json.dumps([each.metadata['Name'] for each in importlib.metadata.distributions()]))"

APPLICATION = """
import sys

from waltz_log.client import Draft, Intent, Lock, LockConflict, Receipt, SyncOutbox, SyncWaltzClient

cluster, directory = sys.argv[1:]
seat = Lock("seat", "12A")
with SyncWaltzClient(cluster) as client:
    first = client.append(0, b"Ada", header=3, write_locks=[seat], high_water_mark=-1)
    try:
        client.append(0, b"Bob", write_locks=[seat], high_water_mark=-1)
    except LockConflict as conflict:
        assert conflict.winner == first.transaction_id
    else:
        raise AssertionError("Bob has not seen Ada's booking")
    outcomes = client.append_many(0, [Draft(b"%d" % number) for number in range(1000)])
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    with SyncOutbox(directory, cluster) as outbox:
        (receipt,) = outbox.submit(Intent.data(0, b"from the outbox"))
        receipt.outcome(30)
    read = []
    for transaction in client.feed(0, after=-1):
        read.append(transaction)
        if transaction.data == b"from the outbox":
            break
assert [transaction.transaction_id for transaction in read] == list(range(1002))
assert [transaction.data for transaction in read] == [b"Ada", *(b"%d" % number for number in range(1000)), b"from the outbox"]
assert (read[0].header, read[0].timestamp_ms) == (3, first.append_time_ms)
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WALTZ"))}
    return subprocess.run([str(part) for part in command], cwd="/", env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has the wheel, what it requires, and nothing else, not even pip: its folder of programs."""
    folder = tmp_path_factory.mktemp("base-install")
    wheel = build_wheel(ROOT, folder)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    programs = folder / "venv" / "bin"
    command: list[str | Path] = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--disable-pip-version-check"]
    done = run(*command, "--constraint", ROOT / "constraints.txt", wheel)
    assert done.returncode == 0, done.stderr
    return programs


def test_the_base_install_brings_only_what_an_application_needs(environment: Path) -> None:
    done = run(environment / "python", "-c", INSTALLED)
    names = {name.lower().replace("_", "-") for name in json.loads(done.stdout)}
    assert {"waltz-platform", "grpcio", "protobuf", "pydantic"} <= names
    assert "kazoo" not in names
    assert not names & LEFT_OUT
    assert run(sys.executable, "-m", "pip", "--python", environment / "python", "check").returncode == 0


def test_an_application_of_the_base_install_appends_and_reads(environment: Path, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=1, servers=1) as cluster:
        done = run(environment / "python", "-c", APPLICATION, cluster.cluster, tmp_path / "outbox")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def test_the_command_of_the_base_install_names_the_missing_extra(environment: Path) -> None:
    done = run(environment / "waltz", "doctor")
    assert done.stderr == "waltz: the command line needs the package typer, which is not installed: install the extra server of waltz-platform\n"
    assert (done.returncode, done.stdout) == (2, "")
