"""When an open store session is followed by the next one of the same owner: after a number of transactions, when its replicas change, and when only
the low-water mark prevents retention from trimming.

A new session raises the low-water marks, which shortens recovery. It also raises the session numbers, which lets recovery detect a replica that was
restored from an older copy (Waltz Server, Recovery Procedure; docs/internals/recovery.md). Waits for a moment at which it is a short pause: a
majority follows closely and the coordinator answers. Decides no safety: a renewal that fails ends the session, and the next one recovers.
"""

from __future__ import annotations

import asyncio

from waltz_log.background_tasks import run_until_first_ends
from waltz_log.coordination.followed import REPLICA_ASSIGNMENT
from waltz_log.core import metadata as paths
from waltz_log.core.recovery import majority
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.server.replication.store_session import StoreSession

__all__ = ["Renewal"]

log = get_logger(__name__)

COORDINATOR_TIMEOUT_S = 1.0
"""A coordinator that does not answer a read in this time would not answer the write in a short pause either."""

FILLED_WITHIN_S = 0.5
"""How long appends wait until replicas that are being filled have the end of the log. Longer, and it is tried again later."""


class Renewal:
    """The renewal of one open store session. `run` it as long as that lives."""

    def __init__(self, store: StoreSession, append: AppendTask, settings: ServerSettings) -> None:
        self._store = store
        self._append = append
        self._settings = settings
        self._assigned = store.assigned

    async def run(self) -> None:
        """Until cancelled, or until a renewal that failed ended the session, which is raised."""
        await run_until_first_ends(self._renew_when_due(), self._watch())

    async def _renew_when_due(self) -> None:
        while True:
            await self._store.advanced.wait_for(self._due)
            if not await self._renewed():
                await asyncio.sleep(self._settings.replica_retry_max_s)

    def _due(self) -> bool:
        store = self._store
        since = store.committed - store.resolved
        if since >= self._settings.checkpoint_transactions or (store.checkpoint_due and since > 0):
            return True
        return self._assigned != store.assigned or store.filling

    async def _watch(self) -> None:
        """Keeps `_assigned` what the coordinator says."""
        version: int | None = None
        while True:
            try:
                await self._store.coordinator.wait_changed(paths.REPLICAS, version)
                node = await self._store.probes.known.get(self._store.coordinator, REPLICA_ASSIGNMENT)
            except WaltzError as error:
                log.warning("replica assignment not read", partition=self._store.partition, error=str(error))
                await asyncio.sleep(self._settings.replica_retry_max_s)
                continue
            version = None if node is None else node.version
            assigned = self._store.probes.known.accept(REPLICA_ASSIGNMENT, node, expected=True)
            found = () if assigned is None else assigned.replicas.get(self._store.partition, ())
            if found:
                self._assigned = found
                self._store.advanced.notify()

    async def _renewed(self) -> bool:
        """False if this is not a good moment; nothing happened then."""
        store = self._store
        # Replicas may have been assigned since the last check: a majority of the new ones must also be able to continue at once.
        wanted = self._assigned
        following = store.live.intersection(store.assigned)
        if len(following) < majority(len(store.assigned)):
            return False
        able = following.intersection(wanted)
        if len(able) < majority(len(wanted)):
            # With these replicas the partition could not accept appends yet. They are filled first, during the session, and count once they hold
            # everything.
            await store.fill(frozenset(wanted).difference(store.assigned))
            if len(able | store.nearly_filled(wanted)) < majority(len(wanted)):
                return False
        else:
            await store.fill(frozenset())
            if not self._due():
                return True
        if not await self._coordinator_answers():
            return False
        await self._append.hold()
        try:
            renewed = await self._renewed_when_filled(wanted)
            if renewed:
                store.checkpoint_due = False  # until retention asks again: otherwise every append would renew the session until its next round
            return renewed
        finally:
            self._append.release()

    async def _renewed_when_filled(self, wanted: tuple[str, ...]) -> bool:
        """Waits a short while for replicas that are being filled to sync the last blocks."""
        store = self._store
        end = asyncio.get_running_loop().time() + FILLED_WITHIN_S
        while not (renewed := await store.renew(wanted)):
            if not store.idle or not store.nearly_filled(wanted) or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(FILLED_WITHIN_S / 50)
        return renewed

    async def _coordinator_answers(self) -> bool:
        try:
            async with asyncio.timeout(COORDINATOR_TIMEOUT_S):
                await self._store.coordinator.get(paths.REPLICAS)
        except (TimeoutError, WaltzError):
            return False
        return True
