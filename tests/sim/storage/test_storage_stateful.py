"""The storage engine against a plain list: any sequence of appends, reads, truncations, trims, rolls, sessions, marks, kills, crashes and starts, on
the simulated disk and, without the crashes of the machine, on the file system."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from verification.crashes.storage_model import KEY, FixedClock, append, block_of, node_on, records_of, silent_logs
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.ports import Disk
from waltz_log.errors import Fenced, OutOfRange, ProtocolViolation
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk

T = TypeVar("T")

SIZES = st.lists(st.sampled_from([0, 1, 9, 40, 200, 900, 1900, 3900]), min_size=1, max_size=6)


class Engine(RuleBasedStateMachine):
    """The model: every record by its id, where the log begins, the fence, the mark. `disk` makes what the node runs on."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.silence = silent_logs()
        self.silence.__enter__()
        self.disk: Disk = self.new_disk()
        self.records: list[bytes] = []
        self.times: list[int] = []
        self.first = 0
        self.fence = -1
        self.mark = SessionMark()
        self.salt = 0
        self.starts = 0

    def new_disk(self) -> Disk:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def last(self) -> int:
        return len(self.records) - 1

    @initialize(preallocate=st.sampled_from([0, 512, 4096]))
    def begin(self, preallocate: int) -> None:
        self.settings = {"preallocate_bytes": preallocate, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0, "open_files_max": 16}
        StorageNode.create(self.disk, FixedClock(), KEY, 2)
        self.start()

    def start(self) -> None:
        self.node = node_on(self.disk, **self.settings)
        self.run(self.node.open(KEY))
        self.starts += 1
        assert self.node.start == self.starts
        self.store: PartitionStore = self.run(self.node.partition(1))

    # ---- what an owner does ----------------------------------------------------------------------------------------------------------------------

    @rule(step=st.integers(0, 3))
    def open_session(self, step: int) -> None:
        self.fence = max(self.fence, 0) + step
        state = self.run(self.store.open_session(self.fence))
        assert (state.mark, state.first_id, state.last_id) == (self.mark, self.first, self.last)

    @rule(rounds=st.lists(SIZES, min_size=1, max_size=3), later=st.integers(0, 5000))
    def append(self, rounds: list[list[int]], later: int) -> None:
        """Rolls where it does not fit."""
        self.fence = max(self.fence, 0)
        self.salt += 1
        time_ms = (self.times[-1] if self.times else 1000) + later
        first, blocks = self.last + 1, []
        for sizes in rounds:
            blocks.append(block_of(1, first, sizes, salt=self.salt, time_ms=time_ms))
            first += len(sizes)
        self.run(append(self.store, self.fence, blocks))
        for block in blocks:
            self.records += records_of(block)
            self.times += [time_ms] * block.count

    @rule(back=st.integers(0, 4), sizes=SIZES)
    def append_what_is_partly_there(self, back: int, sizes: list[int]) -> None:
        """A resend: the same bytes are skipped, others refused."""
        start = self.last + 1 - back
        if self.fence < 0 or start < self.first:
            return
        again = block_of(1, start, [9] * back + sizes, salt=self.salt + 1)
        lengths = b"".join(len(record).to_bytes(4, "big") for record in self.records[start:]) + again.lengths[4 * back :]
        known = b"".join(self.records[start:])
        added = records_of(again)[back:]
        sent = type(again)(start, lengths, known + b"".join(added), self.times[-1] if self.times else 1000)
        if back:
            with pytest.raises(ProtocolViolation):
                self.run(append(self.store, self.fence, [again]))
        self.salt += 1
        self.run(append(self.store, self.fence, [sent]))
        self.records += added
        self.times += [sent.append_time_ms] * len(added)

    @precondition(lambda self: self.fence >= 0)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        lowest = max(self.first - 1, self.mark.local_low_water_mark)
        last = lowest + round(share * (self.last - lowest))
        if self.mark.session == self.fence and last < self.last:
            with pytest.raises(ProtocolViolation, match="clean replica is not truncated in its session"):
                self.run(self.store.truncate(self.fence, last))
            return
        assert self.run(self.store.truncate(self.fence, last)) == last
        del self.records[last + 1 :]
        del self.times[last + 1 :]

    @precondition(lambda self: self.fence >= 0)
    @rule(above=st.integers(0, 3))
    def make_clean(self, above: int) -> None:
        mark = max(self.last, self.mark.low_water_mark) + above
        self.run(self.store.set_low_water_mark(self.fence, mark))
        self.mark = SessionMark(self.fence, mark, self.last)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        highest = min(self.mark.low_water_mark, self.mark.local_low_water_mark) + 1
        first = self.first + round(share * max(0, highest - self.first))
        kept = self.run(self.store.trim(first)) if first <= highest else self.first
        assert self.first <= kept <= first
        self.first = kept

    @precondition(lambda self: self.fence >= 0)
    @rule(beyond=st.integers(2, 300))
    def begin_again(self, beyond: int) -> None:
        first = self.last + beyond
        if self.mark.session == self.fence:
            with pytest.raises(ProtocolViolation, match="cannot start empty in its own session"):
                self.run(self.store.begin(self.fence, first))
            return
        assert self.run(self.store.begin(self.fence, first)) == first - 1
        self.records += [b""] * (first - len(self.records))
        self.times += [self.times[-1] if self.times else 1000] * (first - len(self.times))
        self.first = first

    # ---- what must be refused --------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.fence > 0)
    @rule()
    def an_older_session_is_fenced(self) -> None:
        block = block_of(1, self.last + 1, [3], salt=99)
        for work in (append(self.store, self.fence - 1, [block]), self.store.truncate(self.fence - 1, self.last)):
            with pytest.raises(Fenced):
                self.run(work)

    @precondition(lambda self: self.fence >= 0)
    @rule(gap=st.integers(1, 5))
    def a_gap_is_refused(self, gap: int) -> None:
        with pytest.raises(OutOfRange):
            self.run(append(self.store, self.fence, [block_of(1, self.last + 1 + gap, [3], salt=99)]))
        with pytest.raises(OutOfRange):
            self.run(self.store.truncate(self.fence, self.last + gap))

    # ---- what happens to a node ------------------------------------------------------------------------------------------------------------------

    @rule()
    def close_and_start(self) -> None:
        self.run(self.node.close())
        self.start()

    @rule()
    def kill_and_start(self) -> None:
        self.disk = self.killed()
        self.start()

    def killed(self) -> Disk:
        raise NotImplementedError

    # ---- what is reported
    # ----------------------------------------------------------------------------------------------------------------------------

    @rule(begin=st.floats(0, 1), end=st.floats(0, 1), max_bytes=st.sampled_from([1, 100, 3000, 1 << 20]))
    def read(self, begin: float, end: float, max_bytes: int) -> None:
        if self.fence < 0 or self.last < self.first:
            return
        first = self.first + round(begin * (self.last - self.first))
        last = first + round(end * (self.last - first))
        self.compare(first, last, max_bytes)

    def compare(self, first: int, last: int, max_bytes: int) -> None:
        async def found() -> list[Any]:
            return [block async for run in self.store.read(-1, self.fence, first, last, max_bytes) for block in run]

        position = first
        for block in self.run(found()):
            assert block.first_transaction_id == position
            for record in records_of(block):
                assert record == self.records[position]
                assert block.append_time_ms in self.times_that_may_be(position)
                position += 1
        assert position == last + 1

    def times_that_may_be(self, transaction_id: int) -> list[int]:
        return [self.times[transaction_id]]

    @invariant()
    def the_numbers_are_right(self) -> None:
        if self.starts:
            reported = self.store.statistics()
            assert (reported.first_transaction_id, reported.last_transaction_id) == (self.first, self.last)
            assert (reported.fence, reported.session, reported.low_water_mark) == (self.fence, self.mark.session, self.mark.low_water_mark)
            assert reported.failed is None

    def teardown(self) -> None:
        try:
            if self.starts:
                if self.fence >= 0 and self.last >= self.first:
                    self.compare(self.first, self.last, 1 << 20)
                self.run(self.node.close())
        finally:
            self.silence.__exit__(None, None, None)
            self.runner.close()


