"""Orders the frames of all clients of a partition into blocks: checks, locks, transaction ids (Waltz Server, Append task).

A step from frames to one block and the answers that belong to it. Knows no network, no replica and no time but what it is given; everything
inside a frame is done for the whole frame at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.block_checksum import block_checksum
from waltz_log.core.formats.columns import FEW_RECORDS, assign_ids, headers_array, lengths_array, offsets_array, senders, verify_records
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.locks.lock_columns import unpack_i8
from waltz_log.core.locks.lock_map import MULTIPLIER
from waltz_log.core.locks.locks import LockTable, Verdict
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.server.ordering.conflicts import RecentConflicts
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import AppendColumns

__all__ = ["Answers", "Appender", "ReceivedFrame", "Sequenced", "Sequencer"]


MARK_MAX = 2**63 - 1


class Appender(Protocol):
    """The sender of a frame, which receives its answers."""

    client_id: int
    last_sequence: int
    on_disk: bool
    """Its appends are answered only when they are on disk, whatever the topic's policy."""
    meter: Meter | None
    """What its appends are charged to; None: no quota applies."""
    quota_refusals: int
    """How often frames of it were refused because the quota was exceeded."""

    def answer(self, answers: Answers, append_time_ms: int) -> None: ...
    def refuse_over_quota(self, sequence: int, refusal: Refusal) -> None: ...
    def fail(self, error: WaltzError) -> None: ...


@dataclass(slots=True)
class Answers:
    """The outcome of transactions of one client; they become packed columns later: ranges committed (first sequence, count, first id), rejected
    (sequence, winner), refused (sequence, reason), refused because their mark is above the log (sequence, the highest mark that existed then).
    `in_memory`: a majority has received the committed ones, and has not synced them yet."""

    committed: list[tuple[int, int, int]] = field(default_factory=list)
    rejected: list[tuple[int, int]] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    above_log: list[tuple[int, int]] = field(default_factory=list)
    in_memory: bool = False

    def __bool__(self) -> bool:
        return bool(self.committed or self.rejected or self.refused or self.above_log)


class ReceivedFrame:
    """A waiting append frame: its columns, each read from the message once, because reading one copies it."""

    __slots__ = (
        "appender",
        "count",
        "follows",
        "generation",
        "is_ordered",
        "lengths",
        "lock_counts",
        "locks",
        "marks",
        "own",
        "quota_refusals",
        "received_s",
        "records",
        "size",
        "traces",
    )

    def __init__(self, appender: Appender, message: pb.AppendFrame | AppendColumns) -> None:
        self.appender = appender
        self.generation = message.generation
        self.lengths = message.lengths
        self.marks = message.marks
        self.lock_counts = message.lock_counts
        self.locks = message.locks
        self.own = message.own
        self.quota_refusals = message.quota_refusals
        self.records: bytes | memoryview = message.records
        self.count = len(self.lengths) // 4
        self.traces = message.traces
        self.size = len(self.records) + len(self.locks) + 16 * self.count + len(self.traces)
        self.received_s = 0.0
        self.follows = False
        """It is a piece of a frame, and not the first one (`frame_pieces`)."""
        self.is_ordered = False
        """It has left the queue."""


@dataclass(slots=True)
class Sequenced:
    """One block (None if nothing was accepted), the answers to send when it is committed, and rejections with the winner each waits for."""

    block: Block | None
    committed: list[tuple[Appender, list[tuple[int, int, int]]]]
    rejected: list[tuple[Appender, int, int]]
    holders: list[int]
    """For each of the rejected the lock that it was rejected for."""
    turns: list[int]
    """Which places in `rejected` only asked for their turn: they lost nothing."""
    refused: list[tuple[Appender, list[tuple[int, int]]]]
    above_log: list[tuple[Appender, list[tuple[int, int]]]]
    """Refused because their mark is above the log. Before the answer, the owner must confirm that its log is the current one."""
    broken: list[tuple[Appender, CorruptData]]
    """Frames that no correct client sends. Nothing of them is in the block; the streams they came on end."""
    sizes: list[int] = field(default_factory=list)
    """For each of the committed the bytes of its records."""


