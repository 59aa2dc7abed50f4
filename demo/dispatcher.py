"""The dispatcher of one airport: an ordinary application on the log. The demo runs it as `python -m demo.dispatcher EWR --cluster …`.

It decides from the state that the feed gave it (the aircraft's last leg) and appends under a write lock on the tail number, with the mark up to which
it has read. If that state was too old, the append is rejected. It then reads on up to the transaction that won, decides again and appends again.

Invariants: flights of one aircraft are appended in this airport's time order, one at a time; several hundred aircraft at once. An append whose
outcome is unknown is settled from the log before the next append of that aircraft.

Writes one line of JSON with its counts to stdout every half second; ends when its standard input ends, so it never outlives the demo.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from demo.flights import AIRPORTS, Flight, flights_archive, read_flights
from demo.legs import HEADER_LEG, HEADER_UNNAMED, LOCK_NAME, TOPIC, Fleet, leg_data, partition_of
from waltz_log.client import Lock, Receipt, TopicHandle, TopicRecord, WaltzClient
from waltz_log.errors import ClusterUnavailable, ConnectionLost, LockConflict, NotAppended, NotOwner, OutcomeUnknown, Unavailable

__all__ = ["Counts", "Dispatcher", "day_starts_s"]

WINDOW = 512
"""Flights in progress at once: enough to fill the blocks, few enough that the airports stay close in time and conflict on the same aircraft."""

REPORT_INTERVAL_S = 0.5
PAUSE_S = 0.2
"""Before a retry while no server serves the partition."""


class Follower(Protocol):
    @property
    def applied(self) -> int: ...

    async def wait(self, transaction_id: int) -> None: ...


class Log(Protocol):
    """The part of the client that a dispatcher uses, by partition of the topic."""

    async def append(self, partition: int, data: bytes, *, header: int, write_locks: Sequence[Lock], high_water_mark: int | None) -> Receipt: ...

    async def resolve(self, error: OutcomeUnknown) -> Receipt | None: ...


class TopicLog:
    """A `Log` over a topic."""

    def __init__(self, client: WaltzClient, topic: TopicHandle) -> None:
        self.resolve = client.resolve
        self._topic = topic

    async def append(self, partition: int, data: bytes, *, header: int, write_locks: Sequence[Lock], high_water_mark: int | None) -> Receipt:
        return await self._topic.append(data, partition=partition, header=header, write_locks=write_locks, high_water_mark=high_water_mark)


@dataclass
class Counts:
    """What a dispatcher has done so far."""

    appended: int = 0
    conflicts: int = 0
    settled: int = 0
    """Appends whose outcome was unknown at first and then read from the log."""
    done: bool = False


class Dispatcher:
    """Appends flights through `log`, deciding from `fleet`, which the followers (one per partition) keep up to date."""

    def __init__(
        self, log: Log, fleet: Fleet, followers: Sequence[Follower], *, window: int = WINDOW, pause_s: float = PAUSE_S, year_s: float = 0.0
    ) -> None:
        self.counts = Counts()
        self._log = log
        self._fleet = fleet
        self._followers = followers
        self._pause_s = pause_s
        self._year_s = year_s
        self._room = asyncio.Semaphore(window)
        self._waiting: dict[str, deque[Flight]] = {}

    async def run(self, flights: Iterable[Flight]) -> None:
        """Appends all of `flights`, in the given order, each day's when its day has come. Returns when each is in the log."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        today = ""
        async with asyncio.TaskGroup() as group:
            for flight in flights:
                if flight.date != today:
                    today = flight.date
                    await asyncio.sleep(max(0.0, start_s + day_starts_s(today, self._year_s) - loop.time()))
                await self._room.acquire()
                if flight.tail is None:
                    group.create_task(self._unnamed(flight))
                elif flight.tail in self._waiting:
                    self._waiting[flight.tail].append(flight)
                else:
                    self._waiting[flight.tail] = deque([flight])
                    group.create_task(self._aircraft(flight.tail))
        self.counts.done = True

    async def _unnamed(self, flight: Flight) -> None:
        partition = partition_of(flight, len(self._followers))
        data = leg_data(flight, None)
        while True:
            if await self._append(partition, data, HEADER_UNNAMED, (), None) is not None:
                return self._finished()
            await asyncio.sleep(self._pause_s)

    async def _aircraft(self, tail: str) -> None:
        """Appends one aircraft's flights in order, until none waits."""
        lock = (Lock(LOCK_NAME, tail),)
        waiting = self._waiting[tail]
        partition = partition_of(waiting[0], len(self._followers))
        follower = self._followers[partition]
        while waiting:
            flight = waiting[0]
            mark = follower.applied  # read before the fleet: what we know may be newer than what we claim to know, never older
            data = leg_data(flight, self._fleet.totals(tail).plus(flight))
            try:
                receipt = await self._append(partition, data, HEADER_LEG, lock, mark)
            except LockConflict as conflict:
                self.counts.conflicts += 1
                await follower.wait(conflict.winner)
                continue
            if receipt is None:
                await asyncio.sleep(self._pause_s)
                continue
            waiting.popleft()
            self._finished()
            if waiting:
                await follower.wait(receipt.transaction_id)
        del self._waiting[tail]

    async def _append(self, partition: int, data: bytes, header: int, locks: tuple[Lock, ...], mark: int | None) -> Receipt | None:
        """The receipt, or None if it is certain that nothing was appended and the caller should decide again."""
        try:
            return await self._log.append(partition, data, header=header, write_locks=locks, high_water_mark=mark)
        except OutcomeUnknown as error:
            return await self._settle(error)
        except (NotAppended, Unavailable, ClusterUnavailable, NotOwner):
            return None

    async def _settle(self, error: OutcomeUnknown) -> Receipt | None:
        self.counts.settled += 1
        while True:
            try:
                return await self._log.resolve(error)
            except (Unavailable, ClusterUnavailable, NotOwner, ConnectionLost):
                await asyncio.sleep(self._pause_s)

    def _finished(self) -> None:
        self.counts.appended += 1
        self._room.release()


