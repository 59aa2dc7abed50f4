"""The traced appends among committed transactions, as the owners of their partitions remember them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import iter_unpack
from typing import NamedTuple

from waltz_log.client.owners.owners import Owners
from waltz_log.core.formats.traces import CONTEXT_BYTES
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import TRACES

__all__ = ["TracedTransaction", "recent_traces"]


class TracedTransaction(NamedTuple):
    partition: int
    transaction_id: int
    context: bytes
    """For the span of its append (`core.formats.traces`)."""


async def recent_traces(
    owners: Owners, ranges: Mapping[int, tuple[int, int]], count_max: int, principal: str, timeout_s: float
) -> list[TracedTransaction]:
    """`ranges`: first and last id by partition; `count_max`: of each. An owner that does not answer is left out: it remembers none."""

    async def of(partition: int, first: int, last: int) -> list[TracedTransaction]:
        address = owners.address(partition)
        if address is None:
            return []
        request = pb.TracesRequest(
            cluster_key=owners.parameters.key.bytes,
            partition=partition,
            first_transaction_id=first,
            last_transaction_id=last,
            count_max=count_max,
            principal=principal,
        )
        try:
            answer: pb.TracesResponse = await owners.call_channel(address).call(TRACES, request, timeout_s=timeout_s)
        except WaltzError:
            return []
        contexts = (answer.contexts[at : at + CONTEXT_BYTES] for at in range(0, len(answer.contexts), CONTEXT_BYTES))
        return [
            TracedTransaction(partition, transaction_id, context)
            for (transaction_id,), context in zip(iter_unpack(">q", answer.transaction_ids), contexts, strict=True)
        ]

    found = await asyncio.gather(*(of(partition, first, last) for partition, (first, last) in ranges.items()))
    return [each for traced in found for each in traced]
