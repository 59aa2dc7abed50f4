"""Sealed headers: the records of a block without their data, 40 bytes each, as header-only reads and feeds carry them.

A sealed header is the 36 header bytes of a record and its closing checksum. The closing checksum follows from the header (`closing_checksum`), so a
receiver verifies every byte of it without the data: any change of up to 32 successive bits outside of data length and data checksum, any single bit
of these two, and all other changes but one in 2**32. It says nothing about the data.
"""

from __future__ import annotations

from typing import Any, Final  # Any: dtypes that are made at run time

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.columns import closings_array, headers_array
from waltz_log.core.formats.record_checksums import closings_without_data, words_of
from waltz_log.core.formats.record_layout import FIELDS, HEADER_BYTES, ID_MAX, SEALED_HEADER_BYTES
from waltz_log.errors import CorruptData

__all__ = ["SEALED_HEADER_DTYPE", "seal_headers", "sealed_headers_array", "verify_sealed_headers"]

SEALED_HEADER_DTYPE: Final = np.dtype([*((name, f">{kind}") for name, kind in FIELDS), ("closing_checksum", ">u4")])
assert SEALED_HEADER_DTYPE.itemsize == SEALED_HEADER_BYTES

_ROW = np.dtype([("header", f"V{HEADER_BYTES}"), ("closing_checksum", ">u4")])


def seal_headers(records: bytes, lengths: bytes) -> bytes:
    """The sealed header of each record, back to back. The framing must be right, as for `headers_array`."""
    headers = headers_array(records, lengths)
    rows = np.empty(len(headers), dtype=_ROW)
    rows["header"] = headers.view(_ROW["header"])
    rows["closing_checksum"] = closings_array(records, lengths)
    return rows.tobytes()


def sealed_headers_array(sealed: bytes) -> NDArray[Any]:
    """SEALED_HEADER_DTYPE[n], read-only. `ValueError` if the last one is cut off."""
    return np.frombuffer(sealed, dtype=SEALED_HEADER_DTYPE)


def verify_sealed_headers(sealed: bytes, *, first_transaction_id: int, partition: int, where: str) -> None:
    """Raises `CorruptData` unless each closing checksum fits its header, ids are dense from `first_transaction_id`, and every header names
    `partition`."""
    if len(sealed) % SEALED_HEADER_BYTES:
        raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"sealed headers are cut off: bytes={len(sealed)}")
    if not sealed:
        return
    rows = sealed_headers_array(sealed)
    if not 0 <= first_transaction_id <= ID_MAX - len(rows):
        raise CorruptData(where=where, offset=0, transaction_id=first_transaction_id, reason=f"impossible transaction ids: count={len(rows)}")
    sizes = rows["data_length"].astype(np.int64)
    words = words_of(np.ascontiguousarray(rows.view(_ROW)["header"]))
    closings = closings_without_data(words, np.maximum(sizes, 0))
    checks = (
        ("impossible data length", sizes < 0),
        ("record checksum does not match", closings != rows["closing_checksum"]),
        ("unexpected transaction id", rows["transaction_id"] != first_transaction_id + np.arange(len(rows))),
        ("unexpected partition", rows["partition"] != partition),
    )
    wrong = np.logical_or.reduce([each for _, each in checks])
    if wrong.any():
        at = int(wrong.argmax())
        reason = next(text for text, each in checks if each[at])
        raise CorruptData(where=where, offset=SEALED_HEADER_BYTES * at, transaction_id=first_transaction_id + at, reason=reason)
