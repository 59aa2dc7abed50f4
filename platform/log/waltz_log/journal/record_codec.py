"""The records of a journal as bytes: what is written, and which bytes of a file are a healthy record.

Pure. It never decides what a record means for other records (loading.py) or where it is stored (ring.py). Source: "JBoss Messaging Circular Journal
Layout"; layouts with vectors in docs/internals/journal.md.

The last four bytes of a record are its check. `size`: the record's whole length, as in the layout. `hash`: CRC-32 of all bytes before it, with a
start value that is derived from the journal's secret salt and the file's id. A length does not detect a torn body, and a payload can imitate it: a
client could put a whole record into a body, and that record would be loaded if the record around it is damaged. A client that writes payloads does
not know the seed, which differs for each use of a file. So an imitation passes with a probability of 1 in 2^32, and so does a record of an earlier
use.

Invariants: `scan` yields only records whose type, file id, sizes and check are right, in the order of their offsets and never overlapping. It finds
each healthy record that does not start inside another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from struct import Struct
from struct import error as struct_error
from typing import Final, Literal, NamedTuple, TypeAlias

from waltz_log.core.formats.crc import crc32
from waltz_log.errors import InvalidRequest

__all__ = [
    "ADD",
    "ADD_TX",
    "BODY_OVERHEAD_BYTES",
    "COMMIT",
    "DELETE",
    "DELETE_BYTES",
    "DELETE_TX",
    "DELETE_TX_BYTES",
    "FILE_HEADER_BYTES",
    "FILL",
    "ID_MAX",
    "PREPARE",
    "ROLLBACK",
    "TX_BODY_OVERHEAD_BYTES",
    "UNHEALTHY",
    "UPDATE",
    "UPDATE_TX",
    "AddRun",
    "CheckKind",
    "Record",
    "check_ids",
    "check_seed",
    "encode_adds",
    "encode_body",
    "encode_delete",
    "encode_rollback",
    "encode_summary",
    "record_at",
    "record_bytes",
    "scan",
    "scan_runs",
    "summary_bytes",
]

CheckKind: TypeAlias = Literal["hash", "size"]

ADD, UPDATE, ADD_TX, UPDATE_TX, DELETE_TX, DELETE, PREPARE, COMMIT, ROLLBACK = range(11, 20)
UNHEALTHY: Final = 0
"""What `scan` yields for a place that starts like a record of this use of the file and is none."""

FILL: Final = b"J"
"""What a new file is filled with: no record's type, so that a search skips it."""
FILE_HEADER_BYTES: Final = 4
ID_MAX: Final = (1 << 63) - 1
"""For records and transactions."""
USER_TYPE_MAX: Final = 255

_BODY: Final = Struct(">BiqiB")
_TX_BODY: Final = Struct(">BiqqiB")
_ONE_ID: Final = Struct(">Biq")
_TWO_IDS: Final = Struct(">Biqq")
_SUMMARY: Final = Struct(">Biqi")
_PAIR: Final = Struct(">ii")
_CHECK: Final = Struct(">I")

ROW_RECORDS: Final = 32
"""Adds of one length that are judged at once when a file is searched: with more the gain is small, with fewer runs a row is worth it."""

BODY_OVERHEAD_BYTES: Final = _BODY.size + 4
TX_BODY_OVERHEAD_BYTES: Final = _TX_BODY.size + 4
DELETE_TX_BYTES: Final = _TWO_IDS.size + 4
DELETE_BYTES: Final = DELETE_TX_BYTES - 8


def check_seed(salt: bytes | None, file_id: int) -> int | None:
    """What the checks of a file begin with; None means the check by size, which needs no salt."""
    if salt is None:
        return None
    return int.from_bytes(blake2b(file_id.to_bytes(4, "big"), key=salt, digest_size=4).digest(), "big")


def check_ids(record_id: int, user_type: int) -> None:
    """Raises `InvalidRequest` if the fields have no room for them."""
    if not 0 <= record_id <= ID_MAX:
        raise InvalidRequest(reason=f"record ids are 0 to 2^63 - 1, not {record_id}")
    if not 0 <= user_type <= USER_TYPE_MAX:
        raise InvalidRequest(reason=f"user types are 0 to {USER_TYPE_MAX}, not {user_type}")


# ---- writing -----------------------------------------------------------------------------------------------------------------------------------


def _sealed(record: bytes, seed: int | None) -> bytes:
    return record + _CHECK.pack(len(record) + 4 if seed is None else crc32(record, seed))


def encode_body(kind: int, file_id: int, seed: int | None, record_id: int, user_type: int, body: bytes, transaction_id: int | None = None) -> bytes:
    """An add or update; of a transaction where its id is given."""
    if transaction_id is None:
        return _sealed(_BODY.pack(kind, file_id, record_id, len(body), user_type) + body, seed)
    return _sealed(_TX_BODY.pack(kind, file_id, transaction_id, record_id, len(body), user_type) + body, seed)


