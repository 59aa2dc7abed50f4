"""What a journal must hold after its process or its machine died: a dict, the transactions in doubt, and what happened since the last sync.

The unit is the happening: one record outside transactions, or the whole of a transaction at its prepare, commit or rollback. What was synced
happened. Of what happened later each may have survived or not, in any combination, because a disk writes what it was not ordered to sync in any
order; but each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeAlias

from tests.unit.log.journal.reference import ADD, ADD_TX, DELETE_TX, Entry, State

UNSURE_MAX = 12
"""More happenings than that between two syncs are not distinguished in time: a test syncs before."""


@dataclass(frozen=True)
class Happening:
    """`kind`: record, prepare, commit or rollback; `entries`: all that the record or transaction says."""

    kind: str
    entries: tuple[Entry, ...]
    transaction: int = 0

    def to(self, state: State) -> None:
        if self.kind == "prepare":
            state.prepared[self.transaction] = list(self.entries)
        else:
            state.prepared.pop(self.transaction, None)
        if self.kind in ("record", "commit"):
            state.apply(self.entries)


@dataclass
class Model:
    sure: State = field(default_factory=State)
    unsure: list[Happening] = field(default_factory=list)
    open: dict[int, list[Entry]] = field(default_factory=dict)

    # ---- what is done ----------------------------------------------------------------------------------------------------------------------------

    def record(self, entry: Entry) -> None:
        self.unsure.append(Happening("record", (entry,)))

    def element(self, transaction: int, entry: Entry) -> None:
        self.open[transaction].append(entry)

    def end(self, kind: str, transaction: int) -> None:
        """A prepare leaves the transaction to be committed or rolled back later."""
        prepared = self.now().prepared
        entries = self.open.pop(transaction, None)
        self.unsure.append(Happening(kind, tuple(prepared[transaction] if entries is None else entries), transaction))

    def synced(self) -> None:
        for each in self.unsure:
            each.to(self.sure)
        self.unsure.clear()

    # ---- what it must be -------------------------------------------------------------------------------------------------------------------------

    def now(self) -> State:
        return self._with(tuple(self.unsure))

    def _with(self, survived: tuple[Happening, ...]) -> State:
        records = {key: list(entries) for key, entries in self.sure.records.items()}
        prepared = {key: list(entries) for key, entries in self.sure.prepared.items()}
        state = State(records, prepared, replaceable=self.sure.replaceable)
        for each in survived:
            each.to(state)
        return state

    def possible(self) -> Iterator[State]:
        """What may be there after the machine died: likeliest first."""
        for lost in range(len(self.unsure) + 1):
            for survived in combinations(self.unsure, len(self.unsure) - lost):
                yield self._with(survived)

    def settle(self, found: State) -> None:
        """Something was loaded, and from now on that is the truth. Transactions that were open are gone."""
        self.sure, self.unsure, self.open = replace(found, replaceable=self.sure.replaceable), [], {}


Contents: TypeAlias = tuple[dict[int, list[tuple[bool, int, bytes]]], dict[int, list[tuple[int, int, int, bytes]]]]


def contents(state: State) -> Contents:
    """What of a state its user sees: whether an entry was an add or an update, its type and its body, in order; of transactions in doubt the same,
    deletes last, which is the order of their effect."""
    records = {key: [(each.kind in (ADD, ADD_TX), each.user_type, each.body) for each in entries] for key, entries in state.records.items()}
    prepared = {
        key: [(each.kind, each.id, each.user_type, each.body) for each in sorted(entries, key=lambda each: each.kind == DELETE_TX)]
        for key, entries in state.prepared.items()
    }
    return records, prepared
