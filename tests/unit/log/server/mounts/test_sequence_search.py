"""A search through blocks of memory gives turns to everything else that the server does, and finds what it would find at once."""

from __future__ import annotations

import asyncio
import math
import struct
from types import SimpleNamespace
from typing import Any, cast

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import assign_ids
from waltz_log.core.formats.records import encode_record
from waltz_log.server.mounts.sequence_search import BLOCKS_A_TURN, SequenceSearch
from waltz_log.server.replication.block_window import BlockWindow
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.transport import waltz_pb2 as pb

BLOCKS = 2000


def store_of_small_blocks() -> StoreSession:
    window = BlockWindow(-1)
    for number in range(BLOCKS):
        record = encode_record(7, 1, 0, number, 0, b"x")
        lengths = struct.pack(">i", len(record))
        window.append(Block(number, lengths, assign_ids(record, lengths, number), 0))
    return cast(StoreSession, SimpleNamespace(window=window, first_transaction_id=0))


async def test_others_have_turns_while_thousands_of_blocks_are_searched() -> None:
    store, turns = store_of_small_blocks(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other: asyncio.Task[Any] = asyncio.ensure_future(others())
    search = SequenceSearch(pb.ResolveRequest(partition=0, client_id=7, first_sequence=3, last_sequence=1500, since=-1), 0)
    await search.run(store, BLOCKS - 1, math.inf)
    other.cancel()
    assert turns >= BLOCKS // BLOCKS_A_TURN
    assert struct.unpack(">3q", search.committed()) == (3, 1498, 3)
    assert search.searched_to == BLOCKS - 1
