"""Records the verdicts of the owners' lock tables in a run, in their actual order, and the rejections that the owners report.

While `observing` lasts, partitions make their sequencers, append tasks and mounts through the subclasses and functions here. They pass everything on
unchanged. A bug that is planted in the product's classes is below them, so that a frame is recorded as the owner received it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from verification.simulation.history import History, QuotaEvent
from verification.simulation.lock_orders import JudgedAppend, JudgedFrame, LockOrder, RejectionSent
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.formats.records import decode_record
from waltz_log.core.locks.lock_columns import unpack_i8
from waltz_log.core.locks.locks import FEW_LOCKS
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.ordering.sequencer import Answers, ReceivedFrame, Sequenced, Sequencer
from waltz_log.server.partition import partition as partition_module
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.testing.virtual_time import world_time_s

__all__ = ["observing"]


@contextmanager
def observing(history: History, few_locks: int = FEW_LOCKS) -> Iterator[None]:
    """Every partition that opens meanwhile has a lock order in the history. `few_locks`: of its lock table. With 1, it judges the small frames of
    simulated clients as it does large ones."""
    seen = _LocksSeen(history, few_locks)
    replaced = {"Sequencer": _ObservedSequencer, "AppendTask": seen.append_task, "Mount": seen.mount}
    originals = {name: getattr(partition_module, name) for name in replaced}
    try:
        for name, to in replaced.items():
            setattr(partition_module, name, to)
        yield
    finally:
        for name, original in originals.items():
            setattr(partition_module, name, original)


class _LocksSeen:
    def __init__(self, history: History, few_locks: int) -> None:
        self._history = history
        self._few_locks = few_locks
        self._orders: WeakKeyDictionary[StoreSession, LockOrder] = WeakKeyDictionary()
        self._meters: list[Meter] = []

    def append_task(self, store: StoreSession, sequencer: _ObservedSequencer, *rest: Any) -> AppendTask:
        """By now the sequencer's table has everything that it begins with."""
        order = self._orders[store] = sequencer.order
        order.session = store.session
        order.floor, order.writers = sequencer.locks.newest(1 << 62)
        self._history.lock_orders.append(order)
        sequencer.locks.few_locks = self._few_locks
        return AppendTask(store, sequencer, *rest)

    def mount(self, request: Any, stream: Any, store: StoreSession, *rest: Any) -> Mount:
        mount = _ObservedMount(request, stream, store, *rest)
        mount.order = self._orders[store]
        mount.seen = self
        return mount

    def charged(self, meter: Meter, accepted: int | None, accepted_bytes: int = 0) -> None:
        """Work that was accepted, or a refusal, at this moment of the running process."""
        number = next((number for number, known in enumerate(self._meters) if known is meter), len(self._meters))
        if number == len(self._meters):
            self._meters.append(meter)
        self._history.quota_events.append(QuotaEvent(number, asyncio.get_running_loop().time(), accepted, accepted_bytes))


class _ObservedMount(Mount):
    order: LockOrder
    seen: _LocksSeen

    def refuse_over_quota(self, sequence: int, refusal: Refusal) -> None:
        assert self.meter is not None
        self.seen.charged(self.meter, None)
        super().refuse_over_quota(sequence, refusal)

    def answer(self, answers: Answers, append_time_ms: int) -> None:
        for sequence, winner in answers.rejected:
            self.order.events.append(RejectionSent(world_time_s(), self.client_id, self.mount_sequence, sequence, winner))
        super().answer(answers, append_time_ms)


class _ObservedSequencer(Sequencer):
    def __init__(self, partition: int, generation: int, high_water_mark: int, **settings: int) -> None:
        super().__init__(partition, generation, high_water_mark, **settings)
        self.order = LockOrder(partition, high_water_mark)

    def sequence(self, frames: Sequence[ReceivedFrame], append_time_ms: int, *marks: int) -> Sequenced:
        found = super().sequence(frames, append_time_ms, *marks)
        for (appender, ranges), size in zip(found.committed, found.sizes, strict=True):
            if isinstance(appender, _ObservedMount) and appender.meter is not None:
                appender.seen.charged(appender.meter, sum(count for _, count, _ in ranges), size)
        return found

    def _order_frame(self, frame: ReceivedFrame, result: Sequenced) -> tuple[bytes | bytearray | memoryview, bytes] | None:
        before = Sequenced(None, result.committed[:], result.rejected[:], result.holders[:], [], result.refused[:], result.above_log[:], [])
        taken = super()._order_frame(frame, result)
        self.order.events.append(_judged(frame, before, result))
        return taken


def _judged(frame: ReceivedFrame, before: Sequenced, after: Sequenced) -> JudgedFrame:
    """`before`, `after`: the results of a block without and with the frame."""
    refused = Counter(sequence for _, rows in after.refused[len(before.refused) :] for sequence, _ in rows)
    refused.update(sequence for _, rows in after.above_log[len(before.above_log) :] for sequence, _ in rows)
    ranges = (each for _, rows in after.committed[len(before.committed) :] for each in rows)
    accepted = deque((first + place, transaction_id + place) for first, count, transaction_id in ranges for place in range(count))
    lost = len(before.rejected)
    rejected = deque((sequence, winner, lock) for (_, sequence, winner), lock in zip(after.rejected[lost:], after.holders[lost:], strict=True))

    sent = list(_sent(frame))
    came = []
    for append in reversed(sent):  # of two with one sequence the later one is the duplicate
        if refused[append.sequence]:
            refused[append.sequence] -= 1
        else:
            came.append(append)
    appends = []
    for append in reversed(came):
        transaction_id = winner = holder = None
        if accepted and accepted[0][0] == append.sequence:
            _, transaction_id = accepted.popleft()
        elif rejected and rejected[0][0] == append.sequence:
            _, winner, holder = rejected.popleft()
        decided = (transaction_id, winner, holder)
        appends.append(JudgedAppend(append.sequence, append.number, append.mark, append.own, append.write, append.read, append.append, *decided))
    appender: Any = frame.appender
    return JudgedFrame(appender.client_id, appender.mount_sequence, bool(frame.lock_counts), tuple(appends))


def _sent(frame: ReceivedFrame) -> Iterator[JudgedAppend]:
    """The transactions of a frame, undecided."""
    marks, locks, counts = unpack_i8(frame.marks), tuple(unpack_i8(frame.locks)), frame.lock_counts or bytes(3 * frame.count)
    offset = at = 0
    for place, mark in enumerate(marks):
        record, offset = decode_record(frame.records, offset)
        writes, reads, appends = counts[3 * place : 3 * place + 3]
        checked = at + writes + reads
        own = bool(frame.own and frame.own[place])
        columns = (locks[at : at + writes], locks[at + writes : checked], locks[checked : checked + appends])
        yield JudgedAppend(record.sequence, _attempt_number(record.data), mark, own, *columns)
        at = checked + appends


def _attempt_number(data: bytes) -> int | None:
    """The attempt that the data names, plainly or as the data of trimmed and compacted topics does."""
    name = data.partition(b"|")[0]
    if not name.isdigit():
        keyed = split_keyed(data)
        value = data if keyed is None else keyed.value
        name = value.partition(b"|")[0].removeprefix(b"#") if value.startswith(b"#") else b""
    return int(name) if name.isdigit() else None
