"""The supervisor of a node's worker processes: starts them, restarts each one that ended, and ends them with itself.

It serves nothing. It does what a node needs only once: it holds the node's address, is the member of the cluster and locks the directory. Before a
worker is restarted its predecessor has certainly ended: the supervisor has waited for it. A worker whose event loop stands still is killed: it holds
connections that its siblings could serve, and only its parent knows that it ended. `core.restart_policy` decides how often and how soon. A
worker that does not stay up ends the node with `WorkerFailed`, because a node that never serves a part of its partitions seems healthy from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self  # Any: values that processes send each other

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.node_address import NodeAddress
from waltz_log.core.restart_policy import RestartPolicy, Restarts
from waltz_log.errors import WorkerFailed
from waltz_log.loggers import get_logger
from waltz_log.processes.children import ended_with
from waltz_log.processes.socket_folder import SocketFolder
from waltz_log.processes.worker_link import ALIVE, ALIVE_PAUSE_S, READY, Link, Orders
from waltz_log.settings import Settings
from waltz_log.transport.addresses import ReservedAddress

__all__ = ["NodeAddresses", "Workers", "orders_of"]

log = get_logger(__name__)

STOP_TIMEOUT_S = 12.0
"""For an orderly stop: a hand-over takes at most twice two seconds. A worker that needs longer is killed, which the log survives."""


SILENCE_S = 20.0
"""More than a slow disk or a large recovery costs an event loop, in which nothing long runs. Half of it is reported."""


class NodeAddresses:
    """The address of the node, reserved for its workers.

    `own`: where each worker can be reached individually: at ports from `first_port` on, at free ones if that is 0, or not at all below 0. `siblings`:
    where the workers reach each other, sockets in a folder that only this user may enter. `principal`: the name in the node's certificate, which the
    node announces with its addresses; empty without TLS. Raises `OSError` if an address is in use."""

    def __init__(self, listen: str, workers: int, first_port: int = 0, principal: str = "") -> None:
        host = listen.rpartition(":")[0]
        wanted = [listen, *(f"{host}:{first_port + worker if first_port else 0}" for worker in range(workers if first_port >= 0 else 0))]
        self._reserved: list[ReservedAddress] = []
        try:
            for each in wanted:
                self._reserved.append(ReservedAddress(each))
        except OSError:
            self._release()
            raise
        self._folder = SocketFolder()
        self.address, *own = [NodeAddress(each.address, principal) for each in self._reserved]
        self.own = tuple(own)
        self.siblings = tuple(f"unix:{self._folder.path / str(worker)}" for worker in range(workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release()
        self._folder.close()

    def _release(self) -> None:
        for each in self._reserved:
            each.close()


def orders_of(kind: Literal["server", "storage"], settings: Settings, addresses: NodeAddresses, log_level: str | None, **more: Any) -> Orders:
    return Orders(
        kind,
        settings.model_dump(mode="json"),
        worker=-1,
        workers=len(addresses.siblings),
        address=addresses.address,
        siblings=addresses.siblings,
        own=addresses.own,
        log_level=log_level,
        **more,
    )


class Workers:
    """`orders` apply to each of them, with its own number. `inherit`: file descriptors that the workers hold as well. `asked` is called with a
    worker's requests. `silence_s`: a worker that was not heard for so long is killed."""

    def __init__(
        self,
        orders: Orders,
        *,
        policy: RestartPolicy | None = None,
        inherit: Sequence[int] = (),
        asked: Callable[[str, Any], None] = lambda what, value: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._inherit = tuple(inherit)
        self._silence_s = silence_s
        self._asked = asked
        self._workers = [_Worker(self, replace(orders, worker=number), policy or RestartPolicy()) for number in range(orders.workers)]
        self.stopping = asyncio.Event()

    async def start(self) -> None:
        """Returns when all serve. Raises `WorkerFailed`."""
        self.stopping.clear()
        for worker in self._workers:
            worker.begin()
        served = asyncio.gather(*(worker.ready.wait() for worker in self._workers))
        failed = start_task(self.wait_failed())
        try:
            await asyncio.wait((served, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            await end_tasks([served, failed])

    @property
    def serve(self) -> bool:
        """Whether each of them has served since it was first started."""
        return all(worker.ready.is_set() for worker in self._workers)

    async def wait_failed(self) -> None:
        """Raises `WorkerFailed` when a worker does not stay up."""
        kept = [worker.kept for worker in self._workers if worker.kept is not None]
        done, _ = await asyncio.wait(kept, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM to all at once; all have ended when this returns. A worker that has not ended after `timeout_s` is killed."""
        self.stopping.set()
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        kept = [worker.kept for worker in self._workers if worker.kept is not None]
        if kept:
            _, late = await asyncio.wait(kept, timeout=timeout_s)
            if late:
                log.warning("workers killed, stop timed out", workers=len(late), timeout_s=timeout_s)
            self.kill()
            await asyncio.gather(*kept, return_exceptions=True)

    def kill(self) -> None:
        self.stopping.set()
        for worker in self._workers:
            worker.signal(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, WorkerFailed):
            await self.stop()  # one failed; stop the others in order
        self.kill()
        await asyncio.gather(*(worker.kept for worker in self._workers if worker.kept is not None), return_exceptions=True)

    def stuck(self) -> dict[int, float]:
        """For each worker, by its number, how long its event loop has stood still if that is long, else 0. From any thread."""
        return {worker.number: worker.silent_s if worker.silent_s > self._silence_s / 2 else 0.0 for worker in self._workers}

    # ---- what a worker does ------------------------------------------------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        return self._silence_s

    @property
    def inherit(self) -> tuple[int, ...]:
        return self._inherit

    def asked(self, what: str, value: Any) -> None:
        self._asked(what, value)


class _Worker:
    """One worker, over all of its processes."""

    def __init__(self, all_of_them: Workers, orders: Orders, policy: RestartPolicy) -> None:
        self._workers = all_of_them
        self._orders = orders
        self._restarts = Restarts(policy)
        self._process: Process | None = None
        self._heard = False
        self.silent_s = 0.0
        """How long its process was not heard."""
        self.ready = asyncio.Event()
        self.kept: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        return self._orders.worker

    def begin(self) -> None:
        self.ready.clear()
        self.kept = start_task(self._keep(), name=f"waltz worker {self._orders.worker}")

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _keep(self) -> None:
        """Restarts the worker until all are stopped. Raises `WorkerFailed`."""
        loop = asyncio.get_running_loop()
        while not self._workers.stopping.is_set():
            began = loop.time()
            code = await self._live()
            if self._workers.stopping.is_set():
                return
            ended = ended_with(code)
            pause = self._restarts.ended(loop.time() - began)
            if pause is None:
                raise WorkerFailed(worker=self._orders.worker, lives=self._restarts.short_lives, ended=ended)
            log.warning("worker ended and is restarted", worker=self._orders.worker, ended=ended, restarts=self._restarts.count, pause_s=pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._workers.stopping.wait(), pause)

    async def _live(self) -> int:
        """One process from its start to its end. Returns its exit code, or the negative number of the signal."""
        ours, its = socket.socketpair()
        with its:
            command = (sys.executable, "-P", "-m", "waltz_log.processes.worker", str(its.fileno()), str(os.getpid()))
            # Not of our session: Ctrl-C at the terminal is for the supervisor, which stops its workers in order.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=sys.stderr.fileno(), pass_fds=(its.fileno(), *self._workers.inherit), start_new_session=True
            )
        link = await Link.over(ours)
        link.send_orders(replace(self._orders, restarts=self._restarts.count))
        hearing = asyncio.gather(self._hear(link), self._watch())
        try:
            if self._workers.stopping.is_set():
                self.signal(signal.SIGTERM)  # the others received it while this one was being started
            return await self._process.wait()
        finally:
            await end_tasks([hearing])
            link.close()

    async def _watch(self) -> None:
        """Kills a process that stands still. Time counts only as far as this process runs itself, and from the first message of the process on."""
        self._heard, self.silent_s = False, 0.0
        while True:
            await asyncio.sleep(ALIVE_PAUSE_S)
            if not self._heard:
                continue
            self.silent_s += ALIVE_PAUSE_S
            if self.silent_s > self._workers.silence_s and not self._workers.stopping.is_set():
                log.error("worker stands still and is killed", worker=self.number, silent_s=self.silent_s)
                self.signal(signal.SIGKILL)

    async def _hear(self, link: Link) -> None:
        async for what, value in link.messages():
            self._heard = True
            self.silent_s = 0.0
            if what == ALIVE:
                continue
            if what == READY:
                self.ready.set()
                log.info("worker serves", worker=self._orders.worker, restarts=self._restarts.count)
            else:
                self._workers.asked(what, value)
