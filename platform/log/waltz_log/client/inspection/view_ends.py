"""Asks storage nodes where their compacted views of partitions end. Each has built its own, so each may end elsewhere, and soon further on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from waltz_log.core.ports import Channel
from waltz_log.errors import ClusterKeyMismatch, NotAllowed, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import READ_VIEW

__all__ = ["view_ends"]

CALL_TIMEOUT_S = 2.0
"""One replica's time to answer; one that does not is left out."""

BEYOND = 2**62
"""A first id that no view has a record above: the page says where the view ends and nothing else."""


async def view_ends(
    channel: Callable[[str], Channel],
    replicas: Mapping[int, Sequence[str]],
    key: bytes,
    sessions: Mapping[int, int],
    principal: str,
    timeout_s: float,
) -> dict[int, dict[str, int]]:
    """By partition and address, the id at which the log continues after the view. Replicas without a view are left out. Raises `NotAllowed`,
    `ClusterKeyMismatch`."""

    async def of(partition: int, session: int) -> dict[str, int]:
        addresses = replicas.get(partition, ())
        about = {"cluster_key": key, "partition": partition, "session": session, "principal": principal}
        request = pb.ReadViewRequest(**about, first_transaction_id=BEYOND, max_bytes=1, pages_max=1)  # type: ignore[arg-type]
        ends = await asyncio.gather(*(_end(channel(address), request, min(CALL_TIMEOUT_S, timeout_s)) for address in addresses))
        return {address: end for address, end in zip(addresses, ends, strict=True) if end is not None}

    found = await asyncio.gather(*(of(partition, session) for partition, session in sessions.items()))
    return dict(zip(sessions, found, strict=True))


async def _end(channel: Channel, request: pb.ReadViewRequest, timeout_s: float) -> int | None:
    try:
        stream = channel.read(READ_VIEW, request)
        try:
            async with asyncio.timeout(timeout_s):
                page: pb.ReadViewResponse | None = await stream.receive()
        except TimeoutError:
            raise Unavailable(reason="no answer in time") from None
        finally:
            await stream.cancel()
    except (NotAllowed, ClusterKeyMismatch):
        raise
    except WaltzError:
        return None
    return None if page is None else page.bound
