"""The two checksums of each record of a block, for many records at once. Each result belongs to one record alone.

A sender can choose the bytes of a frame, so a check must never combine the errors of several records: CRC-32 is linear, and wrong checksums can be
chosen such that their errors cancel in any combination that the sender can predict (docs/decisions, 48). Here each checksum is computed by itself,
and callers compare one by one.

The data of each record is read by one call of `crc32`, driven by `map` instead of a loop in Python. The closing checksum covers header and data. It
follows from the header and the data checksum without the data (`crc_algebra`), at least cost in a run, which is what one client sends. For few
records, a second call that continues the checksum of the header over the data costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: dtypes that are made at run time

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.crc_algebra import crc_of_words, shares, shift
from waltz_log.core.formats.record_layout import CHECKSUM, CHECKSUM_WORD, HEADER_BYTES, ID, SEQUENCE_WORD, WORD_BYTES

__all__ = ["closings_of_data", "closings_of_run", "closings_without_data", "data_checksums", "is_run", "words_of"]

_HEADER_WORDS = HEADER_BYTES // WORD_BYTES


def data_checksums(bodies: Sequence[bytes | memoryview]) -> NDArray[np.uint32]:
    """u4[n]: the checksum of each record's data."""
    return np.fromiter(map(crc32, bodies), dtype=np.uint32, count=len(bodies))


def closings_of_data(headers: Sequence[bytes], bodies: Sequence[bytes | memoryview]) -> NDArray[np.uint32]:
    """u4[n]: the closing checksum of each record, from its 36 header bytes and its data."""
    return np.fromiter(map(crc32, bodies, map(crc32, headers)), dtype=np.uint32, count=len(bodies))


def words_of(headers: NDArray[Any]) -> NDArray[np.uint32]:
    """u4[9, n]: the headers as columns of words. `headers`: n rows of 36 bytes."""
    words: NDArray[np.uint32] = headers.view(">u4").reshape(-1, _HEADER_WORDS).T.astype(np.uint32, order="C")
    return words


def closings_without_data(words: NDArray[np.uint32], sizes: NDArray[np.int64] | int) -> NDArray[np.uint32]:
    """u4[n]: the closing checksums that fit headers (`words_of`) whose data checksums are right. `sizes`: of the data, 0 to 2**31 - 1. n > 0."""
    closings: NDArray[np.uint32] = shift(crc_of_words(words), sizes)  # crc(header + data) = shift(crc(header), data length) ^ crc(data)
    closings ^= words[CHECKSUM_WORD]
    return closings


def is_run(words: NDArray[np.uint32]) -> bool:
    """Whether the headers (`words_of`) differ only in ids, consecutive sequences and data checksums. n > 0."""
    for alike in (words[2:SEQUENCE_WORD], words[SEQUENCE_WORD + 1 : CHECKSUM_WORD]):
        if (alike != alike[:, :1]).any():
            return False
    sequences = words[SEQUENCE_WORD]
    return bool((sequences == int(sequences[0]) + np.arange(len(sequences))).all())


def closings_of_run(words: NDArray[np.uint32], size: int, first_transaction_id: int | None = None) -> NDArray[np.uint32]:
    """As `closings_without_data`, for a run (`is_run`) of records with `size` bytes of data each. `first_transaction_id`: the ids are consecutive
    from there; None: all are zero. Each varying field changes the closing checksum by itself."""
    count = words.shape[1]
    first = words[:, 0].astype(">u4")
    first[[0, 1, SEQUENCE_WORD, CHECKSUM_WORD]] = 0
    closings = np.full(count, crc32(bytes(size), crc32(first.tobytes())) ^ crc32(bytes(size)), dtype=np.uint32)
    closings ^= shares(int(words[SEQUENCE_WORD, 0]), count, WORD_BYTES, HEADER_BYTES - WORD_BYTES * (SEQUENCE_WORD + 1) + size)
    checksums = words[CHECKSUM_WORD]
    closings ^= shift(checksums.byteswap(), CHECKSUM.size + size)
    closings ^= checksums
    if first_transaction_id is not None:
        closings ^= shares(first_transaction_id, count, ID.size, HEADER_BYTES - ID.size + size)
    return closings