class Sequencer:
    """One partition of one store session. `next_id` is the id that the next accepted transaction gets. `lock_multiplier`: of `LockMap`."""

    def __init__(
        self,
        partition: int,
        generation: int,
        high_water_mark: int,
        *,
        lock_entries_max: int,
        record_bytes_max: int,
        lock_multiplier: int = MULTIPLIER,
    ) -> None:
        self.partition = partition
        self.generation = generation
        self.next_id = high_water_mark + 1
        self.locks = LockTable(high_water_mark, lock_entries_max, lock_multiplier)
        self.conflicts = RecentConflicts()
        self._record_length_max = record_bytes_max + RECORD_OVERHEAD_BYTES
        self._newest_mark = MARK_MAX

    def sequence(self, frames: Sequence[ReceivedFrame], append_time_ms: int, newest_mark: int = MARK_MAX) -> Sequenced:
        """`newest_mark`: the highest transaction id that a client can have learned. A transaction with a mark above it is refused, whatever its
        locks: it would otherwise pass every lock check."""
        self._newest_mark = newest_mark
        result = Sequenced(None, [], [], [], [], [], [], [])
        first = self.next_id
        records: list[bytes | bytearray | memoryview] = []
        lengths: list[bytes] = []
        for frame in frames:
            try:
                accepted = self._order_frame(frame, result)
            except CorruptData as error:
                result.broken.append((frame.appender, error))
                continue
            if accepted is not None:
                records.append(accepted[0])
                lengths.append(accepted[1])
        if len(result.rejected) > len(result.turns):
            self._remember_conflicts(result, append_time_ms)
        if records:
            joined, columns = records[0] if len(records) == 1 else bytearray().join(records), b"".join(lengths)
            numbered = assign_ids(joined, columns, first)
            result.block = Block(first, columns, numbered, append_time_ms, checksum=block_checksum(first, columns, numbered, append_time_ms))
        return result

    def _remember_conflicts(self, result: Sequenced, append_time_ms: int) -> None:
        rejected, holders = result.rejected, result.holders
        if result.turns:
            turns = set(result.turns)
            lost = [place for place in range(len(rejected)) if place not in turns]
            rejected, holders = [rejected[place] for place in lost], [holders[place] for place in lost]
        self.conflicts.add(rejected, holders, append_time_ms, self.locks.floor)

    def _order_frame(self, frame: ReceivedFrame, result: Sequenced) -> tuple[bytes | bytearray | memoryview, bytes] | None:
        """The accepted records of one frame and their lengths, or None. Moves `next_id` past them."""
        appender = frame.appender
        self._check(frame)
        marks, locks, counts, own = unpack_i8(frame.marks), unpack_i8(frame.locks), frame.lock_counts, frame.own
        few = self._few_in_order(frame) if frame.count < FEW_RECORDS and max(marks) <= self._newest_mark else None
        if few is not None:
            appender.last_sequence = few[-1]
            return self._judged(frame, few, None, self.locks.judge(marks, counts, locks, self.next_id, appender.client_id, own), result)
        headers = headers_array(frame.records, frame.lengths)
        if bool((headers["client_id"] != appender.client_id).any()):
            raise CorruptData(where=_where(appender), offset=0, transaction_id=-1, reason="record of another client")
        sequences = headers["sequence"].astype(np.int64)
        if frame.generation != self.generation or bool((headers["generation"] != self.generation).any()):
            self._refuse(result, appender, sequences, pb.REFUSAL_GENERATION)
            return None
        refused = self._refused(result, appender, sequences, lengths_array(frame.lengths), np.frombuffer(frame.marks, dtype=">i8"))
        appender.last_sequence = max(appender.last_sequence, int(sequences.max()))
        remaining = None
        if refused is not None:
            marks, counts, locks = _without(refused, marks, counts, locks)
            remaining = np.flatnonzero(~refused)
            own = bytes([own[position] for position in remaining.tolist()]) if own else own
        return self._judged(frame, sequences, remaining, self.locks.judge(marks, counts, locks, self.next_id, appender.client_id, own), result)

    def _few_in_order(self, frame: ReceivedFrame) -> list[int] | None:
        """The sequences of a small frame without a record to refuse, the usual case. Other frames are checked with numpy, which costs more than
        everything else for a few records."""
        client_id, generation, before = frame.appender.client_id, self.generation, frame.appender.last_sequence
        if frame.generation != generation or len(frame.records) > self._record_length_max:  # all of them are no longer than one may be
            return None
        found: list[int] = []
        for client, of_generation, sequence in senders(frame.records, frame.lengths):
            if client != client_id or of_generation != generation or sequence <= before:
                return None
            found.append(sequence)
            before = sequence
        return found

    def _judged(
        self,
        frame: ReceivedFrame,
        sequences: Sequence[int] | npt.NDArray[np.int64],
        remaining: npt.NDArray[np.intp] | None,
        verdict: Verdict,
        result: Sequenced,
    ) -> tuple[bytes | bytearray | memoryview, bytes] | None:
        """What the locks leave of a frame. `remaining`: the positions that were judged; None: all."""
        appender = frame.appender
        result.turns.extend([len(result.rejected) + place for place in verdict.turns])
        for position, winner in verdict.rejected:
            at = position if remaining is None else remaining[position]
            result.rejected.append((appender, int(sequences[at]), winner))
        result.holders.extend(verdict.holders)
        if not verdict.accepted:
            return None
        first_id = self.next_id
        self.next_id += len(verdict.accepted)
        if len(verdict.accepted) == frame.count:
            result.committed.append((appender, _ranges(sequences, first_id)))
            result.sizes.append(len(frame.records))
            return frame.records, frame.lengths
        kept = np.array(verdict.accepted, dtype=np.int64)
        if remaining is not None:
            kept = remaining[kept]
        result.committed.append((appender, _ranges(np.asarray(sequences)[kept], first_id)))
        offsets = offsets_array(frame.lengths)
        view = memoryview(frame.records)
        records = bytearray().join([view[offsets[at] : offsets[at + 1]] for at in kept.tolist()])
        result.sizes.append(len(records))
        return records, lengths_array(frame.lengths)[kept].astype(">i4").tobytes()

    def _refused(
        self,
        result: Sequenced,
        appender: Appender,
        sequences: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        marks: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_] | None:
        """What is refused for itself, whatever its locks; None: nothing is."""
        in_order = int(sequences[0]) > appender.last_sequence and bool((sequences[1:] > sequences[:-1]).all())
        if in_order and int(lengths.max()) <= self._record_length_max and int(marks.max()) <= self._newest_mark:
            return None
        refused = np.zeros(len(sequences), dtype=bool)
        # The largest sequence accepted so far, at each place of the frame: what is not above it was sent before.
        before = np.maximum.accumulate(np.concatenate(([appender.last_sequence], sequences)))[:-1]
        for mask, reason in ((sequences <= before, pb.REFUSAL_DUPLICATE), (lengths > self._record_length_max, pb.REFUSAL_TOO_LARGE)):
            if mask.any():
                self._refuse(result, appender, sequences[mask & ~refused], reason)
                refused |= mask
        above = (marks > self._newest_mark) & ~refused
        if above.any():
            result.above_log.append((appender, [(sequence, self._newest_mark) for sequence in sequences[above].tolist()]))
            refused |= above
        return refused

    def _check(self, frame: ReceivedFrame) -> None:
        """Verifies the columns against the records. Raises `CorruptData` if they disagree: the stream ends, and nothing of the frame is stored."""
        where, count = _where(frame.appender), frame.count
        if count == 0 or len(frame.lengths) != 4 * count or len(frame.marks) != 8 * count or len(frame.locks) % 8:
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason="columns of different lengths")
        if len(frame.own) not in (0, count) or len(frame.lock_counts) not in (0, 3 * count) or sum(frame.lock_counts) * 8 != len(frame.locks):
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason="lock counts and locks differ")
        verify_records(frame.records, frame.lengths, first_transaction_id=None, partition=self.partition, where=where)

    @staticmethod
    def _refuse(result: Sequenced, appender: Appender, sequences: npt.NDArray[np.int64], reason: int) -> None:
        result.refused.append((appender, [(sequence, reason) for sequence in sequences.tolist()]))


def _where(appender: Appender) -> str:
    return f"append of client {appender.client_id}"


def _ranges(sequences: Sequence[int] | npt.NDArray[np.int64], first_id: int) -> list[tuple[int, int, int]]:
    """(first sequence, count, first id) for each run of consecutive sequences."""
    if int(sequences[-1] - sequences[0]) == len(sequences) - 1:
        return [(int(sequences[0]), len(sequences), first_id)]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(sequences) != 1) + 1, [len(sequences)]))
    return [
        (int(sequences[start]), int(end - start), first_id + int(start)) for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]


def _without(refused: npt.NDArray[np.bool_], marks: array[int], counts: bytes, locks: array[int]) -> tuple[array[int], bytes, array[int]]:
    """The columns of a frame without the refused transactions. Rare: the loop costs nothing in order."""
    kept_marks, kept_counts, kept_locks = array("q"), bytearray(), array("q")
    at = 0
    for position, is_refused in enumerate(refused.tolist()):
        three = counts[3 * position : 3 * position + 3]
        end = at + sum(three)
        if not is_refused:
            kept_marks.append(marks[position])
            kept_counts += three
            kept_locks.extend(locks[at:end])
        at = end
    return kept_marks, bytes(kept_counts), kept_locks
