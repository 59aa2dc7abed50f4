"""Whole blocks of records at once, with numpy: framing, verification, ids, cuts.

`lengths` is i4[n] big-endian, the whole length of each record; `records` the records back to back. Nothing here makes an object per record.

`verify_records` compares both checksums of each record by themselves (`record_checksums`), so it accepts exactly what a loop over the records
accepts, whatever bytes a sender chooses. If something is wrong, that loop finds the first damaged record and names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import pack, unpack
from typing import Any, Final  # Any: dtypes that are made at run time

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.crc_algebra import crc_of_words, shares, shift
from waltz_log.core.formats.record_checksums import closings_of_data, closings_of_run, closings_without_data, is_run, words_of
from waltz_log.core.formats.record_layout import CHECKSUM, FIELDS, HEADER, HEADER_BYTES, ID, ID_MAX, RECORD_OVERHEAD_BYTES, SENDER
from waltz_log.errors import CorruptData

__all__ = [
    "CHUNK_BYTES",
    "FEW_DIFFERENT",
    "FEW_LENGTHS",
    "FEW_RECORDS",
    "HEADER_DTYPE",
    "assign_ids",
    "closings_array",
    "headers_array",
    "index_entries",
    "lengths_array",
    "offsets_array",
    "senders",
    "shortest_and_sum",
    "slice_block",
    "verify_records",
]

HEADER_DTYPE: Final = np.dtype([(name, f">{kind}") for name, kind in FIELDS])
assert HEADER_DTYPE.itemsize == HEADER_BYTES

FEW_RECORDS: Final = 64
"""Below this many a loop is faster than the fixed cost of about twenty numpy calls. In a process that does nothing else they are equal at 40. In a
node the caches are cold at each block."""

FEW_DIFFERENT: Final = 160
"""As `FEW_RECORDS`, for the verification of records of different lengths."""

FEW_LENGTHS: Final = 192
"""As `FEW_RECORDS`, where only lengths are read."""

_NO_ID = bytes(ID.size)

CHUNK_BYTES: Final = 64 * 1024
"""About how much data is copied into objects at a time. More would not fit in the processor's nearest cache, from which its checksum is computed."""

CHUNK_RECORDS_MIN: Final = 64
"""As above, for large records, which are not copied."""

CLOSINGS_MIN: Final = 256
"""From this many records on, computing closing checksums without the data costs less than one more call for each record."""

COPIED_BYTES: Final = 512
"""Data up to this length is copied into an object for each record, which costs less than a view of it."""

_CLOSING_DTYPE = np.dtype(">u4")
_HEADER_ROW = np.dtype(f"V{HEADER_BYTES}")


def lengths_array(lengths: bytes) -> NDArray[np.int64]:
    """int64[n]. Raises `ValueError` if the bytes are not whole numbers of four."""
    return np.frombuffer(lengths, dtype=">i4").astype(np.int64)


def offsets_array(lengths: bytes) -> NDArray[np.int64]:
    """int64[n + 1]: where each record starts, and where the last one ends."""
    found = lengths_array(lengths)
    offsets = np.zeros(len(found) + 1, dtype=np.int64)
    np.cumsum(found, out=offsets[1:])
    return offsets


