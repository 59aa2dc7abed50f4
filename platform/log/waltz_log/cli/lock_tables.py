"""What log servers report of the lock tables of the partitions that they own. They answer operators alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any  # JSON values

from waltz_log.client.owners.owners import Owners
from waltz_log.core.status.server_statistics import LockTableStatistics, OpenPartitionStatistics, ServerStatistics
from waltz_log.errors import WaltzError
from waltz_log.statistics import from_json
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import SERVER_STATUS

__all__ = ["lock_tables"]


async def lock_tables(owners: Owners, timeout_s: float) -> dict[int, LockTableStatistics]:
    """By partition; those of servers that do not answer are missing. Raises `PermissionDenied`."""
    answers = await asyncio.gather(*(_asked(owners, address, timeout_s) for address in owners.server_addresses()))
    return {number: each.locks for answer in answers for number, each in answer.partitions.items() if isinstance(each, OpenPartitionStatistics)}


async def _asked(owners: Owners, address: str, timeout_s: float) -> ServerStatistics:
    found: dict[str, Any] = {}
    try:
        found = json.loads((await owners.call_channel(address).call(SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=timeout_s)).json)
    except WaltzError as error:
        if not error.retriable:
            raise
    return from_json(ServerStatistics, found, unknown="ignore", missing="empty")
