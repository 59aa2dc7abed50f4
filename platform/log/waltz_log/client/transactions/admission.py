"""Runs transactions of this client that would conflict with each other one after another, in the order in which they arrived.

Two transactions of one client that run on the same state conflict if the first sets a lock that the second checks, as those of two clients do. Here
the second waits until the first is in this client's state, so the log does not have to reject it. Its locks are known if the caller passes them, and
otherwise after the transaction's first execution. This only avoids conflicts: the log checks every lock.

If other clients want a lock too, the queue at the owner counts: waiting here first, after an execution, would only cost one more execution. Such
locks are recognized by their conflicts, and forgotten after a number of commits without one. When a line forms here for the first time, the owner is
asked once: the client whose transactions follow each other quickest would be the last to meet a conflict, and would overtake all others until then.

A transaction joins the queues of all its locks at once. So all queues have the same order, and there is no deadlock. Pure, except for the future of a
turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from waltz_log.client.transactions.transaction import Draft, Lock, lock_hash

__all__ = ["Admission", "Ticket"]

NEWEST_MAX = 65_536
"""The number of locks for which the last transaction of this client is remembered: some MB. For a forgotten lock, the log rejects a conflict that
could have been avoided here."""

CONTESTED_COMMITS = 16
"""After this many consecutive transactions of this client without a conflict with another client, their locks count as uncontested."""


class Ticket:
    """A place in the lines of its locks."""

    __slots__ = ("_behind", "_turn", "_yields", "checks", "sets", "waited")

    def __init__(self, checks: frozenset[bytes], sets: frozenset[bytes]) -> None:
        self.checks = checks
        self.sets = sets
        self.waited = False
        """Whether another transaction was ahead when it joined: what was computed before that is old."""
        self._behind: set[bytes] = set()
        self._yields = False
        """Whether it waits here only as long as no other client wants its locks."""
        self._turn: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, draft: Draft) -> Ticket:
        """What the transaction needs: write locks are checked and set, read locks checked, append locks set."""
        writes = [lock_hash(lock) for lock in draft.write_locks]
        return cls(
            frozenset((*writes, *(lock_hash(lock) for lock in draft.read_locks))),
            frozenset((*writes, *(lock_hash(lock) for lock in draft.append_locks))),
        )

    @classmethod
    def whole(cls, locks: Iterable[Lock]) -> Ticket:
        """For locks whose use is not known yet: checked and set."""
        hashes = frozenset(lock_hash(lock) for lock in locks)
        return cls(hashes, hashes)

    def covers(self, other: Ticket) -> bool:
        return other.checks <= self.checks and other.sets <= self.sets

    def with_all_of(self, other: Ticket) -> Ticket:
        return Ticket(self.checks | other.checks, self.sets | other.sets)

    async def turn(self) -> None:
        """Returns when no transaction ahead sets a lock that this one checks."""
        if self._behind:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    async def turn_or_contest(self) -> bool:
        """As `turn`, returning False. Returns True once its locks are contested: then the owner's queue decides."""
        self._yields = True
        await self.turn()
        return bool(self._behind)

    def _hold_up(self, lock: bytes) -> None:
        self._behind.add(lock)
        self.waited = True

    def _let_pass(self, lock: bytes) -> None:
        self._behind.discard(lock)
        if not self._behind:
            self._wake()

    def _contest(self) -> None:
        if self._yields:
            self._wake()

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class Admission:
    """The admission of one partition of one client."""

    def __init__(self) -> None:
        self._lines: dict[bytes, dict[Ticket, None]] = {}
        self._newest: OrderedDict[bytes, int] = OrderedDict()
        self._contested: OrderedDict[bytes, int] = OrderedDict()
        """The locks that the owner was asked about, or that met a conflict: after how many commits they count as uncontested. 0: they do now."""

    def __len__(self) -> int:
        """Locks with a line."""
        return len(self._lines)

    def join(self, ticket: Ticket) -> Ticket:
        for lock in ticket.checks | ticket.sets:
            line = self._lines.setdefault(lock, {})
            if lock in ticket.checks and any(lock in ahead.sets for ahead in line):
                ticket._hold_up(lock)
            line[ticket] = None
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """It is decided, and where it is in the log also applied here; or given up."""
        for lock in ticket.checks | ticket.sets:
            line = self._lines[lock]
            del line[ticket]
            if not line:
                del self._lines[lock]
            elif lock in ticket.sets:
                for next_one in line:
                    next_one._let_pass(lock)
                    if lock in next_one.sets:
                        break

    def committed(self, ticket: Ticket, transaction_id: int) -> None:
        """A transaction of this client is in the log under these locks."""
        newest = self._newest
        for lock in ticket.sets:
            newest[lock] = max(transaction_id, newest.get(lock, -1))
            newest.move_to_end(lock)
            left = self._contested.get(lock, 0)
            if left:
                self._contested[lock] = left - 1
        while len(newest) > NEWEST_MAX:
            newest.popitem(last=False)

    def rejected(self, ticket: Ticket, winner: int) -> None:
        """A transaction of this client was rejected for `winner`, under one of these locks."""
        if winner > self.newest(ticket):
            self._record(ticket.checks, CONTESTED_COMMITS)
            for lock in ticket.checks:
                for waiting in self._lines.get(lock, ()):
                    waiting._contest()

    def given_turn(self, ticket: Ticket, last: int) -> None:
        """The owner gave these locks their turn. `last`: their last writer."""
        self._record(ticket.checks - self._contested.keys(), 0)
        self.rejected(ticket, last)

    def _record(self, locks: Iterable[bytes], commits: int) -> None:
        self._contested.update(dict.fromkeys(locks, commits))
        while len(self._contested) > NEWEST_MAX:
            self._contested.popitem(last=False)

    def contested(self, ticket: Ticket) -> bool:
        """Whether other clients want one of these locks too, as far as known."""
        return any(self._contested.get(lock) for lock in ticket.checks)

    def unknown(self, ticket: Ticket) -> bool:
        """Whether the owner has not been asked yet about one of these locks."""
        return not ticket.checks <= self._contested.keys()

    def newest(self, ticket: Ticket) -> int:
        """The last transaction of this client, as far as remembered, that set what the ticket checks; -1: none."""
        return max((self._newest.get(lock, -1) for lock in ticket.checks), default=-1)

    @asynccontextmanager
    async def at(self, locks: Sequence[Lock]) -> AsyncIterator[Ticket]:
        """Holds the locks against others who ask here. Cancelled or timed out, it holds none."""
        ticket = self.join(Ticket.whole(locks))
        try:
            await ticket.turn()
            yield ticket
        finally:
            self.leave(ticket)
