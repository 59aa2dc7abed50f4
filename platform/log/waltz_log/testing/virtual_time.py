"""An event loop with virtual time, and processes inside it that can be stopped and killed.

When nothing can run, time jumps to the next timer. So a run lasts only as long as its work, and the same work in the same order gives the same run.
Only for code that uses the outside world through ports: the loop would never wait for a real socket or thread.

A `SimulatedProcess` is a name for tasks: the tasks that `spawn` starts, and all tasks that they start, belong to it. While it is paused, none of them
runs, as after SIGSTOP: its timers fire late, all at once, when it is resumed, and messages of others wait in its queues. Its clock may drift:
`time()` and the timers of its tasks use its own clock, which runs faster or slower than that of the loop (`world_time_s`).

The loop replaces one pass of asyncio's loop (`_run_once`), because there are no sockets or threads to poll here. It sets the work of paused processes
aside, and needs a third of the time.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from math import inf, nextafter
from typing import Any, TypeVar, TypeVarTuple  # Any: asyncio's private handles

__all__ = ["SimulatedProcess", "VirtualTimeLoop", "call_at_world_time", "current_process", "run_in_virtual_time", "world_time_s"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PROCESS: ContextVar[SimulatedProcess | None] = ContextVar("simulated process", default=None)

CANCELLED_TIMERS_MAX = 256
"""Timers that were cancelled stay in the queue up to their time; if there are more than this many, and they are the larger part, they are
removed."""


class _NoSelector(selectors.SelectSelector):
    """Knows the loop's own wake-up socket and is never asked."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class SimulatedProcess:
    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._rate = 1.0
        self._drifted_at_s = (0.0, 0.0)
        """When the rate changed last, in the loop's time and in this process's."""
        self._waiting: deque[Any] = deque()
        self._context = Context()
        self._context.run(_PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self.tasks[task] = None
        task.add_done_callback(self._forget, context=Context())
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def pause(self) -> None:
        _loop().stopped += not self.paused
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            loop = _loop()
            loop.stopped -= 1
            loop.again(self._waiting)

    def drift(self, rate: float) -> None:
        """From now on the clock of the process runs faster than that of the loop, by this factor."""
        loop = _loop()
        self._drifted_at_s = (loop.now_s, self.own_time_s(loop.now_s))
        self._rate = rate
        loop.drifting = True

    def own_time_s(self, now_s: float) -> float:
        """What the process's clock says at the loop's time."""
        world_s, own_s = self._drifted_at_s
        return own_s + (now_s - world_s) * self._rate

    def world_time_s(self, own_s: float) -> float:
        """The loop's time at which the process's clock shows `own_s`, not a rounding error earlier: a timer that wakes too early would wait again at
        the same moment, endlessly."""
        world_s, since_s = self._drifted_at_s
        found = world_s + (own_s - since_s) / self._rate
        while self.own_time_s(found) < own_s:
            found = nextafter(found, inf)
        return found

    def put_aside(self, handle: Any) -> None:
        self._waiting.append(handle)


def current_process() -> SimulatedProcess | None:
    return _PROCESS.get()


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("processes can be paused in virtual time alone")
    return loop


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        super().__init__(_NoSelector())
        self.now_s = 0.0
        self.stopped = 0
        """How many processes are paused."""
        self.drifting = False
        """Some process has its own clock."""

    def time(self) -> float:
        if self.drifting and (process := _PROCESS.get()) is not None:
            return process.own_time_s(self.now_s)
        return self.now_s

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.TimerHandle:
        """`when` is in the time of the calling process, whatever context the callback runs in."""
        if self.drifting and (process := _PROCESS.get()) is not None:
            when = process.world_time_s(when)
        return super().call_at(when, callback, *args, context=context)

    def call_at_world_time(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
        super().call_at(when, callback, *args, context=context)

    def again(self, handles: deque[Any]) -> None:
        """What was put aside is ready now, in its order."""
        self._ready.extend(handles)
        handles.clear()

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if self._timer_cancelled_count > CANCELLED_TIMERS_MAX and 2 * self._timer_cancelled_count > len(scheduled):
            self._sweep()
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            if not scheduled:
                raise RuntimeError("deadlock: nothing can run and no timer is set")
            self.now_s = max(self.now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if self.stopped:
                process = handle._context.get(_PROCESS)
                if process is not None and process.paused:
                    process.put_aside(handle)
                    continue
            handle._run()

    def _sweep(self) -> None:
        kept = []
        for handle in self._scheduled:
            if handle._cancelled:
                handle._scheduled = False
            else:
                kept.append(handle)
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self._timer_cancelled_count = 0


def world_time_s() -> float:
    """The loop's time, whatever the clock of the process that asks says."""
    loop = asyncio.get_running_loop()
    return loop.now_s if isinstance(loop, VirtualTimeLoop) else loop.time()


def call_at_world_time(when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
    """As the loop's `call_at`, for what belongs to no process: the network under way."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        loop.call_at_world_time(when, callback, *args, context=context)
    else:
        loop.call_at(when, callback, *args, context=context)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, without waiting."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
