"""A Prometheus server with the rules of conf/monitoring, for as long as a context lasts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml

from waltz_log.errors import Unavailable
from waltz_log.processes.ports import HOST, free_port

__all__ = ["CONF", "Alert", "Prometheus", "faster"]

CONF = Path(__file__).resolve().parents[2] / "conf" / "monitoring"

START_TIMEOUT_S = 60.0
_FOR = re.compile(r"^(\s+for: )(\d+)s$", re.MULTILINE)
_MINUTE = "[1m]"


class Alert(NamedTuple):
    """`labels` without the alert's name and severity."""

    name: str
    labels: frozenset[tuple[str, str]]


def faster(rules: str, factor: float) -> str:
    """The rules, with waits and ranges of up to a minute divided by the factor. 1 leaves them unchanged."""
    if factor == 1:
        return rules
    rules = _FOR.sub(lambda found: f"{found[1]}{max(1, round(int(found[2]) / factor))}s", rules)
    return rules.replace(_MINUTE, f"[{round(60 / factor)}s]")


class Prometheus:
    """`targets`: files of `file_sd_configs`. `interval_s`: of scrapes and evaluations. `limits`: by the name of a rule of thresholds.yml, instead of
    what is there. `factor`: as of `faster`."""

    def __init__(self, directory: Path, targets: list[Path], *, interval_s: float, limits: Mapping[str, float], factor: float = 1.0) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        interval = f"{round(1000 * interval_s)}ms"
        (directory / "alerts.yml").write_text(faster((CONF / "alerts.yml").read_text(), factor))
        thresholds = yaml.safe_load((CONF / "thresholds.yml").read_text())
        for rule in thresholds["groups"][0]["rules"]:
            if rule["record"] in limits:
                rule["expr"] = f"vector({limits[rule['record']]})"
        (directory / "thresholds.yml").write_text(yaml.safe_dump(thresholds))
        discovery = {"files": [str(each) for each in targets], "refresh_interval": "1s"}
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": ["thresholds.yml", "alerts.yml"],
            "scrape_configs": [{"job_name": "waltz", "file_sd_configs": [discovery]}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self._port = free_port()
        self.address = f"{HOST}:{self._port.number}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = shutil.which("prometheus")
        if program is None:
            raise Unavailable(reason="prometheus is not installed (Debian: apt-get install prometheus)")
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self._directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={self.address}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise Unavailable(reason=f"prometheus did not start: {(self._directory / 'log').read_text()[-500:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._port.close()

    def _ready(self) -> bool:
        try:
            return bool(self._get("/-/ready"))
        except OSError:
            return False

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body

    def firing(self) -> set[Alert]:
        """The alerts that are firing. Raises `OSError`."""
        found: list[dict[str, Any]] = json.loads(self._get("/api/v1/alerts"))["data"]["alerts"]
        return {_alert(each["labels"]) for each in found if each["state"] == "firing"}

    def value(self, expression: str) -> list[float]:
        """The values of an instant query, without their labels."""
        query = urllib.parse.urlencode({"query": expression})
        return [float(each["value"][1]) for each in json.loads(self._get(f"/api/v1/query?{query}"))["data"]["result"]]


def _alert(labels: Mapping[str, str]) -> Alert:
    return Alert(labels["alertname"], frozenset((name, value) for name, value in labels.items() if name not in ("alertname", "severity")))
