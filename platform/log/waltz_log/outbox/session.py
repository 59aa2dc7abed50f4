"""One connection of an outbox to its cluster: claims the outbox, makes a lane for each partition that something is owed to, and ends with the first
error that is not a lane's own business. The next session starts from the ledger, as another process would.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from typing import NamedTuple, Protocol

import structlog

from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient
from waltz_log.client.owners.owners import ConnectCoordinator, Owners
from waltz_log.client.transactions.follow import Apply, Follower
from waltz_log.core.ports import Network
from waltz_log.outbox import lane as lanes
from waltz_log.outbox.calls import Calls, Handler
from waltz_log.outbox.identity import MOUNTS_PER_EPOCH, claim, declare, renew
from waltz_log.outbox.lane import Lane, Owing, SequencesUsedUp, sequences_left
from waltz_log.outbox.ledger import Entry, Ledger, Place
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.writer import JournalWriter

__all__ = ["Followed", "Session", "Surroundings"]

log = structlog.get_logger(__name__)


class Followed:
    """State that the application builds from a partition's feed; `applied` outlives the sessions."""

    def __init__(self, partition: int, apply: Apply, after: int) -> None:
        self.partition = partition
        self.apply = apply
        self.applied = after
        self.follower: Follower | None = None
        self.running = asyncio.Event()


class Surroundings(NamedTuple):
    """What an outbox was given."""

    connect: ConnectCoordinator
    network: Network
    client_settings: ClientSettings
    settings: OutboxSettings
    handlers: Mapping[str, Handler]
    followed: Mapping[int, Followed]
    rng: random.Random


class Telling(Owing, Protocol):
    def connected(self, partitions: int) -> None: ...


class Session:
    def __init__(self, given: Surroundings, ledger: Ledger, writer: JournalWriter, owing: Telling) -> None:
        self._given = given
        self._ledger = ledger
        self._writer = writer
        self._owing = owing
        self._owners = Owners(given.connect, given.network, given.client_settings, given.rng)
        self._lanes: dict[int, Lane] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client_id = 0
        self._mount_sequence = 0
        self._forwarding = False
        self._client: WaltzClient | None = None

    async def run(self) -> None:
        """Until an error ends it; returns only where another client id is wanted or was taken."""
        await self._owners.open()
        self._client = WaltzClient(self._owners, 0, self._given.client_settings, self._given.rng)  # for feeds; it appends nothing
        try:
            identity = await claim(self._owners, self._ledger, self._writer, lambda: uuid.UUID(int=self._given.rng.getrandbits(128)).hex)
            self._client_id, self._mount_sequence = identity.client_id, identity.epoch * MOUNTS_PER_EPOCH
            self._owing.connected(self._owners.parameters.partitions)
            for entry in self._ledger.entries.values():
                entry.place = Place.READY if entry.attempt is None else Place.SENT
            if self._worn():
                await self._renew()
                return
            for followed in self._given.followed.values():
                self._start(self._follow(followed))
            self._forwarding = True
            for partition, entries in sorted(_by_partition(self._ledger.entries.values()).items()):
                self._lane(partition, entries)
            await self._ended
        except SequencesUsedUp:
            return  # the next session begins with another client id
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.close()

    def arrive(self, entries: list[Entry]) -> None:
        """Intents that are owed from now on."""
        if not self._forwarding:
            return  # they stand in the ledger, and wait for the claim or for another client id
        for partition, of_partition in _by_partition(entries).items():
            lane = self._lanes.get(partition)
            if lane is None:
                self._lane(partition, of_partition)
            else:
                for entry in of_partition:
                    lane.arrive(entry)

    def finished(self, entry: Entry) -> None:
        lane = self._lanes.get(entry.intent.partition)
        if lane is not None:
            lane.finished(entry)

    # ---- lanes ---------------------------------------------------------------------------------------------------------------------------------

    def _lane(self, partition: int, entries: list[Entry], *, settle_only: bool = False) -> None:
        if partition >= self._owners.parameters.partitions:
            for entry in entries:
                self._owing.give_up(entry, f"no such partition: partition={partition} partitions={self._owners.parameters.partitions}")
            return
        given = self._given

        def calls(lane: Lane) -> Calls:
            return Calls(lane, given.handlers, lambda: self._follower(partition), given.settings, self._ledger, self._writer, given.rng)

        lane = self._lanes[partition] = Lane(
            partition,
            self._client_id,
            self._mount_sequence,
            self._owners,
            given.client_settings,
            given.settings,
            self._ledger,
            self._writer,
            self._owing,
            calls,
            given.rng,
            entries,
            settle_only=settle_only,
        )
        self._start(self._run_lane(lane))

    async def _run_lane(self, lane: Lane) -> None:
        await declare(self._owners, self._ledger, self._writer, lane.partition)
        await lane.run()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _worn(self) -> bool:
        left = sequences_left(self._given.client_settings)
        return any(self._ledger.next_sequence(each, self._client_id) + left >= lanes.SEQUENCES for each in self._ledger.partitions)

    async def _renew(self) -> None:
        """Another client id, once every lane knows what became of all it sent under this one."""
        in_doubt = _by_partition(entry for entry in self._ledger.entries.values() if entry.attempt is not None)
        for partition, entries in sorted(in_doubt.items()):
            self._lane(partition, entries, settle_only=True)
        settled = asyncio.ensure_future(self._all_settled())
        either: list[asyncio.Future[None]] = [self._ended, settled]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
        finally:
            settled.cancel()
        await renew(self._owners, self._ledger, self._writer)

    async def _all_settled(self) -> None:
        for lane in list(self._lanes.values()):
            await lane.settled.wait()

    # ---- followers -----------------------------------------------------------------------------------------------------------------------------

    async def _follow(self, followed: Followed) -> None:
        """Keeps one follower running. The application's errors end one, and another goes on where it stopped."""
        assert self._client is not None
        backoff = Backoff(self._given.client_settings.retry_base_s, self._given.settings.retry_cap_s, self._given.rng)
        follower: Follower | None = None
        try:
            while True:
                follower = followed.follower = await self._client.follow(followed.partition, followed.apply, followed.applied)
                followed.running.set()
                reached = followed.applied
                try:
                    await follower.wait(0x7FFF_FFFF_FFFF_FFFF)
                except Exception as error:  # whatever `apply` raised; it is reported, not ours to mend
                    log.warning(
                        "outbox follower ended", partition=followed.partition, applied=follower.applied, error=f"{type(error).__name__}: {error}"
                    )
                followed.running.clear()
                followed.applied = follower.applied
                if followed.applied > reached:
                    backoff.reset()
                await asyncio.sleep(backoff.next_s())
        finally:
            followed.running.clear()
            if follower is not None:
                await follower.close()
                followed.applied = follower.applied

    async def _follower(self, partition: int) -> Follower | None:
        """The follower of a partition, once it runs; None where the application follows none."""
        followed = self._given.followed.get(partition)
        if followed is None:
            return None
        await followed.running.wait()
        return followed.follower


def _by_partition(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.intent.partition, []).append(entry)
    return found
