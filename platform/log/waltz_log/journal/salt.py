"""The secret of a journal with checks by hash: sixteen random bytes, written once in two copies, verified at each opening.

Without it no record of the journal can be distinguished from an imitation, so it is never created again next to files that were sealed with another
one. File `journal.salt`: twice, at 0 and 512, `"WALTZJNL" | int version = 1 | salt 16 | int crc32 of the 28 before`, zeros between.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from waltz_log.core.formats.crc import crc32
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData

__all__ = ["SALT_FILE", "create_salt", "read_salt"]

SALT_FILE: Final = "journal.salt"
SALT_BYTES: Final = 16
MAGIC: Final = b"WALTZJNL"
VERSION: Final = 1
COPY_BYTES: Final = 512
"""A sector: damage to one copy leaves the other."""

_LAYOUT: Final = Struct(">8si16sI")


def create_salt(disk: Disk, entropy: Callable[[int], bytes]) -> bytes:
    """Durable when it returns."""
    salt = entropy(SALT_BYTES)
    assert len(salt) == SALT_BYTES
    plain = _LAYOUT.pack(MAGIC, VERSION, salt, 0)[:-4]
    copy = (plain + crc32(plain).to_bytes(4, "big")).ljust(COPY_BYTES, b"\0")
    temporary = f"{SALT_FILE}.tmp"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, "create")
    try:
        file.write(0, copy + copy)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, SALT_FILE)
    disk.sync_directory("")
    return salt


def read_salt(disk: Disk) -> bytes:
    """Raises `CorruptData` if neither copy is whole, or the version is one of later software."""
    file = disk.open(SALT_FILE, "read")
    try:
        data = file.read(0, 2 * COPY_BYTES)
    finally:
        file.close()
    for offset in (0, COPY_BYTES):
        found = data[offset : offset + _LAYOUT.size]
        if len(found) == _LAYOUT.size:
            magic, version, salt, checksum = _LAYOUT.unpack(found)
            if magic == MAGIC and checksum == crc32(found[:-4]):
                if version != VERSION:
                    raise CorruptData(where=SALT_FILE, offset=offset, transaction_id=-1, reason=f"version {version} is not known here")
                assert isinstance(salt, bytes)
                return salt
    raise CorruptData(where=SALT_FILE, offset=0, transaction_id=-1, reason="both copies of the salt are damaged; restore the file")
