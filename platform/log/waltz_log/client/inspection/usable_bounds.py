"""How far the partitions are committed of which this client may do something, as their owners know it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from waltz_log.client.owners.owners import Owners
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND

__all__ = ["bounds_with_upkeep", "usable_bounds"]

CALL_TIMEOUT_S: Final = 2.0
"""One server's time to answer. All are asked at once."""

UPKEEP_MAX: Final = 64
"""Partitions whose upkeep one request asks for."""


async def usable_bounds(owners: Owners) -> dict[int, pb.Bound]:
    """By partition. Those of owners that do not answer are missing, and those of which this client may do nothing."""
    request = pb.BoundRequest(cluster_key=owners.parameters.key.bytes)
    answers = await asyncio.gather(*(_asked(owners, address, request) for address in owners.server_addresses()))
    return {bound.partition: bound for answer in answers for bound in answer}


async def bounds_with_upkeep(owners: Owners, partitions: Sequence[int]) -> dict[int, pb.Bound]:
    """The same of these partitions, of which this client may do something, with what their owners last did for their upkeep."""
    owned: dict[str, list[int]] = {}
    for partition in partitions:
        address = owners.address(partition)
        if address is not None:
            owned.setdefault(address, []).append(partition)

    def requests() -> Iterator[tuple[str, pb.BoundRequest]]:
        for address, numbers in owned.items():
            for at in range(0, len(numbers), UPKEEP_MAX):
                some = numbers[at : at + UPKEEP_MAX]
                yield address, pb.BoundRequest(partitions=some, cluster_key=owners.parameters.key.bytes, upkeep=True)

    answers = await asyncio.gather(*(_asked(owners, address, request) for address, request in requests()))
    return {bound.partition: bound for answer in answers for bound in answer}


async def _asked(owners: Owners, address: str, request: pb.BoundRequest) -> Sequence[pb.Bound]:
    try:
        return (await owners.call_channel(address).call(BOUND, request, timeout_s=CALL_TIMEOUT_S)).bounds
    except WaltzError as error:
        if not error.retriable:
            raise
        return ()
