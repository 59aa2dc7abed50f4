"""Asks the log what became of the attempts of a partition.

The lane's producer is mounted with an epoch above every earlier one, so nothing of an earlier process can still come. The answer is final where the
owner says so: our mount is the newest and ready, and the log reaches back to when the oldest attempt was sent. After a long time away there is
much to search; what was searched is not searched again, whatever breaks meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from waltz_log.client.outbox.ledger import Attempt
from waltz_log.client.owners import Owners
from waltz_log.client.producer import SEQUENCE_MAX
from waltz_log.client.search import Search
from waltz_log.errors import ClusterKeyMismatch, InvalidRequest, NotOwner, WaltzError
from waltz_log.rpc import waltz_pb2 as pb
from waltz_log.rpc.methods import BOUND, RESOLVE

__all__ = ["Settled", "settle"]

PAUSE_S = 0.05
"""Between two questions to an owner that is not ready to answer for good."""


class Mounting(Protocol):
    partition: int

    async def mounted(self) -> None: ...


class Settled(NamedTuple):
    """`committed`: transaction id by sequence, of everything this client has in the log since the oldest attempt. Not `final`: the log was trimmed
    beyond that point, and what is not in `committed` may have been in it."""

    committed: dict[int, int]
    final: bool


async def settle(lane: Mounting, owners: Owners, attempts: list[Attempt], client_id: int, timeout_s: float) -> Settled:
    """Waits as long as it takes. Raises what no waiting mends."""
    first, since = min(each.first_sequence for each in attempts), min(each.since for each in attempts)
    search = Search(lane.partition, client_id, first, SEQUENCE_MAX, since, owners.parameters.key.bytes)
    while True:
        await lane.mounted()
        try:
            address = await owners.owner(lane.partition, timeout_s)
            if not search.take(await owners.call_channel(address).call(RESOLVE, search.question(timeout_s), timeout_s=timeout_s)):
                continue
            if search.final or await _trimmed(lane.partition, owners, address, since, timeout_s):
                committed = {start + offset: transaction_id + offset for start, count, transaction_id in search.committed for offset in range(count)}
                return Settled(committed, search.final)
        except (ClusterKeyMismatch, InvalidRequest):
            raise
        except WaltzError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(PAUSE_S)


async def _trimmed(partition: int, owners: Owners, address: str, since: int, timeout_s: float) -> bool:
    """Whether the log begins after `since`, so that no answer can be final."""
    request = pb.BoundRequest(partitions=[partition], cluster_key=owners.parameters.key.bytes)
    answer: pb.BoundResponse = await owners.call_channel(address).call(BOUND, request, timeout_s=timeout_s)
    if len(answer.bounds) != 1:
        raise NotOwner(partition=partition, reason=f"{address} does not serve it")
    return bool(answer.bounds[0].first_transaction_id > since + 1)
