"""A simulation of the append path: transactions that are due at a fixed rate, a client, a log server and three storage nodes that share processors.

Pure and deterministic by its seed. Each process does one thing at a time, in order of arrival, and needs a processor for it. Processes that are ready
use the processors in turns, `SLICE_MS` each. Transactions wait in three places, by the platform's own rules:

- At the client, for a frame. A frame is sent at once if nothing is in flight. Otherwise it waits for the answer, at most `linger`, or until there is
  enough for another frame. If everything pending waits and is enough for two frames, the frame holds half of it.
- At the server, for a block. Two blocks are in flight at most, and a small one waits until nothing is in flight. Frames that wait become
  one block.
- At each storage node, for a write round. A node syncs one round at a time (which needs no processor, and longer for more bytes); blocks that wait
  are written together.

A block is committed after the second of three storage nodes, and the server answers blocks in order.

`Service` holds measured service times. A process does a share of its work on a block (`after`) when it has passed the block on. The share is the one
with which one transaction in flight has the measured latency. `delays_ms` are measured too: how much later than at the median the answer to one
transaction comes that has the path to itself. They come from the scheduler and the disk, so they come with time and not with transactions: a block
is delayed by the longest of those that fall into the time since the block before it, and what follows waits behind it. `slowness` is measured as
well: when the machine was slower or faster than usual (`speeds`). The client's timers ring up to `TIMER_MS` late.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.measurement import percentile
from benchmarks.scaling.costs import large_share
from benchmarks.scaling.speeds import Slowness

__all__ = ["Service", "Simulated", "simulate", "simulate_single", "with_single_latency"]

BLOCKS_IN_FLIGHT = 2
MAJORITY = 2
TICK_MS = 1.0
"""How often the client checks what is due, as the measured load does."""

DRAWS_MAX = 16
"""After a pause there was nothing to delay."""

TIMER_MS = 1.0
"""`epoll` counts whole milliseconds, and asyncio rounds up. Each event in between makes it count again."""

SLICE_MS = 0.05
"""Short against what is done at once, so that processors are shared evenly, as the scheduler of the operating system intends."""

SAMPLE_EVERY = 50

BISECTIONS = 10
SINGLES = 1_000


@dataclass(frozen=True)
class Service:
    """Milliseconds. `*_block`: of a block on the way there and back together; `*_transaction`: of each of its transactions.
    `*_large`: more of a large block (`costs`). `storage`: one node's."""

    client_block: float
    client_transaction: float
    server_block: float
    server_transaction: float
    storage_block: float
    storage_transaction: float
    sync: float
    """Of a round with one transaction."""
    sync_transaction: float = 0.0
    linger: float = 5.0
    frame_transactions: int = 4096
    """In one frame, and in one block."""
    overlap_transactions: int = 480
    """In a second frame or block, at least."""
    storages: int = 3
    processors: int = 2
    delays_ms: Sequence[float] = (0.0,)
    delay_every_ms: float = 0.0
    """The mean latency of the transactions that `delays_ms` are of: a block that comes later meets more of them. 0: one for each block."""
    after: float = 0.0
    """The share of its work on a block that a process does after it has passed the block on: it delays only what comes next."""
    client_large: float = 0.0
    server_large: float = 0.0
    storage_large: float = 0.0
    tick: float = 0.0
    """Of the client, each time the load wakes up to see what is due."""
    slowness: Slowness = ()
    """Of the machine, in the order of time. Syncs do not depend on it."""

    def client_ms(self, count: int) -> float:
        """Of a block with this number of transactions, as the next two."""
        return self.client_block + large_share(count) * self.client_large

    def server_ms(self, count: int) -> float:
        return self.server_block + large_share(count) * self.server_large

    def storage_ms(self, count: int) -> float:
        return self.storage_block + large_share(count) * self.storage_large


@dataclass
class Simulated:
    latencies_ms: list[float] = field(default_factory=list)
    frames: int = 0
    rounds: int = 0
    """Write rounds of the first storage node."""
    transactions: int = 0


Work = tuple[Callable[[], float], Callable[[], None]]
"""Processor time, computed when the work begins, and what happens after it."""

Frame = list[tuple[int, float]]
"""The numbers of its transactions and when they were due."""


