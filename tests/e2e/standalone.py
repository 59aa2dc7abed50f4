"""A real standalone Spark cluster on this machine: one master, and workers that know nothing of the project.

Their environment is made from nothing: no interpreter of ours on the path, no Python path, a bare interpreter to which an application must bring its
packages. Processes end with the test, whatever ends it; executors end with their worker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from tests.integration.free_ports import free_port
from waltz_log.processes.children import Processes

SPARK_HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
BARE_PYTHON = os.path.realpath(sys.executable)
"""Of the version that the packages were made for, with none of them: what a virtual environment's interpreter is a link to."""

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def bare_environment(**more: str) -> dict[str, str]:
    """What a host of the cluster has: Java, Spark, and an interpreter in `WALTZ_PYTHON`, since no test may rely on what else is on a path."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != ours)
    return {**kept, "PATH": path, "HOME": "/nonexistent", "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "WALTZ_PYTHON": BARE_PYTHON, **more}


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = START_TIMEOUT_S) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.1)
    return found


class StandaloneSpark:
    """`with StandaloneSpark(directory, workers=2) as cluster:` from all workers registered to stopped."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._processes = Processes(directory / "logs")
        self._workers = [f"worker-{n}" for n in range(workers)]
        self._web = free_port()
        self.url = f"spark://{HOST}:{free_port()}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "conf").mkdir()
        try:
            self._start(
                "master", "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", self.url.rpartition(":")[2], "--webui-port", self._web
            )
            wait_for(lambda: self._state() is not None, "the master")
            for name in self._workers:
                place = self._directory / name
                self._start(
                    name,
                    "org.apache.spark.deploy.worker.Worker",
                    "--host",
                    HOST,
                    "--webui-port",
                    0,
                    "--cores",
                    1,
                    "--memory",
                    "1g",
                    "-d",
                    place,
                    self.url,
                )
            wait_for(lambda: (self._state() or {}).get("aliveworkers") == len(self._workers), "the workers")
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        left = self.executors()
        self._processes.stop([*self._workers, "master"], 10)
        self._processes.close()
        psutil.wait_procs(left, timeout=10)
        for process in left:
            if process.is_running():
                process.kill()

    def _start(self, name: str, kind: str, *arguments: object) -> None:
        environment = bare_environment(SPARK_CONF_DIR=str(self._directory / "conf"), SPARK_DAEMON_MEMORY="256m", SPARK_NO_DAEMONIZE="1")
        command = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in sorted(environment.items())), str(SPARK_HOME / "bin" / "spark-class")]
        self._processes.start(name, [*command, kind, *map(str, arguments)])

    def _state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, json.JSONDecodeError):  # no process there yet, or a master that serves its first page at every address
            return None

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs that run now."""
        workers = [psutil.Process(pid) for name, pid in self._processes.pids.items() if name in self._workers]
        children = [child for worker in workers for child in _children(worker)]
        return [child for child in children if EXECUTOR in _command(child)]

    def kill_executor(self, executor: psutil.Process) -> None:
        """SIGKILL; the worker is ordered to start another by the master."""
        executor.send_signal(signal.SIGKILL)

    def log(self, name: str) -> Path:
        return self._processes.log(name)


def python_workers(executor: psutil.Process) -> list[psutil.Process]:
    """The Python processes that read for an executor: the daemon and what it forked."""
    return [child for child in _children(executor, recursive=True) if "pyspark" in _command(child)]


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
