"""One connection of an outbox to its cluster. It claims the outbox, creates a lane for each partition with owed intents, and ends with the first
error that a lane does not handle itself. The next session starts from the ledger, as another process would.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from waltz_log.background_tasks import TaskSet, end_tasks, start_task
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import Seeds
from waltz_log.client.transactions.follow import Apply, Follower
from waltz_log.core.ports import Network
from waltz_log.loggers import get_logger
from waltz_log.outbox import lane as lanes
from waltz_log.outbox.calls import Calls, Handler
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.lane import IntentListener, Lane, SequencesUsedUp, sequences_left
from waltz_log.outbox.ledger import Entry, Ledger, Place
from waltz_log.outbox.outbox_identity import MOUNTS_PER_EPOCH, claim, declare, renew
from waltz_log.outbox.settings import OutboxSettings

if TYPE_CHECKING:
    from waltz_log.client.append.traced_appends import TracedAppends

__all__ = ["Followed", "OutboxDependencies", "Session"]

log = get_logger(__name__)


class Followed:
    """State that the application builds from a partition's feed; `applied` outlives the sessions."""

    def __init__(self, partition: int, apply: Apply, after: int) -> None:
        self.partition = partition
        self.apply = apply
        self.applied = after
        self.follower: Follower | None = None
        self.running = asyncio.Event()


class OutboxDependencies(NamedTuple):
    """The components and settings that an outbox uses."""

    seeds: Seeds
    network: Network
    client_settings: ClientSettings
    settings: OutboxSettings
    handlers: Mapping[str, Handler]
    followed: Mapping[int, Followed]
    rng: random.Random
    traced: TracedAppends | None
    """None: appends are not traced."""


class SessionListener(IntentListener, Protocol):
    def connected(self, partitions: int) -> None: ...


class Session:
    def __init__(self, dependencies: OutboxDependencies, ledger: Ledger, writer: JournalWriter, listener: SessionListener) -> None:
        self._dependencies = dependencies
        self._ledger = ledger
        self._writer = writer
        self._listener = listener
        self._owners = Owners(dependencies.seeds, dependencies.network, dependencies.client_settings, dependencies.rng)
        self._lanes: dict[int, Lane] = {}
        self._tasks = TaskSet(self._failed)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client_id = 0
        self._mount_sequence = 0
        self._forwarding = False
        self._client: WaltzClient | None = None

    async def run(self) -> None:
        """Runs until an error. Returns only if another client id is needed or was assigned."""
        await self._owners.open()
        self._client = WaltzClient(self._owners, self._dependencies.client_settings, self._dependencies.rng)  # for feeds; it appends nothing
        try:
            identity = await claim(self._owners, self._ledger, self._writer, lambda: uuid.UUID(int=self._dependencies.rng.getrandbits(128)).hex)
            self._client_id, self._mount_sequence = identity.client_id, identity.epoch * MOUNTS_PER_EPOCH
            self._listener.connected(self._owners.parameters.partitions)
            for entry in self._ledger.entries.values():
                entry.place = Place.READY if entry.attempt is None else Place.SENT
            if self._sequences_used_up():
                await self._renew()
                return
            for followed in self._dependencies.followed.values():
                self._tasks.start(self._follow(followed))
            self._forwarding = True
            for partition, entries in sorted(_by_partition(self._ledger.entries.values()).items()):
                self._lane(partition, entries)
            await self._ended
        except SequencesUsedUp:
            return  # the next session begins with another client id
        finally:
            try:
                await self._tasks.end()
            finally:
                await self._client.close()

    def arrive(self, entries: list[Entry]) -> None:
        """Forwards intents that are owed from now on."""
        if not self._forwarding:
            return  # the ledger keeps them until the claim or another client id
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
                self._listener.give_up(entry, f"no such partition: partition={partition} partitions={self._owners.parameters.partitions}")
            return
        parts = self._dependencies

        def calls(lane: Lane) -> Calls:
            return Calls(lane, parts.handlers, lambda: self._follower(partition), parts.settings, self._ledger, self._writer, parts.rng)

        lane = self._lanes[partition] = Lane(
            partition,
            self._client_id,
            self._mount_sequence,
            self._owners,
            parts.client_settings,
            parts.settings,
            self._ledger,
            self._writer,
            self._listener,
            calls,
            parts.rng,
            entries,
            settle_only=settle_only,
            traced=parts.traced,
        )
        self._tasks.start(self._run_lane(lane))

    async def _run_lane(self, lane: Lane) -> None:
        await declare(self._owners, self._ledger, self._writer, lane.partition)
        await lane.run()

    def _failed(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _sequences_used_up(self) -> bool:
        left = sequences_left(self._dependencies.client_settings)
        return any(self._ledger.next_sequence(each, self._client_id) + left >= lanes.SEQUENCES for each in self._ledger.partitions)

    async def _renew(self) -> None:
        """Assigns another client id once every lane has resolved all that it sent under this one."""
        in_doubt = _by_partition(entry for entry in self._ledger.entries.values() if entry.attempt is not None)
        for partition, entries in sorted(in_doubt.items()):
            self._lane(partition, entries, settle_only=True)
        settled = start_task(self._all_settled())
        either: list[asyncio.Future[None]] = [self._ended, settled]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
        finally:
            await end_tasks([settled])
        await renew(self._owners, self._ledger, self._writer)

    async def _all_settled(self) -> None:
        for lane in list(self._lanes.values()):
            await lane.settled.wait()

    # ---- followers -----------------------------------------------------------------------------------------------------------------------------

    async def _follow(self, followed: Followed) -> None:
        """Keeps one follower running. An error of the application ends a follower, and another one continues where it stopped."""
        assert self._client is not None
        backoff = Backoff(self._dependencies.client_settings.retry_base_s, self._dependencies.settings.retry_cap_s, self._dependencies.rng)
        follower: Follower | None = None
        try:
            while True:
                follower = followed.follower = await self._client.follow(followed.partition, followed.apply, followed.applied)
                followed.running.set()
                reached = followed.applied
                try:
                    await follower.wait(0x7FFF_FFFF_FFFF_FFFF)
                except Exception as error:  # any error of `apply` is the application's: report it and start another follower
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
        """The running follower of a partition; None if the application registered none."""
        followed = self._dependencies.followed.get(partition)
        if followed is None:
            return None
        await followed.running.wait()
        return followed.follower


def _by_partition(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.intent.partition, []).append(entry)
    return found