class OnSimulatedDisk(Engine):
    def new_disk(self) -> Disk:
        self.crashed = False
        return SimulatedDisk()

    def killed(self) -> Disk:
        assert isinstance(self.disk, SimulatedDisk)
        return self.disk.crash(keep=True)

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 16)))
    def crash_and_start(self, seed: int | None) -> None:
        """The machine dies. Everything was acknowledged, so everything is there, but for times."""
        assert isinstance(self.disk, SimulatedDisk)
        self.disk = self.disk.crash(None if seed is None else Random(seed))
        self.crashed = True
        self.start()

    @precondition(lambda self: self.fence >= 0)
    @rule(rounds=st.lists(SIZES, min_size=1, max_size=3), seed=st.integers(0, 1 << 16), before=st.integers(0, 12))
    def crash_in_an_append(self, rounds: list[list[int]], seed: int, before: int) -> None:
        """The machine dies at some operation of an append: a prefix of its records is there."""
        disk = self.disk
        assert isinstance(disk, SimulatedDisk)
        self.salt += 1
        time_ms = self.times[-1] if self.times else 1000
        first, blocks = self.last + 1, []
        for sizes in rounds:
            blocks.append(block_of(1, first, sizes, salt=self.salt, time_ms=time_ms))
            first += len(sizes)
        forks: list[SimulatedDisk] = []
        disk.before = lambda operation: forks.append(disk.fork())
        self.run(append(self.store, self.fence, blocks))
        disk.before = lambda operation: None
        self.disk = forks[min(before, len(forks) - 1)].crash(Random(seed))
        self.crashed = True
        self.start()
        added = [record for block in blocks for record in records_of(block)]
        there = self.store.last_id - self.last
        assert 0 <= there <= len(added)
        self.records += added[:there]
        self.times += [time_ms] * there

    def times_that_may_be(self, transaction_id: int) -> list[int]:
        # The times are synced about once a second of append time; a crash of the machine costs what came after.
        return [*self.times[: transaction_id + 1], FixedClock().now_ms()] if self.crashed else [self.times[transaction_id]]


