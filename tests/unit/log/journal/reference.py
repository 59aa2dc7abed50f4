"""The dumbest correct reader of a circular journal, and a maker of its files: what the journal is compared with.

Written from the layout document alone, one byte at a time, with no thought for speed and no code of the journal's. Files are plain bytes; a journal
is a list of them. The rules, in the words of the document:

- a record is healthy where its type is in 11..19, its file id is the header's, no size is negative or reaches beyond the file, and its last four
  bytes are the check of its format;
- a record may stand anywhere: behind an unhealthy one the search goes on at the next byte, behind a healthy one right after it;
- a transaction is complete where for each file that its prepare or commit lists there are exactly as many of its records as listed, or the file is
  gone (then it was reclaimed, which is safe only when nothing in it lived);
- complete and committed: its records count at the place of the commit, deletes last; complete and prepared: in doubt, handed over with its records;
  everything else of a transaction counts nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

ADD, UPDATE, ADD_TX, UPDATE_TX, DELETE_TX, DELETE, PREPARE, COMMIT, ROLLBACK = range(11, 20)
BODIED = (ADD, UPDATE, ADD_TX, UPDATE_TX)
ELEMENTS = (ADD_TX, UPDATE_TX, DELETE_TX)
FILL = b"J"

Check = Callable[[bytes, int], int]
"""The last four bytes of a record, unsigned: from the bytes before them and the file's id."""


def check_size(body: bytes, file_id: int) -> int:
    """The check of the document: the length of the whole record."""
    return len(body) + 4


def hash_check(salt: bytes) -> Check:
    """The second format: CRC-32 of the bytes before the check, begun with four bytes that the journal's salt and the file's id give."""

    def check(body: bytes, file_id: int) -> int:
        seed = blake2b(file_id.to_bytes(4, "big"), key=salt, digest_size=4).digest()
        return crc32(body, int.from_bytes(seed, "big"))

    return check


@dataclass(frozen=True)
class Entry:
    """One record as it stands in a file. What its kind does not have is 0 or empty. `listed`: of a prepare or commit, (file id, records) in order."""

    kind: int
    id: int = 0
    transaction: int = 0
    user_type: int = 0
    body: bytes = b""
    listed: tuple[tuple[int, int], ...] = ()

    def encode(self, file_id: int, check: Check = check_size) -> bytes:
        made = struct.pack(">Bi", self.kind, file_id)
        if self.kind in (*ELEMENTS, PREPARE, COMMIT, ROLLBACK):
            made += struct.pack(">q", self.transaction)
        if self.kind in (*BODIED, DELETE, DELETE_TX):
            made += struct.pack(">q", self.id)
        if self.kind in BODIED:
            made += struct.pack(">iB", len(self.body), self.user_type) + self.body
        if self.kind in (PREPARE, COMMIT):
            made += struct.pack(">i", len(self.listed)) + b"".join(struct.pack(">ii", *each) for each in self.listed)
        return made + struct.pack(">I", check(made, file_id))


@dataclass(frozen=True)
class Found:
    """A healthy record and where it stands."""

    entry: Entry
    file_id: int
    offset: int
    length: int


class _Cursor:
    """Reads fields one after the other; `ValueError` beyond the end."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content = content
        self.position = position

    def bytes(self, length: int) -> bytes:
        if length < 0 or self.position + length > len(self.content):
            raise ValueError("beyond the file")
        self.position += length
        return self.content[self.position - length : self.position]

    def number(self, length: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.bytes(length), "big", signed=signed)


def read_record(content: bytes, at: int, file_id: int, check: Check) -> Found | None:
    """The healthy record that begins at `at`, if one does."""
    cursor = _Cursor(content, at)
    transaction, record_id, user_type, body = 0, 0, 0, b""
    listed: tuple[tuple[int, int], ...] = ()
    try:
        kind = cursor.number(1)
        if not 11 <= kind <= 19 or cursor.number(4) != file_id:
            return None
        if kind in (*ELEMENTS, PREPARE, COMMIT, ROLLBACK):
            transaction = cursor.number(8)
        if kind in (*BODIED, DELETE, DELETE_TX):
            record_id = cursor.number(8)
        if kind in BODIED:
            size = cursor.number(4)
            user_type = cursor.number(1, signed=False)
            body = cursor.bytes(size)
        if kind in (PREPARE, COMMIT):
            summary = cursor.bytes(8 * cursor.number(4))
            listed = tuple(struct.iter_unpack(">ii", summary))
        covered = content[at : cursor.position]
        if cursor.number(4, signed=False) != check(covered, file_id):
            return None
    except ValueError:
        return None
    return Found(Entry(kind, record_id, transaction, user_type, body, listed), file_id, at, cursor.position - at)


def read_file(content: bytes, check: Check = check_size) -> tuple[int, list[Found]]:
    """The file's id and its healthy records, in order."""
    (file_id,) = struct.unpack_from(">i", content)
    found, position = [], 4
    while position < len(content):
        record = read_record(content, position, file_id, check)
        if record is None:
            position += 1
        else:
            found.append(record)
            position += record.length
    return file_id, found


