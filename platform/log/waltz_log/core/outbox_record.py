"""The record of an outbox in the coordinator: which start of which copy of its directory forwards, and which partitions it has used. Pure.

A record is read as hostile input. It changes only in two ways: a start claims the next epoch with a nonce of its own, or the copy that holds the
epoch declares one more partition.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Self

from waltz_log.core.metadata import PARTITIONS_MAX

__all__ = ["OUTBOXES_MAX", "OUTBOXES_OF_PRINCIPAL_MAX", "OutboxRecord", "follows"]

OUTBOXES_MAX: Final = 20_000
"""For a cluster. Each is a node of the coordinator of up to 30 KB, and is kept until an operator removes it."""

OUTBOXES_OF_PRINCIPAL_MAX: Final = 2_000
"""An outbox that has used up its sequences, and one whose directory was lost, counts as well."""

EPOCH_MAX: Final = 2**22 - 1
"""An epoch is the high part of a mount sequence."""

_NONCE: Final = re.compile(r"[0-9a-zA-Z-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """`principal`: that the client id belongs to; empty: it was written without TLS, or before records had one. Raises `ValueError` for values that
    no outbox writes."""

    epoch: int
    nonce: str
    partitions: tuple[int, ...]
    principal: str = ""

    def __post_init__(self) -> None:
        if type(self.epoch) is not int or not 1 <= self.epoch <= EPOCH_MAX:
            raise ValueError("no epoch")
        if not isinstance(self.nonce, str) or not _NONCE.fullmatch(self.nonce):
            raise ValueError("no nonce")
        if len(self.partitions) > PARTITIONS_MAX or any(type(each) is not int or not 0 <= each < PARTITIONS_MAX for each in self.partitions):
            raise ValueError("no partitions")
        if not isinstance(self.principal, str) or len(self.principal) > 512:
            raise ValueError("no principal")

    def to_bytes(self) -> bytes:
        found: dict[str, object] = {"epoch": self.epoch, "nonce": self.nonce, "partitions": sorted(self.partitions)}
        return json.dumps(found | ({"principal": self.principal} if self.principal else {})).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote. Raises `ValueError`, `KeyError`, `TypeError`, `AttributeError` or `RecursionError` for anything else."""
        found = json.loads(data)
        return cls(found["epoch"], found["nonce"], tuple(found["partitions"]), found.get("principal", ""))


def follows(after: OutboxRecord, before: OutboxRecord | None) -> bool:
    """Whether an outbox may replace the one by the other."""
    if before is None:
        return after.epoch == 1
    kept = set(before.partitions) <= set(after.partitions)
    return kept and (after.epoch == before.epoch + 1 or (after.epoch, after.nonce) == (before.epoch, before.nonce))
