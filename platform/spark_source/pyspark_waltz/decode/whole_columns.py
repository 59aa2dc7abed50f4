"""The values of a column as an Arrow array, all at once. `pyarrow.array` checks each value for every type that Python has; these functions do so only
where a column holds more than the values of one type, such as None.

They accept what `pyarrow.array` accepts, raise its errors, and give the same array."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final  # Any: JSON values, and pyarrow has no types

import numpy as np
import pyarrow as pa

__all__ = ["common_shape", "extremes", "no_collections", "numbers", "texts"]

_OFFSET_MAX: Final = (1 << 31) - 1
"""The largest offset of a string array."""
_SHAPES: Final = bytes.maketrans(b"123456789", b"000000000")


def numbers(values: Sequence[Any], letter: str, arrow: Any) -> Any:
    """`letter`: of `struct`, for the same number of bits as `arrow`."""
    try:
        packed = struct.pack(f"{len(values)}{letter}", *values)
    except (struct.error, OverflowError):  # None, a string, or too large for 32 bits
        return pa.array(values, arrow)
    return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(packed)], null_count=0)


def texts(values: Sequence[Any]) -> Any:
    """Strings, as `pyarrow.string()`."""
    try:
        whole = "".join(values)
    except TypeError:  # None, or no string
        return pa.array(values, pa.string())
    if not whole.isascii() or len(whole) > _OFFSET_MAX:
        return pa.array(values, pa.string())
    try:
        sizes = np.frombuffer(bytes(map(len, values)), dtype=np.uint8)
    except ValueError:  # one of more than 255 letters
        sizes = np.frombuffer(struct.pack(f"{len(values)}i", *map(len, values)), dtype=np.int32)
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.add.accumulate(sizes, dtype=np.int32, out=offsets[1:])
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(whole.encode())], null_count=0)


def common_shape(strings: Any) -> str | None:
    """What all strings of an array become if each digit is replaced by 0, nulls apart; None if that differs, or there is no string."""
    there = strings.drop_null() if strings.null_count else strings
    if not len(there):
        return None
    _, offsets, data = there.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[there.offset : there.offset + len(there) + 1]
    size = int(ends[1] - ends[0])
    if not size or (np.diff(ends) != size).any():
        return None
    shapes = bytes(memoryview(data)[ends[0] : ends[-1]]).translate(_SHAPES)
    shape = shapes[:size]
    return shape.decode("utf-8", "replace") if shapes == shape * len(there) else None


def extremes(counts: Any) -> tuple[int, int] | None:
    """The least and the largest of an array of whole numbers, nulls apart; None if there is none."""
    there = counts.drop_null() if counts.null_count else counts
    if not len(there):
        return None
    found = there.to_numpy()
    return int(found.min()), int(found.max())


@contextmanager
def no_collections() -> Iterator[None]:
    """Python does not search for cycles meanwhile: the values of a batch hold none, and there are enough of them to start such searches again and
    again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
