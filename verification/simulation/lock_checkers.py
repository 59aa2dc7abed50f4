"""Every verdict of every lock table judged again with a plain one, in the order in which the owner judged (`lock_orders.py`).

The rules are those of docs/internals/protocol.md, Appending, and of the header of `core/locks/locks.py`. The plain table keeps every write and
computes what a table of the size may remember; it shares no code with the product's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from verification.simulation.history import Attempt, Evidence
from verification.simulation.lock_orders import JudgedAppend, JudgedFrame, LockOrder, RejectionSent
from waltz_log.client.transactions.transaction import lock_hash

__all__ = ["LOCK_CHECKERS", "rejections_have_a_reason"]

SHOWN_MAX: Final = 3
"""The maximum number of complaints about one lock table, because later ones are often consequences of the first."""


class _PlainTable:
    """`newest`: the last id that any client got. A generation ends after a frame with locks when it holds half the entries of the table. The table
    remembers the last write of each lock in this generation and the one before. It counts every other lock as written at the floor: where the
    generation before those two ended, or where the table began."""

    def __init__(self, order: LockOrder, entries_max: int) -> None:
        self.newest = order.high_water_mark
        self._opened_at = order.high_water_mark
        self._first_floor = order.floor
        self._entries_max = max(2, entries_max)
        self._last = {lock: (writer, 0) for lock, writer in order.writers.items()}
        """By lock: its last writer and the generation of that."""
        self._ends: list[int] = []
        """The newest id at the end of each generation that is over."""
        self._writers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By lock: each id and its client, of this session alone, in order."""

    @property
    def floor(self) -> int:
        return self._ends[-2] if len(self._ends) > 1 else self._first_floor

    def last_writer(self, lock: int) -> int:
        writer, generation = self._last.get(lock, (-1, -2))
        return writer if generation >= len(self._ends) - 1 else self.floor

    def last_foreign_writer(self, lock: int, client_id: int) -> int:
        """The last write by another client. Up to where the session opened any client may have written the lock."""
        foreign = [writer for writer, client in self._writers[lock] if client != client_id]
        return max([*foreign, min(self.last_writer(lock), self._opened_at)])

    def claim(self, append: JudgedAppend, lock: int, client_id: int) -> int:
        """The id that the append must know to get the lock."""
        return self.last_foreign_writer(lock, client_id) if append.own else self.last_writer(lock)

    def winner(self, append: JudgedAppend, client_id: int) -> int | None:
        """None if the append goes in."""
        found = max((self.claim(append, lock, client_id) for lock in (*append.write, *append.read)), default=-1)
        return found if found > append.mark else None

    def write(self, append: JudgedAppend, client_id: int, transaction_id: int) -> None:
        self.newest = transaction_id
        for lock in (*append.write, *append.append):
            self._last[lock] = transaction_id, len(self._ends)
            self._writers[lock].append((transaction_id, client_id))

    def end_frame(self) -> None:
        held = sum(generation == len(self._ends) for _, generation in self._last.values())
        if 2 * held >= self._entries_max:
            self._ends.append(self.newest)

    def left(self) -> tuple[int, dict[int, int]]:
        """What an owner that closes in order hands over: the floor and the locks that were written above it."""
        found = {lock: self.last_writer(lock) for lock in self._last}
        return self.floor, {lock: writer for lock, writer in found.items() if writer > self.floor}


class _Replay:
    """`wrong`: where the owner decided or answered something else than the plain table."""

    def __init__(self, order: LockOrder, entries_max: int) -> None:
        self.wrong: list[str] = []
        self.table = _PlainTable(order, entries_max)
        self._order = order
        self._holders: dict[tuple[int, int, int], int | None] = {}
        """By client, mount and sequence: the locks of rejections that are not reported yet."""
        for event in order.events:
            if isinstance(event, RejectionSent):
                self._check_reported(event)
            else:
                self._check_frame(event)

    def _check_frame(self, frame: JudgedFrame) -> None:
        for append in frame.appends:
            self._check_append(frame, append)
        if frame.locking and frame.appends:
            self.table.end_frame()

    def _check_append(self, frame: JudgedFrame, append: JudgedAppend) -> None:
        winner = self.table.winner(append, frame.client_id)
        name = f"sequence {append.sequence} of client {frame.client_id} with mark {append.mark}"
        if append.transaction_id is not None:
            if winner is not None:
                self._complain(f"{name} was accepted as {append.transaction_id}, and {winner} holds a lock that it checks")
            if append.transaction_id != self.table.newest + 1:
                self._complain(f"{name} was accepted as {append.transaction_id}, after {self.table.newest}")
            self.table.write(append, frame.client_id, append.transaction_id)
            return
        if append.winner is None:
            self._complain(f"{name} came to the locks and was neither accepted nor rejected")
        elif append.winner != winner:
            reason = "nobody wrote what it checks" if winner is None else f"{winner} won"
            self._complain(f"{name} was rejected for {append.winner}, and {reason}")
        elif append.holder not in (*append.write, *append.read) or self.table.claim(append, append.holder, frame.client_id) != winner:
            self._complain(f"{name} was rejected for lock {append.holder}, which {winner} does not hold")
        self._holders[frame.client_id, frame.mount_sequence, append.sequence] = append.holder

    def _check_reported(self, reported: RejectionSent) -> None:
        """The owner names the lock's newest writer at that time."""
        name = f"sequence {reported.sequence} of client {reported.client_id}"
        holder = self._holders.pop((reported.client_id, reported.mount_sequence, reported.sequence), None)
        if holder is None:
            self._complain(f"{name} was told at {reported.at_s:.3f} that {reported.winner} won, and was not rejected or told before")
        elif reported.winner != self.table.last_writer(holder):
            self._complain(f"{name} was told at {reported.at_s:.3f} that {reported.winner} won, which should be {self.table.last_writer(holder)}")

    def _complain(self, wrong: str) -> None:
        if len(self.wrong) < SHOWN_MAX:
            self.wrong.append(f"{wrong}: partition={self._order.partition} session={self._order.session}")


