"""The units of conf/deploy/systemd: systemd accepts them, finds them hardened, and a node that one starts says when it serves."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log.processes.local_cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "conf" / "deploy" / "systemd"
NAMES = ("storage", "server")
EXPOSURE_MAX = 15
"""Of 100, as `systemd-analyze security` counts: 1.5 in its table. The units have 1.3."""

START_TIMEOUT_S = 60.0
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (Debian: apt-get install systemd)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system that has the units, what they start, and the targets they name."""
    units = tmp_path / "etc" / "systemd" / "system"
    for folder in (units, tmp_path / "etc" / "waltz", tmp_path / "opt" / "waltz" / "bin"):
        folder.mkdir(parents=True)
    for name in NAMES:
        shutil.copy2(UNITS / f"waltz-{name}.service", units)
        shutil.copy2(UNITS / f"{name}.env", tmp_path / "etc" / "waltz")
    program = tmp_path / "opt" / "waltz" / "bin" / "waltz"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for target in ("network-online", "time-sync", "multi-user", "sysinit", "basic", "shutdown"):
        (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
    return tmp_path


def analyze(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", f"--root={root}", *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, root: Path) -> None:
    done = analyze(root, "verify", "--recursive-errors=no", f"waltz-{name}.service")
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_a_misspelled_directive_and_a_missing_program_are_found(root: Path) -> None:
    unit = root / "etc" / "systemd" / "system" / "waltz-server.service"
    unit.write_text(unit.read_text().replace("LimitNOFILE=", "LimitNOFILES=").replace("/bin/waltz server", "/bin/valtz server"))
    done = analyze(root, "verify", "--recursive-errors=no", "waltz-server.service")
    assert "Unknown key" in done.stderr
    assert "LimitNOFILES" in done.stderr
    assert "/opt/waltz/bin/valtz is not executable" in done.stderr


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_the_unit_is_hardened(name: str, root: Path) -> None:
    done = analyze(root, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", f"waltz-{name}.service")
    assert done.returncode == 0, done.stdout


@needs_systemd
def test_a_unit_that_may_write_everywhere_is_found(root: Path) -> None:
    unit = root / "etc" / "systemd" / "system" / "waltz-storage.service"
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=no").replace("NoNewPrivileges=true", ""))
    assert analyze(root, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", "waltz-storage.service").returncode != 0


def test_a_storage_node_started_as_by_its_unit_notifies_systemd_and_stops_when_asked(tmp_path: Path) -> None:
    """The command, the variables and the refusal of writable code of the unit, and a socket where systemd's is."""
    with LocalCluster(tmp_path / "cluster", partitions=1, servers=1) as cluster, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(START_TIMEOUT_S)
        lines = [line for line in (UNITS / "storage.env").read_text().splitlines() if line and not line.startswith("#")]
        variables = dict(line.partition("=")[::2] for line in lines)
        variables |= {
            "WALTZ_STORAGE_COORDINATOR": cluster.coordinator,
            "WALTZ_STORAGE_NAME": "storage-9",
            "WALTZ_STORAGE_DIRECTORY": str(tmp_path / "storage-9"),
            "WALTZ_STORAGE_LISTEN": "127.0.0.1:0",
            "WALTZ_STORAGE_DIRECT_PORT": "0",
            "WALTZ_STORAGE_HTTP": "{host: 127.0.0.1, port: 0}",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "PATH": os.environ["PATH"],
        }
        (line,) = [line for line in (UNITS / "waltz-storage.service").read_text().splitlines() if line.startswith("ExecStart=")]
        words = line.partition("=")[2].split()
        assert words[0] == "/opt/waltz/bin/waltz"
        command = [sys.executable, "-P", "-m", "waltz_log.cli", *words[1:]]
        with (tmp_path / "log").open("wb") as log:
            node = subprocess.Popen(command, env=variables, stdout=log, stderr=log, preexec_fn=_deny_writable_code)
        try:
            assert systemd.recv(100) == b"READY=1", (tmp_path / "log").read_text()
            assert node.poll() is None
            node.send_signal(signal.SIGTERM)
            assert node.wait(START_TIMEOUT_S) == 0, (tmp_path / "log").read_text()
        finally:
            node.kill()
            node.wait()


def _deny_writable_code() -> None:
    """What `MemoryDenyWriteExecute` means, on kernels that know it (6.3)."""
    result = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
    if result != 0 and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "prctl")


def test_a_node_that_cannot_notify_systemd_ends_with_the_reason(tmp_path: Path) -> None:
    program = "from waltz_log.processes.serving import say_ready\nsay_ready('server')"
    missing = tmp_path / "missing"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"NOTIFY_SOCKET": str(missing)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == f"OSError: cannot notify systemd at NOTIFY_SOCKET={missing}: No such file or directory"
    assert done.stdout == ""
