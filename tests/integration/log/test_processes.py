"""Children that die with their parent, and commands that end in good order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.free_ports import free_port
from waltz_log.coordination import embedded
from waltz_log.errors import InvalidRequest
from waltz_log.processes import zookeeper
from waltz_log.processes.children import Processes

SLEEP = [sys.executable, "-S", "-c", "import time; print('sleeping', flush=True); time.sleep(600)"]
DEAF = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]


def _until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Zombies do not count: their parent is gone or will read them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "logs")
    yield processes
    processes.close()


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from waltz_log.processes.children import Processes\n"
        f"children = Processes(Path({str(tmp_path)!r}))\n"
        f"print(children.start('child', {DEAF!r}), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        _until(lambda: "deaf" in (tmp_path / "child.log").read_text())
        parent.kill()
    _until(lambda: not _alive(child))


def test_processes_are_killed_stopped_and_started_again_by_name(processes: Processes) -> None:
    first = processes.start("one", SLEEP)
    assert processes.pids == {"one": first}
    with pytest.raises(InvalidRequest, match=f"one is already running: pid={first}"):
        processes.start("one", SLEEP)
    processes.kill("one")
    assert not _alive(first)
    assert processes.ended() == {"one": -signal.SIGKILL}
    with pytest.raises(InvalidRequest, match="one does not run"):
        processes.kill("one")
    with pytest.raises(InvalidRequest, match="no such process: two"):
        processes.kill("two")
    second = processes.start("one", SLEEP)
    assert second != first
    _until(lambda: processes.last_words("one") == "sleeping")
    assert processes.stop(["one", "two"], 30) == {"one": -signal.SIGTERM}


def test_who_does_not_stop_is_killed(processes: Processes) -> None:
    processes.start("deaf", DEAF)
    _until(lambda: processes.last_words("deaf") == "deaf")
    assert processes.stop(["deaf"], 0.2) == {"deaf": -signal.SIGKILL}


def test_a_paused_process_is_stopped_too(processes: Processes) -> None:
    processes.start("one", SLEEP)
    _until(lambda: processes.last_words("one") == "sleeping")
    processes.signal("one", signal.SIGSTOP)
    assert processes.stop(["one"], 30) == {"one": -signal.SIGTERM}


def test_a_command_that_is_not_there_ends_with_its_reason_in_the_log(processes: Processes) -> None:
    processes.start("none", ["/no/such/program"])
    _until(lambda: not processes.running("none"))
    assert "No such file" in processes.last_words("none")
    assert "No such file" in processes.how_ended("none")


def test_a_child_that_was_killed_did_not_end_for_what_it_wrote_last(processes: Processes) -> None:
    processes.start("one", [sys.executable, "-c", "print('serving', flush=True); import time; time.sleep(60)"])
    _until(lambda: processes.last_words("one") == "serving")
    processes.kill("one")
    assert processes.how_ended("one") == "killed by SIGKILL"


def test_the_zookeeper_command_names_a_port_that_another_process_uses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "waltz_log.cli", "zookeeper", "--directory", str(tmp_path), "--listen", f"127.0.0.1:{port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 5
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_a_zookeeper_that_starts_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads its snapshot before it serves. Here it sleeps."""
    monkeypatch.setattr(zookeeper, "START_REPORT_S", 0.3)
    real = embedded.prepare
    monkeypatch.setattr(embedded, "prepare", lambda *given: ["/bin/sh", "-c", 'sleep 1; exec "$@"', "sh", *real(*given)])
    served = zookeeper._Served(tmp_path, "127.0.0.1", free_port(), None)
    try:
        served.start()
        assert "zookeeper does not serve yet" in "".join(capsys.readouterr())
    finally:
        served.end()


def test_the_zookeeper_command_serves_and_stops_when_asked(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "waltz_log.cli", "zookeeper", "--directory", str(tmp_path), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == f"ready zookeeper address=127.0.0.1:{port} directory={tmp_path}\n"
            assert embedded.answers("127.0.0.1", port)
            second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert second.returncode == 5
            assert "answers there already" in second.stderr
            running.terminate()
            assert running.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGKILL)
    _until(lambda: not embedded.answers("127.0.0.1", port))
