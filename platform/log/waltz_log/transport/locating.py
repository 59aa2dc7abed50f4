"""Asks storage nodes where something is in the log: the first id at a time, and the bytes of a range.

A replica answers for what it holds, so one that is not clean in the session of the bound, or holds less than the bound, is passed over; the next is
asked, round after round, until the time is over. Never above the committed mark: transactions above it may still be truncated.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from waltz_log.core.ports import Channel
from waltz_log.errors import ClusterKeyMismatch, OutOfRange, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import LOCATE

__all__ = ["Place", "Question", "locate"]

PAUSE_S = 0.1
"""After each round in which no replica of a partition could answer."""

CALL_TIMEOUT_S = 2.0
"""One replica's time to answer, so that one that hangs leaves time for the others."""


@dataclass(frozen=True, slots=True)
class Question:
    """Asks about one partition that is committed up to `high_water_mark` in `session`. `times_ms` (64 at most): for each, the first id that is as
    new. `first` to `last`: a range to measure. `max_bytes`: up to which id the range is at most so large."""

    session: int
    high_water_mark: int
    times_ms: tuple[int, ...] = ()
    first: int = 0
    last: int = -1
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """`positions`: for each time the first id appended then or later, and the id after the mark where none is committed yet. `bytes`: of the range's
    records, each with its 40 bytes of framing; `last_within`: the last id up to which they are within `max_bytes`, `first - 1` if the first record
    alone is larger."""

    positions: tuple[int, ...]
    bytes: int
    last_within: int


async def locate(
    channel: Callable[[str], Channel], replicas: Mapping[int, Sequence[str]], key: bytes, questions: Mapping[int, Question], timeout_s: float
) -> dict[int, Place]:
    """One answer for each partition. Raises `OutOfRange` if a range begins below every replica's log, `Unavailable` if none answers in time."""
    found = await asyncio.gather(*(_ask(channel, replicas.get(p, ()), key, p, question, timeout_s) for p, question in questions.items()))
    return dict(zip(questions, found, strict=True))


async def _ask(
    channel: Callable[[str], Channel], addresses: Sequence[str], key: bytes, partition: int, question: Question, timeout_s: float
) -> Place:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    request = pb.LocateRequest(
        cluster_key=key,
        partition=partition,
        session=question.session,
        times_ms=struct.pack(f">{len(question.times_ms)}q", *question.times_ms),
        first_transaction_id=question.first,
        last_transaction_id=min(question.last, question.high_water_mark),
        max_bytes=question.max_bytes,
        bound=question.high_water_mark,
    )
    said: dict[str, WaltzError | str] = {}
    start = partition % max(1, len(addresses))
    while addresses:
        for address in (*addresses[start:], *addresses[:start]):
            left = deadline - loop.time()
            if left <= 0:
                break
            try:
                answer: pb.LocateResponse = await channel(address).call(LOCATE, request, timeout_s=min(left, CALL_TIMEOUT_S))
            except ClusterKeyMismatch:
                raise
            except WaltzError as error:
                said[address] = error
                continue
            if answer.replica_last_transaction_id >= question.high_water_mark:
                beyond = question.high_water_mark + 1
                positions = struct.unpack(f">{len(answer.transaction_ids) // 8}q", answer.transaction_ids)
                return Place(tuple(min(position, beyond) for position in positions), answer.bytes, answer.last_within)
            said[address] = f"holds transactions up to {answer.replica_last_transaction_id} only"
        trimmed = [error for error in said.values() if isinstance(error, OutOfRange) and error.first > question.first]
        if trimmed and len(trimmed) == len(addresses):
            raise trimmed[0]
        if loop.time() >= deadline:
            break
        await asyncio.sleep(min(PAUSE_S, max(0.0, deadline - loop.time())))
    told = "; ".join(f"{address}: {reason}" for address, reason in said.items()) or "no replica is registered"
    raise Unavailable(reason=f"no replica could locate it: partition={partition} {told}")
