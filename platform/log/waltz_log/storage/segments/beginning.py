"""Restarts the log of a partition at a later transaction: for a replica that ends below the first retained id of the cluster (docs/guides/topics.md,
Retention).

First a small file, `begins`, states where the log begins from now on; then the segments below are removed and an empty one is created; then the file
is removed. If a crash interrupts this, opening the log finishes it: the log is the old one or the new one, never one with a gap. Decides nothing: the
caller knows that everything below is committed and retained nowhere.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import Final

from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.segment_format import DATA, SegmentHeader, first_id_of
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.opening import remove_segment
from waltz_log.storage.segments.segment import allocating_space, create_files, put_file

__all__ = ["announce", "carry_out", "finish_beginning"]

BEGINS: Final = "begins"
_CONTENT: Final = Struct(">qI")


def announce(disk: Disk, directory: str, first_id: int) -> None:
    """From now on the log begins at the id: `carry_out` follows, now or when the directory is opened."""
    first = first_id.to_bytes(8, "big", signed=True)
    with allocating_space():
        put_file(disk, f"{directory}/{BEGINS}.new", _CONTENT.pack(first_id, crc32(first)))
        disk.rename(f"{directory}/{BEGINS}.new", f"{directory}/{BEGINS}")
    disk.sync_directory(directory)


def finish_beginning(files: OpenFiles, directory: str, header: SegmentHeader) -> None:
    """Finishes what a crash interrupted, if anything. `header`: of any first transaction. Raises `CorruptData` if the file is not readable."""
    first = _announced(files.disk, directory)
    if first is not None:
        carry_out(files, directory, replace(header, first_transaction_id=first))


def carry_out(files: OpenFiles, directory: str, header: SegmentHeader) -> None:
    """The log is one empty segment with this header when it returns, durably."""
    wanted = header.first_transaction_id
    found = [first for name in files.disk.list(directory) if (first := first_id_of(name, DATA)) is not None]
    for first in sorted(found, reverse=True):
        if first != wanted:
            remove_segment(files, directory, first)
    if wanted not in found:
        create_files(files.disk, directory, header)
    files.disk.remove(f"{directory}/{BEGINS}")
    files.disk.sync_directory(directory)


def _announced(disk: Disk, directory: str) -> int | None:
    path = f"{directory}/{BEGINS}"
    if not disk.exists(path):
        return None
    file = disk.open(path, "read")
    try:
        content = file.read(0, _CONTENT.size)
    finally:
        file.close()
    if len(content) != _CONTENT.size or crc32(content[:8]) != _CONTENT.unpack(content)[1]:
        raise CorruptData(where=path, offset=0, transaction_id=-1, reason=f"does not record where the log begins: bytes={len(content)}")
    return int(_CONTENT.unpack(content)[0])
