"""The web console of the demo: `make demo KEEP=1` serves it during the run, and afterwards until Ctrl-C."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demo.processes import Child, ChildFailed, Children
from demo.spark import PIPELINES, metrics_file, submit_environment

__all__ = ["keep_until_interrupted", "start_web_console"]

START_TIMEOUT_S = 60.0
PAUSE_S = 0.2


def start_web_console(children: Children, cluster: str, directory: Path) -> tuple[Child, str]:
    """The console's process and its address. Raises `ChildFailed` if it does not serve in time."""
    command = [sys.executable, "-m", "waltz_log.cli", "console", cluster, "--listen=127.0.0.1:0", f"--pipelines={PIPELINES}"]
    command += [f"--pipeline-metrics={metrics_file(directory)}"]
    child = children.start("console", command, environment=submit_environment(cluster=cluster, directory=directory))
    until = time.monotonic() + START_TIMEOUT_S
    while child.check() and time.monotonic() < until:
        found = re.search(r"^ready console url=(\S+)", child.log.read_text(errors="replace"), re.MULTILINE) if child.log.exists() else None
        if found is not None:
            return child, found[1]
        time.sleep(PAUSE_S)
    raise ChildFailed(f"the console does not serve; the end of {child.log}:\n{child.last_words()}")


def keep_until_interrupted(check: Callable[[], object]) -> None:
    """Returns at Ctrl-C. `check` is called again and again, and raises for a part that ended by itself."""
    try:
        while True:
            check()
            time.sleep(PAUSE_S)
    except KeyboardInterrupt:
        return
