"""Which segment the records of a write round go to: pure arithmetic over blocks and sizes.

A block that does not fit the rest of a segment begins the next one, so that readers rarely find a block in two parts; one that is larger than a
whole segment is divided between records. A record that is larger than a segment has a segment of its own, the only one above the limit: the owner of
a partition orders records by a limit of its own, and a replica that refused what was ordered would stop the partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import lengths_array, offsets_array, slice_block
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES
from waltz_log.errors import TransactionTooLarge
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX

__all__ = ["expect_to_fit", "fitted"]


def expect_to_fit(block: Block) -> None:
    """Raises `TransactionTooLarge` for a record that no log may hold. No owner orders one: its limit is at most half of this one."""
    if len(block.records) > RECORD_BYTES_MAX and (largest := int(lengths_array(block.lengths).max())) > RECORD_BYTES_MAX:
        raise TransactionTooLarge(what="record", size=largest, limit=RECORD_BYTES_MAX)


def fitted(blocks: Sequence[Block], size: int, segment_bytes: int) -> list[list[Block]]:
    """The blocks by segment: the first list, which may be empty, for the one that is `size` bytes long, each other one for a new one. Raises
    `TransactionTooLarge`."""
    groups: list[list[Block]] = [[]]
    for block in blocks:
        expect_to_fit(block)
        for piece in _pieces(block, segment_bytes - FILE_HEADER_BYTES):
            if size > FILE_HEADER_BYTES and size + len(piece.records) > segment_bytes:
                groups.append([])
                size = FILE_HEADER_BYTES
            groups[-1].append(piece)
            size += len(piece.records)
    return groups


def _pieces(block: Block, capacity: int) -> list[Block]:
    if len(block.records) <= capacity:
        return [block]
    offsets = offsets_array(block.lengths)
    pieces, start = [], 0
    while start < block.count:
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + capacity, side="right")) - 1)
        pieces.append(slice_block(block, block.first_transaction_id + start, block.first_transaction_id + stop - 1))
        start = stop
    return pieces
