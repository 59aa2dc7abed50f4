"""One process of the smoke test with some of its clients. Run as `python -m verification.smoke.clients`, by `run`.

Each client appends under locks to all partitions, a deep pipeline at a time, and follows the feed of one; marks are what it has seen committed, by
its feed and by its answers. *Unknown* is resolved until the log has answered. It goes on until it has committed its share, then waits for SIGTERM:
that says that the outages are over (or that time is up). Then it reads its feed to the end and writes its history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from pathlib import Path
from random import Random

from verification.smoke.history import ClientHistory, Reported, chained
from verification.smoke.payload import encode
from verification.smoke.plan import SmokePlan
from waltz_log.client import ClientSettings, Follower, Lock, LockConflict, NotAppended, OutcomeUnknown, Receipt, Transaction, WaltzClient
from waltz_log.errors import Unavailable, WaltzError

__all__ = ["SmokeClient", "command", "history_file", "progress_file"]

SETTINGS = ClientSettings(connect_timeout_s=60.0, append_timeout_s=120.0)

IMPATIENT = 0.01
"""The share of appends with a deadline shorter than an outage, so that *unknown* occurs."""

IMPATIENT_S = (0.1, 3.0)

PROGRESS_EVERY_S = 0.5
PAUSE_S = 0.2
"""The pause before an unanswered query is repeated."""

RESOLVES_MAX = 32
"""The number of concurrent queries of a client. An outage leaves many, and while one partition is unavailable the others answer."""

HOT = 0.1


class SmokeClient:
    """`run` until `over` is set, with its share decided or not; then `settle`."""

    def __init__(self, number: int, plan: SmokePlan) -> None:
        self.history = ClientHistory(number, followed=number % plan.partitions)
        self.committed = 0
        self.in_flight = 0
        self._plan = plan
        self._rng = Random(f"client {number} {plan.seed}")
        # Of what cannot be shared out evenly the first clients take one more.
        self._share = (plan.transactions + plan.clients - 1 - number) // plan.clients if plan.transactions else None
        self._known = [-1] * plan.partitions
        self._room = asyncio.Event()
        self._resolving: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(RESOLVES_MAX)

    @property
    def done(self) -> bool:
        return self._share is not None and self.committed >= self._share

    async def connect(self, cluster: str) -> None:
        while True:
            try:
                self._client = await WaltzClient.connect(cluster, SETTINGS)
                break
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
        self._follower: Follower = await self._client.follow(self.history.followed, self._apply)

    # ---- the feed ----------------------------------------------------------------------------------------------------------------------------------

    def _apply(self, transactions: list[Transaction]) -> None:
        history, chain, last = self.history, self.history.chain, self.history.fed
        for transaction in transactions:
            last += 1
            if transaction.transaction_id != last:
                history.complaints.append(f"9: was fed {transaction.transaction_id} where {last} was next: partition={history.followed}")
                last = transaction.transaction_id
            chain = chained(chain, transaction)
        history.chain, history.fed = chain, last
        self._saw(history.followed, last)

    def _saw(self, partition: int, transaction_id: int) -> None:
        if transaction_id > self._known[partition]:
            self._known[partition] = transaction_id

    # ---- appending ---------------------------------------------------------------------------------------------------------------------------------

    async def run(self, over: asyncio.Event) -> None:
        plan = self._plan
        while not over.is_set():
            wanted = plan.pipeline if self._share is None else min(plan.pipeline, self._share - self.committed)
            if self.in_flight < wanted:
                await self._submit()
            elif self.done:
                await over.wait()
            else:
                self._room.clear()
                await self._room.wait()
        while self.in_flight:  # those that are decided late count too
            self._room.clear()
            await self._room.wait()

    def _draw(self) -> tuple[list[int], list[int], list[int]]:
        """Locks to write, read and append."""
        rng, plan = self._rng, self._plan
        lock = rng.randrange(plan.locks)
        if rng.random() < HOT:
            hot = plan.locks + rng.randrange(plan.hot_locks)
            return ([hot], [lock], []) if rng.random() < 0.5 else ([lock], [hot], [])
        kind = rng.random()
        if kind < 0.7:
            return [lock], [], []
        if kind < 0.85:
            return [lock], [(lock + 1 + rng.randrange(plan.locks - 1)) % plan.locks] if plan.locks > 1 else [], []
        return ([], [], [lock]) if kind < 0.95 else ([], [], [])

    async def _submit(self) -> None:
        rng, history = self._rng, self.history
        partition = rng.randrange(self._plan.partitions)
        write, read, append = self._draw()
        mark = self._known[partition]
        number = history.begin(partition, time.monotonic())
        data = encode(history.client, number, mark, write, read, append, self._plan.payload_bytes)
        self.in_flight += 1
        try:
            future = await self._client.append_nowait(
                partition,
                data,
                write_locks=[Lock("smoke", lock) for lock in write],
                read_locks=[Lock("smoke", lock) for lock in read],
                append_locks=[Lock("smoke", lock) for lock in append],
                high_water_mark=mark,
                timeout_s=rng.uniform(*IMPATIENT_S) if rng.random() < IMPATIENT else None,
            )
        except NotAppended:
            self._end(number, Reported.NOT_APPENDED, -1)
            return
        future.add_done_callback(lambda done: self._decided(number, partition, done))

    def _decided(self, number: int, partition: int, done: asyncio.Future[Receipt]) -> None:
        error = done.exception()
        match error:
            case None:
                at = done.result().transaction_id
                self.committed += 1
                self._saw(partition, at)
                self._end(number, Reported.COMMITTED, at)
            case LockConflict():
                self._saw(partition, error.winner)
                self._end(number, Reported.REJECTED, error.winner)
            case OutcomeUnknown():
                self.history.reported[number] = Reported.UNKNOWN
                resolving = asyncio.create_task(self._resolve(number, error))
                self._resolving.add(resolving)
                resolving.add_done_callback(self._resolving.discard)
            case NotAppended() | Unavailable():
                self._end(number, Reported.NOT_APPENDED, -1)
            case _:
                self.history.complaints.append(f"22: attempt {number} ended with {error!r}")
                self._end(number, Reported.NOT_APPENDED, -1)

    def _end(self, number: int, reported: Reported, transaction_id: int) -> None:
        self.history.end(number, reported, transaction_id, time.monotonic())
        self.in_flight -= 1
        self._room.set()

    async def _resolve(self, number: int, unknown: OutcomeUnknown) -> None:
        async with self._turn:
            while True:
                try:
                    receipt = await self._client.resolve(unknown)
                    break
                except Unavailable:
                    await asyncio.sleep(PAUSE_S)
                except WaltzError as error:
                    self.history.complaints.append(f"22: attempt {number} could not be resolved: {error!r}")
                    self._end(number, Reported.UNKNOWN, -1)
                    return
        if receipt is None:
            self._end(number, Reported.ABSENT, -1)
        else:
            self.committed += 1
            self._end(number, Reported.RESOLVED, receipt.transaction_id)

    # ---- the end -----------------------------------------------------------------------------------------------------------------------------------

    async def settle(self, marks: list[int]) -> None:
        """Reads its feed up to the last transaction of the partition."""
        await self._follower.wait(marks[self.history.followed])
        if self._follower.error is not None:
            self.history.complaints.append(f"9: the follower ended with {self._follower.error!r}")
        await self._follower.close()
        await self._client.close()


# ---- the process -----------------------------------------------------------------------------------------------------------------------------------


def progress_file(directory: Path, worker: int) -> Path:
    return directory / f"progress-{worker}.json"


def history_file(directory: Path, client: int) -> Path:
    return directory / f"client-{client}.npz"


def marks_file(directory: Path) -> Path:
    """The last transaction of each partition, written by `run` when no client appends any more."""
    return directory / "marks.json"


def command(python: str, cluster: str, plan: SmokePlan, directory: Path, worker: int) -> list[str]:
    return [python, "-m", "verification.smoke.clients", cluster, plan.model_dump_json(), str(directory), str(worker)]


async def _process(cluster: str, plan: SmokePlan, directory: Path, worker: int) -> None:
    clients = [SmokeClient(number, plan) for number in range(worker, plan.clients, plan.workers)]
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await asyncio.gather(*(client.connect(cluster) for client in clients))
    telling = asyncio.create_task(_announce(clients, progress_file(directory, worker)))
    try:
        await asyncio.gather(*(client.run(over) for client in clients))
        _write_progress(clients, progress_file(directory, worker), settled=True)
    finally:
        telling.cancel()
    while not marks_file(directory).exists():
        await asyncio.sleep(PAUSE_S)
    marks = json.loads(marks_file(directory).read_text())
    async with asyncio.timeout(plan.heal_s):
        await asyncio.gather(*(client.settle(marks) for client in clients))
    for client in clients:
        client.history.save(history_file(directory, client.history.client))


async def _announce(clients: list[SmokeClient], path: Path) -> None:
    while True:
        _write_progress(clients, path, settled=False)
        await asyncio.sleep(PROGRESS_EVERY_S)


def _write_progress(clients: list[SmokeClient], path: Path, *, settled: bool) -> None:
    reported = {
        "committed": sum(client.committed for client in clients),
        "attempts": sum(len(client.history.reported) for client in clients),
        "done": all(client.done for client in clients),
        "settled": settled,
    }
    new = path.with_suffix(".new")
    new.write_text(json.dumps(reported))
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Some clients of a smoke run.")
    parser.add_argument("cluster")
    parser.add_argument("plan", type=SmokePlan.model_validate_json)
    parser.add_argument("directory", type=Path)
    parser.add_argument("worker", type=int)
    given = parser.parse_args()
    try:
        asyncio.run(_process(given.cluster, given.plan, given.directory, given.worker))
    except WaltzError as error:
        raise SystemExit(f"a client ended with {error!r}") from None


if __name__ == "__main__":
    main()