def encode_adds(file_id: int, seed: int | None, records: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
    """Adds of (record id, user type, body), outside transactions."""
    pack, check = _BODY.pack, _CHECK.pack
    plain = [pack(ADD, file_id, record_id, len(body), user_type) + body for record_id, user_type, body in records]
    if seed is None:
        return [record + check(len(record) + 4) for record in plain]
    return [record + check(crc32(record, seed)) for record in plain]


def encode_delete(file_id: int, seed: int | None, record_id: int, transaction_id: int | None = None) -> bytes:
    if transaction_id is None:
        return _sealed(_ONE_ID.pack(DELETE, file_id, record_id), seed)
    return _sealed(_TWO_IDS.pack(DELETE_TX, file_id, transaction_id, record_id), seed)


def encode_summary(kind: int, file_id: int, seed: int | None, transaction_id: int, counts: Sequence[tuple[int, int]]) -> bytes:
    """A prepare or commit with (file id, records of the transaction in that file)."""
    return _sealed(_SUMMARY.pack(kind, file_id, transaction_id, len(counts)) + b"".join([_PAIR.pack(*pair) for pair in counts]), seed)


def encode_rollback(file_id: int, seed: int | None, transaction_id: int) -> bytes:
    return _sealed(_ONE_ID.pack(ROLLBACK, file_id, transaction_id), seed)


def summary_bytes(files: int) -> int:
    return _SUMMARY.size + _PAIR.size * files + 4


# ---- reading -----------------------------------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """The record at `offset`. Fields that its kind does not have are 0 or empty, the record id -1; `counts` are those of a prepare or commit."""

    kind: int
    offset: int
    end: int
    transaction_id: int = 0
    record_id: int = -1
    user_type: int = 0
    body: bytes = b""
    counts: tuple[tuple[int, int], ...] = ()


class AddRun(NamedTuple):
    """Adds outside of transactions without gaps between them, in columns. `offsets` has one more than there are records: where the run ends."""

    offsets: Sequence[int]
    record_ids: list[int]
    user_types: list[int]
    bodies: list[bytes]


def scan(data: bytes, file_id: int, seed: int | None, start: int = FILE_HEADER_BYTES) -> Iterator[Record]:
    """The healthy records of a file at any offset, and a `Record` of kind `UNHEALTHY` for each place that only looks like a record."""
    for found in scan_runs(data, file_id, seed, start):
        if isinstance(found, Record):
            yield found
        else:
            for each in zip(found.offsets, found.offsets[1:], found.record_ids, found.user_types, found.bodies, strict=False):
                offset, end, record_id, user_type, body = each
                yield Record(ADD, offset, end, 0, record_id, user_type, body)


def scan_runs(data: bytes, file_id: int, seed: int | None, start: int = FILE_HEADER_BYTES) -> Iterator[Record | AddRun]:
    """What `scan` finds, in the same order, with adds in runs: they are most of a journal, and a run costs a third of its records one by one."""
    find = re.compile(b"[\\x0b-\\x13]" + re.escape(file_id.to_bytes(4, "big"))).search
    view = memoryview(data)
    position = start
    while (found := find(data, position)) is not None:
        position = found.start()
        if data[position] == ADD:
            run = _equal_adds(data, view, position, file_id, seed) or _add_run(data, position, file_id, seed)
            if run.record_ids:
                yield run
                position = run.offsets[-1]
                continue
        record = _record_at(data, view, position, seed)
        yield record
        position = record.end


def _equal_adds(data: bytes, view: memoryview, position: int, file_id: int, seed: int | None) -> AddRun | None:
    """The healthy adds of one length from a place on, judged by columns, as far as whole rows of them are: what does not fit is left to `_add_run`.
    None if they are not worth it."""
    if position + _BODY.size > len(data):
        return None
    size = _BODY.unpack_from(data, position)[3]
    if not 0 <= size <= (len(data) - position) // ROW_RECORDS:
        return None
    fields_of, covered_of = _row_of_adds(size)
    length = fields_of.size // ROW_RECORDS
    record_ids: list[int] = []
    user_types: list[int] = []
    bodies: list[bytes] = []
    rows = view[position : position + (len(data) - position) // fields_of.size * fields_of.size]
    for fields, covered in zip(fields_of.iter_unpack(rows), covered_of.iter_unpack(rows), strict=True):
        if not fields[0::7].count(ADD) == fields[1::7].count(file_id) == fields[3::7].count(size) == ROW_RECORDS:
            break
        checks = fields[6::7]
        if seed is None:
            if checks.count(length) != ROW_RECORDS:
                break
        elif checks != tuple(map(crc32, covered, repeat(seed))):
            break
        record_ids += fields[2::7]
        user_types += fields[4::7]
        bodies += fields[5::7]
    return AddRun(range(position, position + length * len(record_ids) + 1, length), record_ids, user_types, bodies) if record_ids else None


def _add_run(data: bytes, position: int, file_id: int, seed: int | None) -> AddRun:
    """The healthy adds from an offset on, without gaps between them."""
    offsets = [position]
    run = AddRun(offsets, [], [], [])
    put_offset, put_id, put_type, put_body = offsets.append, run.record_ids.append, run.user_types.append, run.bodies.append
    size, unpack, covered = -1, _whole_add(0).unpack_from, 0
    while True:
        try:
            # Read as if it were as long as the one before: mostly it is.
            kind, owner, record_id, found_size, user_type, body, check = unpack(data, position)
        except struct_error:
            if size <= 0:
                return run
            size, unpack = -1, _whole_add(0).unpack_from  # nearly at the end: a shorter one may still fit
            continue
        if kind != ADD or owner != file_id or found_size < 0:
            return run
        if found_size != size:
            if found_size > len(data) - position - BODY_OVERHEAD_BYTES:
                return run
            size = found_size
            unpack, covered = _whole_add(size).unpack_from, BODY_OVERHEAD_BYTES - 4 + size
            continue
        if check != (covered + 4 if seed is None else crc32(data[position : position + covered], seed)):
            return run
        position += covered + 4
        put_offset(position)
        put_id(record_id)
        put_type(user_type)
        put_body(body)


@lru_cache(maxsize=4096)
def _whole_add(size: int) -> Struct:
    """The layout of an add with a body of that size."""
    return Struct(f">BiqiB{size}sI")


@lru_cache(maxsize=64)
def _row_of_adds(size: int) -> tuple[Struct, Struct]:
    """The layout of a row of adds with bodies of that size: all their fields, and the bytes that the check of each covers."""
    return Struct(">" + f"BiqiB{size}sI" * ROW_RECORDS), Struct(f"{_BODY.size + size}s{_CHECK.size}x" * ROW_RECORDS)


def record_at(data: bytes, offset: int, file_id: int, seed: int | None) -> Record | None:
    """The healthy record that begins at a place, if one does."""
    head = data[offset : offset + 5]
    if len(head) < 5 or head[0] not in _LAYOUTS or int.from_bytes(head[1:], "big") != file_id:
        return None
    record = _record_at(data, memoryview(data), offset, seed)
    return None if record.kind == UNHEALTHY else record


def record_bytes(head: bytes) -> int:
    """How long the add or update is that begins with these bytes, if one does; at least `len(head)`."""
    layout = _LAYOUTS.get(head[0]) if head else None
    if layout not in (_BODY, _TX_BODY) or len(head) < layout.size:
        return len(head)
    return max(len(head), layout.size + int(layout.unpack_from(head)[-2]) + 4)


def _record_at(data: bytes, view: memoryview, offset: int, seed: int | None) -> Record:
    """The record at a place with a right type and file id; `UNHEALTHY` if the rest is not, and then it ends after its first byte."""
    kind = data[offset]
    left = len(data) - offset
    unhealthy = Record(UNHEALTHY, offset, offset + 1)
    layout = _LAYOUTS[kind]
    if left < layout.size + 4:
        return unhealthy
    _, _, *fields = layout.unpack_from(data, offset)
    size = 0
    if kind in (ADD, UPDATE, ADD_TX, UPDATE_TX):
        size = fields[-2]
    elif kind in (PREPARE, COMMIT):
        size = fields[-1] * _PAIR.size
    covered = offset + layout.size + size
    end = covered + 4
    if size < 0 or end > len(data) or _CHECK.unpack_from(data, covered)[0] != (end - offset if seed is None else crc32(view[offset:covered], seed)):
        return unhealthy
    rest = data[offset + layout.size : covered]
    if kind in (ADD, UPDATE):
        return Record(kind, offset, end, 0, fields[0], fields[2], rest)
    if kind in (ADD_TX, UPDATE_TX):
        return Record(kind, offset, end, fields[0], fields[1], fields[3], rest)
    if kind == DELETE_TX:
        return Record(kind, offset, end, fields[0], fields[1])
    if kind == DELETE:
        return Record(kind, offset, end, 0, fields[0])
    return Record(kind, offset, end, fields[0], counts=tuple(_PAIR.iter_unpack(rest)))


_LAYOUTS: Final = {
    ADD: _BODY,
    UPDATE: _BODY,
    ADD_TX: _TX_BODY,
    UPDATE_TX: _TX_BODY,
    DELETE_TX: _TWO_IDS,
    DELETE: _ONE_ID,
    PREPARE: _SUMMARY,
    COMMIT: _SUMMARY,
    ROLLBACK: _ONE_ID,
}
