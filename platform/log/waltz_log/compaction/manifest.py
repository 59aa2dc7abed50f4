"""The `metadata` file of a topic's partition: its properties, and the current contents of its view. The file is replaced as a whole, which is the
moment a change of the view takes effect. A file in the folder that is not named here is a leftover of a change that did not take effect.

One record (`core.formats.wal_records`): its key `created: <time ms>`, its value JSON. Pure.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final  # Any: fields of the dataclass

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.wal_records import HEADER_BYTES, WalRecord, encode_wal_record, walk_wal_records
from waltz_log.errors import CorruptData

__all__ = ["METADATA", "METADATA_BYTES_MAX", "Manifest", "ViewFile"]

METADATA: Final = "metadata"
LAYOUT: Final = 1
RECORDS_MAX: Final = 1 << 30
"""For all files of a view: one byte of memory for each, for as long as the view is open."""

METADATA_BYTES_MAX: Final = 256 * 1024 * 1024
"""For the file: a bit for each record, and no compression at all, is half of it."""

_NUMBERS: Final = {"partition": None, "start": None, "bound": None, "commit": None, "log_partition": -1, "not_keyed": None}
"""With their defaults; None: none."""


@dataclass(frozen=True, slots=True)
class ViewFile:
    """`first`: the transaction id of its first record, and its name. `commit`: the change of the view that made it. `dead`: whether a newer value
    replaced its n-th record. `live_bytes`: of the others. `tombstones`: how many of its records end a key, the oldest of them at
    `oldest_tombstone_ms`."""

    first: int
    commit: int
    size_bytes: int
    index_bytes: int
    dead: NDArray[np.bool_]
    live_bytes: int
    tombstones: int
    oldest_tombstone_ms: int

    @property
    def records(self) -> int:
        return len(self.dead)

    @property
    def live(self) -> int:
        return len(self.dead) - int(self.dead.sum())

    @property
    def name(self) -> str:
        return f"{self.first}.wal"

    @property
    def index_name(self) -> str:
        return f"{self.first}.wal.index"

    def staged(self, name: str) -> str:
        """What a file of this change is called until the change has taken effect."""
        return f"{name}.{self.commit}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """`bound`: the view is the fold of all transactions below it. `start`: the first transaction that it ever read."""

    topic: str
    partition: int
    properties: Mapping[str, str]
    created_ms: int
    start: int
    bound: int
    commit: int = 0
    log_partition: int = -1
    """Whose fold it is; -1: not known."""
    not_keyed: int = 0
    """Transactions whose data does not begin with a key. They are in the log, not in the view."""
    type: str = "compaction"
    """For the topic. The file of a `regular` topic describes no view: it only stores the properties."""
    files: tuple[ViewFile, ...] = field(default=())
    """In the order of their ids, which do not overlap."""

    def next(self, **changes: Any) -> Manifest:
        return replace(self, commit=self.commit + 1, **changes)

    def to_bytes(self) -> bytes:
        value = {
            "layout": LAYOUT,
            "topic": self.topic,
            "partition": self.partition,
            "properties": dict(self.properties),
            "start": self.start,
            "bound": self.bound,
            "commit": self.commit,
            "log_partition": self.log_partition,
            "not_keyed": self.not_keyed,
            "files": [
                [f.first, f.commit, f.size_bytes, f.index_bytes, f.records, _pack(f.dead), f.live_bytes, f.tombstones, f.oldest_tombstone_ms]
                for f in self.files
            ],
        }
        if self.type == "regular":
            value["type"] = self.type
        told = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        return encode_wal_record(WalRecord(self.bound, self.created_ms, 0, b"created: %d" % self.created_ms, told))

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Raises `CorruptData`; also for a layout of a newer release, which is not for this one to change."""
        records = list(walk_wal_records(data, where=METADATA))
        if len(records) != 1:
            raise CorruptData(where=METADATA, offset=0, transaction_id=-1, reason=f"must have one record, has {len(records)}")
        try:
            return _parsed(records[0][1])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error) as error:
            reason = f"not what a view writes: {type(error).__name__}: {error}"
            raise CorruptData(where=METADATA, offset=0, transaction_id=-1, reason=reason) from None


def _parsed(record: WalRecord) -> Manifest:
    """Raises `CorruptData` for another layout, and whatever the value lacks."""
    found = json.loads(record.value)
    if _number(found["layout"]) != LAYOUT:
        raise CorruptData(where=METADATA, offset=0, transaction_id=-1, reason=f"layout {found['layout']} of another release")
    topic, properties = found["topic"], found["properties"]
    if not isinstance(topic, str) or not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise TypeError("the topic and the values of its properties must be text")
    numbers = (_number(found.get(name, default)) for name, default in _NUMBERS.items())
    partition, start, bound, commit, log_partition, not_keyed = numbers
    files: list[ViewFile] = []
    for each in found["files"]:
        files.append(_file(each, RECORDS_MAX - sum(file.records for file in files)))
    kind = found.get("type", "compaction")
    if kind not in ("compaction", "regular"):
        raise ValueError(f"type {kind!r} is not that of a topic")
    return Manifest(topic, partition, properties, record.time_ms, start, bound, commit, log_partition, not_keyed, kind, tuple(files))


def _file(fields: list[Any], records_max: int) -> ViewFile:
    first, commit, size_bytes, index_bytes, records, dead, live_bytes, tombstones, oldest = fields
    for number in (first, commit, size_bytes, index_bytes, records, live_bytes, tombstones, oldest):
        _number(number)
    if first < 0 or commit < 0 or index_bytes < 0 or not 0 <= records * HEADER_BYTES <= size_bytes:
        raise ValueError(f"impossible sizes of the file of transaction {first}")
    if records > records_max:
        raise ValueError(f"more than {RECORDS_MAX} records")
    return ViewFile(first, commit, size_bytes, index_bytes, _unpack(dead, records), live_bytes, tombstones, oldest)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number of 64 bits is expected")
    return value


def _pack(dead: NDArray[np.bool_]) -> str:
    return b64encode(zlib.compress(np.packbits(dead).tobytes(), 1)).decode()


def _unpack(text: str, records: int) -> NDArray[np.bool_]:
    """Never more bytes than the records have, whatever the text would expand to."""
    expected = -(-records // 8)
    stream = zlib.decompressobj()
    bits = stream.decompress(b64decode(text), expected + 1)
    if len(bits) != expected or not stream.eof:
        raise ValueError(f"{len(bits)} bytes of bits for {records} records")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=records).astype(np.bool_)
