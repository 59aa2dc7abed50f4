"""Chooses which small files of a table become one larger file. Pure.

Files of one partition are packed in the order in which they were written, so that the bounds of the new files stay as narrow as those of the old
ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from waltz_delta.engine.living_files import is_outside, removals
from waltz_delta.engine.log_actions import RemoveFile

__all__ = ["Bin", "bins", "target_bytes"]

TARGET_BYTES: Final = 256 << 20
"""The size of a new file, unless the table has `delta.targetFileSize`."""
_TARGET: Final = "delta.targetfilesize"
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final[Mapping[str, int]] = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition that become one file. `rows`: of each file, as the log says; None where it does not."""

    files: tuple[RemoveFile, ...]
    rows: tuple[int | None, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def partition_values(self) -> Mapping[str, str | None]:
        return self.files[0].partition_values


def target_bytes(properties: Mapping[str, str]) -> int:
    """The size of files that the table wants."""
    given = next((value for name, value in properties.items() if name.lower() == _TARGET), "")
    found = _SIZE.fullmatch(given.strip())
    return TARGET_BYTES if found is None else int(found[1]) << _UNITS[found[2].lower()]


def bins(living: pa.Table, small_bytes: int, target: int) -> list[Bin]:
    """`living`: the table's files, as `living_files` describes them. `small_bytes`: only smaller files are rewritten."""
    small = zip(removals(living), living["modification_time"].to_pylist(), living["num_records"].to_pylist(), strict=True)
    ordered = sorted(
        ((file, rows, at) for file, at, rows in small if file.size < min(small_bytes, target) and not is_outside(file.path)),
        key=lambda each: ([_by_value(item) for item in sorted(each[0].partition_values.items())], each[2], each[0].path),
    )
    return list(_packed([(file, rows) for file, rows, _ in ordered], target))


def _by_value(item: tuple[str, str | None]) -> tuple[str, bool, str]:
    name, value = item
    return name, value is not None, value or ""


def _packed(ordered: Sequence[tuple[RemoveFile, int | None]], target: int) -> Iterator[Bin]:
    """Starts a new bin where the partition changes, or the next file would make the new one larger than the target."""
    held: list[tuple[RemoveFile, int | None]] = []
    for file, rows in ordered:
        size = sum(each.size for each, _ in held)
        if held and (held[0][0].partition_values != file.partition_values or size + file.size > target):
            yield from _bin(held)
            held = []
        held.append((file, rows))
    yield from _bin(held)


def _bin(held: Sequence[tuple[RemoveFile, int | None]]) -> Iterator[Bin]:
    if len(held) > 1:
        yield Bin(tuple(file for file, _ in held), tuple(rows for _, rows in held))
