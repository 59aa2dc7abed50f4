"""Where a time is in a partition: the owner knows what is committed, and a replica that holds all of it knows the times."""

from __future__ import annotations

from waltz_log.client.owners.owners import Owners
from waltz_log.transport.locating import Question, locate

__all__ = ["position_at"]


async def position_at(owners: Owners, partition: int, time_ms: int, timeout_s: float) -> int:
    """The id of the first transaction that was appended at `time_ms` or later; the high-water mark + 1 if none is committed yet. Raises
    `Unavailable` if no owner or no replica answers in time."""
    bound = await owners.bound(partition, timeout_s)
    if bound.high_water_mark < bound.first_transaction_id:
        return bound.high_water_mark + 1
    question = Question(bound.session, bound.high_water_mark, times_ms=(time_ms,))
    addresses = {partition: owners.replica_addresses(partition)}
    found = await locate(owners.call_channel, addresses, owners.parameters.key.bytes, {partition: question}, timeout_s)
    return found[partition].positions[0]
