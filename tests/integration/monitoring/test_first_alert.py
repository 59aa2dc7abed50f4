"""docs/tutorial/first_alert.md, as a new operator runs it: every command of the page, in its order, each in a shell. Only the waits are shorter:
Prometheus scrapes every second, and alerts wait a fifth of their time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.free_ports import free_port
from tests.integration.monitoring.promtool import needs_prometheus
from verification.alerts.prometheus import faster

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tutorial" / "first_alert.md").read_text()
PROMETHEUS = "127.0.0.1:9090"
PATIENCE_S = 180.0
ALERTS = {"WaltzProcessDown", "WaltzReplicaMissing", "WaltzMajorityAtRisk"}


def _commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@needs_prometheus
def test_the_page_leads_to_an_alert_and_back(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    _shorten_waits(tmp_path / "conf" / "monitoring")
    address = f"127.0.0.1:{free_port()}"  # another Prometheus may run on this machine
    start, watch, quiet, kill, read, status, repair = (each.replace(PROMETHEUS, address) for each in _commands())
    assert quiet == read

    def firing() -> set[str]:
        return set(re.findall(r'alertname="(\w+)"', _run(read, tmp_path)))

    with _running(start, tmp_path) as cluster:
        _until(lambda: "\nready " in cluster.read_text())
        with _running(watch, tmp_path):
            scraped = f"promtool query instant http://{address} 'sum(up) == 5'"
            _until(lambda: "=> 5 " in _run(scraped, tmp_path, check=False))
            _until(lambda: firing() == set())
            _run(kill, tmp_path)
            _until(lambda: firing() >= ALERTS)
            assert 'replica="storage-2"' in _run(read, tmp_path)
            assert "unreachable" in _run(status, tmp_path)
            with _running(repair, tmp_path):
                _until(lambda: firing() == set())


def test_the_page_names_alerts_of_the_runbook() -> None:
    sections = set(re.findall(r"^## (Waltz\w+)$", (ROOT / "docs" / "guides" / "runbook.md").read_text(), re.MULTILINE))
    assert sections >= ALERTS
    assert set(re.findall(r"`(Waltz\w+)`", PAGE)) == ALERTS


def _shorten_waits(conf: Path) -> None:
    scraping, rules = (conf / "dev.yml").read_text(), (conf / "alerts.yml").read_text()
    assert scraping.count("_interval: 5s") == 3
    (conf / "dev.yml").write_text(scraping.replace("_interval: 5s", "_interval: 1s"))
    (conf / "alerts.yml").write_text(faster(rules, 5))


def _environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def _run(command: str, directory: Path, *, check: bool = True) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=directory, env=_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def _running(command: str, directory: Path) -> Iterator[Path]:
    """A command in a terminal of its own, ended with Ctrl-C; gives the file of its output."""
    output = directory / f"{command.split()[0]}-{command.split()[1].strip('-')[:8]}.out"
    with output.open("wb") as file:
        streams = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
        shell = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=directory, env=_environment(), start_new_session=True, **streams)  # type: ignore[call-overload]
    try:
        yield output
    finally:
        shell.send_signal(signal.SIGINT)
        try:
            shell.wait(60)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.5)