@dataclass
class State:
    """What a journal holds: of each living record its adds and updates in order; of each transaction in doubt its records in order."""

    records: dict[int, list[Entry]] = field(default_factory=dict)
    prepared: dict[int, list[Entry]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    """Transactions that had records or a prepare and are neither decided nor in doubt, and those that were ended by an incomplete record."""
    replaceable: frozenset[int] = frozenset()
    """User types of which a record keeps the last update alone."""

    def latest(self) -> dict[int, tuple[int, bytes]]:
        """Of each living record the last user type and body."""
        return {record_id: (entries[-1].user_type, entries[-1].body) for record_id, entries in self.records.items()}

    def apply(self, entries: Iterable[Entry]) -> None:
        """Adds and updates, then deletes, as the document's implementation has it."""
        entries = list(entries)
        for entry in entries:
            if entry.kind in BODIED:
                kept = [] if entry.kind in (ADD, ADD_TX) else [each for each in self.records.get(entry.id, []) if not self._replaces(entry, each)]
                self.records[entry.id] = [*kept, entry]
        for entry in entries:
            if entry.kind in (DELETE, DELETE_TX):
                self.records.pop(entry.id, None)

    def _replaces(self, new: Entry, old: Entry) -> bool:
        return new.user_type == old.user_type and new.user_type in self.replaceable and old.kind in (UPDATE, UPDATE_TX)


def ring_order(ids: Iterable[int]) -> list[int]:
    """File ids oldest first. They are given one after the other, 1 to 2^31 - 1 and then 1 again, so the oldest follows the widest gap of the ring."""
    ring = sorted(set(ids))
    if not ring:
        return []
    gaps = [(ring[n] - ring[n - 1]) % ((1 << 31) - 1) or 1 << 31 for n in range(len(ring))]
    first = gaps.index(max(gaps))
    return ring[first:] + ring[:first]


def load(files: Iterable[bytes], check: Check = check_size, replaceable: frozenset[int] = frozenset()) -> State:
    """What a journal of these files holds. Files too short for a header hold nothing."""
    read = dict(read_file(content, check) for content in files if len(content) >= 4)
    state = State(replaceable=replaceable)
    open_transactions: dict[int, list[Found]] = {}
    prepared: set[int] = set()
    for file_id in ring_order(read):
        for found in read[file_id]:
            entry = found.entry
            if entry.kind in (ADD, UPDATE, DELETE):
                state.apply([entry])
            elif entry.kind in ELEMENTS:
                open_transactions.setdefault(entry.transaction, []).append(found)
            elif entry.kind == ROLLBACK:
                open_transactions.pop(entry.transaction, None)
                prepared.discard(entry.transaction)
            else:
                _decide(state, open_transactions, prepared, entry, set(read))
    state.prepared = {each: [found.entry for found in open_transactions.get(each, [])] for each in prepared}
    state.failed |= set(open_transactions) - prepared
    return state


def _decide(state: State, open_transactions: dict[int, list[Found]], prepared: set[int], entry: Entry, there: set[int]) -> None:
    elements = open_transactions.get(entry.transaction, [])
    counted = {file_id: sum(found.file_id == file_id for found in elements) for file_id in there}
    complete = all(counted[file_id] == records for file_id, records in entry.listed if file_id in there)
    complete = complete and sum(counted.values()) == sum(counted[file_id] for file_id in dict(entry.listed) if file_id in there)
    if not complete:
        open_transactions.pop(entry.transaction, None)
        prepared.discard(entry.transaction)
        state.failed.add(entry.transaction)
    elif entry.kind == PREPARE:
        open_transactions.setdefault(entry.transaction, [])
        prepared.add(entry.transaction)
    else:
        open_transactions.pop(entry.transaction, None)
        prepared.discard(entry.transaction)
        state.apply(found.entry for found in elements)


class FileImage:
    """Makes the bytes of one file: records one after the other, holes between them, old bytes below.

    `below`: what the file held in an earlier use; only the header is rewritten then, as a journal that reuses a file does."""

    def __init__(self, file_id: int, size: int, *, check: Check = check_size, below: bytes | None = None) -> None:
        self.file_id = file_id
        self.check = check
        self.content = bytearray(below if below is not None else FILL * size)
        assert len(self.content) == size
        self.content[:4] = struct.pack(">i", file_id)
        self.position = 4

    def put(self, *entries: Entry) -> FileImage:
        for entry in entries:
            self.raw(entry.encode(self.file_id, self.check))
        return self

    def raw(self, written: bytes) -> FileImage:
        """Any bytes at the position."""
        assert self.position + len(written) <= len(self.content), "does not fit the file"
        self.content[self.position : self.position + len(written)] = written
        self.position += len(written)
        return self

    def hole(self, length: int) -> FileImage:
        """Leaves bytes as they are."""
        self.position += length
        return self

    def damage(self, offset: int, written: bytes) -> FileImage:
        self.content[offset : offset + len(written)] = written
        return self

    def __bytes__(self) -> bytes:
        return bytes(self.content)
