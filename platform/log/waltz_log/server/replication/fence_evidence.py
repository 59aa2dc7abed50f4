"""Whether what a replica reports shows that another owner has written to it, and what follows: the session ends, or the partition is closed until an
operator acts (docs/internals/recovery.md, A coordinator that was set back)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

from waltz_log.core.metadata import PartitionMetadata
from waltz_log.core.recovery import majority
from waltz_log.errors import CoordinatorBehind, Fenced, ReplicaFenced, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.replication.session_record import SessionRecord

__all__ = ["FenceEvidence"]

FENCE_PASSED_MAX = 1 << 62
"""A session is not raised above a higher fence: session numbers are signed 64-bit integers, and later numbers must fit."""

log = get_logger(__name__)


class JudgedSession(Protocol):
    """A store session as far as it matters here."""

    partition: int
    session: int
    assigned: tuple[str, ...]
    failed: WaltzError | None
    before: PartitionMetadata

    @property
    def open_for_appends(self) -> bool: ...
    @property
    def reached(self) -> frozenset[str]: ...
    async def write_metadata(self, wanted: PartitionMetadata) -> None: ...
    def fail(self, error: WaltzError) -> None: ...


class FenceEvidence:
    """What the replicas of one owner report. `begin` starts the next session."""

    def __init__(self, session: JudgedSession, recorded: SessionRecord) -> None:
        self.made_clean: dict[str, int] = {}
        """By replica, the newest session in which this owner may have made it clean. It is kept longer than a `ReplicaSession`: a learner that is
        dropped may be added again within the session."""
        self._session = session
        self._recorded = recorded
        self._refused: Counter[str] = Counter()
        """How often each replica refused this session without evidence of an owner that the metadata does not know."""

    def begin(self) -> None:
        self._refused.clear()

    async def judge(self, replica: str, error: Fenced) -> None:
        """A replica has seen a newer session, or this one of another owner. Ends the session permanently where the replica is clean in a session that
        the metadata does not know: only an owner makes a replica clean.

        A fence alone is no evidence, because any call with a higher number raises it. The replica counts as failed until the session is open without
        it. If it cannot open without it, the session ends, and the next one gets a number above the fence. A newer owner explains the fence, but has
        changed the metadata, so that nothing is written here."""
        session = self._session
        if session.failed is not None or error.newer < session.session or (error.newer == session.session and error.mine != session.session):
            return
        clean = error.clean_session if isinstance(error, ReplicaFenced) else -1
        if clean > session.session or (clean == session.session and self.made_clean.get(replica) != clean):
            await self.close_behind(CoordinatorBehind(partition=session.partition, replica=replica, recorded=session.before.session, found=clean))
            return
        self._refused[replica] += 1
        if error.newer < FENCE_PASSED_MAX and (session.open_for_appends or (self._refused[replica] > 1 and self._lacks_majority)):
            await self._pass_fence(replica, error)

    @property
    def _lacks_majority(self) -> bool:
        """Whether the replicas that answered and did not refuse the session are too few to open it."""
        assigned = self._session.assigned
        answered = [name for name in assigned if name in self._session.reached and not self._refused[name]]
        return len(answered) < majority(len(assigned))

    async def _pass_fence(self, replica: str, error: Fenced) -> None:
        """Ends the session. The next one gets a number above the fence."""
        session = self._session
        try:
            async with self._recorded.turn:
                recorded = self._recorded.current
                await session.write_metadata(replace(recorded, session=max(error.newer, recorded.session)))
                session.fail(error)
        except WaltzError as failed:
            session.fail(failed)
            return
        log.warning(
            "raising the session number above the fence", partition=session.partition, replica=replica, session=session.session, fence=error.newer
        )

    async def close_behind(self, error: CoordinatorBehind) -> None:
        """Ends the session, permanently if the metadata is still as this session wrote it: a newer session of another owner would explain what was
        found on the replica. If the coordinator does not answer, only this session ends."""
        session = self._session
        try:
            async with self._recorded.turn:
                await session.write_metadata(replace(self._recorded.current, newer_session=error.found))
                session.fail(error)
        except WaltzError as failed:
            session.fail(failed)
            return
        log.error(
            "coordinator is behind the replicas", partition=session.partition, replica=error.replica, recorded=error.recorded, found=error.found
        )
