"""Three dispatchers on a log in memory that judges locks as the servers do, delays its feed, and loses answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from demo.checks import fold
from demo.dispatcher import Dispatcher, day_starts_s
from demo.flights import AIRPORTS, Flight
from demo.legs import HEADER_LEG, Fleet, NumberingBroken, partition_of
from waltz_log.client import Lock, Receipt
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown, Unavailable

PARTITIONS = 4


class MemoryLog:
    """Appends at once, feeds later, and now and then does not say what became of an append."""

    def __init__(self, seed: int, *, locks_work: bool = True, faults: bool = True) -> None:
        self.records: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        self._locks: dict[Lock, int] = {}
        self._chance = random.Random(seed)
        self._locks_work = locks_work
        self._faults = faults
        self._unknown: dict[int, Receipt | None] = {}

    async def append(self, partition: int, data: bytes, *, header: int, write_locks: Sequence[Lock], high_water_mark: int | None) -> Receipt:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        if self._faults and self._chance.random() < 0.02:
            raise NotAppended(partition=partition, reason="session changed") if self._chance.random() < 0.5 else Unavailable(reason="moving")
        lost = self._faults and self._chance.random() < 0.05
        if lost and self._chance.random() < 0.5:
            raise self._lose(partition, None)
        for lock in write_locks:
            winner = self._locks.get(lock, -1)
            if self._locks_work and high_water_mark is not None and winner > high_water_mark:
                raise LockConflict(partition=partition, winner=winner)
        self.records[partition].append((header, data))
        transaction_id = len(self.records[partition]) - 1
        self._locks.update(dict.fromkeys(write_locks, transaction_id))
        receipt = Receipt(partition, transaction_id, 0)
        if lost:
            raise self._lose(partition, receipt)
        return receipt

    def _lose(self, partition: int, receipt: Receipt | None) -> OutcomeUnknown:
        sequence = len(self._unknown)
        self._unknown[sequence] = receipt
        return OutcomeUnknown(partition=partition, client_id=1, sequence=sequence, since=-1, reason="connection")

    async def resolve(self, error: OutcomeUnknown) -> Receipt | None:
        await asyncio.sleep(0)
        if self._chance.random() < 0.3:
            raise Unavailable(reason="moving")
        return self._unknown[error.sequence]


class MemoryFollower:
    """Applies the records of one partition in small steps, behind the log."""

    def __init__(self, log: MemoryLog, partition: int, fleet: Fleet, chance: random.Random) -> None:
        self.applied = -1
        self._records = log.records[partition]
        self._fleet = fleet
        self._chance = chance

    async def run(self) -> None:
        while True:
            upto = min(len(self._records), self.applied + 1 + self._chance.randrange(3))
            self._fleet.apply(self._records[self.applied + 1 : upto])
            self.applied = upto - 1
            await asyncio.sleep(0)

    async def wait(self, transaction_id: int) -> None:
        while self.applied < transaction_id:
            await asyncio.sleep(0)


def flights_of(airport: str) -> list[Flight]:
    chance = random.Random(airport)
    tails = ["N1", "N2", "N3", "N4", None]
    return [Flight(airport, "IAH", "UA", n, chance.choice(tails), "2013-01-01", f"{n:04}", 0, 0, 60, 100) for n in range(100)]


async def fly(log: MemoryLog, seed: int) -> list[Dispatcher]:
    dispatchers = []
    async with asyncio.TaskGroup() as group:
        feeds, work = [], []
        for airport in AIRPORTS:
            fleet = Fleet()
            followers = [MemoryFollower(log, partition, fleet, random.Random(f"{seed} {airport} {partition}")) for partition in range(PARTITIONS)]
            feeds += [group.create_task(follower.run()) for follower in followers]
            dispatchers.append(Dispatcher(log, fleet, followers, window=16, pause_s=0.0))
            work.append(group.create_task(dispatchers[-1].run(flights_of(airport))))
        await asyncio.wait(work)
        for feed in feeds:
            feed.cancel()
    return dispatchers


ALL_FLIGHTS = [flight for airport in AIRPORTS for flight in flights_of(airport)]


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_every_flight_is_one_leg_and_legs_are_dense(seed: int) -> None:
    log = MemoryLog(seed)
    dispatchers = await fly(log, seed)
    assert sum(dispatcher.counts.appended for dispatcher in dispatchers) == len(ALL_FLIGHTS)
    assert sum(len(records) for records in log.records) == len(ALL_FLIGHTS)
    assert sum(dispatcher.counts.conflicts for dispatcher in dispatchers) > 0
    assert sum(dispatcher.counts.settled for dispatcher in dispatchers) > 0
    fleet = Fleet()
    for records in log.records:
        fleet.apply(records)  # raises where legs are not dense
    expected = fold(ALL_FLIGHTS)
    assert {tail: fleet.totals(tail) for tail in expected} == expected


async def test_without_locks_the_numbering_breaks_and_the_dispatchers_see_it() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await fly(MemoryLog(1, locks_work=False, faults=False), 1)
    assert raised.group_contains(NumberingBroken)


async def test_flights_of_unknown_aircraft_use_no_locks_and_meet_no_conflict() -> None:
    log = MemoryLog(1, faults=False)
    fleet = Fleet()
    followers = [MemoryFollower(log, partition, fleet, random.Random(partition)) for partition in range(PARTITIONS)]
    dispatcher = Dispatcher(log, fleet, followers, window=4)
    flights = [flight._replace(tail=None) for flight in flights_of("EWR")]
    await dispatcher.run(flights)
    assert (dispatcher.counts.appended, dispatcher.counts.conflicts) == (len(flights), 0)
    assert [len(records) for records in log.records] == [sum(partition_of(f, PARTITIONS) == p for f in flights) for p in range(PARTITIONS)]
    assert all(header != HEADER_LEG for records in log.records for header, _ in records)


async def test_flights_of_one_aircraft_keep_their_order_however_many_are_under_way() -> None:
    log = MemoryLog(3)
    await fly(log, 3)
    seen: dict[tuple[str, str], str] = {}
    for records in log.records:
        for header, data in records:
            if header == HEADER_LEG:
                leg = json.loads(data)
                key = leg["tail"], leg["origin"]
                assert leg["scheduled"] >= seen.get(key, "")
                seen[key] = leg["scheduled"]


async def test_a_day_is_dispatched_when_its_time_has_come_and_not_before() -> None:
    log = MemoryLog(1, faults=False)
    followers = [MemoryFollower(log, partition, Fleet(), random.Random(partition)) for partition in range(PARTITIONS)]
    first, last = flights_of("EWR")[0]._replace(tail=None), flights_of("EWR")[1]._replace(tail=None, date="2013-12-31")
    start_s = asyncio.get_running_loop().time()
    await Dispatcher(log, Fleet(), followers, year_s=0.5).run([first, last])
    assert asyncio.get_running_loop().time() - start_s >= day_starts_s("2013-12-31", 0.5)
    assert [day_starts_s(date, 73.0) for date in ("2013-01-01", "2013-01-02", "2013-12-31")] == pytest.approx([0.0, 0.2, 72.8])
