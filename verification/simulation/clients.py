"""The kinds of clients that a run can have. Each is a coroutine over an `Actor`; a mix draws the name under which it is registered.

To add a kind: write `async def kind(actor: Actor) -> None`, decorate it with `@client_kind("name")`, and let it append with `actor.begin` /
`actor.settle` (or the shorthand `actor.append`), so that every attempt is in the history with what its caller was answered, and read with
`actor.saw`. It runs in its own process, which may be paused or killed at any await. Then the coroutine is cancelled and must end the tasks that it
started. `actor.process` has what other kinds of clients need, such as an outbox. It ends by itself after `actor.operations` operations, or when
`actor.over` is set.

Decides nothing about what is right, except what only a client can see: an answer later than its deadline, an error that is not in the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.history import Attempt, MarkSeen, Seen
from waltz_log.client import ClientSettings, Lock, Receipt, Transaction, WaltzClient
from waltz_log.client.owners.owners import Owners
from waltz_log.errors import (
    CorruptData,
    LockConflict,
    NotAppended,
    OutcomeUnknown,
    Unavailable,
    WaltzError,
)

if TYPE_CHECKING:
    from verification.simulation.nodes import ClientProcess
    from verification.simulation.world import World

__all__ = ["CLIENT_KINDS", "Actor", "ClientKind", "client_kind", "ended_by_the_network", "open_owners", "run_client"]

LOCKS = 5
"""Names that clients of a partition share. They are few, so that clients conflict."""

PARTITIONS_MAX = 8
"""Of a run, those of topics among them; clients address these by number."""

SETTINGS = ClientSettings(
    topics=tuple(f"sim/{kind}-{partition}" for kind in ("kept", "memory") for partition in range(PARTITIONS_MAX)),
    retry_base_s=0.01,
    retry_cap_s=0.1,
    request_timeout_s=1.5,
    stall_timeout_s=1.5,
    connect_timeout_s=5.0,
    append_timeout_s=8.0,
    close_timeout_s=1.0,
    frame_bytes=4096,
    overlap_bytes=0,  # appends are small, and several frames must be in flight
    max_pending=32,
)


@dataclass(frozen=True, slots=True)
class ClientKind:
    run: Callable[[Actor], Awaitable[None]]


CLIENT_KINDS: dict[str, ClientKind] = {}


def client_kind(name: str) -> Callable[[Callable[[Actor], Awaitable[None]]], Callable[[Actor], Awaitable[None]]]:
    def register(run: Callable[[Actor], Awaitable[None]]) -> Callable[[Actor], Awaitable[None]]:
        CLIENT_KINDS[name] = ClientKind(run)
        return run

    return register


class Actor:
    """One client of a run. `partition` is where it works; `over` is set when the load ends."""

    def __init__(self, world: World, process: ClientProcess, kind: str, rng: Random, over: asyncio.Event) -> None:
        self.world = world
        self.process = process
        self.name = process.name
        self.kind = kind
        self.rng = rng
        self.over = over
        self.operations = world.mix.operations
        self.partition = rng.randrange(world.mix.partitions)
        self.unknown: dict[int, OutcomeUnknown] = {}
        self.client_id = 0
        """The client's own connection, for a kind that uses the bare protocol."""

    async def connect(self) -> WaltzClient:
        while True:
            try:
                client = await self.process.connect(SETTINGS, Random(self.rng.random()))
                while client.partitions <= self.partition:  # it was added a moment ago
                    await asyncio.sleep(0.01)
                return client
            except Unavailable as error:
                self.announce(f"does not connect: {error}")
                await asyncio.sleep(0.1)

    def announce(self, what: str) -> None:
        self.world.trace.add(self.name, what)

    async def pause(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0, most_s))

    # ---- appending ---------------------------------------------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        write: Sequence[str] = (),
        read: Sequence[str] = (),
        append: Sequence[str] = (),
        mark: int | None = None,
        timeout_s: float = SETTINGS.append_timeout_s,
    ) -> Attempt:
        history = self.world.history
        attempt = Attempt(
            number=len(history.attempts),
            client=self.name,
            kind=self.kind,
            partition=self.partition,
            started_s=self.world.now_s,
            timeout_s=timeout_s,
            mark=mark,
            write=tuple(write),
            read=tuple(read),
            append=tuple(append),
        )
        history.attempts.append(attempt)
        return attempt

    def data(self, attempt: Attempt, reported: str = "") -> bytes:
        filler = self.rng.choice((0, 0, 10, 100, 100, 1500))
        return f"{attempt.number}|{reported}|".encode() + b"x" * filler

    async def submit(self, client: WaltzClient, attempt: Attempt, reported: str = "") -> asyncio.Future[Receipt]:
        """Passes the attempt to the client; `settle` awaits the future. Raises the error if the client refuses at once."""
        return await client.append_nowait(
            attempt.partition,
            self.data(attempt, reported),
            write_locks=[Lock("l", name) for name in attempt.write],
            read_locks=[Lock("l", name) for name in attempt.read],
            append_locks=[Lock("l", name) for name in attempt.append],
            high_water_mark=attempt.mark,
            timeout_s=attempt.timeout_s,
        )

    async def settle(self, attempt: Attempt, answer: Awaitable[Receipt]) -> None:
        """Waits for the outcome and records it. Raises the error that ended the client itself."""
        try:
            receipt = await answer
            attempt.outcome, attempt.transaction_id = "committed", receipt.transaction_id
            attempt.in_memory = receipt.durability == "quorum_memory"
        except LockConflict as conflict:
            attempt.outcome, attempt.winner = "rejected", conflict.winner
        except NotAppended:
            attempt.outcome = "not appended"
        except OutcomeUnknown as unknown:
            attempt.outcome = "unknown"
            self.unknown[attempt.number] = unknown
        except asyncio.CancelledError:
            attempt.outcome = "died"
            raise
        attempt.answers += 1
        attempt.ended_s = self.world.now_s
        found = attempt.transaction_id if attempt.winner is None else attempt.winner
        self.announce(f"attempt {attempt.number} {attempt.outcome} {'' if found is None else found}")

    async def append(self, client: WaltzClient, attempt: Attempt, reported: str = "") -> None:
        async def both() -> Receipt:
            return await (await self.submit(client, attempt, reported))

        await self.settle(attempt, both())

    async def resolve_all(self, client: WaltzClient) -> None:
        """Asks for what is unknown, until the log has answered."""
        for number, unknown in list(self.unknown.items()):
            await resolve(self, client, self.world.history.attempts[number], unknown)
            del self.unknown[number]

    # ---- reading -----------------------------------------------------------------------------------------------------------------------------------

    def stream(self) -> int:
        self.world.history.streams += 1
        return self.world.history.streams

    def saw(self, stream: int, after: int, transactions: Sequence[Transaction], *, partition: int | None = None, with_data: bool = True) -> None:
        where = self.partition if partition is None else partition
        self.world.history.seen.append(Seen(self.name, stream, where, self.world.now_s, after, transactions, with_data))

    def saw_mark(self, mark: int) -> None:
        self.world.history.marks.append(MarkSeen(self.name, self.partition, self.world.now_s, mark))


