"""What a backup of a storage directory holds, as the text of its manifest: every file with its size and checksum, and what each partition was at.

JSON for people and programs alike, closed by a checksum over everything else in it. Pure; `storage/offline/backup.py` writes it last,
`storage/offline/restore.py` believes nothing that is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final  # Any: JSON values
from uuid import UUID

from waltz_log.core.formats.control_format import SessionMark
from waltz_log.errors import CorruptData

__all__ = ["MANIFEST", "BackupFile", "BackupManifest", "BackupPartition"]

MANIFEST: Final = "waltz-backup.json"
FORMAT: Final = "waltz-backup-1"


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
            fields: dict[str, Any] = json.loads(data)
            checksum = fields.pop("sha256")
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            if _checksum({"format": FORMAT} | fields) != checksum:
                raise ValueError("checksum does not match")
            partitions = [BackupPartition(**each | {"mark": SessionMark(**each["mark"])}) for each in fields.pop("partitions")]
            files = [BackupFile(**each) for each in fields.pop("files")]
            return cls(**fields | {"cluster_key": UUID(fields["cluster_key"]), "partitions": tuple(partitions), "files": tuple(files)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(where=MANIFEST, offset=0, transaction_id=-1, reason=f"unusable manifest: {error}") from None


def _checksum(fields: Mapping[str, object]) -> str:
    return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
