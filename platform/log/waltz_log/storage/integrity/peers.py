"""Reads a range from the other replicas of a partition, as the source of a repair.

Knows no coordinator: the process that starts the node passes a function that finds the peers. Every read names the session in which this replica is
clean, so that a peer of an older session, whose tail may hold other transactions under the same ids, refuses (`SessionTooOld`). Every block is
verified, and one that is not the next of the range is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias
from uuid import UUID

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import verify_records
from waltz_log.core.ports import Network
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import ProtocolViolation, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import block_of

__all__ = ["FindPeers", "PeerReplicas"]

log = get_logger(__name__)

FindPeers: TypeAlias = Callable[[int], Awaitable[Sequence[str]]]
"""Returns the known addresses of the nodes that hold the other replicas of a partition."""

BLOCK_BYTES = 256 * 1024


class PeerReplicas:
    def __init__(self, network: Network, find: FindPeers) -> None:
        self._network = network
        self._find = find

    async def read(self, key: UUID, partition: int, session: int, first: int, last: int) -> AsyncGenerator[Block, None]:
        """All of the range, in order, from one peer or from several in turn. Raises `Unavailable` with the answer of each peer if they do not have
        all of it; blocks returned before that are valid."""
        refusals: list[str] = []
        for address in await self._find(partition):
            try:
                async for block in self._read_one(address, key, partition, session, first, last):
                    yield block
                    first = block.last_transaction_id + 1
                if first > last:
                    return
                refusals.append(f"{address}: ends at {first - 1}")
            except WaltzError as error:
                log.warning("peer could not repair a range", partition=partition, peer=address, transaction_id=first, error=str(error))
                refusals.append(f"{address}: {error}")
        raise Unavailable(reason=f"no peer serves partition={partition} ids={first}..{last} session={session}: {'; '.join(refusals) or 'none known'}")

    async def _read_one(self, address: str, key: UUID, partition: int, session: int, first: int, last: int) -> AsyncGenerator[Block, None]:
        request = pb.ReadRequest(
            cluster_key=key.bytes,
            partition=partition,
            session=session,
            fence=-1,
            first_transaction_id=first,
            last_transaction_id=last,
            max_bytes=BLOCK_BYTES,
            principal=CLUSTER_PRINCIPAL,
        )
        channel = self._network.connect(address)
        try:
            stream = channel.read(methods.READ, request)
            try:
                while (answer := await stream.receive()) is not None:
                    for got in answer.blocks:
                        block = block_of(got)
                        if block.first_transaction_id != first or not block.count or block.last_transaction_id > last:
                            ids = f"{block.first_transaction_id}..{block.last_transaction_id}"
                            raise ProtocolViolation(reason=f"peer sent ids={ids} asked={first}..{last}")
                        verify_records(block.records, block.lengths, first_transaction_id=first, partition=partition, where=f"block from {address}")
                        yield block
                        first = block.last_transaction_id + 1
            finally:
                await stream.cancel()
        finally:
            await channel.close()