async def resolve(actor: Actor, client: WaltzClient, attempt: Attempt, unknown: OutcomeUnknown) -> None:
    while True:
        try:
            receipt = await client.resolve(unknown, timeout_s=3.0)
        except Unavailable as error:
            actor.announce(f"attempt {attempt.number} not resolved: {error}")
            await asyncio.sleep(0.1)
            continue
        if receipt is None:
            attempt.resolved = "absent"
        else:
            attempt.resolved, attempt.transaction_id = "committed", receipt.transaction_id
        actor.announce(f"attempt {attempt.number} resolved {attempt.resolved}")
        return


async def run_client(actor: Actor) -> None:
    """Runs the kind's own work. An error that is not in the contract is a complaint."""
    try:
        await CLIENT_KINDS[actor.kind].run(actor)
    except WaltzError as error:
        if not ended_by_the_network(actor, error):
            actor.world.history.complaints.append(f"22: a client ended with {error!r}: client={actor.name} kind={actor.kind}")
        actor.announce(f"ended with {error!r}")


def ended_by_the_network(actor: Actor, error: BaseException) -> bool:
    """Three corrupt frames in a row end a feed (docs/decisions/0032). Only the fault that corrupts messages produces that many."""
    return isinstance(error, CorruptData) and "corrupt-messages" in actor.world.mix.faults


@asynccontextmanager
async def open_owners(actor: Actor) -> AsyncIterator[Owners]:
    """A view of the cluster with a new client id, open until the block ends."""

    while True:
        owners = Owners(actor.process.seeds, actor.process.host, SETTINGS, Random(actor.rng.random()))
        try:
            try:
                await owners.open()
                actor.client_id = await owners.next_client_id()
            except Unavailable as error:
                actor.announce(f"does not connect: {error}")
            else:
                yield owners
                return
        finally:
            await owners.close()
        await asyncio.sleep(0.1)