class _Machine:
    """Virtual time, processes and processors."""

    def __init__(self, processors: int, slowness: Slowness = ()) -> None:
        self.now = 0.0
        self._slowness = deque(slowness)
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

    @property
    def slow(self) -> float:
        """The factor by which work is slower now than usual."""
        while self._slowness and self._slowness[0][0] <= self.now:
            self._slowness.popleft()
        return self._slowness[0][1] if self._slowness else 1.0

    def want(self, process: _Process) -> None:
        self._ready.append(process)
        self._start()

    def _start(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            process = self._ready.popleft()
            process.begin()
            slice_ms = min(SLICE_MS, process.left_ms)
            process.left_ms -= slice_ms
            self.at(self.now + slice_ms, lambda process=process: self._ended(process))  # type: ignore[misc]

    def _ended(self, process: _Process) -> None:
        self._free += 1
        if process.left_ms > 0 or process.finish():
            self._ready.append(process)
        self._start()


class _Process:
    def __init__(self, machine: _Machine) -> None:
        self.left_ms = 0.0
        """What it does now needs a processor for so much longer."""
        self._done: Callable[[], None] | None = None
        self._work: deque[Work] = deque()
        self._waiting = True
        self._machine = machine

    def begin(self) -> None:
        """Begins the next work, unless some is half done."""
        if self._done is None:
            spent, self._done = self._work.popleft()
            self.left_ms = spent() * self._machine.slow

    def finish(self) -> bool:
        """Returns whether there is more work."""
        assert self._done is not None
        done, self._done = self._done, None
        done()
        self._waiting = not self._work
        return not self._waiting

    def enqueue(self, spent: float, done: Callable[[], None]) -> None:
        self.enqueue_batch(lambda: spent, done)

    def enqueue_rest(self, spent: float) -> None:
        """Work after something was passed on."""
        if spent:
            self.enqueue(spent, lambda: None)

    def enqueue_batch(self, spent: Callable[[], float], done: Callable[[], None]) -> None:
        """Work that begins by collecting everything that waits."""
        self._work.append((spent, done))
        if self._waiting:
            self._waiting = False
            self._machine.want(self)


class _Storage:
    """One node: what it received waits for the write round before to be on disk, and is then written together."""

    def __init__(self, machine: _Machine, service: Service) -> None:
        self.rounds = 0
        self._machine = machine
        self._service = service
        self._process = _Process(machine)
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._writing = False

    def append(self, count: int, synced: Callable[[], None]) -> None:
        self._process.enqueue(self._service.storage_transaction * count, lambda: self._received(count, synced))

    def _received(self, count: int, synced: Callable[[], None]) -> None:
        self._waiting.append((count, synced))
        self._write()

    def _write(self) -> None:
        if self._writing or not self._waiting:
            return
        self._writing = True
        self.rounds += 1
        service, batch = self._service, self._waiting
        self._waiting = []
        written = sum(count for count, _ in batch)
        sync_ms = service.sync + service.sync_transaction * (written - 1)

        block_ms = service.storage_ms(written)

        def written_there() -> None:
            self._machine.at(self._machine.now + sync_ms, synced)
            self._process.enqueue_rest(service.after * block_ms)

        def synced() -> None:
            self._writing = False
            for _, acknowledged in batch:
                acknowledged()
            self._write()

        self._process.enqueue((1 - service.after) * block_ms, written_there)


class _Server:
    """The owner: frames that wait become a block if nothing is in flight, or if they are enough for a second block; answers come in order."""

    def __init__(self, machine: _Machine, service: Service, rng: random.Random) -> None:
        self._machine = machine
        self._service = service
        self._rng = rng
        self._process = _Process(machine)
        self.storages = [_Storage(machine, service) for _ in range(service.storages)]
        self._frames: deque[tuple[Frame, Callable[[], None]]] = deque()
        self._in_flight: deque[_Block] = deque()
        self._ordering = False
        self._drawn_ms = 0.0
        self._undelayed_ms = 0.0
        """No block is sent to the storage nodes before this time."""

    def receive(self, frame: Frame, answered: Callable[[], None]) -> None:
        self._frames.append((frame, answered))
        self._order()

    def _order(self) -> None:
        if self._ordering or not self._frames or not self._may_order():
            return
        self._ordering = True
        service, block = self._service, _Block()

        def begin() -> float:
            while self._frames and (not block.count or block.count + len(self._frames[0][0]) <= service.frame_transactions):
                frame, answered = self._frames.popleft()
                block.count += len(frame)
                block.answers.append(answered)
            return (1 - service.after) * service.server_ms(block.count) / 2 + service.server_transaction * block.count

        def ordered() -> None:
            self._ordering = False
            self._in_flight.append(block)
            self._undelayed_ms = max(self._undelayed_ms, self._machine.now + self._delay_ms())
            self._machine.at(self._undelayed_ms, send)
            self._process.enqueue_rest(service.after * service.server_ms(block.count) / 2)
            self._order()

        def send() -> None:
            for storage in self.storages:
                storage.append(block.count, lambda: self._acknowledged(block))

        self._process.enqueue_batch(begin, ordered)

    def _may_order(self) -> bool:
        if not self._in_flight:
            return True
        waiting = sum(len(frame) for frame, _ in self._frames)
        return len(self._in_flight) < BLOCKS_IN_FLIGHT and waiting >= self._service.overlap_transactions

    def _delay_ms(self) -> float:
        """The longest delay since the last block."""
        since_ms, self._drawn_ms = self._machine.now - self._drawn_ms, self._machine.now
        every_ms = self._service.delay_every_ms
        draws = 1 if not every_ms else max(1, min(DRAWS_MAX, round(since_ms / every_ms)))
        return max(self._rng.choice(self._service.delays_ms) for _ in range(draws))

    def _acknowledged(self, block: _Block) -> None:
        block.acknowledged += 1
        while self._in_flight and self._in_flight[0].acknowledged >= MAJORITY:
            committed = self._in_flight.popleft()
            half_ms, after = self._service.server_ms(committed.count) / 2, self._service.after
            self._process.enqueue((1 - after) * half_ms, committed.answer)
            self._process.enqueue_rest(after * half_ms)
        self._order()


class _Block:
    def __init__(self) -> None:
        self.count = 0
        self.acknowledged = 0
        self.answers: list[Callable[[], None]] = []
        """Of each of its frames."""

    def answer(self) -> None:
        for answered in self.answers:
            answered()


class _Path:
    """The client and everything behind it."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.machine = _Machine(service.processors, service.slowness)
        self.rng = random.Random(seed)
        self.client = _Process(self.machine)
        self.server = _Server(self.machine, service, self.rng)
        self.found = Simulated()
        self.queue: deque[tuple[int, float]] = deque()
        """Transactions that wait for a frame: their number and when they were due."""
        self.unanswered = 0
        self._packing = False
        self._lingering = 0
        """The number of the current linger; 0 if there is none."""
        self._lingers = 0

    def submit(self, due: Sequence[tuple[int, float]]) -> None:
        self.queue.extend(due)
        self.send()

    def timer(self, wait_ms: float, rings: Callable[[], None]) -> None:
        """Of the client."""
        self.machine.at(self.machine.now + wait_ms + self.rng.random() * TIMER_MS, rings)

    def send(self) -> None:
        if not self.queue or self._packing:
            return
        if not self._holds_back() or not self.service.linger:
            self._pack()
        elif not self._lingering:
            self._lingers += 1
            self._lingering = number = self._lingers
            self.timer(self.service.linger, lambda: self._lingered(number))

    def _holds_back(self) -> bool:
        enough = self.service.overlap_transactions if self.unanswered == 1 else self.service.frame_transactions
        return self.unanswered > 0 and len(self.queue) < enough

    def _lingered(self, number: int) -> None:
        if self._lingering == number:
            self._lingering = 0
            if self.queue and not self._packing:
                self._pack()

    def _pack(self) -> None:
        self._lingering, self._packing = 0, True
        service = self.service
        count = min(len(self.queue), service.frame_transactions)
        if not self.unanswered and len(self.queue) >= 2 * service.overlap_transactions:
            count = min(count, len(self.queue) // 2)
        frame = [self.queue.popleft() for _ in range(count)]
        self.unanswered += 1
        self.found.frames += 1
        self.found.transactions += count
        block_ms = service.client_ms(count)

        def packed() -> None:
            self._packing = False
            self.server.receive(frame, committed)
            self.client.enqueue_rest(service.after * block_ms / 2)
            self.send()

        def committed() -> None:
            self.client.enqueue((1 - service.after) * block_ms / 2, answered)
            self.client.enqueue_rest(service.after * block_ms / 2)

        def answered() -> None:
            self.unanswered -= 1
            now = self.machine.now
            self.found.latencies_ms += [now - due for number, due in frame if number % SAMPLE_EVERY == 0]
            self.answered(now)
            self.send()

        # Accepting a transaction is charged where it is submitted; here is the rest of the client's share.
        self.client.enqueue((1 - service.after) * block_ms / 2 + service.client_transaction / 2 * count, packed)

    def answered(self, now: float) -> None:
        """For a closed loop."""

    def run(self) -> Simulated:
        self.machine.run()
        self.found.rounds = self.server.storages[0].rounds
        return self.found


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
                path.timer(TICK_MS, tick)

        path.client.enqueue(service.tick + service.client_transaction / 2 * len(batch), submitted)

    path.machine.at(0.0, tick)
    return path.run()


def with_single_latency(service: Service, single_ms: float) -> Service:
    """The service with the share `after` with which one transaction in flight has this median latency, as near as a share can bring it."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = replace(service, after=middle)
        if percentile(simulate_single(found, SINGLES).latencies_ms, 0.5) > single_ms:
            low = middle
        else:
            high = middle
    return replace(service, after=(low + high) / 2)


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
    return path.run()
