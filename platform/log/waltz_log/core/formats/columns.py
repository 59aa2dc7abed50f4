"""Whole blocks of records at once, with numpy: framing, verification, ids, cuts.

`lengths` is i4[n] big-endian, the whole length of each record; `records` the records back to back. Nothing here makes an object per record.

How a block is verified (`verify_records`): the closing checksums determine the checksum of the whole block (`crc_algebra`), so one pass of
`crc32` over all its bytes checks them together. A record's closing checksum and header determine its data checksum, so that one is checked
without the data. Damage within one record is found whenever the record's own checksum finds it, including every burst of up to 32 bits. Damage in
several records at once is missed with a probability of 2**-32, as with one checksum. If something is wrong, a loop over the records finds the first
damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from struct import Struct, pack, unpack
from typing import Any, Final  # Any: dtypes that are made at run time

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.block import HEADER_BYTES, RECORD_OVERHEAD_BYTES, Block
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.crc_algebra import crc_of_words, fold, shift
from waltz_log.errors import CorruptData

__all__ = [
    "FEW_RECORDS",
    "HEADER_DTYPE",
    "assign_ids",
    "header_bytes",
    "headers_array",
    "index_entries",
    "lengths_array",
    "offsets_array",
    "senders",
    "shortest_and_sum",
    "slice_block",
    "verify_records",
]

HEADER_DTYPE: Final = np.dtype(
    [
        ("transaction_id", ">i8"),
        ("client_id", ">i4"),
        ("generation", ">i4"),
        ("partition", ">i4"),
        ("sequence", ">i4"),
        ("header", ">i4"),
        ("data_length", ">i4"),
        ("data_checksum", ">u4"),
    ]
)
assert HEADER_DTYPE.itemsize == HEADER_BYTES

FEW_RECORDS: Final = 192
"""Below this many a loop is faster than the fixed cost of some forty numpy calls. In a process that does nothing else they are equal at 80. But in
a node the caches are cold at each block, and numpy needs four times as long: with 192, p50 at 50,000 appends/s fell by 17 %, in turns."""

_ID = Struct(">q")
_CHECKSUM = Struct(">I")
_HEADER = Struct(">qiiiiiiI")
_SENDER = Struct(">8xii4xi")
_FIRST_ID = bytes(8)
_FOUR_ZEROS = bytes(4)

GROUP_RECORDS: Final = 1024
"""Verified together: enough that the fixed cost of some forty numpy calls hardly counts, and the columns stay within the processor's cache."""

_PARTITION, _DATA_LENGTH, _DATA_CHECKSUM = 4, 7, 8
"""Words of a header."""


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
    if len(lengths) // 4 < FEW_RECORDS:
        *starts, end = accumulate(_each(lengths), initial=start)
        return pack(f">{len(starts)}q", *starts), end
    offsets = offsets_array(lengths) + start
    return offsets[:-1].astype(">i8").tobytes(), int(offsets[-1])


def headers_array(records: bytes | memoryview, lengths: bytes) -> NDArray[Any]:
    """HEADER_DTYPE[n], a copy. The framing must be right (`verify_records` checked it); `IndexError` or `ValueError` otherwise."""
    return _rows_at(records, offsets_array(lengths)[:-1], HEADER_BYTES).view(HEADER_DTYPE)


def senders(records: bytes | memoryview, lengths: bytes) -> Iterator[tuple[int, int, int]]:
    """Client id, generation and sequence of each record, for a few of them. The framing must be right, as for `headers_array`."""
    start = 0
    for length in _each(lengths):
        yield _SENDER.unpack_from(records, start)
        start += length


def shortest_and_sum(lengths: bytes) -> tuple[int, int]:
    """The shortest length and the sum of all. n > 0."""
    if len(lengths) // 4 < FEW_RECORDS:
        each = _each(lengths)
        return min(each), sum(each)
    found = np.frombuffer(lengths, dtype=">i4")
    return int(found.min()), int(found.sum(dtype=np.int64))


def _each(lengths: bytes) -> tuple[int, ...]:
    """Of a few records: a call of numpy costs more than they do."""
    return unpack(f">{len(lengths) // 4}i", lengths)


def header_bytes(records: bytes, lengths: bytes) -> bytes:
    """The 36 header bytes of each record, back to back."""
    return _rows_at(records, offsets_array(lengths)[:-1], HEADER_BYTES).tobytes()


