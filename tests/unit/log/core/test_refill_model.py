"""Random schedules of sessions, votes, crashes, lost disks and fills that end half-way, decided by the platform's own rules: keeping what was copied
up to a recorded mark is safe, and keeping more is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest

from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.core.recovery import ReplicaReport, classify, closed_at, decided_metadata, majority, next_metadata, resolve
from waltz_log.errors import OutOfRange, ProtocolViolation
from waltz_log.storage.replica.progress import mark_of_progress

Keeping = Literal["as decided", "nothing", "all that it holds"]
NAMES = ("a", "b", "c")


@dataclass
class Replica:
    log: list[int] = field(default_factory=list)
    mark: SessionMark = field(default_factory=SessionMark)


class Model:
    """Entries are numbers that are never given twice, so that two logs that differ are seen to."""

    def __init__(self, seed: int, keeping: Keeping) -> None:
        self.rng = Random(seed)
        self.keeping = keeping
        self.replicas = {name: Replica() for name in NAMES}
        self.metadata = PartitionMetadata(1, 0, {})
        self.committed: list[int] = []
        self.members: set[str] = set()
        self.value = self.fills = self.begun_again = 0
        self.lossy = self.rng.choice(NAMES)

    def recover(self) -> None:
        """One session: as far as it comes."""
        rng = self.rng
        before, self.members = self.metadata, set()
        session = before.session + 1
        self.metadata = PartitionMetadata(1, session, before.replicas)
        reached = [name for name in NAMES if rng.random() < 0.85]
        if not before.replicas:
            if len(reached) >= majority(len(NAMES)):
                for name in reached:
                    self.replicas[name].mark = SessionMark(session, -1, -1)
                self.metadata = next_metadata(self.metadata, NAMES, reached, -1)
                self.members = set(reached)
            return
        voters, absent = set(), set()
        for name in reached:
            replica = self.replicas[name]
            report = ReplicaReport(replica.mark.session, replica.mark.low_water_mark, len(replica.log) - 1, replica.mark.local_low_water_mark)
            found = classify(before.replicas.get(name), report)
            if found.truncate_to is not None:
                assert found.truncate_to >= replica.mark.local_low_water_mark, "truncated below what is kept"
                self.begun_again += found.truncate_to < 0 <= report.last_transaction_id
                del replica.log[found.truncate_to + 1 :]
            if found.votes:
                voters.add(name)
            last = len(replica.log) - 1
            if self.keeping == "all that it holds" and last > replica.mark.local_low_water_mark:
                replica.mark = SessionMark(replica.mark.session, max(last, replica.mark.low_water_mark), last)
            if found.counts_absent:
                absent.add(name)
        mark = closed_at(before)
        while mark is None:
            levels = {name: len(self.replicas[name].log) - 1 for name in reached if name not in absent}
            mark = resolve(levels, sorted(voters), before.replicas)
            if mark is None and not self._copy_before_the_decision(reached):
                return
        holders = [name for name in reached if len(self.replicas[name].log) > mark]
        self.metadata = decided_metadata(self.metadata, holders, mark)
        if not holders or rng.random() < 0.1:
            return
        clean = set()
        for name in rng.sample(reached, len(reached)):
            if self._fill(name, self.replicas[holders[0]], session, mark):
                clean.add(name)
        if len(clean) < majority(len(NAMES)) or rng.random() < 0.05:
            return
        self.metadata = next_metadata(self.metadata, NAMES, clean, mark)
        self.members = clean
        kept = self.replicas[holders[0]].log[: mark + 1]
        assert kept[: len(self.committed)] == self.committed, "an acknowledged entry is lost"
        self.committed = kept

    def _copy_before_the_decision(self, reached: list[str]) -> bool:
        """One step of one replica that is behind; False if none is, or the owner dies."""
        levels = {name: len(self.replicas[name].log) for name in reached}
        behind = [name for name in reached if levels[name] < max(levels.values())]
        if not behind or self.rng.random() < 0.2:
            return False
        name = self.rng.choice(behind)
        ahead = min((levels[other], other) for other in reached if levels[other] > levels[name])[1]
        replica = self.replicas[name]
        replica.log += self.replicas[ahead].log[len(replica.log) :]
        return True

    def _fill(self, name: str, holder: Replica, session: int, mark: int) -> bool:
        """Whether the replica is clean in the end: the session, or the fill, may end before."""
        replica, rng = self.replicas[name], self.rng
        assert mark >= replica.mark.local_low_water_mark, "the mark is below what a replica keeps"
        del replica.log[mark + 1 :]
        while len(replica.log) <= mark:
            if self.keeping != "nothing":
                last = len(replica.log) - 1
                replica.mark = mark_of_progress(0, replica.mark, session, mark, min(last, mark), last)
            if rng.random() < 0.4:
                self.fills += 1
                return False
            replica.log += holder.log[len(replica.log) : min(mark + 1, len(replica.log) + rng.randint(1, 3))]
        if rng.random() < 0.05:
            return False
        replica.mark = SessionMark(session, mark, mark)
        return True

    def append(self) -> None:
        self.value += 1
        acknowledged = 0
        for name in sorted(self.members):
            if self.rng.random() < 0.1:
                self.members.discard(name)
                continue
            self.replicas[name].log.append(self.value)
            if self.rng.random() < 0.1:
                self.members.discard(name)  # written, without an answer
            else:
                acknowledged += 1
        if acknowledged >= majority(len(NAMES)):
            self.committed = self.replicas[next(name for name in NAMES if self.replicas[name].log[-1:] == [self.value])].log[:]
        else:
            self.members = set()

    def lose_a_disk(self) -> None:
        """Of one replica, always the same: more no log of three can bear."""
        self.replicas[self.lossy] = Replica()
        self.members.discard(self.lossy)

    def play(self) -> None:
        for _ in range(self.rng.randint(20, 80)):
            drawn = self.rng.random()
            if not self.members or drawn < 0.15:
                self.recover()
            elif drawn < 0.95:
                self.append()
            else:
                self.lose_a_disk()
            for replica in self.replicas.values():
                kept = replica.mark.local_low_water_mark + 1
                others = [other.log[:kept] for other in self.replicas.values() if other.mark.local_low_water_mark + 1 >= kept]
                assert all(other == replica.log[:kept] for other in others), "what two replicas keep differs"


def _wrong(keeping: Keeping, seeds: range) -> Iterator[str]:
    for seed in seeds:
        try:
            Model(seed, keeping).play()
        except (AssertionError, OutOfRange, ProtocolViolation) as error:
            yield f"{seed}: {error}"


def test_keeping_what_was_copied_up_to_a_recorded_mark_is_safe() -> None:
    assert list(_wrong("as decided", range(2000))) == []


def test_keeping_all_that_a_replica_holds_before_the_decision_is_not() -> None:
    assert any(_wrong("all that it holds", range(2000)))


def test_kept_progress_is_not_copied_again() -> None:
    """The schedules have fills that end half-way; with progress fewer of them start again."""
    kept = [Model(seed, "as decided") for seed in range(500)]
    forgotten = [Model(seed, "nothing") for seed in range(500)]
    for model in (*kept, *forgotten):
        model.play()
    assert sum(model.fills for model in kept) > 100
    assert sum(model.begun_again for model in forgotten) > 3 * sum(model.begun_again for model in kept)


@pytest.mark.parametrize(
    ("mark", "session", "low", "kept", "last", "expected"),
    [
        (SessionMark(-1, -1, -1), 7, 100, 40, 40, SessionMark(-1, 100, 40)),
        (SessionMark(3, 20, 20), 7, 100, 40, 60, SessionMark(3, 100, 40)),
        (SessionMark(3, 100, 40), 8, 120, 60, 60, SessionMark(3, 120, 60)),
        (SessionMark(3, 100, 40), 7, 100, 30, 60, SessionMark(3, 100, 40)),  # late
        (SessionMark(7, 100, 100), 7, 100, 60, 140, SessionMark(7, 100, 100)),  # clean by now
    ],
)
def test_progress_raises_the_marks_and_never_the_session(
    mark: SessionMark, session: int, low: int, kept: int, last: int, expected: SessionMark
) -> None:
    assert mark_of_progress(0, mark, session, low, kept, last) == expected
    assert expected >= mark


@pytest.mark.parametrize(("low", "kept", "last"), [(100, 101, 200), (100, 61, 60), (99, 50, 60)])
def test_more_than_is_committed_or_on_disk_is_not_kept(low: int, kept: int, last: int) -> None:
    with pytest.raises((OutOfRange, ProtocolViolation)):
        mark_of_progress(0, SessionMark(3, 100, 40), 7, low, kept, last)


def test_recovery_truncates_a_partly_filled_replica_to_what_it_keeps() -> None:
    partly = ReplicaReport(3, 100, 70, 60)
    assert classify(None, partly).truncate_to == 60
    assert classify(ReplicaState(-1, 100), partly).truncate_to == 60
    assert classify(ReplicaState(3, 20), partly).truncate_to == 60
    lost = classify(ReplicaState(9, None), partly)
    assert (lost.truncate_to, lost.votes, lost.counts_absent) == (60, False, True)
