"""Replays of dead letters that the console runs: processes of the command that an operator configured, one at a time for each pipeline.

A replay can be repeated, so a process that ends early, or with the console, loses nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from waltz_log.background_tasks import start_task
from waltz_log.errors import InvalidRequest
from waltz_log.loggers import get_logger

__all__ = ["Replay", "Replays"]

log = get_logger(__name__)

LINES_KEPT = 20
LINE_CHARACTERS_MAX = 500
STOP_TIMEOUT_S = 5.0


class Replay:
    """One process. `exit_code`: None while it runs. `lines`: the end of its output."""

    def __init__(self, process: asyncio.subprocess.Process, began_ms: int) -> None:
        self.process = process
        self.began_ms = began_ms
        self.exit_code: int | None = None
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)


class Replays:
    """`command`: without `--pipeline` and the file, which are appended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._last: dict[str, Replay] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()

    def last(self, pipeline: str) -> Replay | None:
        """The one that runs, or the last that ended since the console started."""
        return self._last.get(pipeline)

    def expect_idle(self, pipeline: str) -> None:
        """Raises `InvalidRequest` while one runs."""
        found = self._last.get(pipeline)
        if found is not None and found.exit_code is None:
            raise InvalidRequest(reason=f"a replay of {pipeline} is running: process {found.process.pid}")

    async def start(self, pipeline: str, file: str, now_ms: int) -> Replay:
        """Raises `InvalidRequest` while one runs, and if the command cannot start."""
        async with self._starting:
            self.expect_idle(pipeline)
            replay = self._last[pipeline] = Replay(await self._process(file), now_ms)
        task = start_task(_follow(replay, pipeline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return replay

    async def _process(self, file: str) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                "--pipeline",
                file,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # `close` stops the process and all that it started
            )
        except OSError as error:
            raise InvalidRequest(reason=f"the replay command cannot start: {error}") from None

    async def close(self) -> None:
        """Stops what runs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for replay in self._last.values():
                if replay.exit_code is None:
                    with suppress(ProcessLookupError):
                        os.killpg(replay.process.pid, number)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)


async def _follow(replay: Replay, pipeline: str) -> None:
    """Keeps the end of the output, and says in the log how the replay ended."""
    assert replay.process.stdout is not None
    rest = b""
    while part := await replay.process.stdout.read(64 * 1024):
        *lines, rest = (rest + part).split(b"\n")
        replay.lines.extend(_text(line) for line in lines)
        rest = rest[:LINE_CHARACTERS_MAX]
    if rest:
        replay.lines.append(_text(rest))
    replay.exit_code = await replay.process.wait()
    log.warning("replay ended", pipeline=pipeline, exit_code=replay.exit_code)  # without its output, which may quote payloads


def _text(line: bytes) -> str:
    return line[:LINE_CHARACTERS_MAX].decode(errors="replace").rstrip("\r")
