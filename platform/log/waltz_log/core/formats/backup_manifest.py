"""What a backup of a storage directory holds, as the text of its manifest: every file with its size and checksum, and what each partition was at.

JSON for people and programs alike, closed by a checksum over everything else in it. Pure; `storage/offline/backup.py` writes it last,
`storage/offline/restore.py` believes nothing that is not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final  # Any: JSON values
from uuid import UUID

from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.formats.segment_format import DATA, INDEX, TIMES, first_id_of
from waltz_log.errors import CorruptData

__all__ = ["MANIFEST", "PARTITIONS", "BackupFile", "BackupManifest", "BackupPartition"]

MANIFEST: Final = "waltz-backup.json"
PARTITIONS: Final = "partitions"
"""The folder of a backup that holds the partitions' directories."""

FORMAT: Final = "waltz-backup-1"
REASON_MAX: Final = 200
_SHA256: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """`linked`: the node's own file under a second name. It may grow or be truncated there only under another name."""

    path: str
    size: int
    sha256: str
    linked: bool


@dataclass(frozen=True, slots=True)
class BackupPartition:
    """`last_transaction_id`: the last acknowledged when the copy was made; what lies above the local low-water mark may yet have been cut."""

    partition: int
    mark: SessionMark
    fence: int
    first_transaction_id: int
    last_transaction_id: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    cluster_key: UUID
    creation_time_ms: int
    taken_time_ms: int
    start: int
    partition_count: int
    partitions: tuple[BackupPartition, ...]
    files: tuple[BackupFile, ...]

    def to_bytes(self) -> bytes:
        fields = {"format": FORMAT} | asdict(self) | {"cluster_key": str(self.cluster_key)}
        return json.dumps(fields | {"sha256": _checksum(fields)}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> BackupManifest:
        """Raises `CorruptData` if it is not what `to_bytes` gave."""
        try:
            fields = _mapping(json.loads(data))
            checksum = fields.pop("sha256")
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            if _checksum({"format": FORMAT} | fields) != checksum:
                raise ValueError("checksum does not match")
            partitions = tuple(_partition(each, number) for number, each in enumerate(_list(fields.pop("partitions"))))
            files = tuple(_file(each, len(partitions)) for each in _list(fields.pop("files")))
            numbers = {name: _number(fields.pop(name)) for name in ("creation_time_ms", "taken_time_ms", "start", "partition_count")}
            if numbers["partition_count"] != len(partitions):
                raise ValueError(f"{len(partitions)} partitions, not the partition_count")
            if len({file.path for file in files}) < len(files):
                raise ValueError("a file is named twice")
            return cls(cluster_key=UUID(_text(fields.pop("cluster_key"))), partitions=partitions, files=files, **numbers, **fields)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = "nests too deep" if isinstance(error, RecursionError) else str(error)
            raise CorruptData(where=MANIFEST, offset=0, transaction_id=-1, reason=f"unusable manifest: {reason[:REASON_MAX]}") from None


def _partition(value: object, number: int) -> BackupPartition:
    fields = _mapping(value)
    mark = SessionMark(**{name: _number(each) for name, each in _mapping(fields.pop("mark")).items()})
    found = BackupPartition(mark=mark, **{name: _number(each) for name, each in fields.items()})
    if found.partition != number:
        raise ValueError(f"partition {found.partition} in the place of partition {number}")
    return found


def _file(value: object, partitions: int) -> BackupFile:
    """A manifest may come from anywhere: no path leads out of the backup or to a file that a storage directory does not have."""
    fields = _mapping(value)
    found = BackupFile(**fields)
    parts = _text(found.path).split("/")
    if len(parts) != 3 or parts[0] != PARTITIONS or not _is_partition(parts[1], partitions) or not _is_segment_file(parts[2]):
        raise ValueError(f"names a file that no backup has: {ascii(found.path)[:REASON_MAX]}")
    if _number(found.size) < 0 or not isinstance(found.linked, bool) or not _SHA256.fullmatch(_text(found.sha256)):
        raise ValueError(f"impossible size, checksum or link of {found.path}")
    return found


def _is_partition(name: str, partitions: int) -> bool:
    """Whether it is the decimal number of one: not `00`, and no digit of another script, which `int` reads too."""
    return name.isascii() and name.isdigit() and len(name) <= len(str(partitions)) and str(int(name)) == name and int(name) < partitions


def _is_segment_file(name: str) -> bool:
    return any(first_id_of(name, kind) is not None for kind in (DATA, INDEX, TIMES))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a mapping is expected, not {type(value).__name__}")
    return dict(value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number of 64 bits is expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is expected, not {type(value).__name__}")
    return value


def _checksum(fields: Mapping[str, object]) -> str:
    return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
