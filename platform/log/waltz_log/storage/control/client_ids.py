"""The highest client id that any server has reserved, as a storage node keeps it. So a coordinator that was restored to an older state is noticed
before it gives client ids a second time.

The value only rises. It is in a file of its own, which is replaced as a whole and synced before the answer. A directory without the file has kept
nothing yet.
"""

from __future__ import annotations

from typing import Final

from waltz_log.core.formats.control_format import COUNTER_BYTES, decode_counter, encode_counter
from waltz_log.core.ports import Disk
from waltz_log.errors import StorageFailed
from waltz_log.storage.control.control import write_small_file
from waltz_log.storage.control.storage_directory import read_file

__all__ = ["CLIENT_IDS_FILE", "keep_client_ids", "read_client_ids"]

CLIENT_IDS_FILE: Final = "waltz-storage.ids"


def read_client_ids(disk: Disk) -> int:
    """0 if none was kept. Raises `StorageFailed` if the file is damaged: repeat after it was removed, and the servers write it again."""
    if not disk.exists(CLIENT_IDS_FILE):
        return 0
    try:
        data = read_file(disk, CLIENT_IDS_FILE)
    except OSError as error:
        raise StorageFailed(partition=-1, reason=f"cannot read {CLIENT_IDS_FILE}: {error}") from None
    value = decode_counter(data) if len(data) == COUNTER_BYTES else None
    if value is None or value < 0:
        raise StorageFailed(partition=-1, reason=f"{CLIENT_IDS_FILE} is damaged; stop the node, remove the file, and start it again")
    return value


def keep_client_ids(disk: Disk, last: int) -> int:
    """Keeps `last` if it is higher than what is there, durably, and returns what was there. Raises `StorageFailed`."""
    before = read_client_ids(disk)
    if last > before:
        try:
            write_small_file(disk, CLIENT_IDS_FILE, encode_counter(last))
        except OSError as error:
            raise StorageFailed(partition=-1, reason=f"cannot write {CLIENT_IDS_FILE}: {error}") from None
    return before
