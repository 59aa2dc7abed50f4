"""A simulation of the append path: transactions that are due at a rate, a client, a log server and three storage nodes that share processors.

Pure and deterministic by its seed. Each process does one thing at a time, in order of arrival, and needs a processor for it. A frame passes client,
server, every storage node (processor, then a sync that needs none), server and client again; it is answered after the second of three storage nodes.
Frames are packed as the client packs them: at once while fewer than two are unanswered, otherwise after `linger_ms` at most.

`Service` holds measured service times. `delays_ms` are measured too, one drawn for each frame: how much later than at the median the answer to one
transaction comes that has the path to itself. They come from the scheduler and the disk, so a large frame is delayed no longer than a small one, and
what follows a delayed frame waits behind it.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from waltz_log.core.formats.columns import FEW_RECORDS

__all__ = ["Service", "Simulated", "simulate", "simulate_single"]

FRAMES_UNANSWERED = 2
MAJORITY = 2
TICK_MS = 1.0
"""How often the client checks what is due, as the measured load does."""

SAMPLE_EVERY = 50


@dataclass(frozen=True)
class Service:
    """Milliseconds. `*_block`: of a block on the way there and back together; `*_transaction`: of each of its transactions.
    `*_large`: more of a block of `FEW_RECORDS` transactions or more. `storage`: one node's."""

    client_block: float
    client_transaction: float
    server_block: float
    server_transaction: float
    storage_block: float
    storage_transaction: float
    sync: float
    linger: float = 2.0
    frame_transactions: int = 4096
    storages: int = 3
    processors: int = 2
    delays_ms: Sequence[float] = (0.0,)
    client_large: float = 0.0
    server_large: float = 0.0
    storage_large: float = 0.0

    def scaled(self, factor: float) -> Service:
        """Blocks cost `factor` times as much: what of a block's processor time is on the way of its answer, from one in flight."""
        blocks = ("client_block", "client_large", "server_block", "server_large", "storage_block", "storage_large")
        return replace(self, **{name: getattr(self, name) * factor for name in blocks})


@dataclass
class Simulated:
    latencies_ms: list[float] = field(default_factory=list)
    frames: int = 0
    transactions: int = 0


Work = tuple[float, Callable[[], None]]


class _Machine:
    """Virtual time, processes and processors."""

    def __init__(self, processors: int) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._free = processors
        self._ready: deque[_Process] = deque()

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def want(self, process: _Process) -> None:
        self._ready.append(process)
        self._start()

    def _start(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            process = self._ready.popleft()
            spent, done = process.work.popleft()
            self.at(self.now + spent, lambda process=process, done=done: self._ended(process, done))  # type: ignore[misc]

    def _ended(self, process: _Process, done: Callable[[], None]) -> None:
        self._free += 1
        done()
        if process.work:
            self._ready.append(process)
        else:
            process.waiting = True
        self._start()


class _Process:
    def __init__(self, machine: _Machine) -> None:
        self.work: deque[Work] = deque()
        self.waiting = True
        self._machine = machine

    def enqueue(self, spent: float, done: Callable[[], None]) -> None:
        self.work.append((spent, done))
        if self.waiting:
            self.waiting = False
            self._machine.want(self)


class _Path:
    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.machine = _Machine(service.processors)
        self.client, self.server = _Process(self.machine), _Process(self.machine)
        self.storages = [_Process(self.machine) for _ in range(service.storages)]
        self.found = Simulated()
        self.queue: deque[tuple[int, float]] = deque()
        """Transactions that wait for a frame: their number and when they were due."""
        self.unanswered = 0
        self._lingering = self._packing = False
        self._rng = random.Random(seed)
        self._undelayed_ms = 0.0
        """No frame is ordered before this time."""

    def submit(self, due: Sequence[tuple[int, float]]) -> None:
        self.queue.extend(due)
        self.send()

    def send(self) -> None:
        if not self.queue or self._packing:
            return
        if self.unanswered >= FRAMES_UNANSWERED and len(self.queue) < self.service.frame_transactions and self.service.linger:
            if not self._lingering:
                self._lingering = True
                self.machine.at(self.machine.now + self.service.linger, self._lingered)
            return
        self._pack()

    def _lingered(self) -> None:
        if self._lingering:
            self._lingering = False
            if self.queue and not self._packing:
                self._pack()

    def _pack(self) -> None:
        self._lingering, self._packing = False, True
        frame = [self.queue.popleft() for _ in range(min(len(self.queue), self.service.frame_transactions))]
        self.unanswered += 1
        self.found.frames += 1
        self.found.transactions += len(frame)
        service, delay_ms = self.service, self._rng.choice(self.service.delays_ms)
        count = len(frame)
        large = 1.0 if count >= FEW_RECORDS else 0.0
        client_block = service.client_block + large * service.client_large
        server_block = service.server_block + large * service.server_large
        # Accepting a transaction is charged where it is submitted; here is what is left of the client's share.
        there = client_block / 2 + service.client_transaction / 2 * count
        server_there = server_block / 2 + service.server_transaction * count
        stored = service.storage_block + large * service.storage_large + service.storage_transaction * count
        acknowledged = 0

        def packed() -> None:
            self._packing = False
            self.server.enqueue(server_there, delayed)
            self.send()

        def delayed() -> None:
            self._undelayed_ms = max(self._undelayed_ms, self.machine.now + delay_ms)
            self.machine.at(self._undelayed_ms, ordered)

        def ordered() -> None:
            for storage in self.storages:
                storage.enqueue(stored, lambda: self.machine.at(self.machine.now + service.sync, synced))

        def synced() -> None:
            nonlocal acknowledged
            acknowledged += 1
            if acknowledged == MAJORITY:
                self.server.enqueue(server_block / 2, committed)

        def committed() -> None:
            self.client.enqueue(client_block / 2, answered)

        def answered() -> None:
            self.unanswered -= 1
            now = self.machine.now
            self.found.latencies_ms += [now - due for number, due in frame if number % SAMPLE_EVERY == 0]
            self.answered(now)
            self._lingering = False
            self.send()

        self.client.enqueue(there, packed)

    def answered(self, now: float) -> None:
        """For a closed loop."""


def simulate(service: Service, *, rate_per_s: float, count: int, seed: int = 1) -> Simulated:
    """`count` transactions, one due every `1 / rate_per_s` seconds whatever became of those before. Latencies of every 50th, from when it was due."""
    path = _Path(service, seed)
    every_ms = 1000 / rate_per_s
    sent = 0

    def tick() -> None:
        nonlocal sent
        due = min(count, 1 + int(path.machine.now / every_ms))  # number 0 is due at once
        batch = [(number, number * every_ms) for number in range(sent, due)]
        sent = due

        def submitted() -> None:
            path.submit(batch)
            if sent < count:
                path.machine.at(path.machine.now + TICK_MS, tick)

        path.client.enqueue(service.client_transaction / 2 * len(batch), submitted)

    path.machine.at(0.0, tick)
    path.machine.run()
    return path.found


def simulate_single(service: Service, count: int, seed: int = 1) -> Simulated:
    """One transaction in flight."""
    path = _Path(service, seed)
    left = count

    def again(now: float) -> None:
        nonlocal left
        if left:
            left -= 1
            path.machine.at(now, lambda: path.submit([(0, now)]))

    path.answered = again  # type: ignore[method-assign]
    again(0.0)
    path.machine.run()
    return path.found
