"""The block: a run of records with consecutive transaction ids, the unit in which everything moves.

The records have the documented on-disk encoding (docs/reference/formats.md). They are the same bytes at the client, the server, every replica and
every reader. This module never decodes them: `records` decodes one record, `columns` whole blocks at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Block"]


@dataclass(frozen=True, slots=True)
class Block:
    """`lengths` is i4[n] big-endian, the whole length of each record; `records` the records back to back; one append time for all. `traces`: the
    contexts beside the records, on the way from an owner to its replicas; a block that is read from a disk has none. `checksum`:
    `block_checksum` of a block whose records its owner verified; 0: there is none."""

    first_transaction_id: int
    lengths: bytes
    records: bytes
    append_time_ms: int
    traces: bytes = field(default=b"", compare=False)
    checksum: int = field(default=0, compare=False)

    @property
    def count(self) -> int:
        return len(self.lengths) // 4

    @property
    def last_transaction_id(self) -> int:
        return self.first_transaction_id + len(self.lengths) // 4 - 1
