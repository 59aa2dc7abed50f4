"""`waltz console` of a local cluster, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import yaml

from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["ConsoleProcess", "console_of"]


@dataclass(frozen=True, slots=True)
class ConsoleProcess:
    pid: int
    port: int


@contextmanager
def console_of(cluster: LocalCluster) -> Iterator[ConsoleProcess]:
    """With TLS if the cluster has it."""
    settings: dict[str, object] = {"cluster": cluster.cluster, "listen": "127.0.0.1:0"}
    if cluster.secure:
        settings["tls"] = cluster.certificate("operator", "console", serve=True).model_dump(
            mode="json", include={"certificate", "key", "authorities"}
        )
    file = cluster.directory / "conf" / "console.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-P", "-m", "waltz_log.cli", "console", "--config", str(file)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            found = re.match(r"ready console url=https?://127\.0\.0\.1:(\d+)/", ready)
            if found is None:
                raise RuntimeError(f"the console did not start: {ready!r}")
            yield ConsoleProcess(process.pid, int(found[1]))
        finally:
            process.terminate()
            process.wait(20)
