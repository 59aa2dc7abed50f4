"""Short lives of a journal, each for something that a crash could break, played on the journal and on the model at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from tests.unit.log.journal.model import Model, contents
from tests.unit.log.journal.opened import SALT, reference_of, state_of
from tests.unit.log.journal.reference import ADD, ADD_TX, DELETE, DELETE_TX, UPDATE, UPDATE_TX, Entry, State
from waltz_log.journal import Journal, JournalSettings
from waltz_log.testing.disk import SimulatedDisk

FILE_BYTES = 1024


def open_journal(disk: SimulatedDisk, **values: Any) -> Journal:
    """With tiny files and no compaction but when asked for."""
    return Journal.open(disk, JournalSettings(**({"file_bytes": FILE_BYTES, "files_pool": 4, "compact_files_min": 0} | values)), lambda length: SALT)


class Player:
    """Does to the journal and says to the model, the model first: a crash within a call may leave it done."""

    def __init__(self, disk: SimulatedDisk, model: Model, **values: Any) -> None:
        self.disk = disk
        self.model = model
        self.values = values
        self.journal = open_journal(disk, **values)

    def add(self, record_id: int, size: int = 5, user_type: int = 1) -> None:
        body = bytes([record_id % 251]) * size
        self.model.record(Entry(ADD, record_id, 0, user_type, body))
        self.journal.add(record_id, user_type, body)

    def update(self, record_id: int, size: int = 5, user_type: int = 1) -> None:
        body = b"u" * size
        self.model.record(Entry(UPDATE, record_id, 0, user_type, body))
        self.journal.update(record_id, user_type, body)

    def delete(self, *record_ids: int) -> None:
        for record_id in record_ids:
            self.model.record(Entry(DELETE, record_id))
            self.journal.delete(record_id)

    def begin(self) -> int:
        transaction = self.journal.begin()
        self.model.open[transaction] = []
        return transaction

    def add_in(self, transaction: int, record_id: int, size: int = 5) -> None:
        body = bytes([record_id % 251]) * size
        self.model.element(transaction, Entry(ADD_TX, record_id, 0, 1, body))
        self.journal.add_in(transaction, record_id, 1, body)

    def update_in(self, transaction: int, record_id: int, size: int = 5) -> None:
        self.model.element(transaction, Entry(UPDATE_TX, record_id, 0, 1, b"u" * size))
        self.journal.update_in(transaction, record_id, 1, b"u" * size)

    def delete_in(self, transaction: int, record_id: int) -> None:
        self.model.element(transaction, Entry(DELETE_TX, record_id))
        self.journal.delete_in(transaction, record_id)

    def prepare(self, transaction: int) -> None:
        self.model.end("prepare", transaction)
        self.journal.prepare(transaction)

    def commit(self, transaction: int) -> None:
        self.model.end("commit", transaction)
        self.journal.commit(transaction)

    def rollback(self, transaction: int) -> None:
        self.model.end("rollback", transaction)
        self.journal.rollback(transaction)

    def sync(self) -> None:
        self.journal.sync()
        self.model.synced()

    def reopen(self) -> None:
        self.journal.close()
        self.model.synced()
        self.model.open.clear()
        self.journal = open_journal(self.disk, **self.values)


Life = Callable[[Player], None]


def records_roll_through_files(play: Player) -> None:
    play.add(1, 400)
    play.add(2, 300)
    play.sync()
    play.update(1, 100)
    play.delete(2)
    play.add(3, 500)
    play.sync()
    play.delete(1)
    play.add(4, 600)
    play.update(3, 20)
    play.sync()
    play.delete(3, 4)
    play.sync()
    play.journal.reclaim()
    play.add(5, 700)
    play.add(6, 700)
    play.sync()


def a_transaction_over_three_files(play: Player) -> None:
    play.add(1, 100)
    play.sync()
    transaction, other = play.begin(), play.begin()
    play.add_in(transaction, 2, 600)
    play.delete_in(transaction, 1)
    play.add_in(other, 7, 300)
    play.add_in(transaction, 3, 600)
    play.update_in(transaction, 2, 300)
    play.commit(transaction)
    play.sync()
    play.rollback(other)
    play.delete(2, 3)
    play.add(8, 900)
    play.sync()


def prepared_and_decided(play: Player) -> None:
    play.add(1, 100)
    play.add(2, 100)
    first, second, third = play.begin(), play.begin(), play.begin()
    play.add_in(first, 3, 500)
    play.delete_in(first, 1)
    play.update_in(second, 2, 300)
    play.prepare(first)
    play.prepare(second)
    play.prepare(third)
    play.sync()
    play.reopen()
    play.add(4, 800)
    play.commit(first)
    play.sync()
    play.rollback(second)
    play.commit(third)
    play.sync()
    play.delete(3, 4)
    play.sync()


def files_are_reused_over_and_over(play: Player) -> None:
    """Records of equal length at equal places, so that what is left of an earlier use resembles as much as possible a record of this one."""
    for use in range(7):
        play.add(10 + use, 900)
        if use >= 1:
            play.delete(9 + use)
        play.sync()
    play.delete(16)
    play.sync()
    play.journal.reclaim()
    play.add(30, 900)
    play.sync()


def deletes_stand_in_later_files(play: Player) -> None:
    play.add(1, 50)
    play.add(2, 850)
    play.sync()
    play.add(3, 50)
    play.delete(1)
    play.add(4, 800)
    play.sync()
    play.delete(4)
    play.add(5, 850)
    play.delete(3)
    play.sync()
    play.add(6, 900)
    play.delete(5)
    play.sync()
    play.delete(2)
    play.sync()
    for record_id in range(20, 24):
        play.add(record_id, 900)
        play.delete(record_id)
        play.sync()


def compaction_moves_what_lives(play: Player) -> None:
    for record_id in range(1, 9):
        play.add(record_id, 280)
    play.sync()
    play.update(1, 30)
    play.update(1, 40, 2)
    play.delete(2, 3, 5, 6, 8)
    transaction = play.begin()
    play.update_in(transaction, 7, 30)
    play.add_in(transaction, 9, 30)
    play.sync()
    play.journal.compact()
    play.delete(4)
    play.commit(transaction)
    play.sync()
    play.journal.compact()
    play.add(40, 900)
    play.add(41, 900)
    play.sync()


def what_was_never_synced(play: Player) -> None:
    play.add(1, 100)
    play.add(2, 600)
    play.reopen()
    play.delete(1)
    transaction = play.begin()
    play.add_in(transaction, 3, 100)
    play.journal.writer.write()
    play.commit(transaction)
    play.journal.writer.write()
    play.update(2, 20)
    play.journal.writer.write()
    play.add(4, 100)
    play.journal.writer.write()


def updates_replace_each_other(play: Player) -> None:
    """For replaceable types: the last update of each must be there, and the one before as long as that is not sure."""
    play.add(1, 300)
    play.add(2, 300)
    for size in (500, 501, 502, 503):
        play.update(1, size)
        play.update(2, 20, 2)
        play.sync()
        play.update(1, 10)
    play.delete(2)
    play.update(1, 900)
    play.sync()


LIVES: list[Life] = [
    records_roll_through_files,
    a_transaction_over_three_files,
    prepared_and_decided,
    files_are_reused_over_and_over,
    deletes_stand_in_later_files,
    compaction_moves_what_lives,
    what_was_never_synced,
]


def reported(state: State) -> str:
    """Two states that differ are printed differently; short, so that a failure can be read."""
    records, prepared = contents(state)
    lines = [f"record {record_id} {_short(part)}" for record_id, parts in sorted(records.items()) for part in parts]
    for transaction, elements in sorted(prepared.items()):
        lines += [f"transaction {transaction} {_short(each)}" for each in elements] or [f"transaction {transaction} empty"]
    return "; ".join(lines)


def _short(part: tuple[object, ...]) -> str:
    return " ".join(f"{len(field)} bytes {crc32(field):08x}" if isinstance(field, bytes) else str(field) for field in part)


class JournalScenario:
    """For `verification.crashes.crashes`. What a crash must leave: one of so many contents."""

    def __init__(self, life: Life, **values: Any) -> None:
        self.life = life
        self.values = values
        self.model = Model()
        self.model.sure.replaceable = values.get("replaceable_types", frozenset())

    async def prepare(self, disk: SimulatedDisk) -> None:
        """Nothing comes before: that a journal is made is part of its life."""

    async def run(self, disk: SimulatedDisk) -> None:
        self.life(Player(disk, self.model, **self.values))

    def observe(self) -> frozenset[str]:
        return frozenset(reported(each) for each in self.model.possible())

    async def recover(self, disk: SimulatedDisk) -> None:
        open_journal(disk, **self.values).close()


async def check_survivor(disk: SimulatedDisk, possible: frozenset[str], replaceable: frozenset[int] = frozenset()) -> None:
    """What is found is one of the possible, is what the reference finds, is on the medium, and the journal goes on."""
    expected = reference_of(disk, "hash", replaceable)
    journal = open_journal(disk, replaceable_types=replaceable)
    found = state_of(journal.loaded)
    assert reported(found) in possible, f"found {reported(found)}"
    assert contents(found) == contents(expected), f"the reference finds {reported(expected)}"
    again = open_journal(disk.survivor([0] * len(disk.pending())), replaceable_types=replaceable)
    assert contents(state_of(again.loaded)) == contents(found), "what an opening told was not on the medium"
    again.add(99, 0, b"on it goes")
    again.close()