def _rows_at(data: bytes | bytearray | memoryview, starts: NDArray[np.int64], width: int) -> NDArray[Any]:
    """V<width>[n]: `width` bytes from each start. A window over every byte position, so that the gather copies rows, not bytes."""
    if not len(starts):
        return np.empty(0, dtype=f"V{width}")
    windows: NDArray[Any] = np.ndarray(shape=(len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    return windows[starts]  # `take` would first copy every window


def verify_records(records: bytes | memoryview, lengths: bytes, *, first_transaction_id: int | None, partition: int | None, where: str) -> None:
    """Raises `CorruptData` unless the framing is right, both checksums of every record match, ids are dense from `first_transaction_id` (None: all
    zero) and, where `partition` is given, every record names it."""
    if len(lengths) % 4:
        raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"lengths are cut off: bytes={len(lengths)}")
    if len(lengths) // 4 < FEW_RECORDS:
        _verify_one_by_one(records, lengths, first_transaction_id, partition, where)
    elif not _verified_at_once(records, lengths, first_transaction_id, partition):
        _verify_one_by_one(records, lengths, first_transaction_id, partition, where)
        raise AssertionError("a block that fails as a whole must hold a bad record")


def _verified_at_once(records: bytes | memoryview, lengths: bytes, first_transaction_id: int | None, partition: int | None) -> bool:
    sizes = lengths_array(lengths)
    ends = np.cumsum(sizes)
    count = len(sizes)
    if int(sizes.min()) < RECORD_OVERHEAD_BYTES or int(ends[-1]) != len(records):
        return False
    view = memoryview(records)
    start = begin = 0
    while start < count:
        stop = start + GROUP_RECORDS
        if count - stop < GROUP_RECORDS // 2:
            stop = count
        end = int(ends[min(stop, count) - 1])
        first = None if first_transaction_id is None else first_transaction_id + start
        if not _verified_group(view[begin:end], _Framing(sizes[start:stop], ends[start:stop] - begin), first, partition):
            return False
        start, begin = stop, end
    return True


class _Framing:
    """The positions of the records of a run. Where all are of one length, as they often are, rows are cut out of the bytes instead of gathered."""

    def __init__(self, sizes: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.sizes = sizes
        self.ends = ends
        first = int(sizes[0])
        self.size = first if (sizes == first).all() else None

    def heads(self, data: memoryview | bytearray, width: int) -> NDArray[Any]:
        """V<width>[n]: the first bytes of each record."""
        return self._rows(data, width, 0, self.ends - self.sizes)

    def closings(self, data: memoryview | bytearray) -> NDArray[Any]:
        """V4[n]: the last bytes of each record."""
        return self._rows(data, 4, -4, self.ends - 4)

    def _rows(self, data: memoryview | bytearray, width: int, offset: int, starts: NDArray[np.int64]) -> NDArray[Any]:
        if self.size is None:
            return _rows_at(data, starts, width)
        return np.ndarray(len(starts), dtype=f"V{width}", buffer=data, offset=offset % self.size, strides=(self.size,))

    def put_heads(self, data: bytearray, rows: NDArray[Any]) -> None:
        """V<width>[n] in place of the first bytes of each record."""
        _windows(data, rows.dtype)[self.ends - self.sizes] = rows

    def put_closings(self, data: bytearray, rows: NDArray[Any]) -> None:
        _windows(data, rows.dtype)[self.ends - 4] = rows

    def before_end(self, width: int) -> NDArray[np.int64] | int:
        """How many bytes of each record follow the first `width`, without the closing checksum."""
        return self.sizes - (width + 4) if self.size is None else self.size - (width + 4)


def _words(rows: NDArray[Any]) -> NDArray[np.uint32]:
    """u4[words, n] of V<4 * words>[n]."""
    words = rows.dtype.itemsize // 4
    return rows.view(np.dtype((">u4", (words,)))).T.astype(np.uint32, order="C")


def _verified_group(records: memoryview, framing: _Framing, first_transaction_id: int | None, partition: int | None) -> bool:
    columns = _words(framing.heads(records, HEADER_BYTES))
    if not np.array_equal(columns[_DATA_LENGTH], framing.sizes - RECORD_OVERHEAD_BYTES):
        return False
    if partition is not None and (columns[_PARTITION] != partition).any():
        return False
    if first_transaction_id is None:
        if columns[:2].any():
            return False
    elif not np.array_equal(columns[:2], _id_words(first_transaction_id, len(framing.sizes))):
        return False
    closing = framing.closings(records)
    checksums = closing.view(">u4").astype(np.uint32)
    # crc(header + data) = shift(crc(header), data length) ^ crc(data)
    if not np.array_equal(shift(crc_of_words(columns), framing.before_end(HEADER_BYTES)) ^ checksums, columns[_DATA_CHECKSUM]):
        return False
    # crc(record) = shift(crc(header + data) ^ the closing bytes as the register meets them, 4) ^ crc(four zero bytes), and then the records after it
    ends = checksums ^ closing.view("<u4") ^ _before_four_bytes()
    if framing.size is None:
        whole = int(np.bitwise_xor.reduce(shift(ends, framing.ends[-1] + 4 - framing.ends)))
    else:
        whole = crc32(_FOUR_ZEROS, fold(ends, framing.size)) ^ crc32(_FOUR_ZEROS)
    return whole == crc32(records)


def _id_words(first: int, count: int) -> NDArray[np.uint32]:
    """u4[2, n]: consecutive ids, the higher word first."""
    words = np.empty((2, count), dtype=np.uint32)
    ids = np.arange(first, first + count, dtype=np.int64)
    words[0] = ids >> 32
    words[1] = ids & 0xFFFF_FFFF
    return words


@cache
def _before_four_bytes() -> np.uint32:
    """What becomes the checksum of four zero bytes after four more: shifts repeat after 2**32 - 1 bytes, so shifting further reverses a shift."""
    return np.uint32(shift(np.array([crc32(bytes(4))], dtype=np.uint32), 2**32 - 1 - 4)[0])


def _verify_one_by_one(records: bytes | memoryview, lengths: bytes, first_transaction_id: int | None, partition: int | None, where: str) -> None:
    view = memoryview(records)
    total = len(records)
    start = 0
    for index, length in enumerate(_each(lengths)):
        expected = 0 if first_transaction_id is None else first_transaction_id + index
        end = start + length
        if length < RECORD_OVERHEAD_BYTES or end > total:
            raise CorruptData(where=where, offset=start, transaction_id=expected, reason=f"bad length: length={length} left={total - start}")
        found, _, _, owner, _, _, data_length, data_checksum = _HEADER.unpack_from(records, start)
        reason = None
        if data_length + RECORD_OVERHEAD_BYTES != length:
            reason = f"data length does not match: data_length={data_length} length={length}"
        elif crc32(view[start : end - 4]) != _CHECKSUM.unpack_from(records, end - 4)[0]:
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


def assign_ids(records: bytes | memoryview, lengths: bytes, first_transaction_id: int) -> bytes:
    """The block with ids `first_transaction_id` and up. Its records have id zero and are verified; their checksums are changed by the ids' share
    alone, so a record that was damaged stays recognisably so."""
    count = len(lengths) // 4
    patched = bytearray(records)
    if count < FEW_RECORDS:
        _assign_one_by_one(patched, lengths, first_transaction_id)
        return bytes(patched)
    sizes = lengths_array(lengths)
    framing = _Framing(sizes, np.cumsum(sizes))
    ids = _id_words(first_transaction_id, count)
    share = shift(crc_of_words(ids) ^ np.uint32(crc32(_FIRST_ID)), framing.before_end(len(_FIRST_ID)))
    checksums = framing.closings(patched).view(">u4") ^ share
    framing.put_heads(patched, np.ascontiguousarray(ids.T.astype(">u4")).view("V8")[:, 0])
    framing.put_closings(patched, checksums.astype(">u4").view("V4"))
    return bytes(patched)


def _windows(data: bytearray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A row at every byte position, for writing."""
    return np.ndarray(shape=(len(data) - dtype.itemsize + 1,), dtype=dtype, buffer=data, strides=(1,))


def _assign_one_by_one(patched: bytearray, lengths: bytes, first_transaction_id: int) -> None:
    start = 0
    no_id = crc32(_FIRST_ID)
    with memoryview(patched) as view:
        for index, length in enumerate(_each(lengths)):
            closing = start + length - 4
            with_id = _ID.pack(first_transaction_id + index)
            rest = view[start + 8 : closing]
            share = crc32(rest, crc32(with_id)) ^ crc32(rest, no_id)
            view[start : start + 8] = with_id
            _CHECKSUM.pack_into(view, closing, _CHECKSUM.unpack_from(view, closing)[0] ^ share)
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