# ---- kinds -----------------------------------------------------------------------------------------------------------------------------------------


@client_kind("counter")
async def count_under_locks(actor: Actor) -> None:
    """The application of the documents: reads its state from the feed, writes under a lock, reads again after a conflict."""
    counts: dict[str, int] = {}
    stream = actor.stream()
    after = -1

    def apply(transactions: list[Transaction]) -> None:
        nonlocal after
        actor.saw(stream, after, transactions)
        after = transactions[-1].transaction_id
        for transaction in transactions:
            reported = transaction.data.split(b"|")[1]
            if reported:
                key, _, count = reported.decode().partition("=")
                counts[key] = int(count)

    client = await actor.connect()
    follower = await client.follow(actor.partition, apply)
    for _ in range(actor.operations):
        if actor.over.is_set():
            break
        key = f"c{actor.rng.randrange(3)}"
        attempt = actor.begin(write=(key,), mark=follower.applied)
        await actor.append(client, attempt, f"{key}={counts.get(key, 0) + 1}")
        if attempt.winner is not None:
            try:
                async with asyncio.timeout(5):
                    await follower.wait(attempt.winner)
            except TimeoutError:
                actor.announce(f"has not seen {attempt.winner} yet")
        await actor.pause(0.05)
    if follower.error is not None:
        actor.world.history.complaints.append(f"9: a follower ended with {follower.error!r}: client={actor.name}")
    await follower.close()
    await actor.resolve_all(client)
    await client.close()


@client_kind("locker")
async def lock_at_random(actor: Actor) -> None:
    """Long pipelines of random locks with marks of any age. In half of the runs the client also pipelines pairs without marks: one append sets a lock
    that the next one checks, and another client may have written that lock in between."""
    own = Random(f"own marks {actor.world.seed}")
    pairs = own.random() < 0.5
    client = await actor.connect()
    known = -1
    running: list[asyncio.Future[None]] = []
    for _ in range(actor.operations):
        if actor.over.is_set():
            break
        names = [f"l{actor.rng.randrange(LOCKS)}" for _ in range(actor.rng.choice((1, 1, 2, 3)))]
        kinds = [actor.rng.choice("wwra") for _ in names]
        chosen = {kind: tuple(dict.fromkeys(name for name, each in zip(names, kinds, strict=True) if each == kind)) for kind in "wra"}
        mark = max(-1, known - actor.rng.choice((0, 0, 0, 1, 3, 20)))
        attempt = actor.begin(write=chosen["w"], read=chosen["r"], append=chosen["a"], mark=mark, timeout_s=actor.rng.choice((0.3, 2.0, 8.0)))
        running.append(asyncio.ensure_future(actor.append(client, attempt)))
        if pairs and own.random() < 0.5:
            shared = (f"l{own.randrange(LOCKS)}",)
            for pair in (actor.begin(append=shared), actor.begin(write=shared)):
                running.append(asyncio.ensure_future(actor.append(client, pair)))
        while len(running) > actor.rng.choice((0, 3, 12)):
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running = [each for each in running if not each.done()]
            known = max([known, *(attempt.transaction_id or -1 for attempt in actor.world.history.attempts[-20:] if attempt.client == actor.name)])
        await actor.pause(0.02)
    await asyncio.gather(*running)
    await actor.resolve_all(client)
    await client.close()


@client_kind("sole")
async def lock_alone(actor: Actor) -> None:
    """Locks that no other client uses, marks left to the client, sometimes several at once: it must not conflict with itself."""
    client = await actor.connect()
    left = actor.operations
    while left > 0 and not actor.over.is_set():
        burst = min(left, actor.rng.choice((1, 1, 4)))
        left -= burst
        names = [f"{actor.name}-{actor.rng.randrange(2)}" for _ in range(burst)]
        await asyncio.gather(*(actor.append(client, actor.begin(write=(name,))) for name in names))
        await actor.pause(0.03)
    await actor.resolve_all(client)
    await client.close()


@client_kind("producer")
async def produce(actor: Actor) -> None:
    """Bursts without locks, some with deadlines that pass."""
    client = await actor.connect()
    left = actor.operations
    while left > 0 and not actor.over.is_set():
        burst = min(left, actor.rng.choice((1, 5, 20)))
        left -= burst
        timeout_s = actor.rng.choice((0.02, 0.2, 8.0))
        await asyncio.gather(*(actor.append(client, actor.begin(timeout_s=timeout_s)) for _ in range(burst)))
        await actor.pause(0.1)
    await actor.resolve_all(client)
    await client.close()