def rejections_have_a_reason(evidence: Evidence) -> Iterator[str]:
    """3, 5, 6: every verdict of every owner is that of a plain lock table of the same size, and so is every winner; what a client receives, its owner
    sent; what an owner judges, the client sent; and the winner is committed."""
    replays: dict[int, list[_Replay]] = defaultdict(list)
    opened = {(each.partition, each.session, each.high_water_mark) for each in evidence.history.sessions}
    for order in evidence.history.lock_orders:
        where = f"partition={order.partition} session={order.session}"
        if (order.partition, order.session, order.high_water_mark) not in opened:
            yield f"a lock table begins at {order.high_water_mark}, where the session did not open: {where}"
        begins = (order.floor, order.writers)
        handed = [each.table.left() for each in replays[order.partition] if each.table.newest == order.high_water_mark]
        if begins != (order.high_water_mark, {}) and begins not in handed:
            yield f"a lock table begins with floor {order.floor} and {order.writers} at {order.high_water_mark}, which no owner left: {where}"
        replay = _Replay(order, evidence.lock_entries_max)
        replays[order.partition].append(replay)
        yield from replay.wrong
        yield from _not_as_sent(order, evidence.history.attempts)
    yield from _not_as_reported(evidence)


def _not_as_sent(order: LockOrder, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Whether the locks and the mark that the owner judged by are those of the attempt."""
    for append in (append for event in order.events if isinstance(event, JudgedFrame) for append in event.appends):
        attempt = None if append.number is None or append.number >= len(attempts) else attempts[append.number]
        if attempt is None:
            continue
        where = f"partition={order.partition} session={order.session}"
        sent = tuple(_hashes(names) for names in (attempt.write, attempt.read, attempt.append))
        if sent != tuple(map(frozenset, (append.write, append.read, append.append))):
            yield f"attempt {attempt.number} came with other locks than it was given: {where}"
        # An outbox executes an attempt again, each time with the mark it has then.
        if any(sent) and attempt.kind != "outbox" and (None if append.own else append.mark) != attempt.mark:
            yield f"attempt {attempt.number} came with mark {append.mark} own={append.own}, it was given {attempt.mark}: {where}"


def _hashes(names: Sequence[str]) -> frozenset[int]:
    return frozenset(int.from_bytes(lock_hash(("l", name)), signed=True) for name in names)


def _not_as_reported(evidence: Evidence) -> Iterator[str]:
    """Whether each rejection that a client reports is one that an owner sent while the attempt was on its way, and its winner is in the log."""
    numbers: dict[tuple[int, int, int, int], int | None] = {}
    reported: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for place, order in enumerate(evidence.history.lock_orders):
        for event in order.events:
            if isinstance(event, JudgedFrame):
                for append in event.appends:
                    numbers[place, event.client_id, event.mount_sequence, append.sequence] = append.number
            else:
                number = numbers.get((place, event.client_id, event.mount_sequence, event.sequence))
                if number is not None:
                    reported[number].append((event.at_s, event.winner))
    for attempt in evidence.history.attempts:
        if attempt.outcome != "rejected":
            continue
        where = f"attempt {attempt.number} was rejected for {attempt.winner}: partition={attempt.partition} mark={attempt.mark}"
        ended_s = float("inf") if attempt.ended_s is None else attempt.ended_s
        if attempt.winner not in [winner for at_s, winner in reported[attempt.number] if attempt.started_s <= at_s <= ended_s]:
            yield f"{where}, and its owner told {reported[attempt.number] or 'nothing'}"
        log = evidence.logs.get(attempt.partition)
        if log is not None and attempt.winner is not None and attempt.winner >= len(log):
            yield f"{where}, which never was committed; the log ends at {len(log) - 1}"


LOCK_CHECKERS: Final = (rejections_have_a_reason,)
