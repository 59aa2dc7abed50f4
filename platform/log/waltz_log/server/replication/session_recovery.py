"""Where the replica sessions of one store session meet while the old session's mark is being resolved.

Holds what each replica reported and asks the pure rules (`waltz_log.core.recovery`) after each change. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Container

from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.core.recovery import Classification, ReplicaReport, awaits_absent, classify, closed_at, majority, resolve, unrecorded_session
from waltz_log.errors import CoordinatorBehind
from waltz_log.loggers import get_logger
from waltz_log.server.base.pulse import Pulse

__all__ = ["Recovery"]

log = get_logger(__name__)


class Recovery:
    """`resolved` is None until the mark is decided; it never changes afterwards. Where the old session closed in order there is nothing to vote."""

    def __init__(self, partition: int, before: PartitionMetadata, assigned: tuple[str, ...]) -> None:
        self._partition = partition
        self._before = before
        self._assigned = assigned
        self._closed = closed_at(before)
        self._levels: dict[str, int] = {}
        self._voters: set[str] = set()
        self._absent: set[str] = set()
        self._doubtful: set[str] = set()
        self._inspected: set[str] = set()
        self.clean: set[str] = set()
        self.changed = Pulse()
        self.resolved: int | None = None
        self.waits = False
        """The mark could be decided, but replicas that are absent may have more that was acknowledged."""
        self._patient = True

    @property
    def first_ever(self) -> bool:
        """No session of this partition was ever recorded."""
        return not self._before.replicas

    def recorded(self, name: str) -> ReplicaState | None:
        return self._before.replicas.get(name)

    def expect_recorded(self, name: str, session: int, report: ReplicaReport) -> None:
        """Raises `CoordinatorBehind` if the replica has been in a session that the metadata does not know."""
        found = unrecorded_session(self._before, session, name, report)
        if found is not None:
            raise CoordinatorBehind(partition=self._partition, replica=name, recorded=self._before.session, found=found)

    def inspected(self, name: str) -> None:
        """The replica answered, and nothing it holds shows that the metadata is out of date."""
        self._inspected.add(name)
        self.changed.notify()

    async def majority_inspected(self) -> None:
        """Returns when a majority of the replicas has been inspected. Whatever a session committed that the metadata does not know is on one of them.
        Until then no replica is changed: a replica that was wrongly made clean would look like the newest one to an operator who repairs the cluster
        (`core.adoption`)."""
        quorum = majority(len(self._assigned))
        await self.changed.wait_for(lambda: len(self._inspected.intersection(self._assigned)) >= quorum)

    def classify(self, name: str, report: ReplicaReport) -> Classification:
        """What to do with the replica first. Raises `CoordinatorBehind` if it holds transactions of a partition that the metadata has never seen:
        the metadata was lost, and continuing would truncate the log."""
        if self.first_ever:
            if report.last_transaction_id >= 0:
                raise CoordinatorBehind(partition=self._partition, replica=name, recorded=self._before.session, found=report.session)
            return Classification(None, votes=False)
        return classify(self.recorded(name), report)

    def report(self, name: str, level: int, classification: Classification, *, may_lack: bool = False) -> None:
        """The replica is present, with this last transaction id after its first truncation. `may_lack`: it may have acknowledged more."""
        self._levels[name] = level
        if may_lack and classification.votes:
            self._doubtful.add(name)
        if classification.votes:
            self._voters.add(name)
        if classification.counts_absent:
            self._absent.add(name)
        self._decide()

    def lift(self, name: str, level: int) -> None:
        """The replica copied up to here."""
        self._levels[name] = level
        self._decide()

    def withdraw(self, name: str) -> None:
        """Removes a replica that disconnected before the mark was decided."""
        self._levels.pop(name, None)
        self._voters.discard(name)
        self._absent.discard(name)
        self._doubtful.discard(name)

    def next_source(self, name: str, level: int, strained: Container[str] = ()) -> tuple[str, int] | None:
        """The nearest replica ahead of this one, and how far it reaches; of two that reach as far, one that is not strained."""
        ahead = [other for other, reached in self._levels.items() if reached > level and other != name]
        nearest = min(ahead, key=lambda other: (self._levels[other], other in strained, other), default=None)
        return None if nearest is None else (nearest, self._levels[nearest])

    async def wait(self, name: str, level: int) -> None:
        """Returns when the mark is decided or another replica is ahead of `level`. While the vote is undecidable, it waits for a replica to connect
        or to copy."""
        await self.changed.wait_for(lambda: self.resolved is not None or self.next_source(name, level) is not None)

    def source(self, level: int, strained: Container[str] = ()) -> list[str]:
        """Replicas that reach `level`, strained ones last."""
        return sorted((name for name, reached in self._levels.items() if reached >= level), key=lambda name: (name in strained, name))

    def lose_patience(self) -> None:
        """Stops waiting for the replicas that are absent now."""
        self._patient = False
        self._decide()

    def _decide(self) -> None:
        if self.resolved is None:
            if self.first_ever:
                if len(self._levels) >= majority(len(self._assigned)):
                    self.resolved = -1
            elif self._closed is not None:
                self.resolved = self._closed
            else:
                levels = {name: level for name, level in self._levels.items() if name not in self._absent}
                found = resolve(levels, sorted(self._voters), self._before.replicas, sorted(self._doubtful))
                self.waits = found is not None and self._patient and awaits_absent(levels, self._doubtful, self._before.replicas)
                self.resolved = None if self.waits else found
            if self.resolved is not None:
                log.info(
                    "high-water mark resolved",
                    partition=self._partition,
                    high_water_mark=self.resolved,
                    closed_in_order=self._closed is not None,
                    levels=dict(sorted(self._levels.items())),
                )
        self.changed.notify()
