"""Fetches transactions by id from the owner of a partition (Client-Server Communication, Transaction Data Request).

Each id is asked for once, in rising order and as many as fit in one request; an answer holds the first of them, and the next request continues
after them. Everything is checked as in a feed, and an answer that is damaged is requested again (docs/decisions, 32).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from operator import index

from waltz_log.client.feed.decode_feed import decode_block
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import Transaction
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import CorruptData, InvalidRequest, ProtocolViolation, Unavailable
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import TRANSACTIONS

__all__ = ["checked_ids", "fetch_transactions"]

ID_MAX = 2**63 - 1

IDS_A_REQUEST = 4096

IDS_MAX = 1_000_000
"""For one call, which holds all of them in memory."""

BYTES_MAX = 256 * 1024 * 1024
"""Data of one call, which holds all of it in memory."""

TRIES_MAX = 3
"""How many damaged answers in a row end a call, as in a feed: data that was damaged in transit arrives intact the next time, and data that is
damaged repeatedly is damaged at its source."""


def checked_ids(transaction_ids: Iterable[int]) -> list[int]:
    """What a caller asks for. Any whole number is accepted. Raises `InvalidRequest`."""
    found: list[int] = []
    for each in transaction_ids:
        try:
            number = index(each)
        except TypeError:
            raise InvalidRequest(reason=f"a transaction id must be a whole number: {each!r}") from None
        if isinstance(each, bool) or not 0 <= number <= ID_MAX:
            raise InvalidRequest(reason=f"no such transaction id: {each!r}")
        if len(found) == IDS_MAX:
            raise InvalidRequest(reason=f"more than {IDS_MAX} transactions asked for in one call: ask for fewer at a time")
        found.append(number)
    return found


async def fetch_transactions(
    owners: Owners, partition: int, transaction_ids: Sequence[int], timeout_s: float, topic: TopicEpoch | None = None
) -> list[Transaction]:
    """The transactions in the order asked for. `topic`: which the partition must belong to, else `TopicDeleted`. Raises `OutOfRange`, `NotAllowed`,
    `InvalidRequest` if they are larger than `BYTES_MAX`, `CorruptData` and `ProtocolViolation` after `TRIES_MAX` damaged answers in a row, and
    after `timeout_s` the last error of the owners, or `Unavailable`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    wanted = sorted(set(transaction_ids))
    found: dict[int, Transaction] = {}
    size = at = damaged = 0
    while at < len(wanted):
        left = deadline - loop.time()
        if left <= 0:
            raise Unavailable(reason=f"not fetched within {timeout_s:g} s: partition={partition} fetched={at} of {len(wanted)}")
        asked = wanted[at : at + IDS_A_REQUEST]
        request = pb.TransactionRequest(
            partition=partition,
            cluster_key=owners.parameters.key.bytes,
            principal=owners.principal,
            transaction_ids=struct.pack(f">{len(asked)}q", *asked),
            topic="" if topic is None else topic.name,
            topic_epoch=0 if topic is None else topic.epoch,
        )
        answer: pb.TransactionResponse = await owners.ask(partition, TRANSACTIONS, request, timeout_s=left)
        try:
            transactions = _decode(answer, partition, asked)
        except (CorruptData, ProtocolViolation):
            damaged += 1
            if damaged == TRIES_MAX:
                raise
            continue
        damaged = 0
        size += sum(len(each.data) for each in transactions)
        if size > BYTES_MAX:
            raise InvalidRequest(reason=f"the requested transactions have more than {BYTES_MAX} bytes: ask for fewer at a time")
        found.update((each.transaction_id, each) for each in transactions)
        at += len(transactions)
    return [found[each] for each in transaction_ids]


def _decode(answer: pb.TransactionResponse, partition: int, asked: Sequence[int]) -> list[Transaction]:
    """The first of what was asked for. Raises `CorruptData`, `ProtocolViolation`."""
    transactions = [each for block in answer.blocks for each in decode_block(block, partition)]
    if not transactions or [each.transaction_id for each in transactions] != asked[: len(transactions)]:
        raise ProtocolViolation(reason=f"not the transactions asked for: partition={partition} first={asked[0]} got={len(transactions)}")
    return transactions
