"""Outboxes are counted one call at a time, and no principal keeps the others from their turn."""

from __future__ import annotations

import asyncio
from typing import Any

from waltz_log.core.metadata import OUTBOXES
from waltz_log.security.access import AccessControl
from waltz_log.security.callers import calling
from waltz_log.security.identity import Identity, Role
from waltz_log.server.identities.client_ids import ClientIds
from waltz_log.server.identities.outbox_records import OutboxRecords
from waltz_log.testing.virtual_time import run_in_virtual_time

READ_S = 0.05


class SlowCoordinator:
    async def children(self, path: str) -> list[str]:
        assert path == OUTBOXES
        await asyncio.sleep(READ_S)
        return []


async def _count(records: OutboxRecords, name: str) -> float:
    with calling(Identity(f"spiffe://waltz/application/{name}", frozenset({Role.APPLICATION}))):
        await records._expect_room()
    return asyncio.get_running_loop().time()


def test_a_principal_with_many_new_outboxes_delays_another_by_two_counts_at_most() -> None:
    async def main() -> tuple[float, float]:
        coordinator: Any = SlowCoordinator()
        access = AccessControl(enforced=True)
        records = OutboxRecords(coordinator, access, ClientIds(coordinator, coordinator, access))
        many = [asyncio.ensure_future(_count(records, "many")) for _ in range(500)]
        await asyncio.sleep(0)
        return await _count(records, "other"), max(await asyncio.gather(*many))

    other_s, last_s = run_in_virtual_time(main())
    assert other_s < 3.5 * READ_S
    assert last_s > 500 * READ_S, "one after the other"
