"""Repairs what says who clients are: the counter of client ids, the key of their tickets, and records of outboxes that cannot be parsed.

The counter is set above every id that a storage node knows to be reserved. A new key makes all earlier tickets void: outboxes get new ones for their
records, and other clients with TLS connect again. A record that cannot be parsed is removed: its outbox refuses to continue, as after every loss of
its record, and keeps its intents.
"""

from __future__ import annotations

from typing import Final

from waltz_log.coordination.client_ids import keep_client_ids, set_client_ids, set_ticket_key
from waltz_log.coordination.entries import UNREADABLE, why_unreadable
from waltz_log.core.client_ids import CLIENT_ID_MAX, parse_counter
from waltz_log.core.metadata import CLIENT_IDS, OUTBOXES
from waltz_log.core.outbox_record import OutboxRecord
from waltz_log.core.ports import Coordinator, Network
from waltz_log.security.tickets import TICKET_KEY, TicketKey

__all__ = ["repair_identities"]

SKIPPED: Final = 1_000_000
"""The counter continues above what storage nodes know by so many ids: ten of the largest blocks."""


async def repair_identities(coordinator: Coordinator, network: Network, cluster_key: bytes, secret: bytes, *, dry_run: bool = False) -> list[str]:
    """One sentence for each thing that is wrong and, without `dry_run`, is repaired now. `secret`: random bytes for a new key. Raises `Unavailable`
    if no majority of the storage nodes answers."""
    found = await _repair_counter(coordinator, network, cluster_key, dry_run=dry_run)
    key = await coordinator.get(TICKET_KEY, latest=True)
    if key is not None and TicketKey.from_bytes(key.data) is None:
        found.append(f"{TICKET_KEY} is unreadable; a new key voids the tickets of all clients: restart the log servers")
        if not dry_run:
            await set_ticket_key(coordinator, TicketKey(secret))
    for name in await coordinator.children(OUTBOXES, latest=True):
        path = f"{OUTBOXES}/{name}"
        record = await coordinator.get(path, latest=True)
        reason = None if record is None else _unreadable(record.data)
        if record is not None and reason is not None and (dry_run or await coordinator.delete(path, record.version)):
            found.append(f"{path} is removed: {reason}")
    return found


async def _repair_counter(coordinator: Coordinator, network: Network, cluster_key: bytes, *, dry_run: bool) -> list[str]:
    node = await coordinator.get(CLIENT_IDS, latest=True)
    counter = 0 if node is None else parse_counter(node.data)
    kept = await keep_client_ids(coordinator, network, cluster_key, 0)
    if counter is not None and kept <= counter < CLIENT_ID_MAX:
        return []
    # A counter at its end, with few ids reserved, was set there by hand.
    last = min(CLIENT_ID_MAX, kept + SKIPPED)
    if not dry_run:
        await set_client_ids(coordinator, last)
    state = "unreadable" if counter is None else f"at {counter}"
    return [f"{CLIENT_IDS} is {state}, and storage nodes know {kept} to be reserved; it continues above {last}"]


def _unreadable(data: bytes) -> str | None:
    try:
        OutboxRecord.from_bytes(data)
    except UNREADABLE as error:
        return why_unreadable(error)
    return None
