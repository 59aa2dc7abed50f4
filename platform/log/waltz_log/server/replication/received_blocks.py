"""Verifies blocks that a replica sent. The replica verified them when it read them, so what does not verify now was changed on its way.

It must not stay in a cache, from which every reader would get it again, and it must decide nothing. Another read, of this replica or of another one,
returns the right bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import verify_records
from waltz_log.core.formats.record_layout import SEALED_HEADER_BYTES
from waltz_log.core.formats.sealed_headers import verify_sealed_headers
from waltz_log.errors import ConnectionLost, CorruptData

__all__ = ["expect_unchanged"]


def expect_unchanged(replica: str, partition: int, blocks: Iterable[Block], *, headers_only: bool) -> None:
    """`replica`: its name. `headers_only`: the blocks hold sealed headers. Raises `ConnectionLost`."""
    where = f"block from {replica}"
    for block in blocks:
        first = block.first_transaction_id
        try:
            if not headers_only:
                verify_records(block.records, block.lengths, first_transaction_id=first, partition=partition, where=where)
                continue
            if len(block.records) != SEALED_HEADER_BYTES * block.count:
                reason = f"sealed headers are cut off: bytes={len(block.records)} count={block.count}"
                raise CorruptData(where=where, offset=0, transaction_id=first, reason=reason)
            verify_sealed_headers(block.records, first_transaction_id=first, partition=partition, where=where)
        except CorruptData as error:
            raise ConnectionLost(address=replica, reason=f"a block changed on its way: {error}") from None
