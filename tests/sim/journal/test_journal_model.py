"""The journal against the dict model: every call in any order, on tiny files so that everything rolls, with the machine dying at any operation of any
call. What was synced is there, what was not is there whole or not at all, what an opening reported stays, and the journal goes on.

With checks by hash a dying disk may do to an unsynced write whatever a disk can: drop it, cut it at any byte, drop sectors of it. With checks by
size it only keeps or drops whole writes, because the layout promises no more: a length does not notice a torn body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.unit.log.journal.model import UNSURE_MAX, Model, contents
from tests.unit.log.journal.opened import SALT, reference_of, state_of
from tests.unit.log.journal.reference import ADD, ADD_TX, DELETE, DELETE_TX, UPDATE, UPDATE_TX, Entry
from waltz_log.errors import JournalFull
from waltz_log.journal import Journal, JournalSettings
from waltz_log.journal.record_codec import CheckKind
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.medium import LOST, WHOLE, drawn_fate

RECORDS = 8
CHURNED = 50
FILES_MAX = (5, 14)

record_ids = st.integers(0, RECORDS - 1)
bodies = st.one_of(st.binary(max_size=8), st.integers(100, 500).map(lambda size: bytes([size % 251]) * size))
user_types = st.integers(0, 2)


class JournalMachine(RuleBasedStateMachine):
    check: CheckKind = "hash"

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.model = Model()
        self.journal: Journal
        self.random: Random
        self.failed: set[int] = set()

    @initialize(
        random=st.randoms(use_true_random=False),
        compact_files_min=st.sampled_from([0, 3]),
        replaceable=st.sampled_from([frozenset(), frozenset({1, 2})]),
        files_max=st.sampled_from(FILES_MAX),
    )
    def start(self, random: Random, compact_files_min: int, replaceable: frozenset[int], files_max: int) -> None:
        self.random = random
        self.model.sure.replaceable = self.replaceable = replaceable
        self.settings = JournalSettings(
            file_bytes=1024,
            files_max=files_max,
            files_pool=4,
            check=self.check,
            buffer_bytes=4096,
            compact_files_min=compact_files_min,
            compact_percent=50,
            replaceable_types=replaceable,
        )
        self.journal = self.open(self.disk)

    def open(self, disk: SimulatedDisk) -> Journal:
        return Journal.open(disk, self.settings, lambda length: SALT)

    # ---- crashes in the middle of whatever is done -----------------------------------------------------------------------------------------------

    @contextmanager
    def any_moment(self) -> Iterator[None]:
        """Copies the disk before each of its operations and after the last; a few of the copies are what a crash left."""
        forks: list[SimulatedDisk] = []
        self.disk.before = lambda operation: forks.append(self.disk.fork())
        try:
            yield
        finally:
            self.disk.before = lambda operation: None
        forks.append(self.disk.fork())
        for fork in self.random.sample(forks, min(2, len(forks))):
            self.check_crash(fork)

    def survivor(self, disk: SimulatedDisk) -> SimulatedDisk:
        chance = self.random.random()
        if chance < 0.2:
            return disk.fork()
        if chance < 0.4:
            return disk.survivor([LOST] * len(disk.pending()))
        if self.check == "hash" and chance < 0.8:
            return disk.survivor([drawn_fate(change, self.random) for change in disk.pending()])
        return disk.survivor([self.random.choice((LOST, WHOLE)) for _ in disk.pending()])

    def check_crash(self, disk: SimulatedDisk) -> None:
        """What is found is possible, is what the reference finds, is there after one more crash, and does not hinder going on."""
        after = self.survivor(disk)
        expected = reference_of(after, self.check, self.replaceable)
        journal = self.open(after)
        found = state_of(journal.loaded)
        assert contents(found) == contents(expected), "the reference reads something else"
        assert any(contents(each) == contents(found) for each in self.model.possible()), f"{contents(found)} was never so"
        again = self.open(after.survivor([LOST] * len(after.pending())))
        assert contents(state_of(again.loaded)) == contents(found), "what an opening told was not on the medium"
        try:
            again.add(RECORDS, 0, b"on it goes")
        except JournalFull:  # then there is room for deletes still
            held = {entry.id for entries in found.prepared.values() for entry in entries}
            for record_id in found.records.keys() - held:
                again.delete(record_id)
        again.sync()
        again.close()

    # ---- records outside transactions ------------------------------------------------------------------------------------------------------------

    @rule(record_id=record_ids, user_type=user_types, body=bodies)
    def add(self, record_id: int, user_type: int, body: bytes) -> None:
        if record_id in self.journal or record_id in self.touched():
            return
        self.model.record(Entry(ADD, record_id, 0, user_type, body))
        self.unless_full(lambda: self.journal.add(record_id, user_type, body), len(body))

    @rule(ids=st.sets(record_ids, max_size=5), body=bodies)
    def append_all(self, ids: set[int], body: bytes) -> None:
        fresh = [each for each in sorted(ids) if each not in self.journal and each not in self.touched()]
        for each in fresh:
            self.model.record(Entry(ADD, each, 0, 1, body))
        self.unless_full(lambda: self.journal.append_all([(each, 1, body) for each in fresh]), len(body) * len(fresh), len(fresh))

    @rule(record_id=record_ids, user_type=user_types, body=bodies)
    def update(self, record_id: int, user_type: int, body: bytes) -> None:
        if record_id not in self.journal or record_id in self.touched():
            return
        self.model.record(Entry(UPDATE, record_id, 0, user_type, body))
        self.unless_full(lambda: self.journal.update(record_id, user_type, body), len(body))

    @rule(record_id=record_ids)
    def delete(self, record_id: int) -> None:
        if record_id not in self.journal or record_id in self.touched():  # as when the journal was too full to add it
            return
        self.model.record(Entry(DELETE, record_id))
        with self.any_moment():
            self.journal.delete(record_id)

    def unless_full(self, call: Callable[[], None], asked: int, happenings: int = 1) -> None:
        """A journal that is full refuses, and then nothing happened. `asked`: bytes of bodies."""
        try:
            with self.any_moment():
                call()
        except JournalFull:
            assert self.journal.statistics().room_bytes < 2 * asked + 2048, "it is not full"
            del self.model.unsure[len(self.model.unsure) - happenings :]

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def touched(self) -> set[int]:
        now = self.model.now().prepared.values()
        return {entry.id for entries in [*self.model.open.values(), *now] for entry in entries}

    @precondition(lambda self: len(self.model.open) < 3)
    @rule()
    def begin(self) -> None:
        self.model.open[self.journal.begin()] = []

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), record_id=record_ids, user_type=user_types, body=bodies)
    def within(self, data: st.DataObject, record_id: int, user_type: int, body: bytes) -> None:
        """Adds, updates or deletes what the transaction may."""
        transaction = data.draw(st.sampled_from(sorted(self.model.open)))
        own = [entry.kind for entry in self.model.open[transaction] if entry.id == record_id]
        if not own and record_id in self.touched():
            return
        lives = own[-1] != DELETE_TX if own else record_id in self.journal
        if not lives and not own:
            kind = ADD_TX
        elif lives:
            kind = data.draw(st.sampled_from([UPDATE_TX, DELETE_TX]))
        else:
            return
        try:
            with self.any_moment():
                if kind == ADD_TX:
                    self.journal.add_in(transaction, record_id, user_type, body)
                elif kind == UPDATE_TX:
                    self.journal.update_in(transaction, record_id, user_type, body)
                else:
                    self.journal.delete_in(transaction, record_id)
        except JournalFull:
            del self.model.open[transaction]
            self.journal.rollback(transaction)
        else:
            deleted = kind == DELETE_TX
            self.model.element(transaction, Entry(kind, record_id, 0, 0 if deleted else user_type, b"" if deleted else body))

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), kind=st.sampled_from(["prepare", "commit", "commit", "rollback"]))
    def end(self, data: st.DataObject, kind: str) -> None:
        transaction = data.draw(st.sampled_from(sorted(self.model.open)))
        self.finish(kind, transaction)

    @precondition(lambda self: self.model.now().prepared)
    @rule(data=st.data(), kind=st.sampled_from(["commit", "rollback"]))
    def decide(self, data: st.DataObject, kind: str) -> None:
        self.finish(kind, data.draw(st.sampled_from(sorted(self.model.now().prepared))))

    def finish(self, kind: str, transaction: int) -> None:
        self.model.end(kind, transaction)
        with self.any_moment():
            getattr(self.journal, kind)(transaction)

    # ---- the disk --------------------------------------------------------------------------------------------------------------------------------

    @rule()
    def sync(self) -> None:
        with self.any_moment():
            self.journal.sync()
        self.model.synced()

    @rule()
    def reclaim(self) -> None:
        with self.any_moment():
            self.journal.reclaim()

    @rule()
    def compact(self) -> None:
        with self.any_moment():
            self.journal.compact()

    @rule(rounds=st.integers(1, 5), size=st.sampled_from([200, 450, 900]))
    def churn(self, rounds: int, size: int) -> None:
        """Short lives that push all others around the ring."""
        for _ in range(rounds):
            self.add(CHURNED, 2, bytes([size % 251]) * size)
            self.sync()
            self.delete(CHURNED)
        self.sync()

    @rule()
    def reopen(self) -> None:
        with self.any_moment():
            self.journal.close()
        self.model.synced()
        self.reopened(self.disk.fork())

    @rule()
    def killed(self) -> None:
        self.reopened(self.disk.fork())

    @rule()
    def crashed(self) -> None:
        self.reopened(self.survivor(self.disk))

    def reopened(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        expected = reference_of(disk, self.check, self.replaceable)
        with self.any_moment():
            self.journal = self.open(disk)
        found = state_of(self.journal.loaded)
        assert contents(found) == contents(expected)
        assert any(contents(each) == contents(found) for each in self.model.possible())
        # Of an open transaction not even its first record need have survived; what did is reported until its file is reused.
        self.failed |= set(self.model.open) | {each.transaction for each in self.model.unsure}
        assert set(self.journal.loaded.failed_transactions) <= self.failed
        self.model.settle(found)

    # ---- what holds all the time -----------------------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_there_can_be_read(self) -> None:
        if len(self.model.unsure) > UNSURE_MAX - 6:
            self.sync()
        if hasattr(self, "journal"):
            now = self.model.now()
            assert {record_id for record_id in (*range(RECORDS), CHURNED) if record_id in self.journal} == set(now.records)
            for record_id, entries in now.records.items():
                parts = [(each.user_type, each.body) for each in self.journal.read(record_id)]
                assert parts == [(each.user_type, each.body) for each in entries]

    @invariant()
    def the_disk_is_bounded(self) -> None:
        files = [name for name in self.disk.list("") if name.startswith("journal-")]
        assert len(files) <= self.settings.files_max if hasattr(self, "settings") else not files


class BySize(JournalMachine):
    check: CheckKind = "size"


MACHINES = pytest.mark.parametrize("machine", [JournalMachine, BySize], ids=["hash", "size"])


@MACHINES
@pytest.mark.timeout(1200)  # it takes 11 s; making a failure small takes minutes
def test_the_journal_is_the_model(machine: type[JournalMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MACHINES
def test_the_journal_is_the_model_for_longer(machine: type[JournalMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=400, stateful_step_count=80, deadline=None))
