"""Child processes by name: they die with this process, are signaled only by their own process ids, and write their output to files.

Never restarts anything and never signals a process that it did not start. A name stays known after its process ended, so that it can be started again
and its log shown.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from waltz_log.errors import InvalidRequest
from waltz_log.processes import launch
from waltz_log.untrusted_files import LOG, make_private_directory, read_tail

__all__ = ["Processes", "ended_with"]

LOG_TAIL_BYTES = 2000

UMASK = 0o077
"""For children: only this user reads what they write."""


def ended_with(code: int) -> str:
    """An exit code in words; negative: the number of the signal that ended the process."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


class Processes:
    """All calls block. One thread at a time may use it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        # The kernel kills a child when the thread that started it ends. This thread lives until `close`, whichever thread calls `start`.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="process-starter")

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running children."""
        return {name: child.pid for name, child in self._children.items() if child.poll() is None}

    def running(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def ended(self) -> dict[str, int]:
        """The children that have ended, with their exit codes (negative: the signal)."""
        return {name: child.returncode for name, child in self._children.items() if child.poll() is not None}

    def start(self, name: str, command: Sequence[str]) -> int:
        """Returns the process id. Output is appended to its log. Raises `InvalidRequest` if it runs already, `OSError` if it cannot start."""
        if self.running(name):
            raise InvalidRequest(reason=f"{name} is already running: pid={self._children[name].pid}")
        make_private_directory(self._logs)
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
        with self.log(name).open("ab") as log:
            self._children[name] = self._starter.submit(
                subprocess.Popen,
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=UMASK,
                start_new_session=True,  # Ctrl-C at the terminal is for the parent, which stops its children in order
            ).result()
        return self._children[name].pid

    def signal(self, name: str, number: signal.Signals) -> None:
        """Raises `InvalidRequest` if no such process runs."""
        if not self.running(name):
            raise InvalidRequest(reason=f"{name} does not run" if name in self._children else f"no such process: {name}")
        self._children[name].send_signal(number)

    def wait(self, name: str, timeout_s: float) -> int | None:
        """The exit code, or None if it still runs after `timeout_s`."""
        try:
            return self._children[name].wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, name: str) -> None:
        """SIGKILL; the process has ended when this returns."""
        self.signal(name, signal.SIGKILL)
        self._children[name].wait()

    def stop(self, names: Sequence[str], timeout_s: float) -> dict[str, int]:
        """SIGTERM to all of them at once; a process that has not ended after `timeout_s` is killed. Returns the exit codes of those that ran."""
        asked = [name for name in names if self.running(name)]
        for name in asked:
            self.signal(name, signal.SIGTERM)
            self._children[name].send_signal(signal.SIGCONT)  # a paused process would not see it
        for name in asked:
            if self.wait(name, timeout_s) is None:
                self.kill(name)
        return {name: self._children[name].returncode for name in asked}

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """The end of what the process wrote."""
        try:
            return read_tail(self.log(name), LOG, LOG_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def last_words(self, name: str) -> str:
        """The last line that the process wrote."""
        return next((line for line in reversed(self.log_tail(name).splitlines()) if line.strip()), "")

    def how_ended(self, name: str) -> str:
        """Why a child that has ended did. Only its own exit with an error is explained by what it wrote last."""
        code = self._children[name].returncode
        return ended_with(code) + (f": {self.last_words(name)}" if code > 0 else "")

    def close(self) -> None:
        """Kills the children that still run."""
        for name in self.pids:
            self.kill(name)
        self._starter.shutdown()