def day_starts_s(date: str, year_s: float) -> float:
    """Seconds after the start of the year at which the dispatchers receive a day's schedule. `year_s`: the duration of the year."""
    return (datetime.date.fromisoformat(date).timetuple().tm_yday - 1) / 365 * year_s


async def _report(counts: Counts) -> None:
    while True:
        print(json.dumps(asdict(counts)), flush=True)
        await asyncio.sleep(REPORT_INTERVAL_S)


async def _parent_gone() -> None:
    """Returns when standard input ends: the demo holds its other end open as long as it runs."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def dispatch(airport: str, cluster: str, part: slice, year_s: float) -> None:
    """Appends this airport's flights, or a part of them, with the year in `year_s` (or as fast as possible)."""
    flights = read_flights(flights_archive(), airport)[part]
    fleet = Fleet()

    def apply(records: list[TopicRecord]) -> None:
        fleet.apply((record.header, record.value) for record in records)

    async with WaltzClient.open(cluster) as client:
        topic = await client.topic(TOPIC)
        followers = [await topic.follow(partition, apply) for partition in range(topic.partitions)]
        dispatcher = Dispatcher(TopicLog(client, topic), fleet, followers, year_s=year_s)
        dispatcher.counts.appended = part.start
        report = asyncio.create_task(_report(dispatcher.counts))
        try:
            await dispatcher.run(flights)
        finally:
            report.cancel()
            print(json.dumps(asdict(dispatcher.counts)), flush=True)
        for follower in followers:
            if follower.error is not None:
                raise follower.error
            await follower.close()


async def _until_parent_gone(work: asyncio.Task[None]) -> None:
    gone = asyncio.create_task(_parent_gone())
    await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not work.done():
        work.cancel()
    await work


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.dispatcher", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("airport", choices=AIRPORTS)
    parser.add_argument("--cluster", required=True, help="connection string of the cluster")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first flights, which another run has appended")
    parser.add_argument("--limit", type=int, default=None, help="append no flight after this number of them")
    parser.add_argument("--year", type=float, default=0.0, metavar="SECONDS", help="how long the year 2013 takes; 0: as short as it gets")
    arguments = parser.parse_args()
    part = slice(arguments.skip, arguments.limit)
    await _until_parent_gone(asyncio.create_task(dispatch(arguments.airport, arguments.cluster, part, arguments.year)))


if __name__ == "__main__":
    asyncio.run(_main())
