"""Transactions by id, for clients that read a feed of headers and need the data of some (Client-Server Communication, Transaction Data
Request).

From memory if it holds them, otherwise from a replica; never above what the caller found committed. One answer is bounded in bytes and in reads of
replicas, so it comes in time; the client asks again for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.formats.block import Block
from waltz_log.core.locks.lock_columns import unpack_i8
from waltz_log.errors import InvalidRequest
from waltz_log.server.mounts.feed import Feed

__all__ = ["IDS_MAX", "gather", "rising_ids"]

IDS_MAX = 65_536
"""In one request: half a MiB of ids, some milliseconds of work."""

READS_MAX = 16
"""Reads of replicas for one answer, `fetches_max` of them at a time. Single transactions far apart each take one."""


def rising_ids(packed: bytes) -> Sequence[int]:
    """The ids of a request, each above the one before. Raises `InvalidRequest`."""
    if not 0 < len(packed) <= 8 * IDS_MAX or len(packed) % 8:
        raise InvalidRequest(reason=f"transaction ids are 1 to {IDS_MAX} numbers of eight bytes: bytes={len(packed)}")
    ids = unpack_i8(packed)
    if ids[0] < 0 or any(later <= earlier for earlier, later in pairwise(ids)):
        raise InvalidRequest(reason=f"transaction ids must be 0 or more and rise: first={ids[0]} count={len(ids)}")
    return ids


RANGES_A_TURN = 256
"""How many are read from memory before other tasks run: some milliseconds."""


async def gather(feed: Feed, ids: Sequence[int], bytes_max: int) -> list[Block]:
    """Blocks of the first of the ids, at least one, of about `bytes_max` together. Raises what `Feed.blocks` does."""
    ranges = list(_ranges(ids))
    missing = [each for each in ranges if not feed.holds(each[0])][:READS_MAX]
    reading = {each: start_task(feed.blocks(*each)) for each in missing}
    found: list[Block] = []
    size = 0
    try:
        for number, (first, last) in enumerate(ranges, 1):
            if number % RANGES_A_TURN == 0:
                await asyncio.sleep(0)
            position = first
            while position <= last:
                read = reading.pop((position, last), None)
                if read is None and found and not feed.holds(position):
                    return found
                blocks = await (feed.blocks(position, last) if read is None else read)
                more = sum(len(block.records) for block in blocks)
                if found and size + more > bytes_max:
                    return found
                found += blocks
                size += more
                position = blocks[-1].last_transaction_id + 1
        return found
    finally:
        await end_tasks(reading.values())


def _ranges(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive ids."""
    first = last = ids[0]
    for each in ids[1:]:
        if each != last + 1:
            yield first, last
            first = each
        last = each
    yield first, last