class OnFileSystem(Engine):
    def new_disk(self) -> Disk:
        self.directory = tempfile.TemporaryDirectory(prefix="waltz-stateful-")
        return FileSystemDisk(Path(self.directory.name))

    def killed(self) -> Disk:
        """The same directory, opened by another process: what the one before holds in memory is gone, its lock with it."""
        self.disk.unlock()
        return FileSystemDisk(Path(self.directory.name))

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.directory.cleanup()


@pytest.mark.parametrize("engine", [OnSimulatedDisk, OnFileSystem])
def test_the_engine_does_what_a_list_does(engine: type[Engine]) -> None:
    examples = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(engine, settings=examples)


@pytest.mark.parametrize("planted", ["trims too much", "cuts too little", "tells a wrong time"])
def test_the_list_catches_an_engine_with_a_bug(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trim, cut, read = SegmentLog.trim, SegmentLog.truncate, SegmentLog.read
    if planted == "trims too much":
        monkeypatch.setattr(SegmentLog, "trim", lambda log, first: trim(log, first + 4))
    elif planted == "cuts too little":
        monkeypatch.setattr(SegmentLog, "truncate", lambda log, last: cut(log, min(last + 1, log.tail.last_id)))
    else:

        def late(log: SegmentLog, *arguments: Any) -> list[Any]:
            return [replace(block, append_time_ms=block.append_time_ms + 1) for block in read(log, *arguments)]

        monkeypatch.setattr(SegmentLog, "read", late)
    examples = settings(
        max_examples=100, stateful_step_count=30, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(OnSimulatedDisk, settings=examples)
    assert not isinstance(caught.value, AttributeError | TypeError), "the bug could not be planted"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [OnSimulatedDisk, OnFileSystem])
def test_the_engine_does_what_a_list_does_at_length(engine: type[Engine]) -> None:
    examples = settings(max_examples=300, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(engine, settings=examples)
