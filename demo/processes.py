"""The demo's child processes: each starts in its own process group, ends with the demo however that ends, and is killed only by its own process id.

A child cannot outlive the demo: on Linux the kernel kills it when the thread that started it ends (so start children from the main thread only), and
everywhere `Children.close` ends those that still run. Standard input of every child is a pipe that the demo holds open, so a child may also detect
its end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from waltz_log.processes import launch

__all__ = ["ROOT", "Child", "ChildFailed", "Children", "memory_bytes"]

ROOT = Path(__file__).resolve().parent.parent
"""Where every child runs: `conf/` names the jars relative to it."""

STOP_TIMEOUT_S = 20.0
"""A Spark driver needs a few seconds to end its batch; after this time it is killed."""

ORPHAN_TIMEOUT_S = 1.0
"""Descendants of a child end by themselves within this time, or are killed."""

NICENESS = 2
"""Of a process that yields: it gets two thirds of what another one gets that wants the same processor."""


class ChildFailed(RuntimeError):
    """A child ended by itself; the message holds the last lines it wrote."""


class Child:
    """One started program with all of its descendants."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str], stdout: Path | None = None, yields: bool = False
    ) -> None:
        self.name = name
        self.log = log
        self._ending: list[psutil.Process] = []
        with log.open("ab") as errors, contextlib.ExitStack() as stack:
            output: IO[bytes] = errors if stdout is None else stack.enter_context(stdout.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        if yields:
            _lower_priority(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def family(self) -> list[psutil.Process]:
        """The child and its descendants that are alive."""
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def terminate(self) -> None:
        """Asks the program to end; `wait` enforces it."""
        if self.returncode is None:
            self._ending = self.family()  # after the child has ended, its descendants can no longer be found
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the child and every descendant, at once: none can clean up."""
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if family:
            psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        self._gone()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Returns when the child and its descendants have ended; kills those that are left after `timeout_s`."""
        family = self._ending or self.family()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        _, alive = psutil.wait_procs(family, timeout=ORPHAN_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=ORPHAN_TIMEOUT_S)
        self._gone()

    def _gone(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def last_words(self, lines: int = 15) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def said(self, word: str) -> int:
        """How many lines of its output begin with the word."""
        return sum(line.startswith(word) for line in self.log.read_text(errors="replace").splitlines()) if self.log.exists() else 0

    def check(self) -> bool:
        """True while the child runs, False after it ended with code 0. Raises `ChildFailed` if it ended otherwise."""
        if self.returncode is None:
            return True
        if self.returncode == 0:
            return False
        raise ChildFailed(f"{self.name} ended with code {self.returncode}; the end of {self.log}:\n{self.last_words()}")


class Children:
    """All children of a run; the context ends them all when it exits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []
        directory.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: Path | None = None,
        yields: bool = False,
    ) -> Child:
        """Starts `command`; its output is added to `<directory>/<name>.log`. `yields`: it gets the processor when the others leave it."""
        child = Child(name, command, log=self._directory / f"{name}.log", environment=environment or {}, stdout=stdout, yields=yields)
        self._children.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in self._children:
            child.wait(max(0.0, deadline - time.monotonic()))


def _lower_priority(pid: int) -> None:
    """The process gives way to the others. Linux may share the processor by sessions first (autogroups), and then sessions have priorities too."""
    with contextlib.suppress(OSError):  # it has ended, or the system has no priorities: the run is the same, with tables further behind
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))


def memory_bytes() -> int:
    """Resident memory of this process and all of its descendants. Shared pages are counted once per process, so the true value is a little lower."""
    total = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_info().rss
    return total
