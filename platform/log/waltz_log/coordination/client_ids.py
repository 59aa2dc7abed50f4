"""The counter of client ids and the key of their tickets in a coordinator: read as hostile input, written by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from waltz_log.coordination.entries import parsed, read_entry
from waltz_log.core.client_ids import CLIENT_ID_MAX, format_counter, parse_counter
from waltz_log.core.metadata import CLIENT_IDS, REPLICAS, STORAGE_NODES, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.tickets import TICKET_KEY, TicketKey
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import KEEP_CLIENT_IDS

__all__ = ["Refused", "keep_client_ids", "read_ticket_key", "reserve_client_ids", "set_client_ids", "set_ticket_key"]


log = get_logger(__name__)

KEEP_TIMEOUT_S: Final = 2.0
"""For one storage node. A majority suffices, so a node that hangs delays only the next block."""


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """No ids can be reserved until an operator has repaired the counter."""

    reason: str


async def reserve_client_ids(coordinator: Coordinator, count: int, kept: int) -> tuple[int, int]:
    """The first and the last id of a block that no other server has, and had. `kept`: the end of the newest block that storage nodes know of, read
    before this call. Raises `Refused`, `ClusterUnavailable`."""
    while True:
        node = await coordinator.get(CLIENT_IDS, latest=True)
        before = 0 if node is None else parse_counter(node.data)
        if before is None:
            raise Refused("the counter of client ids is unreadable")
        if before < kept:
            raise Refused(f"the counter of client ids was set back: counter={before} reserved={kept}")
        last = min(CLIENT_ID_MAX, before + count)
        if last <= before:
            raise Refused("all client ids are used up")
        if node is None:
            await coordinator.create(CLIENT_IDS, b"0")
        elif await coordinator.set(CLIENT_IDS, format_counter(last), node.version) is not None:
            return before + 1, last


async def keep_client_ids(coordinator: Coordinator, network: Network, cluster_key: bytes, last: int) -> int:
    """Keeps the end of a block on a majority of the storage nodes that hold replicas; returns the highest that they had. `last` 0 keeps nothing.
    Raises `Unavailable`."""
    node = await coordinator.get(REPLICAS)
    held = {} if node is None else parsed(REPLICAS, node, ReplicaAssignment.from_bytes).replicas
    names = sorted({name for replicas in held.values() for name in replicas})
    request = pb.KeepClientIdsRequest(cluster_key=cluster_key, last=last)
    answers = await asyncio.gather(*(_keep_on(coordinator, network, name, request) for name in names))
    found = [each for each in answers if each is not None]
    if len(found) <= len(names) // 2:
        raise Unavailable(reason=f"client ids need a majority of the storage nodes: answered={len(found)} nodes={len(names)}")
    return max(found)


async def _keep_on(coordinator: Coordinator, network: Network, name: str, request: pb.KeepClientIdsRequest) -> int | None:
    """None: it did not answer."""
    try:
        entry = await read_entry(coordinator, f"{STORAGE_NODES}/{name}", StorageNodeEntry.from_bytes)
        if entry is None:
            return None
        channel = network.connect(entry.address_for(0))
        try:
            return int((await channel.call(KEEP_CLIENT_IDS, request, timeout_s=KEEP_TIMEOUT_S)).last)
        finally:
            await channel.close()
    except WaltzError as error:
        log.debug("storage node keeps no client ids", node=name, reason=str(error))
        return None


async def set_client_ids(coordinator: Coordinator, last: int) -> None:
    """Sets the counter, whatever is there. While no server runs."""
    if not await coordinator.create(CLIENT_IDS, format_counter(last)):
        await coordinator.set(CLIENT_IDS, format_counter(last), -1)


async def read_ticket_key(coordinator: Coordinator, secret: Callable[[], bytes]) -> TicketKey | None:
    """The cluster's key, which this call makes from `secret` if there is none. None: what is there is no key."""
    while True:
        node = await coordinator.get(TICKET_KEY, latest=True)
        if node is not None:
            return TicketKey.from_bytes(node.data)
        await coordinator.create(TICKET_KEY, TicketKey(secret()).to_bytes())


async def set_ticket_key(coordinator: Coordinator, key: TicketKey) -> None:
    """Replaces the key: all tickets are void from the next start of each server on."""
    if not await coordinator.create(TICKET_KEY, key.to_bytes()):
        await coordinator.set(TICKET_KEY, key.to_bytes(), -1)