def index_entries(lengths: bytes, start: int) -> tuple[bytes, int]:
    """i8[n] big-endian: where each record starts when the first one does at `start`; and where the last one ends."""
    if len(lengths) // 4 < FEW_LENGTHS:
        *starts, end = accumulate(_each(lengths), initial=start)
        return pack(f">{len(starts)}q", *starts), end
    if size := _one_length(lengths):
        end = start + size * (len(lengths) // 4)
        return np.arange(start, end, size, dtype=np.int64).astype(">i8").tobytes(), end
    offsets = offsets_array(lengths) + start
    return offsets[:-1].astype(">i8").tobytes(), int(offsets[-1])


def headers_array(records: bytes | memoryview, lengths: bytes) -> NDArray[Any]:
    """HEADER_DTYPE[n], a copy. The framing must be right (`verify_records` checked it); `IndexError` or `ValueError` otherwise."""
    return _Framing(lengths).heads(records)


def closings_array(records: bytes | memoryview, lengths: bytes) -> NDArray[Any]:
    """u4[n] big-endian: the closing checksum of each record, which may not be written to. The framing must be right, as for `headers_array`."""
    return _Framing(lengths).closings(memoryview(records))


def senders(records: bytes | memoryview, lengths: bytes) -> Iterator[tuple[int, int, int]]:
    """Client id, generation and sequence of each record, for a few of them. The framing must be right, as for `headers_array`."""
    start = 0
    for length in _each(lengths):
        yield SENDER.unpack_from(records, start)
        start += length


def shortest_and_sum(lengths: bytes) -> tuple[int, int]:
    """The shortest length and the sum of all. n > 0."""
    if size := _one_length(lengths):
        return size, size * (len(lengths) // 4)
    if len(lengths) // 4 < FEW_LENGTHS:
        each = _each(lengths)
        return min(each), sum(each)
    found = np.frombuffer(lengths, dtype=">i4")
    return int(found.min()), int(found.sum(dtype=np.int64))


def _each(lengths: bytes) -> tuple[int, ...]:
    """The length of each of a few records, without numpy, whose call would cost more."""
    return unpack(f">{len(lengths) // 4}i", lengths)


def _one_length(lengths: bytes) -> int:
    """The length of each record if all have the same, as they often have; otherwise 0. n > 0."""
    first = lengths[:4]
    return int.from_bytes(first, "big", signed=True) if lengths == first * (len(lengths) // 4) else 0


def _rows_at(data: bytes | bytearray | memoryview, starts: NDArray[np.int64], width: int) -> NDArray[Any]:
    """V<width>[n]: `width` bytes from each start. A window over every byte position, so that the gather copies rows, not bytes."""
    if not len(starts):
        return np.empty(0, dtype=f"V{width}")
    found: NDArray[Any] = _windows(data, np.dtype(f"V{width}"))[starts]  # `take` would first copy every window
    return found


def verify_records(records: bytes | memoryview, lengths: bytes, *, first_transaction_id: int | None, partition: int | None, where: str) -> None:
    """Raises `CorruptData` unless the framing is right, both checksums of every record match, ids are dense from `first_transaction_id` (None: all
    zero) and, where `partition` is given, every record names it."""
    if len(lengths) % 4:
        raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"lengths are cut off: bytes={len(lengths)}")
    count = len(lengths) // 4
    if first_transaction_id is not None and not 0 <= first_transaction_id <= ID_MAX - count:
        raise CorruptData(where=where, offset=0, transaction_id=first_transaction_id, reason=f"impossible transaction ids: count={count}")
    if count < FEW_RECORDS or (count < FEW_DIFFERENT and not _one_length(lengths)):
        _verify_one_by_one(records, lengths, first_transaction_id, partition, where)
    elif not _verified_at_once(records, lengths, first_transaction_id, partition):
        _verify_one_by_one(records, lengths, first_transaction_id, partition, where)
        raise AssertionError("a block that fails as a whole must hold a bad record")


def _verified_at_once(records: bytes | memoryview, lengths: bytes, first_transaction_id: int | None, partition: int | None) -> bool:
    shortest, total = shortest_and_sum(lengths)
    if shortest < RECORD_OVERHEAD_BYTES or total != len(records):
        return False
    framing, view = _Framing(lengths), memoryview(records)
    heads = framing.heads(view)
    if (heads["data_length"] != framing.data_lengths()).any():
        return False
    if partition is not None and (heads["partition"] != partition).any():
        return False
    if first_transaction_id is None:
        if heads["transaction_id"].any():
            return False
    elif (heads["transaction_id"] != first_transaction_id + np.arange(framing.count)).any():
        return False
    return _checksums_match(view, framing, heads, first_transaction_id)


def _checksums_match(records: memoryview, framing: _Framing, heads: NDArray[Any], first_transaction_id: int | None) -> bool:
    """Compares both checksums of each record by themselves. The framing and the ids are right."""
    few = framing.count < CLOSINGS_MIN
    checksums, closings = heads["data_checksum"].tolist(), framing.closings(records)
    start = 0
    for bodies in framing.chunks(records):
        stop = start + len(bodies)
        if [*map(crc32, bodies)] != checksums[start:stop]:
            return False
        if few and (closings_of_data(heads[start:stop].view(_HEADER_ROW).tolist(), bodies) != closings[start:stop]).any():
            return False
        start = stop
    if few:
        return True
    words = words_of(heads)
    if framing.size and is_run(words):
        found = closings_of_run(words, framing.size - RECORD_OVERHEAD_BYTES, first_transaction_id)
    else:
        found = closings_without_data(words, framing.data_lengths())
    return bool((found == closings).all())


class _Framing:
    """The positions of the records of a run. If all have one length, rows are a view with strides; otherwise they are gathered."""

    def __init__(self, lengths: bytes) -> None:
        self.count = len(lengths) // 4
        self.size = _one_length(lengths)
        if self.size:
            self.total = self.size * self.count
            return
        self.sizes = lengths_array(lengths)
        self.ends = np.cumsum(self.sizes)
        self.total = int(self.ends[-1]) if self.count else 0

    def _strided(self, data: bytes | bytearray | memoryview, dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        return np.ndarray(self.count, dtype, data, offset % self.size, (self.size,))

    def heads(self, data: bytes | memoryview) -> NDArray[Any]:
        """HEADER_DTYPE[n], a copy."""
        if self.size:
            return self._strided(data, _HEADER_ROW, 0).copy().view(HEADER_DTYPE)  # a copy field by field takes several times as long
        return _rows_at(data, self.ends - self.sizes, HEADER_BYTES).view(HEADER_DTYPE)

    def closings(self, data: bytearray | memoryview) -> NDArray[Any]:
        """>u4[n]: the last bytes of each record."""
        if self.size:
            return self._strided(data, _CLOSING_DTYPE, -4)
        return _rows_at(data, self.ends - 4, 4).view(_CLOSING_DTYPE)

    def chunks(self, records: memoryview) -> Iterator[Sequence[bytes | memoryview]]:
        """The data of all records, of some at a time."""
        mean = self.total // self.count
        step = max(CHUNK_BYTES // mean, CHUNK_RECORDS_MIN)
        if RECORD_OVERHEAD_BYTES < self.size <= RECORD_OVERHEAD_BYTES + COPIED_BYTES:
            rows = self._strided(records, np.dtype(f"V{self.size - RECORD_OVERHEAD_BYTES}"), HEADER_BYTES)
            for start in range(0, self.count, step):
                yield rows[start : start + step].tolist()
            return
        ends = self.size * np.arange(1, self.count + 1) if self.size else self.ends
        starts = ends - (self.size or self.sizes)
        for start in range(0, self.count, step):
            some = slice(start, start + step)
            begin, end = int(starts[start]), int(ends[some][-1])
            chunk = records[begin:end].tobytes() if mean <= COPIED_BYTES else records[begin:end]
            bounds = zip((starts[some] + (HEADER_BYTES - begin)).tolist(), (ends[some] - (4 + begin)).tolist(), strict=True)
            yield [chunk[first:last] for first, last in bounds]

    def put_heads(self, data: bytearray | memoryview, rows: NDArray[Any]) -> None:
        """Rows of n, or one for all, in place of the first bytes of each record."""
        if self.size:
            self._strided(data, rows.dtype, 0)[:] = rows
        else:
            _windows(data, rows.dtype)[self.ends - self.sizes] = rows

    def put_closings(self, data: bytearray | memoryview, values: NDArray[Any]) -> None:
        """`values` in four bytes each, in the byte order of their type."""
        if self.size:
            self._strided(data, values.dtype, -4)[:] = values
        else:
            _windows(data, values.dtype)[self.ends - 4] = values

    def data_lengths(self) -> NDArray[np.int64] | int:
        return (self.size or self.sizes) - RECORD_OVERHEAD_BYTES


def _verify_one_by_one(records: bytes | memoryview, lengths: bytes, first_transaction_id: int | None, partition: int | None, where: str) -> None:
    view = memoryview(records)
    total = len(records)
    start = 0
    for index, length in enumerate(_each(lengths)):
        expected = 0 if first_transaction_id is None else first_transaction_id + index
        end = start + length
        if length < RECORD_OVERHEAD_BYTES or end > total:
            raise CorruptData(where=where, offset=start, transaction_id=expected, reason=f"bad length: length={length} left={total - start}")
        found, _, _, owner, _, _, data_length, data_checksum = HEADER.unpack_from(records, start)
        reason = None
        if data_length + RECORD_OVERHEAD_BYTES != length:
            reason = f"data length does not match: data_length={data_length} length={length}"
        elif crc32(view[start : end - 4]) != CHECKSUM.unpack_from(records, end - 4)[0]:
            reason = "record checksum does not match"
        elif crc32(view[start + HEADER_BYTES : end - 4]) != data_checksum:
            reason = "data checksum does not match"
        elif found != expected:
            reason = f"unexpected transaction id: found={found}"
        elif partition is not None and owner != partition:
            reason = f"unexpected partition: found={owner} expected={partition}"
        if reason is not None:
            raise CorruptData(where=where, offset=start, transaction_id=expected, reason=reason)
        start = end
    if start != total:
        raise CorruptData(where=where, offset=start, transaction_id=-1, reason=f"bytes after the last record: bytes={total - start}")


def assign_ids(records: bytes | bytearray | memoryview, lengths: bytes, first_transaction_id: int) -> bytes:
    """The block with ids `first_transaction_id` and up. Its records have id zero and are verified. Only what the id changes is added to a checksum,
    so a wrong checksum stays wrong. If `records` may be written to, the ids are written there too, which saves a copy: it is used up."""
    count = len(lengths) // 4
    patched = bytearray(records) if isinstance(records, bytes) or memoryview(records).readonly else records
    if count < FEW_RECORDS:
        _assign_one_by_one(patched, lengths, first_transaction_id)
        return bytes(patched)
    framing = _Framing(lengths)
    ids = first_transaction_id + np.arange(count)
    checksums = framing.closings(patched) ^ _shares(ids, framing)
    framing.put_heads(patched, ids.astype(">i8"))
    framing.put_closings(patched, checksums.astype(_CLOSING_DTYPE))
    return bytes(patched)


def _shares(ids: NDArray[np.int64], framing: _Framing) -> NDArray[np.uint32]:
    """u4[n]: what consecutive ids change in the closing checksums of records whose ids are zero."""
    width = len(_NO_ID)
    if framing.size:
        return shares(int(ids[0]), framing.count, width, framing.size - width - 4)
    words = np.empty((2, framing.count), dtype=np.uint32)
    words[0], words[1] = ids >> 32, ids & 0xFFFF_FFFF
    return shift(crc_of_words(words) ^ np.uint32(crc32(_NO_ID)), framing.sizes - width - 4)


def _windows(data: bytes | bytearray | memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A row at every byte position."""
    return np.ndarray(shape=(len(data) - dtype.itemsize + 1,), dtype=dtype, buffer=data, strides=(1,))


def _assign_one_by_one(patched: bytearray | memoryview, lengths: bytes, first_transaction_id: int) -> None:
    start = 0
    no_id = crc32(_NO_ID)
    with memoryview(patched) as view:
        for index, length in enumerate(_each(lengths)):
            closing = start + length - 4
            with_id = ID.pack(first_transaction_id + index)
            rest = view[start + 8 : closing]
            share = crc32(rest, crc32(with_id)) ^ crc32(rest, no_id)
            view[start : start + 8] = with_id
            CHECKSUM.pack_into(view, closing, CHECKSUM.unpack_from(view, closing)[0] ^ share)
            rest.release()
            start += length


def slice_block(block: Block, first: int, last: int) -> Block:
    """Transactions `first` to `last`, both inclusive and within the block. Raises `ValueError` otherwise."""
    if not block.first_transaction_id <= first <= last <= block.last_transaction_id:
        raise ValueError(f"not within the block: {first}..{last} of {block.first_transaction_id}..{block.last_transaction_id}")
    if first == block.first_transaction_id and last == block.last_transaction_id:
        return block
    start, stop = first - block.first_transaction_id, last - block.first_transaction_id + 1
    offsets = offsets_array(block.lengths)
    return Block(first, block.lengths[4 * start : 4 * stop], block.records[offsets[start] : offsets[stop]], block.append_time_ms)
