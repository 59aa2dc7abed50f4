"""What the endpoint knows of its process: its phase, and where its statistics come from.

The event loop of the process changes the phase. Threads of the endpoint read it and ask the loop for statistics, with a deadline. A loop that does
not answer is a finding. There is at most one request to it at a time, and what it gave is used again for a moment.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Literal

from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.errors import WaltzError
from waltz_log.monitoring.readiness import Check, checks_of, is_ready

__all__ = ["ALIVE_S", "DEADLINE_S", "Finding", "Monitored", "Phase", "Role", "Source"]

Role = Literal["server", "storage"]

Phase = Literal["starting", "serving", "stopping"]

Source = Callable[[], Awaitable[ServerStatistics | NodeStatistics]]
"""Called in the event loop of the process."""

DEADLINE_S = 2.0
"""For statistics: more than the workers of a node have to answer (`transport.forwarding.GATHER_TIMEOUT_S`), less than a scrape or a probe waits."""

FRESH_S = 0.2
"""Statistics are reused for this long. So any number of clients costs the event loop at most five snapshots per second."""

ALIVE_S = 30.0
"""An event loop that did not run for this long counts as dead. Far above what a full disk, a large recovery or a paused machine costs: a prober of
`/livez` kills the process."""


@dataclass(frozen=True, slots=True)
class _State:
    phase: Phase
    reason: str
    loop: asyncio.AbstractEventLoop | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a request found. `statistics`: None if there were none in time, which one of the checks explains."""

    phase: Phase
    checks: tuple[Check, ...]
    statistics: ServerStatistics | NodeStatistics | None


class Monitored:
    """Phases are set in the event loop, everything else is called by threads of the endpoint."""

    def __init__(self, role: Role, *, deadline_s: float = DEADLINE_S, alive_s: float = ALIVE_S) -> None:
        self.role = role
        self._deadline_s = deadline_s
        self._alive_s = alive_s
        self._state = _State("starting", "the process has just begun")
        self._turn = threading.Lock()
        self._found: tuple[_State, float, Finding] | None = None
        self._beat = threading.Lock()
        self._unanswered_since: float | None = None
        self.stuck_workers: Callable[[], Mapping[int, float]] = dict
        """By worker, how long its event loop has stood still if that is long, else 0. Its supervisor restarts it (`processes.supervisor`)."""

    # ---- the process -------------------------------------------------------------------------------------------------------------------------------

    def starting(self, reason: str) -> None:
        self._state = _State("starting", reason, asyncio.get_running_loop())

    def serving(self, source: Source) -> None:
        self._state = _State("serving", "", asyncio.get_running_loop(), source)

    def stopping(self) -> None:
        """Statistics are given as long as the source has them."""
        self._state = _State("stopping", "the process was asked to stop", self._state.loop, self._state.source)

    async def ready(self) -> bool:
        """As `/readyz`, for callers in the event loop of the process."""
        state = self._state
        if state.phase != "serving" or state.source is None:
            return False
        try:
            async with asyncio.timeout(self._deadline_s):
                return is_ready(checks_of(await state.source()))
        except (TimeoutError, WaltzError, OSError):
            return False

    # ---- the endpoint ------------------------------------------------------------------------------------------------------------------------------

    def alive(self) -> str | None:
        """None, or why the process is dead: its event loop has not run for `alive_s`. Does not wait."""
        loop = self._state.loop
        if loop is None:
            return None
        with self._beat:
            since = self._unanswered_since  # read once: the loop sets it to None when it answers, at any time
            if since is None:
                since = self._unanswered_since = time.monotonic()
                try:
                    loop.call_soon_threadsafe(self._answered)
                except RuntimeError:  # the loop has ended, and the process does
                    self._unanswered_since = None
                    return None
        waited = time.monotonic() - since
        return f"the event loop has not run for {waited:.0f} s" if waited > self._alive_s else None

    def liveness(self) -> tuple[Check, ...]:
        """The checks of `/livez`. Does not wait."""
        workers = self.stuck_workers()
        stuck = {number: f"its event loop has not run for {silent_s:.0f} s" if silent_s else None for number, silent_s in workers.items()}
        return (Check("event loop", self.alive()), *(Check(f"worker {number}", why) for number, why in sorted(stuck.items())))

    def _answered(self) -> None:
        self._unanswered_since = None

    def find(self) -> Finding:
        """The state of the process, within the deadline."""
        began = time.monotonic()
        if not self._turn.acquire(timeout=self._deadline_s):
            return _without(self._state, f"statistics were not ready within {self._deadline_s:g} s")
        try:
            state = self._state
            kept = self._found
            if kept is not None and kept[0] is state and time.monotonic() - kept[1] < FRESH_S:
                return kept[2]
            found = self._ask(state, began + self._deadline_s - time.monotonic())
            self._found = (state, time.monotonic(), found)
            return found
        finally:
            self._turn.release()

    def _ask(self, state: _State, timeout_s: float) -> Finding:
        if state.loop is None or state.source is None:
            return _without(state, None)
        asked = state.source
        work = _call(asked)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, state.loop)
        except RuntimeError:
            work.close()
            return _without(state, "the event loop has ended")
        try:
            statistics = answer.result(max(0.0, timeout_s))
        except TimeoutError:
            answer.cancel()
            return _without(state, f"the event loop did not answer within {self._deadline_s:g} s")
        except CancelledError:
            return _without(state, "the process is ending")
        except (WaltzError, OSError) as error:
            return _without(state, str(error))
        return Finding(state.phase, (_phase(state), *checks_of(statistics)), statistics)


async def _call(source: Source) -> ServerStatistics | NodeStatistics:
    return await source()


def _phase(state: _State) -> Check:
    return Check("process", None if state.phase == "serving" else f"{state.phase}: {state.reason}")


def _without(state: _State, reason: str | None) -> Finding:
    why = () if reason is None else (Check("statistics", reason),)
    return Finding(state.phase, (_phase(state), *why), None)
